package gputest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/internal/lab/testenv"
)

func checkOutOfMemory(t testing.TB, h Harness) {
	r := rigOf(t, h)
	free, total, err := r.c.MemoryInfo()
	r.ok(err)
	switch {
	case h.Small:
	case !h.Discrete:
		return // the device's memory is the machine's: taking all of it would harm others
	case free < total/2:
		testenv.Missing(t, "a device that others do not use", fmt.Errorf("%d of its %d bytes are free", free, total))
	}
	s, keep := r.stream(), r.alloc(gpu.DeviceMemory, 1000)
	r.write(s, keep, noise(1, 1000))
	free, _, err = r.c.MemoryInfo()
	r.ok(err)
	size := max(r.info.MaxAlloc/5, 1)
	lost := uint64(0) // how much of what was free may go missing: other programs may take it
	if !h.Small {
		lost = size - 1
	}
	for range 3 {
		var all []*gpu.Memory
		for {
			m, err := r.c.Alloc(gpu.MemoryOptions{Size: size})
			if err != nil {
				r.is("the device is full", err, gpu.ErrOutOfMemory)
				break
			}
			if all = append(all, m); len(all) > 1000 {
				t.Errorf("%d times %d bytes on a device of %d", len(all), size, r.info.Memory)
				break
			}
		}
		if len(all) == 0 {
			t.Errorf("%d of %d bytes cannot be had", size, r.info.Memory)
		}
		r.ok(r.c.Err()) // no more than that has happened
		r.ok(s.Copy(gpu.Span{Memory: keep, Len: 500}, gpu.Span{Memory: keep, Off: 500, Len: 500}))
		r.holds("memory on a full device", s, keep, slicesTwice(noise(1, 1000)[500:]))
		r.write(s, keep, noise(1, 1000))
		for _, m := range all {
			r.ok(m.Close())
		}
		if now, _, err := r.c.MemoryInfo(); err != nil || h.Small && now > free || now+lost < free {
			t.Errorf("%d bytes were free, and %d are when everything is back: %v", free, now, err)
		}
	}
}

func slicesTwice(b []byte) []byte { return bytes.Repeat(b, 2) }

// checkLost loses the device under work.
func checkLost(t testing.TB, h Harness) {
	if h.Lose == nil {
		return // it cannot be done on purpose
	}
	r := rigOf(t, h)
	s, other, e, m, p := r.stream(), r.stream(), r.event(false), r.alloc(gpu.DeviceMemory, 1000),
		r.alloc(gpu.PinnedMemory, 1000)
	c := r.call(kernels.Fill, gpu.Buffer(m.All()), gpu.U64(0), gpu.U64(8), gpu.U64(1))
	r.ok(s.Record(e))
	r.ok(s.Wait(always))
	h.Lose(t, r.c)
	r.is("a wait", errors.Join(s.Wait(always), other.Wait(always)), gpu.ErrDeviceLost)
	r.is("the context", r.c.Err(), gpu.ErrDeviceLost)
	_, qerr := s.Query()
	_, eerr := e.Query()
	_, _, ierr := r.c.MemoryInfo()
	_, aerr := r.c.Alloc(gpu.MemoryOptions{Size: 1})
	_, serr := r.c.NewStream(gpu.StreamOptions{})
	_, nerr := r.c.NewEvent(gpu.EventOptions{})
	_, lerr := r.c.Load(kernels.Copy)
	for what, err := range map[string]error{
		"Copy": s.Copy(m.All(), p.All()), "Fill": other.Fill(m.All(), 1, 1),
		"Launch": s.Launch(c, gpu.Grid{Groups: 1, Group: 1}), "Record": s.Record(e), "WaitFor": s.WaitFor(e),
		"Write": s.Write(m.All(), make([]byte, 1000)), "Read": s.Read(make([]byte, 1000), m.All()),
		"Stream.Wait": s.Wait(context.Background()), "Event.Wait": e.Wait(t.Context()),
		"Set": c.Set(1, gpu.U64(8)), "Query": qerr, "Event.Query": eerr, "MemoryInfo": ierr, "Alloc": aerr,
		"NewStream": serr, "NewEvent": nerr, "Load": lerr,
	} {
		r.is(what, err, gpu.ErrDeviceLost)
	}
	// All of it closes without an error: see the cleanups of the rig.
}

func checkClosed(t testing.TB, h Harness) {
	rt := open(t, h)
	r := newRig(t, rt, h)
	s, e, m, n := r.stream(), r.event(false), r.alloc(gpu.DeviceMemory, 100), r.alloc(gpu.DeviceMemory, 100)
	mod, err := r.c.Load(kernels.Fill)
	r.ok(err)
	k, err := mod.Kernel("fill")
	r.ok(err)
	args := []gpu.Arg{gpu.Buffer(m.All()), gpu.U64(0), gpu.U64(8), gpu.U64(1)}
	c, err := k.Prepare(args...)
	r.ok(err)
	d, err := k.Prepare(args...)
	r.ok(err)
	r.ok(s.Record(e))
	r.ok(s.Wait(always))
	r.is("close a module with calls", mod.Close(), gpu.ErrInUse)
	twice := func(what string, c closer) {
		t.Helper()
		r.ok(c.Close())
		if err := c.Close(); err != nil {
			t.Errorf("close %s again: %v", what, err)
		}
	}
	twice("a call", c)
	r.is("launch a closed call", s.Launch(c, gpu.Grid{Groups: 1, Group: 1}), gpu.ErrClosed)
	r.is("set an argument of a closed call", c.Set(1, gpu.U64(0)), gpu.ErrClosed)
	twice("memory", m)
	r.is("launch with closed memory", s.Launch(d, gpu.Grid{Groups: 1, Group: 1}), gpu.ErrClosed)
	r.is("copy to closed memory", s.Copy(m.All(), n.All()), gpu.ErrClosed)
	r.is("copy from closed memory", s.Copy(n.All(), m.All()), gpu.ErrClosed)
	r.is("fill closed memory", s.Fill(m.All(), 0, 1), gpu.ErrClosed)
	r.is("write to closed memory", s.Write(m.All(), make([]byte, 100)), gpu.ErrClosed)
	r.is("read from closed memory", s.Read(make([]byte, 100), m.All()), gpu.ErrClosed)
	_, err = k.Prepare(args...)
	r.is("prepare with closed memory", err, gpu.ErrClosed)
	if m.Bytes() != nil {
		t.Error("closed memory has bytes")
	}
	r.ok(d.Close())
	twice("a module", mod)
	_, err = mod.Kernel("fill")
	r.is("a kernel of a closed module", err, gpu.ErrClosed)
	_, err = k.Prepare(args...)
	r.is("prepare with a closed module", err, gpu.ErrClosed)
	twice("an event", e)
	_, err = e.Query()
	r.is("query a closed event", err, gpu.ErrClosed)
	r.is("wait for a closed event", e.Wait(always), gpu.ErrClosed)
	r.is("record a closed event", s.Record(e), gpu.ErrClosed)
	r.is("wait in a stream for a closed event", s.WaitFor(e), gpu.ErrClosed)
	twice("a stream", s)
	_, err = s.Query()
	r.is("query a closed stream", err, gpu.ErrClosed)
	r.is("wait for a closed stream", s.Wait(always), gpu.ErrClosed)
	_, err = s.Enqueue(nil)
	r.is("put work into a closed stream", err, gpu.ErrClosed)
	r.is("write with a closed stream", s.Write(n.All(), make([]byte, 100)), gpu.ErrClosed)
	r.ok(n.Close())
	if live := r.c.Live(); live != 0 {
		t.Errorf("%d objects when everything is closed", live)
	}
	twice("a context", r.c)
	_, err = r.c.Alloc(gpu.MemoryOptions{Size: 1})
	r.is("allocate in a closed context", err, gpu.ErrClosed)
	_, err = r.c.NewStream(gpu.StreamOptions{})
	r.is("a stream of a closed context", err, gpu.ErrClosed)
	_, err = r.c.NewEvent(gpu.EventOptions{})
	r.is("an event of a closed context", err, gpu.ErrClosed)
	_, err = r.c.Load(kernels.Fill)
	r.is("load into a closed context", err, gpu.ErrClosed)
	twice("a runtime", rt)
	_, err = rt.Devices()[h.device].Open()
	r.is("open a device of a closed runtime", err, gpu.ErrClosed)
}

func checkInUse(t testing.TB, h Harness) {
	rt := open(t, h)
	r := newRig(t, rt, h)
	m, err := r.c.Alloc(gpu.MemoryOptions{Name: "forgotten", Size: 1})
	r.ok(err)
	r.is("close a context with memory", r.c.Close(), gpu.ErrInUse)
	if err := r.c.Close(); err == nil || !bytes.Contains([]byte(err.Error()), []byte("forgotten")) {
		t.Errorf("the error of a context in use does not name what is open: %v", err)
	}
	r.is("close a runtime with a context", rt.Close(), gpu.ErrInUse)
	s := r.stream() // it still works
	r.write(s, m, []byte{1})
	r.holds("memory of a context that was not closed", s, m, []byte{1})
	r.ok(m.Close())
}
