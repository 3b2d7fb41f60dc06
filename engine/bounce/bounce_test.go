package bounce_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/bounce"
	"github.com/penstock-io/penstock/engine/enginetest"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/cuda"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/gpu/opencl"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/cuda"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// line is two ports of the simulator, the second one with bounce buffers, and a transmit queue at
// the first.
type line struct {
	t    testing.TB
	a    engine.Port
	b    *bounce.Port
	tx   engine.TxQueue
	out  *burst.Burst
	in   *burst.Burst
	sent int // packets
	got  int
}

func newLine(t testing.TB, o bounce.Options) *line {
	t.Helper()
	p := simHarness().Open(t)
	l := &line{t: t, a: p.A, b: bounce.New(p.B, o), out: burst.New(64), in: burst.NewSegmented(256, 512)}
	var err error
	if l.tx, err = l.a.AddTxQueue(engine.TxSpec{Depth: 4096,
		Pools: []*mem.Pool{newPool(t, mem.PoolOptions{Name: "tx", SlotSize: 2048, Slots: 4096})}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.in.Release()
		for _, p := range []engine.Port{l.a, l.b} {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return l
}

// size and packet are the length and the bytes of a packet by its number.
func size(n int) int { return 60 + n*37%1900 }

func packet(n int) []byte {
	b := make([]byte, size(n))
	r := rand.NewPCG(uint64(n), 1)
	for i := range b {
		b[i] = byte(r.Uint64())
	}
	return b
}

// send sends the next n packets.
func (l *line) send(n int) {
	l.t.Helper()
	for n > 0 {
		k, err := l.tx.Alloc(l.out, min(n, 64), 2000)
		if err != nil {
			l.t.Fatal(err)
		}
		for i := range k {
			p := packet(l.sent)
			l.out.SetLen(i, 0, copy(l.out.Bytes(i, 0), p))
			l.sent++
		}
		if err := l.tx.Send(l.out); err != nil {
			l.t.Fatal(err)
		}
		n -= k
	}
}

// read is packet i of a burst, from wherever its parts are.
func read(t testing.TB, b *burst.Burst, i int) (out []byte) {
	t.Helper()
	for k := range b.Segments(i) {
		s := b.Segment(i, k)
		if s.Len == 0 {
			continue
		}
		if x := b.Bytes(i, k); x != nil {
			out = append(out, x...)
			continue
		}
		from, err := gpumem.Span(s)
		if err != nil {
			t.Fatal(err)
		}
		stream, err := from.Memory.Context().NewStream(gpu.StreamOptions{})
		if err != nil {
			t.Fatal(err)
		}
		part := make([]byte, s.Len)
		err = errors.Join(stream.Read(part, from), stream.Close())
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, part...)
	}
	return out
}

// take receives n packets, which must be the next ones, and releases them.
func (l *line) take(rx *engine.Rx, n int) {
	l.t.Helper()
	for end := l.got + n; l.got < end; {
		if err := rx.Recv(l.t.Context(), l.in); err != nil {
			l.t.Fatalf("after %d packets: %v", l.got, err)
		}
		l.compare()
		l.in.Release()
	}
}

// compare looks at the packets of the burst.
func (l *line) compare() {
	l.t.Helper()
	for i := range l.in.Len() {
		if want := packet(l.got); !bytes.Equal(read(l.t, l.in, i), want) {
			l.t.Fatalf("packet %d is not what was sent", l.got)
		}
		l.got++
	}
}

func (l *line) rx(pools ...*mem.Pool) engine.RxQueue {
	l.t.Helper()
	spec := engine.RxSpec{Pools: pools, Depth: 4096}
	if len(pools) == 2 {
		spec.SplitAt = 42
	}
	q, err := l.b.AddRxQueue(spec)
	if err != nil {
		l.t.Fatal(err)
	}
	return q
}

// eventually waits until f is true.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for start := time.Now(); !f(); runtime.Gosched() {
		if time.Since(start) > time.Minute {
			t.Fatalf("waited for %s", what)
		}
	}
}

// On every runtime there is, whole packets and payloads arrive in device memory, in order, each
// byte as it was sent.
func TestRuntimes(t *testing.T) {
	open := map[string]func(t testing.TB) *card{
		"host": func(t testing.TB) *card { return newCard(t, false) },
		"opencl": func(t testing.TB) *card {
			return cardOf(t, must(opencl.Open(opencl.Options{Platform: peers.PoCL(t)}))(t), false)
		},
		"cuda": func(t testing.TB) *card {
			file, err := fake.Build()
			if err != nil {
				testenv.Missing(t, "the fake driver", err)
			}
			f, err := fake.Load(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(f.Restart(), f.Script("devices 1; device * memory 256M")); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if n := f.Violations(); n > 0 || f.Live() != 0 {
					report, _ := f.Report()
					t.Errorf("%d violations, %d objects alive:\n%s", n, f.Live(), report)
				}
			})
			return cardOf(t, must(cuda.Open(cuda.Options{Library: file}))(t), false)
		},
	}
	for name, f := range open {
		t.Run(name, func(t *testing.T) {
			c := f(t)
			for _, split := range []bool{false, true} {
				l := newLine(t, bounce.Options{})
				body := c.pool(t, "body", 2048, 512)
				pools := []*mem.Pool{body}
				if split {
					pools = []*mem.Pool{newPool(t, mem.PoolOptions{Name: "head", SlotSize: 64, Slots: 512}), body}
				}
				q := l.rx(pools...)
				rx := engine.NewRx(q, engine.Batching{})
				for range 20 {
					l.send(100)
					l.take(rx, 100)
				}
				var s engine.RxStats
				var p engine.PortStats
				q.Stats(&s)
				l.b.Stats(&p)
				bytes := uint64(0)
				for n := range l.got {
					bytes += uint64(size(n))
				}
				moved := bytes
				if split {
					moved -= 42 * uint64(l.got)
				}
				if s.Packets != 2000 || s.Bytes != bytes || s.Copied < moved || s.Drops.Total() != 0 ||
					p.Rx.Packets != 2000 || p.Rx.Bytes != bytes || p.Rx.Copied != s.Copied {
					t.Errorf("%d bytes, of which %d were to be moved: %+v, %+v", bytes, moved, s, p.Rx)
				}
				if n := body.Stats().InUse; n != 0 {
					t.Errorf("%d slots are out", n)
				}
				if err := q.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func must[T any](x T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
}

// Several bursts are copied at once, in order; the end of the first wakes a sleeping owner; and the
// engine gets its slots back only then.
func TestSeveralBursts(t *testing.T) {
	c, g := newGate(t)
	l := newLine(t, bounce.Options{Bursts: 3, Packets: 16})
	q := l.rx(c.pool(t, "body", 2048, 512))
	w := engine.NewWaker()
	for range 5 {
		if q.Arm(w) {
			t.Fatal("there is something where nothing was sent")
		}
		g.close()
		l.send(100)
		<-w.C()
		for range 3 {
			if n, err := q.TryRecv(l.in); n != 0 || err != nil {
				t.Fatalf("%d packets whose copies are not over, %v", n, err)
			}
		}
		if n := g.waiting(); n != 3*(16+1) {
			t.Errorf("%d copies and events are under way, expected those of 3 bursts of 16", n)
		}
		if q.Arm(w) {
			t.Error("Arm says that there is something while all copies are under way")
		}
		l.send(200) // these would be in the slots of the first ones
		select {
		case <-w.C():
			if n, err := q.TryRecv(l.in); n != 0 || err != nil {
				t.Fatal(n, err)
			}
			if q.Arm(w) {
				t.Error("Arm says that there is something while all copies are under way")
			}
		default:
		}
		g.open(t)
		<-w.C()
		l.take(engine.NewRx(q, engine.Batching{}), 300)
	}
}

// Without free slots on the device packets are dropped for that reason, those that have one arrive,
// and it goes on when slots come back.
func TestExhausted(t *testing.T) {
	c := newCard(t, false)
	l := newLine(t, bounce.Options{})
	pool := c.pool(t, "body", 2048, 10)
	q := l.rx(pool)
	for round := range 3 {
		l.send(40)
		eventually(t, "ten packets", func() bool {
			if _, err := q.TryRecv(l.in); err != nil {
				t.Fatal(err)
			}
			return l.in.Len() == 10
		})
		var s engine.RxStats
		eventually(t, "drops", func() bool {
			q.TryRecv(l.in)
			q.Stats(&s)
			return s.Drops[engine.DropNoDeviceBuffers] == uint64(30*(round+1))
		})
		if s.Drops.Total() != s.Drops[engine.DropNoDeviceBuffers] || s.Packets != uint64(10*(round+1)) {
			t.Errorf("%+v", s)
		}
		l.compare()
		l.got += 30
		l.in.Release()
	}
	if n := pool.Stats().InUse; n != 0 {
		t.Errorf("%d slots are out", n)
	}
}

// What is being copied is thrown away by Discard and by Close, counted, and given back when the
// copies are over; Close waits for them.
func TestThrowAway(t *testing.T) {
	c, g := newGate(t)
	l := newLine(t, bounce.Options{Bursts: 2, Packets: 8})
	pool := c.pool(t, "body", 2048, 64)
	q := l.rx(pool)
	under := func(n int) {
		t.Helper()
		g.close()
		l.send(n)
		if k, err := q.TryRecv(l.in); k != 0 || err != nil {
			t.Fatal(k, err)
		}
	}
	under(40)
	if n, err := q.Discard(); n != 40 || err != nil {
		t.Errorf("Discard: %d, %v", n, err)
	}
	if n := pool.Stats().InUse; n != 16 {
		t.Errorf("%d slots are out while 16 packets are being copied", n)
	}
	if n, err := q.Discard(); n != 0 || err != nil {
		t.Errorf("Discard again: %d, %v", n, err)
	}
	g.open(t)
	l.got = 40
	l.send(5)
	l.take(engine.NewRx(q, engine.Batching{}), 5)

	under(40)
	closed := make(chan error, 1)
	go func() { closed <- q.Close() }()
	g.open(t)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	var s engine.RxStats
	q.Stats(&s)
	if s.Packets != 5 || s.Drops[engine.DropFlushed] != 40 || s.Drops[engine.DropClosed] != 40 ||
		s.Drops.Total() != 80 {
		t.Errorf("%+v", s)
	}
	if n := pool.Stats().InUse; n != 0 {
		t.Errorf("%d slots are out", n)
	}
	var p engine.PortStats
	if l.b.Stats(&p); p.Rx.Packets != 5 || p.Rx.Drops.Total() != 80 {
		t.Errorf("%+v", p.Rx)
	}
}

// fault loses the device.
func fault(t testing.TB, c *gpu.Context) {
	t.Helper()
	m, err := c.Load(&gpu.Program{Name: "fault", Kernels: []gpu.Signature{{Name: "fault"}},
		Go: map[string]gpu.GoFunc{"fault": func(gpu.Grid, []gpu.GoArg) {
			panic("a fault")
		}}})
	if err != nil {
		t.Fatal(err)
	}
	k, err := m.Kernel("fault")
	if err != nil {
		t.Fatal(err)
	}
	call, err := k.Prepare()
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.NewStream(gpu.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Launch(call, gpu.Grid{Groups: 1, Group: 1})
	if err := s.Wait(t.Context()); !errors.Is(err, gpu.ErrDeviceLost) {
		t.Errorf("the device is not lost: %v", err)
	}
	for _, close := range []func() error{call.Close, s.Close, m.Close} {
		if err := close(); err != nil {
			t.Error(err)
		}
	}
}

// With the device the queue is lost: it ends with the error, sleepers are woken, what was under way
// is counted, and all memory comes back.
func TestLostDevice(t *testing.T) {
	for _, under := range []bool{false, true} {
		t.Run(fmt.Sprint(under), func(t *testing.T) {
			c, g := newGate(t)
			l := newLine(t, bounce.Options{Bursts: 2, Packets: 8})
			pool := c.pool(t, "body", 2048, 64)
			q := l.rx(pool)
			rx := engine.NewRx(q, engine.Batching{})
			l.send(20)
			l.take(rx, 20)
			pulled := 8
			if under {
				g.close()
				l.send(30)
				if n, err := q.TryRecv(l.in); n != 0 || err != nil {
					t.Fatal(n, err)
				}
				pulled = 16
			}
			fault(t, c.Context())
			if under {
				g.mu.Lock()
				g.shut, g.pending = false, nil // they will never be done
				g.opened.Broadcast()
				g.mu.Unlock()
			} else {
				l.send(30)
			}
			if err := rx.Recv(t.Context(), l.in); !errors.Is(err, gpu.ErrDeviceLost) || l.in.Len() > 0 {
				t.Fatalf("%v, %d packets", err, l.in.Len())
			}
			if n, err := q.TryRecv(l.in); n != 0 || !errors.Is(err, gpu.ErrDeviceLost) {
				t.Errorf("afterwards: %d, %v", n, err)
			}
			if !q.Arm(engine.NewWaker()) {
				t.Error("a queue that has ended has always something to say")
			}
			var s engine.RxStats
			if q.Stats(&s); s.Drops[engine.DropDown] != uint64(pulled) || s.Packets != 20 {
				t.Errorf("%d were under way: %+v", pulled, s)
			}
			if err := q.Close(); err != nil {
				t.Error(err)
			}
			if q.Stats(&s); s.Packets+s.Drops.Total() != 50 {
				t.Errorf("50 packets were sent: %+v", s)
			}
			if n := pool.Stats().InUse; n != 0 {
				t.Errorf("%d slots are out", n)
			}
		})
	}
}

// What cannot be is refused with its reason, and leaves nothing.
func TestRefusals(t *testing.T) {
	c := newCard(t, false)
	l := newLine(t, bounce.Options{})
	body, host := c.pool(t, "body", 2048, 16), newPool(t, mem.PoolOptions{Name: "host", SlotSize: 2048, Slots: 16})
	m, err := c.Allocate(mem.Options{Name: "orphan", Kind: mem.Device, Size: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	m.Handle = nil
	r, err := mem.AdoptMapping("orphan", m)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	orphan, err := mem.NewPool(mem.PoolOptions{Name: "orphan", SlotSize: 2048, Slots: 16, Region: r})
	if err != nil {
		t.Fatal(err)
	}
	defer orphan.Close()
	for _, x := range []struct {
		name  string
		pools []*mem.Pool
		want  error
	}{{"headers on the device", []*mem.Pool{body, host}, engine.ErrUnsupported},
		{"both on the device", []*mem.Pool{body, body}, engine.ErrUnsupported},
		{"three", []*mem.Pool{host, host, body}, engine.ErrInvalid},
		{"memory of nobody", []*mem.Pool{orphan}, engine.ErrUnsupported}} {
		if _, err := l.b.AddRxQueue(engine.RxSpec{Pools: x.pools}); !errors.Is(err, x.want) {
			t.Errorf("receiving, %s: %v", x.name, err)
		}
		if _, err := l.b.AddTxQueue(engine.TxSpec{Pools: x.pools}); !errors.Is(err, x.want) {
			t.Errorf("sending, %s: %v", x.name, err)
		}
	}
	l.rx(body)
	if _, err := l.b.AddRxQueue(engine.RxSpec{ID: engine.Queue(0), Pools: []*mem.Pool{body}}); !errors.Is(err,
		engine.ErrExists) {
		t.Errorf("an id that is in use: %v", err)
	}
	if _, err := l.b.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{body}, Headroom: 4096}); !errors.Is(err,
		engine.ErrInvalid) {
		t.Errorf("too much headroom: %v", err)
	}
	if !bounce.Needed(sim.Default.Capabilities()) ||
		bounce.Needed(engine.Capabilities{Memory: []mem.Kind{mem.Device}}) {
		t.Error("Needed")
	}
}

// The same traffic delivers the same bytes over the simulator, with and without bounce buffers.
func TestSame(t *testing.T) {
	h := staged(t, simHarness(), bounce.Options{Bursts: 2, Packets: 5})
	for seed := range uint64(3) {
		enginetest.Same(t, enginetest.NewProgram(10+seed, 30), simHarness(), h)
	}
}

// errTaken is what a port answers that takes device memory itself.
var errTaken = errors.New("the engine takes it")

// reacher is a port whose card reaches device memory, if at all, and takes queues of it, if they
// split.
type reacher struct {
	engine.Port
	why error
}

func (r reacher) Capabilities() engine.Capabilities {
	c := r.Port.Capabilities()
	c.Memory = append(slices.Clone(c.Memory), mem.Device)
	return c
}

func (r reacher) ReachesRegion(*mem.Region) error { return r.why }

func (r reacher) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	switch last := spec.Pools[len(spec.Pools)-1]; {
	case last.Region().Mover() == nil:
		return r.Port.AddRxQueue(spec)
	case len(spec.Pools) < 2:
		return nil, engine.ErrUnsupported
	}
	return nil, errTaken
}

func (r reacher) AddTxQueue(spec engine.TxSpec) (engine.TxQueue, error) {
	if spec.Pools[0].Region().Mover() == nil {
		return r.Port.AddTxQueue(spec)
	}
	return nil, errTaken
}

// Device memory that the engine's card reaches itself is not staged, unless the engine does not
// take such a queue.
func TestReached(t *testing.T) {
	c := newCard(t, false)
	l := newLine(t, bounce.Options{})
	body, heads := c.pool(t, "body", 2048, 16), newPool(t, mem.PoolOptions{Name: "heads", SlotSize: 128, Slots: 16})
	for _, x := range []struct {
		name           string
		why            error
		pools          []*mem.Pool
		staged, alsoTx bool
	}{
		{"reached", nil, []*mem.Pool{heads, body}, false, false},
		{"reached, but not by such a queue", nil, []*mem.Pool{body}, true, false},
		{"not reached", engine.ErrUnsupported, []*mem.Pool{heads, body}, true, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			p := bounce.New(reacher{l.b.Port, x.why}, bounce.Options{})
			rx, rxErr := p.AddRxQueue(engine.RxSpec{Depth: 16, Pools: x.pools})
			tx, txErr := p.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{body}})
			if x.staged != (rxErr == nil) || !x.staged && rxErr != errTaken || x.alsoTx != (txErr == nil) ||
				!x.alsoTx && txErr != errTaken {
				t.Errorf("receiving: %v, sending: %v", rxErr, txErr)
			}
			if rx != nil && rxErr == nil {
				if err := rx.Close(); err != nil {
					t.Error(err)
				}
			}
			if tx != nil && txErr == nil {
				if err := tx.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
