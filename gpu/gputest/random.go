package gputest

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/internal/lab/testenv/scope"
)

// model is random work on several streams and memories, and what it must come to.
type model struct {
	*rig
	rnd     *rand.Rand
	streams []*gpu.Stream
	events  []*gpu.Event // of each stream, its last
	mems    []*gpu.Memory
	want    [][]byte
	last    []int // the stream that used the memory last
	fill    *gpu.Call
}

const modelBytes = 20000

func newModel(r *rig, seed uint64) *model {
	m := &model{rig: r, rnd: rand.New(rand.NewPCG(seed, 5))}
	for range 3 {
		m.streams = append(m.streams, r.stream())
		m.events = append(m.events, r.event(false))
	}
	for i := range 6 {
		mem := r.alloc(r.kinds[i%len(r.kinds)], modelBytes)
		m.mems = append(m.mems, mem)
		m.want = append(m.want, noise(seed+uint64(i), modelBytes))
		m.last = append(m.last, 0)
		r.write(m.streams[0], mem, m.want[i])
	}
	m.fill = r.call(kernels.Fill, gpu.Buffer(m.mems[0].All()), gpu.U64(0), gpu.U64(0), gpu.U64(0))
	return m
}

// use lets what stream s does next come behind everything that used the memory.
func (m *model) use(s, mem int) {
	if from := m.last[mem]; from != s {
		m.ok(m.streams[from].Record(m.events[from]))
		m.ok(m.streams[s].WaitFor(m.events[from]))
		m.last[mem] = s
	}
}

func (m *model) step() {
	m.Helper()
	s, a, b := m.rnd.IntN(3), m.rnd.IntN(len(m.mems)), m.rnd.IntN(len(m.mems))
	n := uint64(m.rnd.IntN(modelBytes / 2))
	off, to := uint64(m.rnd.IntN(modelBytes/2)), uint64(m.rnd.IntN(modelBytes/2))
	pinned := func(i int) bool { return m.mems[i].Kind() == gpu.PinnedMemory }
	span := gpu.Span{Memory: m.mems[a], Off: off, Len: n}
	switch m.rnd.IntN(8) {
	case 0, 1, 2:
		if a == b || pinned(a) && pinned(b) {
			return
		}
		m.use(s, a)
		m.use(s, b)
		m.ok(m.streams[s].Copy(gpu.Span{Memory: m.mems[b], Off: to, Len: n}, span))
		copy(m.want[b][to:to+n], m.want[a][off:])
	case 3, 4:
		if pinned(a) {
			return
		}
		m.use(s, a)
		m.ok(m.streams[s].Fill(span, uint32(n), 1))
		for i := range n {
			m.want[a][off+i] = byte(n)
		}
	case 5:
		if pinned(a) || m.h.NoKernels {
			return
		}
		m.use(s, a)
		pattern := m.rnd.Uint64()
		m.ok(m.fill.Set(0, gpu.Buffer(m.mems[a].All())))
		m.ok(m.fill.Set(1, gpu.U64(off)))
		m.ok(m.fill.Set(2, gpu.U64(n)))
		m.ok(m.fill.Set(3, gpu.U64(pattern)))
		m.ok(m.streams[s].Launch(m.fill, m.grid(m.rnd.IntN(9))))
		for i := range n {
			m.want[a][off+i] = byte(pattern >> (i % 8 * 8))
		}
	case 6:
		m.use(s, a)
		data := noise(n, int(n))
		m.ok(m.streams[s].Write(span, data))
		copy(m.want[a][off:], data)
	case 7:
		m.use(s, a)
		got := make([]byte, n)
		m.ok(m.streams[s].Read(got, span))
		m.same("a read in the middle", got, m.want[a][off:off+n])
	}
}

// end waits for everything and compares.
func (m *model) end() {
	m.Helper()
	for _, s := range m.streams {
		m.ok(s.Wait(always))
	}
	for i, mem := range m.mems {
		if !m.holds("memory after random work", m.streams[0], mem, m.want[i]) {
			return
		}
	}
}

func checkRandom(t testing.TB, h Harness) {
	r := rigOf(t, h)
	m := newModel(r, 1)
	for i := range h.rounds {
		m.step()
		if t.Failed() {
			t.Fatalf("in step %d", i)
		}
	}
	m.end()
}

// checkTogether does random work from several goroutines in one context, which also allocate and
// close.
func checkTogether(t testing.TB, h Harness) {
	r := rigOf(t, h)
	var models []*model
	for i := range 3 {
		models = append(models, newModel(r, uint64(i)*100))
	}
	var wg sync.WaitGroup
	for i, m := range models {
		wg.Go(func() {
			for step := range h.rounds / 3 {
				m.step()
				if step%5 == 0 {
					own, err := r.c.Alloc(gpu.MemoryOptions{Size: uint64(1000 + i)})
					if err != nil {
						t.Errorf("allocate: %v", err)
						return
					}
					if err := m.streams[0].Fill(own.All(), 1, 1); err != nil {
						t.Errorf("fill: %v", err)
					}
					if err := m.streams[0].Wait(always); err != nil {
						t.Errorf("wait: %v", err)
					}
					if err := own.Close(); err != nil {
						t.Errorf("close: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	for _, m := range models {
		m.end()
	}
}

// checkComeAndGo opens and closes everything many times. What is left is found behind the check.
func checkComeAndGo(t testing.TB, h Harness) {
	rt := open(t, h)
	for range max(h.rounds/10, 5) {
		scope.Run(t, func(t testing.TB) {
			r := newRig(t, rt, h)
			s, m, e := r.stream(), r.alloc(gpu.DeviceMemory, 5000), r.event(false)
			c := r.call(kernels.Fill, gpu.Buffer(m.All()), gpu.U64(0), gpu.U64(5000), gpu.U64(7))
			r.ok(s.Launch(c, r.grid(0)))
			r.ok(s.Record(e))
			r.ok(e.Wait(always))
		})
	}
}

// checkAllocations counts allocations of Go on the way of work into a stream.
func checkAllocations(t testing.TB, h Harness) {
	r := rigOf(t, h)
	s, d, p, e := r.stream(), r.alloc(gpu.DeviceMemory, 4096), r.alloc(gpu.PinnedMemory, 4096), r.event(false)
	c := r.call(kernels.Fill, gpu.Buffer(d.All()), gpu.U64(0), gpu.U64(64), gpu.U64(7))
	r.ok(s.Record(e))
	r.ok(s.Wait(always))
	g := gpu.Grid{Groups: 1, Group: 7}
	batch := []gpu.Op{gpu.CopyOp(d.All(), p.All()), gpu.FillOp(d.All(), 1, 1), gpu.LaunchOp(c, g), gpu.RecordOp(e),
		gpu.WaitForOp(e), gpu.LaunchOp(c, g), gpu.CopyOp(p.All(), d.All())}
	for _, x := range []struct {
		what string
		f    func() error
	}{
		{"a batch", func() error {
			_, err := s.Enqueue(batch)
			return err
		}},
		{"a launch", func() error { return s.Launch(c, g) }},
		{"a copy", func() error { return s.Copy(d.All(), p.All()) }},
		{"a changed number", func() error { return c.Set(3, gpu.U64(9)) }},
		{"a wait", func() error { return s.Wait(always) }},
	} {
		var failed error
		both := func() {
			if err := x.f(); err != nil {
				failed = err
			}
			if err := s.Wait(always); err != nil {
				failed = err
			}
		}
		for range 20 { // queues grow to what they need
			both()
		}
		n := testing.AllocsPerRun(100, both)
		r.ok(failed)
		if n != 0 && !instrumented {
			t.Errorf("%v allocations for %s", n, x.what)
		}
	}
}
