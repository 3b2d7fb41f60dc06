package reorder

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/cuda"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/gpu/opencl"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/convert"
)

// card is a device with its memory.
type card struct {
	t      *testing.T
	ctx    *gpu.Context
	p      *gpumem.Provider
	stream *gpu.Stream
}

// cards are the runtimes of this machine's tests: this process as a card, whose memory is hidden,
// and PoCL.
var cards = map[string]func(t *testing.T) (*gpu.Runtime, error){
	"host": func(t *testing.T) (*gpu.Runtime, error) { return host.Open(host.Options{}) },
	"PoCL": func(t *testing.T) (*gpu.Runtime, error) {
		return opencl.Open(opencl.Options{Platform: peers.PoCL(t)})
	},
	"PoCL without shared memory": func(t *testing.T) (*gpu.Runtime, error) {
		return opencl.Open(opencl.Options{Platform: peers.PoCL(t), NoSVM: true})
	},
}

func init() {
	if testenv.Card() {
		cards["card"] = func(*testing.T) (*gpu.Runtime, error) { return cuda.Open(cuda.Options{}) }
	}
}

func newCard(t *testing.T, name string) *card {
	t.Helper()
	rt, err := cards[name](t)
	if err != nil {
		t.Fatal(err)
	}
	later := func(close func() error) {
		t.Cleanup(func() {
			if err := close(); err != nil {
				t.Error(err)
			}
		})
	}
	later(rt.Close)
	c := &card{t: t}
	if c.ctx, err = rt.Devices()[0].Open(); err != nil {
		t.Fatal(err)
	}
	later(c.ctx.Close)
	if c.p, err = gpumem.New(c.ctx, gpumem.Options{Opaque: true, Streams: 1, Bounce: -1}); err != nil {
		t.Fatal(err)
	}
	later(c.p.Close)
	if c.stream, err = c.ctx.NewStream(gpu.StreamOptions{}); err != nil {
		t.Fatal(err)
	}
	later(c.stream.Close)
	return c
}

// pool is memory of a kind, which the test ends.
func (c *card) pool(name string, kind mem.Kind, size, slots int) *mem.Pool {
	c.t.Helper()
	o := mem.PoolOptions{Name: name, SlotSize: size, Slots: slots, CacheSlots: 1, Memory: mem.Options{Kind: kind}}
	if kind != mem.Host {
		o.Memory.Provider = c.p
	}
	p, err := mem.NewPool(o)
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

func shutPool(t *testing.T, p *mem.Pool) {
	t.Helper()
	if err := p.Close(); err != nil {
		t.Errorf("slots that are not back: %v", err)
	}
}

func (c *card) span(s mem.Span) gpu.Span {
	return gpu.Span{Memory: s.Region.Handle().(*gpu.Memory), Off: s.Off, Len: s.Len}
}

func (c *card) write(s mem.Span, p []byte) {
	if b := s.Bytes(); b != nil {
		copy(b, p)
	} else if err := c.stream.Write(c.span(s), p); err != nil && !errors.Is(err, gpu.ErrDeviceLost) {
		c.t.Fatal(err)
	}
}

func (c *card) read(s mem.Span) []byte {
	if b := s.Bytes(); b != nil {
		return bytes.Clone(b)
	}
	b := make([]byte, s.Len)
	if err := c.stream.Read(b, c.span(s)); err != nil {
		c.t.Fatal(err)
	}
	return b
}

// mixed is a queue whose packets lie in memories of several kinds, in any number of segments.
type mixed struct {
	c      *card
	r      *rand.Rand
	pools  []*mem.Pool
	srcs   []*burst.Source
	queued []packet
	ended  error
	burst  int
	waker  *engine.Waker
}

func newMixed(c *card, r *rand.Rand, kinds ...mem.Kind) *mixed {
	q := &mixed{c: c, r: r}
	for i, k := range kinds {
		p := c.pool(fmt.Sprintf("packets %d", i), k, 256, 2048)
		q.pools, q.srcs = append(q.pools, p), append(q.srcs, burst.PoolSource(p))
	}
	return q
}

func (q *mixed) TryRecv(b *burst.Burst) (int, error) {
	n := 0
	for len(q.queued) > 0 && b.Room() > 0 && n < q.burst {
		x := q.queued[0]
		for k, rest := 0, x.data; k == 0 || len(rest) > 0; k++ {
			cut := len(rest)
			if k < 3 && q.r.IntN(3) == 0 {
				cut = q.r.IntN(cut + 1)
			}
			at := q.r.IntN(len(q.pools))
			s, err := q.pools[at].Get()
			if err != nil {
				q.c.t.Fatal(err)
			}
			g := burst.Segment{Handle: s.Handle(), Off: q.pools[at].Offset(s.Handle()) + uint64(q.r.IntN(5)),
				Len: uint32(cut)}
			q.c.write(mem.Span{Region: q.pools[at].Region(), Off: g.Off, Len: uint64(cut)}, rest[:cut])
			rest = rest[cut:]
			if k == 0 {
				i := b.Builder().Add(q.srcs[at], g)
				b.Builder().SetFlow(i, x.flow)
				b.Builder().SetReceived(i, 0, burst.HasTime, x.time)
			} else if !b.Builder().AddSegment(q.srcs[at], g) {
				q.c.t.Fatal("no room for a segment")
			}
		}
		q.queued = q.queued[1:]
		n++
		if b.SegmentRoom() < 8 {
			break
		}
	}
	if n == 0 {
		return 0, q.ended
	}
	return n, nil
}

func (q *mixed) Arm(w *engine.Waker) bool { q.waker = w; return len(q.queued) > 0 || q.ended != nil }

func (q *mixed) close() {
	for _, p := range q.pools {
		shutPool(q.c.t, p)
	}
}

// random is a plan for packets of flow 7, without its memory, and packets.
func random(r *rand.Rand) (p Plan, slot int, packets []packet) {
	shift := r.IntN(8)
	per, width := 1<<shift, max(shift+r.IntN(8), 2)
	p = Plan{Name: "p", Flows: []uint32{7}, Sequence: Field{r.IntN(20), width}, PerBatch: per, Offset: 8 + r.IntN(9),
		Missing: Missing(r.IntN(6) / 5)}
	if r.IntN(3) == 0 {
		p.Batch = Field{40 + r.IntN(10), 2 + r.IntN(13)}
	}
	p.Window = min(1+r.IntN(6), p.Reach())
	unit, out := 1, 1
	if r.IntN(4) > 0 {
		bits := []int{4, 8, 12, 14, 16, 32}
		types := []tensor.DType{tensor.I8, tensor.U8, tensor.I16, tensor.U16, tensor.I32, tensor.U32, tensor.F16,
			tensor.BF16, tensor.F32, tensor.F64, tensor.C64, tensor.C128}
		s := &convert.Spec{From: convert.Format{Bits: bits[r.IntN(len(bits))], Unsigned: r.IntN(2) == 0,
			BigEndian: r.IntN(2) == 0}, To: types[r.IntN(len(types))]}
		switch r.IntN(4) {
		case 0:
			s.Scale = math.Ldexp(1, r.IntN(60)-40)
		case 1:
			s.Scale, s.Offset = r.NormFloat64()*math.Pow(10, float64(r.IntN(10)-6)), r.NormFloat64()*100
		}
		p.Convert = s
		c, _ := convert.New(*s)
		unit, out = c.Unit(), c.OutLen(c.Unit())
	}
	if r.IntN(3) == 0 {
		p.Channels = 1 + r.IntN(4)
	}
	whole := unit * max(p.Channels, 1)
	units := 1 + r.IntN(max(150/whole, 1))
	if r.IntN(2) == 0 {
		p.Payload = units * whole
	}
	n := (1 + r.IntN(max(600/per, 2))) * per
	start := r.IntN(1 << 20)
	when := map[int]float64{}
	order := []int{}
	jitter, lossy := r.Float64()*float64(2*per), r.Float64()*0.3
	for k := range n {
		if r.Float64() < lossy {
			continue
		}
		order = append(order, k)
		when[k] = float64(k) + jitter*r.Float64()
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if when[a] < when[b] {
			return -1
		}
		return 1
	})
	for _, k := range order {
		for range 1 + r.IntN(10)/9 {
			seq := start + k
			if r.IntN(60) == 0 {
				seq += r.IntN(1 << 16) // a stray, late or duplicate
			}
			size := units
			switch r.IntN(20) {
			case 0:
				size = r.IntN(units + 1)
			case 1:
				size = units + r.IntN(3)
			}
			data := make([]byte, p.Offset+size*whole+r.IntN(30)/29)
			for i := range data {
				data[i] = byte(r.Uint32())
			}
			if r.IntN(80) == 0 {
				data = data[:r.IntN(12)]
			}
			setBits(data, p.Sequence, uint64(seq))
			if p.Batch.Width > 0 {
				setBits(data, p.Batch, uint64(seq/per))
			}
			packets = append(packets, packet{flow: uint32(7 + r.IntN(20)/19), data: data, time: int64(1000 + k)})
		}
	}
	return p, per * (units + 2) * max(p.Channels, 1) * out, packets
}

func setBits(p []byte, f Field, v uint64) {
	for k := range f.Width {
		at := f.Offset + f.Width - 1 - k
		if at/8 < len(p) {
			p[at/8] = p[at/8]&^(0x80>>(at%8)) | byte(v>>k&1)<<(7-at%8)
		}
	}
}

// all receives until the queue ends.
func (c *card) all(s *Stage, room int) (out []result, passed int) {
	c.t.Helper()
	rx := engine.NewRx(s, engine.Batching{})
	b := burst.NewSegmented(room, 2*room+8)
	for {
		err := rx.Recv(c.t.Context(), b)
		for i := range b.Len() {
			x := Of(b, i)
			if x == nil {
				passed++
				continue
			}
			r := result{*x, c.read(b.Segment(i, 0))}
			r.Present = slices.Clone(x.Present)
			if x.Mask.Memory != nil {
				mask := make([]byte, x.Mask.Len)
				if err := c.stream.Read(mask, x.Mask); err != nil {
					c.t.Fatal(err)
				}
				for k, w := range x.Present {
					if binary.LittleEndian.Uint64(mask[8*k:]) != w {
						c.t.Fatalf("batch %d: the mask is %x, want %x", x.ID, mask, x.Present)
					}
				}
			}
			r.Mask = gpu.Span{}
			out = append(out, r)
		}
		b.Release()
		if err != nil {
			if !errors.Is(err, engine.ErrClosed) {
				c.t.Fatal(err)
			}
			return out, passed
		}
	}
}

// An accelerator makes the same batches as the processor, bit by bit, of any plan and any stream,
// wherever the packets are, and every slot comes back.
func TestSameOnDevices(t *testing.T) {
	for name := range cards {
		t.Run(name, func(t *testing.T) {
			streams := map[string]int{"host": 80, "PoCL": 24, "PoCL without shared memory": 12, "card": 40}[name]
			if testing.Short() {
				streams /= 4
			}
			c := newCard(t, name)
			n, batches, partial := 0, 0, 0
			for seed := range uint64(streams) {
				r := rand.New(rand.NewPCG(seed, 5))
				p, slot, packets := random(r)
				room := 1 + r.IntN(40)
				kinds := [][]mem.Kind{{mem.Host}, {mem.HostPinned}, {mem.Device}, {mem.Host, mem.Device},
					{mem.Device, mem.Device, mem.HostPinned, mem.Host}}[r.IntN(5)]
				run := func(x Executor, kind mem.Kind, sources ...mem.Kind) ([]result, int, Counts) {
					q := newMixed(c, r, sources...)
					q.queued, q.ended, q.burst = slices.Clone(packets), engine.ErrClosed, 1+r.IntN(300)
					p.Executor, p.Pool = x, c.pool("batches", kind, slot, 1024)
					s, err := New(q, engine.StageSpec{Queue: "q"}, p)
					if err != nil {
						t.Fatalf("seed %d: %+v: %v", seed, p, err)
					}
					out, passed := c.all(s, room)
					if err := s.Close(); err != nil {
						t.Error(err)
					}
					q.close()
					shutPool(t, p.Pool)
					return out, passed, s.Plans()[0]
				}
				want, others, counts := run(CPU, mem.Host, mem.Host)
				kind := mem.Device
				if name == "host" && r.IntN(2) == 0 {
					kind = mem.HostPinned // OpenCL's kernels do not reach it
				}
				got, passed, same := run(GPU, kind, kinds...)
				if counts != same || passed != others || len(got) != len(want) {
					t.Fatalf("seed %d: %v: %d batches of %d, %d packets pass of %d, %+v, want %+v", seed, kinds,
						len(got), len(want), passed, others, same, counts)
				}
				for i := range want {
					if !reflect.DeepEqual(got[i].Batch, want[i].Batch) || !bytes.Equal(got[i].data, want[i].data) {
						t.Fatalf("seed %d: %v, %+v %+v: batch %d is\n%+v\n%x, want\n%+v\n%x", seed, kinds, p, p.Convert,
							i, got[i].Batch, got[i].data, want[i].Batch, want[i].data)
					}
					if !want[i].Whole() {
						partial++
					}
				}
				n, batches = n+len(packets), batches+len(want)
			}
			t.Logf("%d streams, %d packets, %d batches, %d of them partial", streams, n, batches, partial)
		})
	}
}

// numbered is packet seq with its payload, behind a header of 8 bytes with a number of 32 bits.
func numbered(seq int) packet {
	return packet{flow: 7, data: append(binary.BigEndian.AppendUint32(nil, uint32(seq)),
		append([]byte("head"), payloadOf(int64(seq/4), seq%4)...)...), time: 1}
}

func (c *card) plan(name string, flow uint32) Plan {
	return Plan{Name: name, Flows: []uint32{flow}, Sequence: Field{0, 32}, PerBatch: 4, Offset: 8,
		Pool: c.pool(name, mem.Device, 48, 64), Executor: GPU}
}

// A batch that waits for a packet leaves the device when its time has passed.
func TestDeviceTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCard(t, "host")
		q := newMixed(c, rand.New(rand.NewPCG(1, 1)), mem.Device)
		q.burst = 100
		p := c.plan("p", 7)
		p.Timeout = time.Second
		s, err := New(q, engine.StageSpec{}, p)
		if err != nil {
			t.Fatal(err)
		}
		rx := engine.NewRx(s, engine.Batching{})
		b := burst.New(4)
		began := time.Now()
		q.queued = []packet{numbered(8), numbered(10), numbered(12), numbered(13), numbered(14), numbered(15)}
		if err := rx.Recv(t.Context(), b); err != nil || time.Since(began) != time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		if x, y := Of(b, 0), Of(b, 1); b.Len() != 2 || x.ID != 2 || !x.TimedOut || x.Packets != 2 || !y.Whole() ||
			y.TimedOut {
			t.Errorf("%d: %+v, %+v", b.Len(), x, y)
		}
		if got, want := c.read(b.Segment(0, 0)), slices.Concat(payloadOf(2, 0), make([]byte, 12), payloadOf(2, 2),
			make([]byte, 12)); !bytes.Equal(got, want) {
			t.Errorf("%x, want %x", got, want)
		}
		b.Release()
		q.queued = []packet{numbered(9)} // too late now
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := rx.Recv(ctx, b); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if n := s.Plans()[0]; n.TimedOut != 1 || n.Partial != 1 || n.Whole != 1 || n.Drops[engine.DropLate] != 1 ||
			n.Drops.Total() != 1 {
			t.Errorf("%+v", n)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		q.close()
		shutPool(t, p.Pool)
	})
}

// When the device is lost the queue ends with that error; each packet is in one count, and all
// memory comes back.
func TestDeviceLost(t *testing.T) {
	broken := &gpu.Program{Name: "broken", Kernels: []gpu.Signature{{Name: "broken"}},
		Go: map[string]gpu.GoFunc{"broken": func(gpu.Grid, []gpu.GoArg) {
			panic("broken")
		}}}
	for after := range 12 {
		for _, kind := range []mem.Kind{mem.Host, mem.Device} {
			c := newCard(t, "host")
			q := newMixed(c, rand.New(rand.NewPCG(1, 1)), kind)
			q.burst = 3
			p := c.plan("p", 7)
			s, err := New(q, engine.StageSpec{}, p)
			if err != nil {
				t.Fatal(err)
			}
			m, err := c.ctx.Load(broken)
			if err != nil {
				t.Fatal(err)
			}
			k, err := m.Kernel("broken")
			if err != nil {
				t.Fatal(err)
			}
			call, err := k.Prepare()
			if err != nil {
				t.Fatal(err)
			}
			const packets = 40
			for i := range packets {
				if i%8 != 1 {
					q.queued = append(q.queued, numbered(i))
				}
			}
			n := len(q.queued) + 1
			rx, b := engine.NewRx(s, engine.Batching{}), burst.New(2)
			for i := range after {
				if i == after-1 {
					if err := c.stream.Launch(call, gpu.Grid{Groups: 1, Group: 1}); err != nil {
						t.Fatal(err)
					}
					if err := c.stream.Wait(t.Context()); !errors.Is(err, gpu.ErrDeviceLost) {
						t.Fatal(err)
					}
				}
				s.TryRecv(b)
				b.Release()
			}
			q.queued = append(q.queued, numbered(packets)) // an idle device is not asked
			if after > 0 {
				if err := rx.Recv(t.Context(), b); !errors.Is(err, gpu.ErrDeviceLost) {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			x := s.Plans()[0]
			if got := x.Placed + x.Drops.Total() + uint64(len(q.queued)); got != uint64(n) {
				t.Errorf("lost after %d looks: %d packets of %d are accounted for: %+v", after, got, n, x)
			}
			call.Close()
			m.Close()
			q.close()
			shutPool(t, p.Pool)
		}
	}
}

// Plans of one queue work side by side, one of them on the caller's stream, and another queue
// brings packets to one of them.
func TestDevicePlans(t *testing.T) {
	c := newCard(t, "host")
	mine, err := c.ctx.NewStream(gpu.StreamOptions{Name: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	r := rand.New(rand.NewPCG(3, 3))
	plans := []Plan{c.plan("a", 7), c.plan("b", 8),
		{Name: "c", Flows: []uint32{9}, Sequence: Field{0, 32}, PerBatch: 4, Offset: 8,
			Pool: c.pool("c", mem.Host, 48, 64)}}
	plans[0].Stream, plans[0].Window = mine, 32
	var shared []*Shared
	for _, p := range plans {
		x, err := Share(p)
		if err != nil {
			t.Fatal(err)
		}
		shared = append(shared, x)
	}
	var stages []*Stage
	queues := []*mixed{newMixed(c, r, mem.HostPinned), newMixed(c, r, mem.HostPinned, mem.Host)}
	for i, q := range queues {
		q.burst, q.ended = 7, engine.ErrClosed
		for k := range 80 {
			x := numbered(k)
			if k%2 == i {
				q.queued = append(q.queued, x) // of plan a: each queue brings half
			}
			if i == 0 {
				q.queued = append(q.queued, packet{8, x.data, 1}, packet{9, x.data, 1})
			}
		}
		s, err := NewShared(q, engine.StageSpec{}, shared[:3-2*i]...)
		if err != nil {
			t.Fatal(err)
		}
		stages = append(stages, s)
	}
	if out, _ := c.all(stages[1], 4); len(out) != 0 { // what it brings leaves by the other one
		t.Errorf("%d batches by the second queue", len(out))
	}
	out, _ := c.all(stages[0], 4)
	whole := map[string]int{}
	for _, x := range out {
		if !x.Whole() || x.ID != int64(whole[x.Plan]) {
			t.Fatalf("%+v", x.Batch)
		}
		for k := range 4 {
			if !bytes.Equal(x.data[12*k:][:12], payloadOf(x.ID, k)) {
				t.Fatalf("%+v: place %d is %x", x.Batch, k, x.data[12*k:][:12])
			}
		}
		whole[x.Plan]++
	}
	if whole["a"] != 20 || whole["b"] != 20 || whole["c"] != 20 {
		t.Error(whole)
	}
	for _, s := range stages {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := mine.Query(); err != nil {
		t.Errorf("the caller's stream: %v", err)
	}
	for _, q := range queues {
		q.close()
	}
	for _, p := range plans {
		shutPool(t, p.Pool)
	}
}

// What a device cannot do is an error that says what is expected.
func TestDeviceRefuses(t *testing.T) {
	c, other := newCard(t, "host"), newCard(t, "host")
	p := c.plan("p", 7)
	defer shutPool(t, p.Pool)
	far := p
	far.Pool = newPool(t, "far", 48, 4)
	if _, err := Share(far); !errors.Is(err, ErrPlan) || !strings.Contains(err.Error(), "kind device or host_pinned") {
		t.Error(err)
	}
	foreign := p
	foreign.Stream = other.stream
	if _, err := Share(foreign); !errors.Is(err, gpu.ErrArgument) {
		t.Error(err)
	}
	q := newMixed(other, rand.New(rand.NewPCG(1, 1)), mem.Device)
	q.burst, q.queued = 3, []packet{numbered(0)}
	s, err := New(q, engine.StageSpec{}, p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.TryRecv(burst.New(1)); !errors.Is(err, engine.ErrUnsupported) ||
		!strings.Contains(err.Error(), "does not reach") {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	q.close()
}

// A burst of packets costs no allocation.
func TestDeviceAllocations(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace|testenv.WithInvariants, "these builds allocate")
	c := newCard(t, "PoCL") // kernels in Go allocate
	for _, kind := range []mem.Kind{mem.Host, mem.Device} {
		pool := c.pool("packets", kind, 64, 64)
		q := &again{c: c, pool: pool, src: burst.PoolSource(pool)}
		p := c.plan("p", 0)
		s, err := New(q, engine.StageSpec{}, p)
		if err != nil {
			t.Fatal(err)
		}
		rx, b := engine.NewRx(s, engine.Batching{}), burst.New(8)
		look := func() {
			if err := rx.Recv(context.Background(), b); err != nil {
				t.Fatal(err)
			}
			b.Release()
		}
		for range 20 {
			look()
		}
		if n := testing.AllocsPerRun(50, look); n > 0.1 {
			t.Errorf("%v: %v allocations of a batch", kind, n)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		shutPool(t, pool)
		shutPool(t, p.Pool)
	}
}

// again gives the four packets of a batch again and again.
type again struct {
	c    *card
	pool *mem.Pool
	src  *burst.Source
	seq  uint32
	head [8]byte
}

func (q *again) TryRecv(b *burst.Burst) (int, error) {
	if q.pool.Stats().InUse > 32 {
		return 0, nil
	}
	for range 4 {
		s, err := q.pool.Get()
		if err != nil {
			return 0, err
		}
		off := q.pool.Offset(s.Handle())
		binary.BigEndian.PutUint32(q.head[:], q.seq)
		q.seq++
		q.c.write(mem.Span{Region: q.pool.Region(), Off: off, Len: 8}, q.head[:])
		b.Builder().Add(q.src, burst.Segment{Handle: s.Handle(), Off: off, Len: 20})
	}
	return 4, nil
}

func (q *again) Arm(*engine.Waker) bool { return true }
