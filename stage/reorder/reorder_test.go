package reorder

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/convert"
)

// feed is a queue that gives what a test puts into it.
type feed struct {
	t      *testing.T
	pool   *mem.Pool
	src    *burst.Source
	queued []packet
	ended  error
	cut    int // bytes of the first segment; 0: one segment
	waker  *engine.Waker
}

type packet struct {
	flow uint32
	data []byte
	time int64
}

func newPool(t *testing.T, name string, size, slots int) *mem.Pool {
	t.Helper()
	p, err := mem.NewPool(mem.PoolOptions{Name: name, SlotSize: size, Slots: slots, CacheSlots: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("slots that are not back: %v", err)
		}
	})
	return p
}

func newFeed(t *testing.T, size int) *feed {
	p := newPool(t, "packets", size, 512)
	return &feed{t: t, pool: p, src: burst.PoolSource(p)}
}

func (f *feed) TryRecv(b *burst.Burst) (int, error) {
	n := 0
	for len(f.queued) > 0 && b.Room() > 1 {
		x := f.queued[0]
		slot, err := f.pool.Get()
		if err != nil {
			break
		}
		copy(slot.Bytes(), x.data)
		h, off := slot.Handle(), f.pool.Offset(slot.Handle())
		first := uint32(len(x.data))
		if f.cut > 0 {
			first = min(first, uint32(f.cut))
		}
		i := b.Builder().Add(f.src, burst.Segment{Handle: h, Off: off, Len: first})
		if int(first) < len(x.data) {
			b.Builder().AddSegment(f.src, burst.Segment{Handle: burst.NoHandle, Off: off + uint64(first),
				Len: uint32(len(x.data)) - first})
		}
		b.Builder().SetFlow(i, x.flow)
		if x.time != 0 {
			b.Builder().SetReceived(i, 0, burst.HasTime, x.time)
		}
		f.queued = f.queued[1:]
		n++
	}
	if n == 0 {
		return 0, f.ended
	}
	return n, nil
}

func (f *feed) Arm(w *engine.Waker) bool { f.waker = w; return len(f.queued) > 0 || f.ended != nil }

// put queues a packet of flow 7 with a header of 8 bytes: the sequence number in the lower bits of
// the first 4, and payload.
func (f *feed) put(seq uint32, payload []byte) {
	f.queued = append(f.queued, packet{flow: 7, data: append(binary.BigEndian.AppendUint32(nil, seq),
		append([]byte("head"), payload...)...)})
}

// result is a batch that left.
type result struct {
	Batch
	data []byte
}

// drain receives all that there is, in bursts of so many packets, and releases it.
func drain(t *testing.T, s *Stage, room int) (out []result, passed [][]byte, err error) {
	t.Helper()
	b := burst.NewSegmented(room, 2*room)
	for {
		n, err := s.TryRecv(b)
		for i := range b.Len() {
			x := Of(b, i)
			if x == nil {
				whole := make([]byte, b.PacketLen(i))
				b.CopyTo(whole, i)
				passed = append(passed, whole)
				continue
			}
			r := result{*x, bytes.Clone(b.Bytes(i, 0))}
			r.Present = slices.Clone(x.Present)
			out = append(out, r)
		}
		b.Release()
		if n == 0 {
			return out, passed, err
		}
	}
}

func bits32(width int) Field { return Field{32 - width, width} }

// payloadOf is the payload of a packet in tests: it says which one it is.
func payloadOf(id int64, place int) []byte {
	p := binary.LittleEndian.AppendUint64(nil, uint64(id))
	return binary.LittleEndian.AppendUint32(p, uint32(place))
}

// Each order in which the packets of some batches can arrive gives them, whole and in order.
func TestPermutations(t *testing.T) {
	batches, per := int64(2), int64(4)
	if testing.Short() {
		batches, per = 3, 2
	}
	f := newFeed(t, 64)
	s, err := New(f, engine.StageSpec{}, Plan{Flows: []uint32{7}, Sequence: bits32(16), PerBatch: int(per), Offset: 8,
		Pool: newPool(t, "batches", 12*int(per), 16)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	round, base := int64(0), int64(-1)
	var try func(order []int64, left int)
	try = func(order []int64, left int) {
		if left > 0 {
			for i := range left {
				order[i], order[left-1] = order[left-1], order[i]
				try(order, left-1)
				order[i], order[left-1] = order[left-1], order[i]
			}
			return
		}
		for _, k := range order {
			f.put(uint32(round*batches*per+k)&0xffff, payloadOf(k/per, int(k%per)))
		}
		out, _, err := drain(t, s, 8)
		if err != nil || len(out) != int(batches) || base >= 0 && out[0].ID != base {
			t.Fatalf("%v: %v, %v", order, out, err)
		}
		for i, x := range out {
			if !x.Whole() || x.ID != out[0].ID+int64(i) {
				t.Fatalf("%v: %+v", order, x)
			}
			for k := range int(per) {
				if !bytes.Equal(x.data[12*k:][:12], payloadOf(int64(i), k)) {
					t.Fatalf("%v: batch %d, place %d: %x", order, i, k, x.data[12*k:][:12])
				}
			}
		}
		base = out[0].ID + batches
		round++
	}
	order := make([]int64, batches*per)
	orders := int64(1)
	for i := range order {
		order[i] = int64(i)
		orders *= int64(i + 1)
	}
	try(order, len(order))
	if c := s.Plans()[0]; round != orders || c.Whole != uint64(batches*orders) || c.Drops.Total() != 0 {
		t.Errorf("%d orders, %+v", round, c)
	}
}

// A field of 1 to 32 bits at any bit offset is the number that the bits are.
func TestField(t *testing.T) {
	p := make([]byte, 13)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	all := new(big.Int).SetBytes(p)
	for width := 1; width <= 32; width++ {
		for off := 0; off+width <= len(p)*8; off++ {
			f := Field{off, width}
			want := new(big.Int).Rsh(all, uint(len(p)*8-off-width))
			want.And(want, big.NewInt(1<<width-1))
			if got := f.read(p[:f.end()]); uint64(got) != want.Uint64() || f.end() > len(p) {
				t.Fatalf("%+v: %#x, want %#x", f, got, want)
			}
		}
	}
}

// A batch that waits for a packet leaves when its time has passed, also while nothing comes, and
// wakes the owner.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed(t, 64)
		s, err := New(f, engine.StageSpec{}, Plan{Flows: []uint32{7}, Sequence: bits32(16), PerBatch: 2, Offset: 8,
			Timeout: time.Second, Pool: newPool(t, "batches", 24, 16)})
		if err != nil {
			t.Fatal(err)
		}
		rx := engine.NewRx(s, engine.Batching{})
		b := burst.New(4)
		began := time.Now()
		f.put(4, payloadOf(2, 0))
		f.put(6, payloadOf(3, 0))
		f.put(7, payloadOf(3, 1))
		if err := rx.Recv(t.Context(), b); err != nil || time.Since(began) != time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		x, y := Of(b, 0), Of(b, 1)
		if b.Len() != 2 || x == nil || y == nil || x.ID != 2 || x.Packets != 1 || !x.TimedOut || !x.Has(0) ||
			x.Has(1) || y.ID != 3 || !y.Whole() || y.TimedOut {
			t.Errorf("%d: %+v, %+v", b.Len(), x, y)
		}
		if !bytes.Equal(b.Bytes(0, 0), append(payloadOf(2, 0), make([]byte, 12)...)) {
			t.Errorf("%x", b.Bytes(0, 0))
		}
		b.Release()
		if s.TryRecv(b); s.next != 0 {
			t.Errorf("a deadline is left: %d", s.next)
		}
		f.put(5, payloadOf(2, 1)) // too late now
		out, _, _ := drain(t, s, 4)
		if c := s.Plans()[0]; len(out) != 0 || c.TimedOut != 1 || c.Partial != 1 || c.Drops[engine.DropLate] != 1 {
			t.Errorf("%v, %+v", out, c)
		}
		s.Close()
	})
}

// Numbers that are far away are strays, until there are eight that belong together: then the window
// goes there.
func TestStrays(t *testing.T) {
	f := newFeed(t, 64)
	s, err := New(f, engine.StageSpec{}, Plan{Flows: []uint32{7}, Sequence: bits32(32), PerBatch: 2, Offset: 8,
		Pool: newPool(t, "batches", 24, 16)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for k := range uint32(20) { // each second one is garbage, and all batches are whole
		f.put(k, payloadOf(0, 0))
		f.put(1<<20+k*5000, payloadOf(0, 0))
	}
	out, _, _ := drain(t, s, 16)
	if c := s.Plans()[0]; len(out) != 10 || c.Whole != 10 || c.Drops[engine.DropStray] != 20 || c.Restarts != 0 {
		t.Fatalf("%d batches, %+v", len(out), c)
	}
	f.put(20, payloadOf(0, 0)) // open when the sender restarts
	for k := range uint32(20) {
		f.put(1<<31+k, payloadOf(0, 0))
	}
	out, _, _ = drain(t, s, 16)
	c := s.Plans()[0]
	if c.Drops[engine.DropStray] != 27 || c.Restarts != 1 || c.Partial != 2 || len(out) != 8 || out[0].ID != 10 ||
		out[1].ID != 1<<30+3 || c.Lost != 0 {
		t.Errorf("%d batches, %+v: %+v", len(out), c, out)
	}
	for k := range uint32(20) { // and back, to lower numbers
		f.put(k, payloadOf(0, 0))
	}
	out, _, _ = drain(t, s, 16)
	if len(out) != 7 || out[0].ID&(1<<31-1) != 3 || out[0].Packets != 1 || out[6].ID != out[0].ID+6 {
		t.Errorf("%+v, %+v", out, s.Plans()[0])
	}
}

// Packets of other flows pass, in their order; what is malformed is counted.
func TestOthers(t *testing.T) {
	f := newFeed(t, 64)
	s, err := New(f, engine.StageSpec{}, Plan{Name: "a", Flows: []uint32{7}, Sequence: bits32(16), PerBatch: 2,
		Offset: 8, Payload: 12, Pool: newPool(t, "a", 24, 2)},
		Plan{Name: "b", Flows: []uint32{8, 9}, Sequence: Field{0, 4}, Batch: Field{4, 2}, Offset: 1,
			Pool: newPool(t, "b", 64, 4), Missing: Drop})
	if err != nil {
		t.Fatal(err)
	}
	var want [][]byte
	for k := range 300 {
		p := fmt.Appendf(nil, "other %d", k)
		want = append(want, p)
		f.queued = append(f.queued, packet{flow: uint32(k % 3), data: p})
	}
	f.put(0, make([]byte, 13))                                          // too long
	f.queued = append(f.queued, packet{flow: 7, data: make([]byte, 7)}) // too short
	f.put(0, make([]byte, 5))                                           // short, and right
	f.put(1, payloadOf(0, 1))
	for k := range byte(4) { // 16 numbers of packets, 4 of batches
		f.queued = append(f.queued, packet{flow: 8 + uint32(k)&1, data: append([]byte{k << 4}, "0123456789abcdef"...)})
	}
	f.queued = append(f.queued, packet{flow: 9, data: []byte{0<<4 | 1<<2, 1}},
		packet{flow: 9, data: []byte{0<<4 | 1<<2, 1}})
	out, passed, err := drain(t, s, 7)
	if err != nil || len(out) != 2 || !slices.EqualFunc(passed, want, bytes.Equal) {
		t.Fatalf("%d batches, %d packets passed, %v", len(out), len(passed), err)
	}
	if x := out[0]; x.Plan != "a" || !x.Whole() || !bytes.Equal(x.data, append(make([]byte, 12), payloadOf(0, 1)...)) {
		t.Errorf("%+v", x)
	}
	if x := out[1]; x.Plan != "b" || !x.Whole() || string(x.data) != strings.Repeat("0123456789abcdef", 4) {
		t.Errorf("%+v", x)
	}
	f.ended = engine.ErrDown
	if out, _, err := drain(t, s, 7); len(out) != 0 || !errors.Is(err, engine.ErrDown) {
		t.Error(out, err)
	}
	c := s.Plans()
	if a, b := c[0], c[1]; a.Drops != (engine.Drops{engine.DropTooLong: 1, engine.DropBadFrame: 1}) || a.Placed != 2 ||
		a.Short != 1 ||
		b.Drops != (engine.Drops{engine.DropDuplicate: 1, engine.DropIncomplete: 1}) || b.Dropped != 1 ||
		b.Placed != 4 {
		t.Errorf("%+v", c)
	}
	var st engine.RxStats
	if s.Stats(&st); st.Packets != 302 || st.Drops.Total() != 4 {
		t.Errorf("%+v", st)
	}
	if n := s.Counts(); len(n) != 16 || n[8] != (engine.Count{Name: "b: whole", N: 1}) {
		t.Errorf("%+v", n)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.TryRecv(burst.New(1)); !errors.Is(err, engine.ErrClosed) {
		t.Error(err)
	}
}

// Samples are converted on the way, wherever a packet is cut into segments.
func TestConverted(t *testing.T) {
	for cut := range 30 {
		f := newFeed(t, 64)
		f.cut = cut
		s, err := New(f, engine.StageSpec{}, Plan{Flows: []uint32{7}, Sequence: bits32(16), PerBatch: 4, Offset: 8,
			Pool:    newPool(t, "batches", 4*5*4, 2),
			Convert: &convert.Spec{From: convert.Format{Bits: 16, BigEndian: true}, To: tensor.F32, Scale: 0.5}})
		if err != nil {
			t.Fatal(err)
		}
		var want []byte
		for place := range 4 {
			var p []byte
			for k := range 5 {
				v := int16(place*1000 - k*777)
				p = binary.BigEndian.AppendUint16(p, uint16(v))
				want = binary.LittleEndian.AppendUint32(want, math.Float32bits(float32(v)*0.5))
			}
			defer f.put(0, nil)
			f.put(uint32(place^2), p)
		}
		want = append(want[40:], want[:40]...)
		f.put(9, make([]byte, 9)) // half a sample
		out, _, err := drain(t, s, 4)
		if err != nil || len(out) != 1 || !bytes.Equal(out[0].data, want) ||
			s.Plans()[0].Drops != (engine.Drops{engine.DropBadFrame: 1}) {
			t.Errorf("cut at %d: %v, %v, %+v", cut, out, err, s.Plans()[0])
		}
		s.Close()
	}
}

// Without a free slot packets of new batches are dropped, and what is in the application's hands
// does not change.
func TestNoSlots(t *testing.T) {
	f := newFeed(t, 64)
	s, err := New(f, engine.StageSpec{}, Plan{Flows: []uint32{7}, Sequence: bits32(16), PerBatch: 1, Offset: 8,
		Pool: newPool(t, "batches", 12, 2)})
	if err != nil {
		t.Fatal(err)
	}
	for k := range uint32(5) {
		f.put(k, payloadOf(int64(k), 0))
	}
	b := burst.New(8)
	for range 4 {
		s.TryRecv(b)
	}
	if c := s.Plans()[0]; b.Len() != 2 || c.Drops[engine.DropNoBuffers] != 3 ||
		!bytes.Equal(b.Bytes(0, 0), payloadOf(0, 0)) || !bytes.Equal(b.Bytes(1, 0), payloadOf(1, 0)) {
		t.Fatalf("%d: %+v", b.Len(), c)
	}
	shares := burst.NewShares(8)
	other := burst.New(8)
	if _, ok := shares.Hold(99, 1); !ok { // a share's number is not the slot's
		t.Fatal("no room")
	}
	if !shares.Clone(b, other) {
		t.Fatal("no clone")
	}
	b.Release()
	if x := Of(other, 1); x == nil || x.ID != 1 { // a clone knows it too
		t.Errorf("%+v", x)
	}
	other.Release()
	f.put(5, payloadOf(5, 0))
	f.ended = engine.ErrDown // else it waits for those before it
	if out, _, _ := drain(t, s, 4); len(out) != 1 || out[0].ID != 5 {
		t.Errorf("%+v", out)
	}
	s.Close()
}

// A sequence number that counts the packets of one batch only tells those of the next batch from
// those that were overtaken.
func TestOneNumber(t *testing.T) {
	f := newFeed(t, 64)
	s, err := New(f, engine.StageSpec{}, Plan{Flows: []uint32{7}, Sequence: bits32(4), PerBatch: 16, Offset: 8,
		Pool: newPool(t, "batches", 16*12, 8)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const batches = 6
	order := make([]int, batches*16)
	for k := range order {
		order[k] = k
	}
	for k := 15; k < len(order)-1; k += 16 { // the last packet of a batch and the first one of the next
		order[k], order[k+1] = order[k+1], order[k]
	}
	for _, k := range order {
		f.put(uint32(k&15), payloadOf(int64(k/16), k%16))
	}
	f.ended = engine.ErrClosed
	out, _, _ := drain(t, s, 8)
	for i, x := range out {
		for place := range 16 {
			if want := payloadOf(int64(i), place); x.ID != int64(i) || !x.Whole() ||
				!bytes.Equal(x.data[place*12:][:12], want) {
				t.Errorf("batch %d, place %d: %x, want %x: %+v", i, place, x.data[place*12:][:12], want, x.Batch)
			}
		}
	}
	if c := s.Plans()[0]; len(out) != batches || c.Drops.Total() != 0 {
		t.Errorf("%d batches, %+v", len(out), c)
	}
}

func TestCheck(t *testing.T) {
	pool := newPool(t, "batches", 1024, 2)
	good := Plan{Name: "p", Flows: []uint32{1}, Sequence: bits32(16), PerBatch: 4, Pool: pool}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*Plan){
		"Sequence: 0 bits":          func(p *Plan) { p.Sequence.Width = 0 },
		"Sequence: 33 bits":         func(p *Plan) { p.Sequence.Width = 33 },
		"Batch: 8 bits from bit -1": func(p *Plan) { p.Batch = Field{-1, 8} },
		"no flows":                  func(p *Plan) { p.Flows = nil },
		"3 packets of a batch":      func(p *Plan) { p.PerBatch = 3 },
		"131072 packets of a batch": func(p *Plan) { p.PerBatch, p.Sequence.Width = 1<<17, 20 },
		"8 packets of a batch":      func(p *Plan) { p.PerBatch, p.Sequence.Width = 8, 2 },
		"0 packets of a batch":      func(p *Plan) { p.PerBatch = 0 },
		"batch number has 17 bits":  func(p *Plan) { p.PerBatch, p.Batch.Width = 0, 17 },
		"no pool":                   func(p *Plan) { p.Pool = nil },
		"has 4096 bytes or more":    func(p *Plan) { p.Payload = 1024 },
		"samples of 10 bits": func(p *Plan) {
			p.Convert = &convert.Spec{From: convert.Format{Bits: 10}, To: tensor.F32}
		},
		"expected a multiple of 3": func(p *Plan) {
			p.Convert, p.Payload = &convert.Spec{From: convert.Format{Bits: 12}, To: tensor.F32}, 4
		},
		"window -1":           func(p *Plan) { p.Window = -1 },
		"a window up to 1024": func(p *Plan) { p.Window = 1025 },
		"Sequence: 1 bits tell 1 batches of 2 packets apart, packets that overtake each other among them: expected 2 " +
			"bits for a window of 2": func(p *Plan) {
			p.PerBatch, p.Sequence.Width = 2, 1
		},
		"Batch: 1 bits tell 1 batches of 4 packets apart, packets that overtake each other among them: expected 2 " +
			"bits for a window of 2": func(p *Plan) {
			p.Batch.Width = 1
		},
		"Batch: 2 bits tell 2 batches of 4 packets apart, packets that overtake each other among them: expected 3 " +
			"bits for a window of 3": func(p *Plan) {
			p.Batch.Width, p.Window = 2, 3
		},
		"Sequence: 4 bits tell 3 batches of 4 packets apart, packets that overtake each other among them: expected 5 " +
			"bits for a window of 4": func(p *Plan) {
			p.Sequence.Width, p.Window = 4, 4
		},
	} {
		p := good
		spoil(&p)
		if err := p.Check(); !errors.Is(err, ErrPlan) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		if s, err := New(newFeed(t, 64), engine.StageSpec{}, good, p); s != nil || !errors.Is(err, ErrPlan) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if s, err := New(newFeed(t, 64), engine.StageSpec{}, good, good); s != nil || !errors.Is(err, ErrPlan) ||
		!strings.Contains(err.Error(), "flow 1 is in the plan") {
		t.Error(err)
	}
}

// Steady work allocates nothing.
func TestAllocations(t *testing.T) {
	f := newFeed(t, 64)
	s, err := New(f, engine.StageSpec{}, Plan{Flows: []uint32{7}, Sequence: bits32(32), PerBatch: 16, Offset: 8,
		Pool: newPool(t, "batches", 16*12, 8)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const n = 64
	for k := range uint32(n * 120) {
		f.put(k, payloadOf(0, 0))
	}
	all := f.queued
	at := 0
	b := burst.New(64)
	if got := testing.AllocsPerRun(100, func() {
		f.queued = all[at : at+n]
		at += n
		s.TryRecv(b)
		b.Release()
	}); got != 0 && !invariants.Enabled { // pools note stacks there
		t.Errorf("%v allocations", got)
	}
}
