package reorder

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
)

// model is what the documentation of the package says, slowly, on ids that never begin again.
type model struct {
	per, window         int64
	base, newest, first int64
	given, begun        bool
	open                map[int64]map[int64]bool
	left                []int64 // ids, in order
	had                 map[int64]map[int64]bool
	late, dup, lost     uint64
}

func (m *model) leave(id int64) {
	for ; m.base < id; m.base++ {
		if x := m.open[m.base]; x != nil {
			m.left, m.had[m.base] = append(m.left, m.base), x
			delete(m.open, m.base)
		} else if m.base >= m.first {
			m.lost++
		}
	}
	m.given = true
}

func (m *model) packet(id, place int64) {
	if !m.begun {
		m.begun = true
		m.base, m.newest, m.first = id, id, id
	}
	if id > m.newest {
		m.newest = id
		if low := m.newest - m.window + 1; low > m.base {
			m.leave(low)
		}
	}
	m.leaveWhole()
	if id < m.base {
		if m.given || id <= m.newest-m.window {
			m.late++
			return
		}
		m.base, m.first = id, id
	}
	if m.open[id] == nil {
		m.open[id] = map[int64]bool{}
	}
	if m.open[id][place] {
		m.dup++
		return
	}
	m.open[id][place] = true
	m.leaveWhole()
}

func (m *model) leaveWhole() {
	for int64(len(m.open[m.base])) == m.per {
		m.leave(m.base + 1)
	}
}

func (m *model) end() {
	for k := m.base; len(m.open) > 0; k++ {
		if m.open[k] != nil {
			m.leave(k + 1)
		}
	}
}

// shape is the numbers of a plan: the widths of the two fields, batch 0 for none, and the packets
// of a batch.
type shape struct {
	width, batch, window int
	per                  int64
}

// the sequence number in the lower bits of the first 4 bytes, the number of the batch in those of
// the others
const modelHeader = 8

func (x shape) plan(pool *mem.Pool) Plan {
	p := Plan{Name: "p", Flows: []uint32{7}, Sequence: bits32(x.width), PerBatch: int(x.per), Offset: modelHeader,
		Window: x.window, Pool: pool}
	if x.batch > 0 {
		p.Batch = Field{64 - x.batch, x.batch}
	}
	return p
}

// stream is packets of a plan in the order in which they come, what the plan makes of them as the
// model says, and the numbers of batches until they begin again.
func (x shape) stream(r *rand.Rand) (packets []packet, m *model, cycle int64) {
	window := int64(x.window)
	cycle = max(1<<x.width/x.per, 1)
	all, unit := int64(1)<<x.width, x.per // positions until numbers begin again, and those of a batch
	if x.batch > 0 {
		cycle = 1 << x.batch
		all, unit = cycle, 1
	}
	m = &model{per: x.per, window: window, open: map[int64]map[int64]bool{}, had: map[int64]map[int64]bool{}}
	n := min(int64(r.IntN(20)+1)*x.per, 800)
	start := r.Int64N(4*cycle) * x.per
	order := make([]int64, 0, n)
	when := map[int64]float64{}
	jitter, lossy := r.Float64()*float64(min(x.per*window, all/2*max(x.per/unit, 1))), r.Float64()*0.2
	if r.IntN(3) == 0 {
		jitter, lossy = min(jitter, 2.5), 0 // neighbours
	}
	for k := range n {
		if r.Float64() < lossy {
			continue
		}
		order = append(order, start+k)
		when[start+k] = float64(k) + jitter*r.Float64()
	}
	slices.SortFunc(order, func(a, b int64) int {
		if when[a] < when[b] {
			return -1
		}
		return 1
	})
	newest := int64(0) // position
	for _, k := range order {
		id, place := k/x.per, k%x.per
		at := k
		if x.batch > 0 {
			at = id
		}
		if m.begun && (id > m.newest+window || id < m.base-behind*window || 2*(newest-at) >= all ||
			2*(at-newest) > all) {
			continue // a stray, or more than the numbers can tell: as if it were lost
		}
		if !m.begun {
			newest = at
		}
		newest = max(newest, at)
		for range 1 + r.IntN(20)/19 {
			m.packet(id, place)
			head := binary.BigEndian.AppendUint32(nil, uint32(k)&(1<<x.width-1)|uint32(r.Uint64())&^(1<<x.width-1))
			head = binary.BigEndian.AppendUint32(head, uint32(id)&(1<<x.batch-1)|uint32(r.Uint64())&^(1<<x.batch-1))
			packets = append(packets, packet{flow: 7, data: append(head, payloadOf(id, int(place))...)})
		}
	}
	m.end()
	return packets, m, cycle
}

// compare says where batches and counts are not those of the model.
func (m *model) compare(t *testing.T, name string, all []result, cycle int64, c Counts) {
	t.Helper()
	if len(all) != len(m.left) {
		t.Fatalf("%s: %d batches, want %d: %+v", name, len(all), len(m.left), c)
	}
	offset := int64(0) // the id of the first packet is its number
	for i, x := range all {
		if i == 0 {
			offset = m.left[0] - x.ID
		}
		if want := m.left[i]; x.ID+offset != want || offset%cycle != 0 {
			t.Fatalf("%s: batch %d has id %d + %d, want %d (%d numbers of batches)", name, i, x.ID, offset, want, cycle)
		}
		had := m.had[m.left[i]]
		if x.Packets != len(had) || x.Whole() != (int64(len(had)) == m.per) || x.Place != 12 ||
			len(x.data) != int(m.per)*12 {
			t.Fatalf("%s: batch %d: %+v, want %d packets", name, i, x.Batch, len(had))
		}
		for place := range m.per {
			want := make([]byte, 12)
			if had[place] {
				want = payloadOf(m.left[i], int(place))
			}
			if x.Has(int(place)) != had[place] || !bytes.Equal(x.data[place*12:][:12], want) {
				t.Fatalf("%s: batch %d, place %d: %x, want %x", name, i, place, x.data[place*12:][:12], want)
			}
		}
	}
	if c.Drops[engine.DropLate] != m.late || c.Drops[engine.DropDuplicate] != m.dup ||
		c.Drops.Total() != m.late+m.dup || c.Lost != m.lost || c.Whole+c.Partial != uint64(len(all)) {
		t.Fatalf("%s: %+v, want %d late, %d duplicate, %d lost", name, c, m.late, m.dup, m.lost)
	}
}

// shapes calls f for each shape that a plan takes with fields of up to 8 bits, with windows of
// several sizes, and for some with longer fields. It fails where a plan is taken, or refused, that
// should not be.
func shapes(t *testing.T, f func(x shape)) {
	pool := newPool(t, "checked", 12<<12, 1)
	for width := 1; width <= 8; width++ {
		for shift := 0; shift <= width; shift++ {
			for batch := 0; batch <= 8; batch++ {
				x := shape{width: width, batch: batch, per: 1 << shift}
				p := x.plan(pool)
				took := p.Check() == nil
				deciding := width
				if batch > 0 {
					deciding = batch
				}
				if took != (deciding > 1) {
					t.Fatalf("%+v: taken: %v", x, took)
				}
				if !took {
					continue
				}
				windows := []int{1, 2, 3, DefaultWindow, p.Reach()}
				for i, w := range windows {
					if x.window = w; w <= p.Reach() && !slices.Contains(windows[:i], w) {
						f(x)
					}
				}
			}
		}
	}
	for _, x := range []shape{{12, 0, 3, 16}, {32, 0, 4, 128}, {16, 16, 6, 32}, {32, 32, 1, 8}} {
		f(x)
	}
}

// Random streams with losses, duplicates and any order of arrival that the numbers can tell give
// what the model gives: the same batches in the same order, with the same packets in the same
// places, zeros elsewhere, and the same counts. So it is with all widths of up to 8 bits.
func TestModel(t *testing.T) {
	seeds := 2
	if testing.Short() {
		seeds = 1
	}
	n, packets, partial, late := 0, 0, 0, uint64(0)
	f := newFeed(t, 64)
	shapes(t, func(x shape) {
		for seed := range seeds {
			r := rand.New(rand.NewPCG(uint64(seed), uint64(x.width<<16|x.batch<<8)+uint64(x.per)))
			p, m, cycle := x.stream(r)
			f.queued, f.ended = nil, nil
			pool, err := mem.NewPool(mem.PoolOptions{Name: "batches", SlotSize: int(x.per) * 12, Slots: 300,
				CacheSlots: 1})
			if err != nil {
				t.Fatal(err)
			}
			s, err := New(f, engine.StageSpec{Queue: "q"}, x.plan(pool))
			if err != nil {
				t.Fatal(err)
			}
			var all []result
			for len(p) > 0 {
				k := min(1+r.IntN(64), len(p))
				f.queued, p = append(f.queued, p[:k]...), p[k:]
				out, _, err := drain(t, s, 1+r.IntN(8))
				if all = append(all, out...); err != nil {
					t.Fatal(err)
				}
				packets += k
			}
			f.ended = engine.ErrClosed
			out, _, err := drain(t, s, 4)
			if all = append(all, out...); !errors.Is(err, engine.ErrClosed) {
				t.Fatal(err)
			}
			m.compare(t, fmt.Sprintf("%+v, seed %d", x, seed), all, cycle, s.Plans()[0])
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			shutPool(t, pool)
			n, partial, late = n+1, partial+int(s.Plans()[0].Partial), late+m.late
		}
	})
	t.Logf("%d streams, %d packets, %d partial batches, %d late packets", n, packets, partial, late)
	if partial == 0 || late == 0 {
		t.Error("no partial batch, or no late packet")
	}
}

// So it is when an accelerator reads the numbers and moves the bytes.
func TestModelOnDevice(t *testing.T) {
	c := newCard(t, "host")
	q := newMixed(c, rand.New(rand.NewPCG(1, 1)), mem.Device)
	n, packets := 0, 0
	shapes(t, func(x shape) {
		if n++; n%7 != 0 {
			return
		}
		r := rand.New(rand.NewPCG(uint64(n), 77))
		p, m, cycle := x.stream(r)
		q.queued, q.ended, q.burst = p, engine.ErrClosed, 1+r.IntN(100)
		plan := x.plan(c.pool("batches", mem.Device, (int(x.per)*12+7)&^7, 400))
		plan.Executor = GPU
		s, err := New(q, engine.StageSpec{Queue: "q"}, plan)
		if err != nil {
			t.Fatal(err)
		}
		all, _ := c.all(s, 1+r.IntN(8))
		m.compare(t, fmt.Sprintf("%+v, seed %d", x, n), all, cycle, s.Plans()[0])
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		shutPool(t, plan.Pool)
		packets += len(p)
	})
	q.close()
	t.Logf("%d streams, %d packets", n/7, packets)
}
