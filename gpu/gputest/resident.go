package gputest

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/internal/kernels"
)

// tally is a Resident of kernels.Tally and its words.
type tally struct {
	*rig
	*gpu.Resident
	words  []byte
	memory *gpu.Memory
	groups uint32
}

// resident reports whether the device can have a Resident of a mode, and logs why not.
func (r *rig) resident(mode gpu.ResidentMode) bool {
	stays := mode == gpu.ResidentBatch || r.has(gpu.CapResident)
	if r.h.NoKernels || !r.has(gpu.CapSharedAtomics) || !stays {
		r.Logf("%s has no resident kernels: no kernels: %v, resident: %+v, shared atomics: %+v", r.c.Device(),
			r.h.NoKernels, r.info.Capabilities[gpu.CapResident], r.info.Capabilities[gpu.CapSharedAtomics])
		return false
	}
	return true
}

// tally makes a Resident that counts. It is closed at the end.
func (r *rig) tally(o gpu.ResidentOptions) *tally {
	r.Helper()
	x := &tally{rig: r, groups: o.Grid.Groups}
	x.memory = r.alloc(r.atomicKind(), 4*(1+uint64(o.Grid.Groups)))
	x.words = x.memory.Bytes()
	clear(x.words)
	var err error
	x.Resident, err = r.c.NewResident(r.kernel(kernels.Tally), o, gpu.Buffer(x.memory.All()))
	r.ok(err)
	r.Cleanup(func() { r.ok(x.Close(always)) })
	return x
}

// atomicKind is a kind of memory that CPU and running kernels see.
func (r *rig) atomicKind() gpu.Kind {
	if r.has(gpu.CapMapped) {
		return gpu.MappedMemory
	}
	return gpu.SharedMemory
}

// to publishes a number and waits until all groups have counted so far.
func (x *tally) to(n uint32) {
	x.Helper()
	kernels.Word(x.words).Store(n)
	x.Ring()
	x.reach(n)
}

func (x *tally) reach(n uint32) {
	x.Helper()
	for i := range x.groups {
		for w := kernels.Word(x.words[4*(1+i):]); w.Load() != n; runtime.Gosched() {
			if err := x.Err(); err != nil {
				x.Fatalf("group %d is at %d of %d: %v", i, w.Load(), n, err)
			}
		}
	}
}

// awaitIdle waits until the Resident sleeps or has ended, so that counts are final.
func (x *tally) awaitIdle() gpu.ResidentStats {
	for s := x.Stats(); ; s = x.Stats() {
		if s.State == "asleep" || s.State == "ended" {
			return s
		}
		runtime.Gosched()
	}
}

// group is a size of groups that the device takes.
func (r *rig) group(n uint32) uint32 { return min(n, r.info.MaxGroup) }

// checkResident counts with a persistent kernel, and ends its launches in every way: nothing is
// lost or counted twice.
func checkResident(t testing.TB, h Harness) {
	r := rigOf(t, h)
	if !r.resident(gpu.ResidentStay) {
		return
	}
	limit, err := r.kernel(kernels.Tally).Occupancy(r.group(4))
	r.ok(err)
	if limit == 0 {
		t.Fatal("not one group fits")
	}
	grid := gpu.Grid{Groups: min(2, limit), Group: r.group(4)}
	other := r.stream()
	x := r.tally(gpu.ResidentOptions{Name: "tally", Grid: grid})
	if s := x.Stats(); s.State != "ready" || s.Launches != 0 || s.Limit != limit || s.Groups != int(grid.Groups) {
		t.Errorf("before its start it says %+v", s)
	}
	r.ok(x.Start())
	r.is("a second start", x.Start(), gpu.ErrInUse)
	x.to(1000)
	x.to(2500)
	r.holds("a word that the kernel reads", other, x.memory, []byte{2500 & 255, 2500 >> 8, 0, 0}) // other streams go on
	if !r.info.Processor {
		if s := x.Stats(); s.State != "running" || s.Launches != 1 || s.Heartbeat < 2500 {
			t.Errorf("a persistent kernel says %+v", s)
		}
	} else if s := x.awaitIdle(); s.State != "asleep" {
		t.Errorf("a kernel that has nothing to do on a processor says %+v", s)
	}
	x.to(2600)
	r.ok(x.Close(always))
	r.ok(x.Close(always))
	x.Ring() // nothing
	if s := x.Stats(); s.State != "ended" || s.Done != 2600*uint64(grid.Groups) {
		t.Errorf("in the end it says %+v, expected %d items for each of %d groups", s, 2600, grid.Groups)
	}

	// With 3 passes a launch, almost every item has a launch of its own.
	x = r.tally(gpu.ResidentOptions{Name: "short", Grid: grid, Passes: 3})
	r.ok(x.Start())
	x.to(50)
	x.to(60)
	r.ok(x.Close(always))
	if s := x.Stats(); s.Launches < 60/3 || s.Done != 60*uint64(grid.Groups) {
		t.Errorf("with launches of 3 passes it says %+v", s)
	}

	// A launch ends with its turn.
	x = r.tally(gpu.ResidentOptions{Name: "turns", Grid: grid, Turn: time.Millisecond})
	r.ok(x.Start())
	for n := uint32(1); x.Stats().Launches < 3; n++ {
		x.to(n)
	}
	r.ok(x.Close(always))
}

// checkResidentBatch drains by launches that end.
func checkResidentBatch(t testing.TB, h Harness) {
	r := rigOf(t, h)
	if !r.resident(gpu.ResidentBatch) {
		return
	}
	x := r.tally(gpu.ResidentOptions{Name: "batch", Mode: gpu.ResidentBatch,
		Grid: gpu.Grid{Groups: 3, Group: r.group(4)}})
	r.ok(x.Start())
	for n := uint32(7); n <= 70; n += 7 {
		x.to(n)
		x.awaitIdle()
		r.alloc(gpu.DeviceMemory, 100) // nothing holds the device
	}
	s := x.awaitIdle()
	if s.State != "asleep" || s.Done != 3*70 || s.Launches < 10 {
		t.Errorf("it says %+v, expected 10 launches at least", s)
	}
	runtime.Gosched()
	if now := x.Stats(); now != s {
		t.Errorf("with nothing to do it said %+v, and then %+v", s, now)
	}
	kernels.Word(x.words).Store(5000) // more than the passes of a launch
	x.Ring()
	x.reach(5000)
	r.ok(x.Close(always))
}

// checkResidentHolds asks for what must not be while a kernel stays, and for what must.
func checkResidentHolds(t testing.TB, h Harness) {
	r := rigOf(t, h)
	if !r.resident(gpu.ResidentStay) {
		return
	}
	k := r.kernel(kernels.Tally)
	limit, err := k.Occupancy(1)
	r.ok(err)
	words := r.alloc(r.atomicKind(), 4096)
	if limit < r.info.MaxGroups {
		_, err = r.c.NewResident(k, gpu.ResidentOptions{Grid: gpu.Grid{Groups: limit + 1, Group: 1}},
			gpu.Buffer(words.All()))
		r.is("more groups than fit", err, gpu.ErrArgument)
		if err != nil && !strings.Contains(err.Error(), "fit") {
			t.Errorf("the error does not say how many fit: %v", err)
		}
	}
	_, err = r.c.NewResident(k, gpu.ResidentOptions{}, gpu.Buffer(words.All()))
	r.is("no groups", err, gpu.ErrArgument)
	_, err = r.c.NewResident(k, gpu.ResidentOptions{Grid: gpu.Grid{Groups: 1, Group: 1}})
	r.is("no arguments", err, gpu.ErrArgument)
	_, err = r.c.NewResident(nil, gpu.ResidentOptions{Grid: gpu.Grid{Groups: 1, Group: 1}})
	r.is("no kernel", err, gpu.ErrArgument)

	spare, s := r.alloc(gpu.DeviceMemory, 4096), r.stream()
	other, err := r.c.Device().Open() // the whole device is held, not only the context
	r.ok(err)
	defer func() { r.ok(other.Close()) }()
	x := r.tally(gpu.ResidentOptions{Name: "keeper", Grid: gpu.Grid{Groups: 1, Group: 1}})
	rest, err := r.c.NewResident(k, gpu.ResidentOptions{Name: "rest", Grid: gpu.Grid{Groups: limit, Group: 1}},
		gpu.Buffer(r.alloc(r.atomicKind(), 4*uint64(limit+1)).All()))
	r.ok(err)
	defer func() { r.ok(rest.Close(always)) }()
	r.ok(x.Start())
	x.to(3)
	r.is("a Resident beside another, with more groups than fit", rest.Start(), gpu.ErrArgument)
	for what, f := range map[string]func() error{
		"allocate":           func() error { _, err := r.c.Alloc(gpu.MemoryOptions{Size: 1}); return err },
		"load":               func() error { _, err := r.c.Load(kernels.Fill); return err },
		"a stream":           func() error { _, err := r.c.NewStream(gpu.StreamOptions{}); return err },
		"close memory":       spare.Close,
		"in another context": func() error { _, err := other.Alloc(gpu.MemoryOptions{Size: 1}); return err },
	} {
		err := f()
		r.is(what+" beside a persistent kernel", err, gpu.ErrInUse)
		if err != nil && !strings.Contains(err.Error(), "keeper") {
			t.Errorf("%s: the error does not say what holds the device: %v", what, err)
		}
	}
	// Streams and memory that were there go on: copies, fills, events, reads into Go memory.
	r.write(s, spare, noise(1, 4096))
	r.ok(s.Fill(gpu.Span{Memory: spare, Len: 8}, 7, 1))
	e := r.event(false)
	r.ok(errors.Join(s.Record(e), e.Wait(always)))
	r.holds("memory beside a persistent kernel", s, spare,
		append([]byte{7, 7, 7, 7, 7, 7, 7, 7}, noise(1, 4096)[8:]...))
	x.to(5)

	// Replace has the device for itself, and the count goes on.
	failed := errors.New("no")
	r.is("a replacement that fails", x.Replace(always, func() (*gpu.Kernel, []gpu.Arg, error) {
		return nil, nil, failed
	}), failed)
	r.is("a replacement by nothing", x.Replace(always, func() (*gpu.Kernel, []gpu.Arg, error) {
		return nil, nil, nil
	}), gpu.ErrArgument)
	x.to(6)
	second := r.loadFresh
	r.ok(x.Replace(always, func() (*gpu.Kernel, []gpu.Arg, error) {
		k, err := second(kernels.Tally)
		return k, []gpu.Arg{gpu.Buffer(x.memory.All())}, err
	}))
	x.to(9)
	_, err = r.c.Alloc(gpu.MemoryOptions{Size: 1})
	r.is("allocate after Replace", err, gpu.ErrInUse)
	r.ok(x.Close(always))
	r.ok(spare.Close())
	if limit > 1 && limit < 1000 { // now it fits
		r.ok(rest.Start())
	}
	r.is("replace in a kernel that has ended", x.Replace(always, nil), gpu.ErrClosed)
}

// loadFresh loads a program once more; its module is closed at the end.
func (r *rig) loadFresh(p *gpu.Program) (*gpu.Kernel, error) {
	m, err := r.c.Load(p)
	if err != nil {
		return nil, err
	}
	r.closeLater(m)
	return m.Kernel(p.Kernels[0].Name)
}

// checkResidentStuck closes a kernel that does not leave: Close gives up with its context, says so,
// and works later.
func checkResidentStuck(t testing.TB, h Harness) {
	r := rigOf(t, h)
	if !r.resident(gpu.ResidentStay) || !r.has(gpu.CapGoKernels) {
		return
	}
	in, gate := make(chan struct{}), make(chan struct{})
	p := &gpu.Program{Name: "stuck", Kernels: []gpu.Signature{{Name: "stuck",
		Params: kernels.Tally.Kernels[0].Params[:1]}}, Go: map[string]gpu.GoFunc{"stuck": func(gpu.Grid, []gpu.GoArg) {
		in <- struct{}{}
		<-gate
	}}}
	x, err := r.c.NewResident(r.kernel(p), gpu.ResidentOptions{Name: "stuck", Grid: gpu.Grid{Groups: 2, Group: 1}})
	r.ok(err)
	r.ok(x.Start())
	<-in // a kernel that Close finds before its launch is never launched
	ctx, cancel := context.WithCancel(always)
	cancel()
	err = x.Close(ctx)
	r.is("close a kernel that does not leave", err, gpu.ErrInUse)
	r.is("close a kernel that does not leave", err, context.Canceled)
	if err != nil && !strings.Contains(err.Error(), "2 of 2 groups") {
		t.Errorf("the error does not say which groups stay: %v", err)
	}
	close(gate)
	r.ok(x.Close(always))
}

// checkResidentLost loses the device under a persistent kernel.
func checkResidentLost(t testing.TB, h Harness) {
	r := rigOf(t, h)
	if h.Lose == nil || !r.resident(gpu.ResidentBatch) {
		return
	}
	x := r.tally(gpu.ResidentOptions{Name: "lost", Mode: gpu.ResidentBatch, Grid: gpu.Grid{Groups: 1, Group: 1}})
	r.ok(x.Start())
	x.to(3)
	x.awaitIdle()
	h.Lose(t, r.c)
	x.Ring()
	<-x.Ended()
	r.is("what ended it", x.Err(), gpu.ErrDeviceLost)
	r.ok(x.Close(always))
}
