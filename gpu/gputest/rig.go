package gputest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/internal/kernels"
)

// always is a context that does not end.
var always = context.Background()

// rig is a context on the device under test, and short ways to use it that fail the test.
type rig struct {
	testing.TB
	h     Harness
	rt    *gpu.Runtime
	c     *gpu.Context
	info  gpu.Info
	kinds []gpu.Kind // of memory that the device has

	loaded map[*gpu.Program]*gpu.Module
}

// open opens the runtime, which is closed at the end.
func open(t testing.TB, h Harness) *gpu.Runtime {
	t.Helper()
	rt := h.Open(t)
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Errorf("close the runtime: %v", err)
		}
	})
	return rt
}

func newRig(t testing.TB, rt *gpu.Runtime, h Harness) *rig {
	t.Helper()
	d := rt.Devices()[h.device]
	r := &rig{TB: t, h: h, rt: rt, info: d.Info(), loaded: map[*gpu.Program]*gpu.Module{}}
	c, err := d.Open()
	if err != nil {
		t.Fatalf("open %s: %v", d, err)
	}
	r.c = c
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close the context: %v", err)
		}
	})
	for _, k := range []gpu.Kind{gpu.DeviceMemory, gpu.PinnedMemory, gpu.MappedMemory, gpu.SharedMemory} {
		if need, ok := k.Needs(); !ok || r.info.Capabilities.Has(need) {
			r.kinds = append(r.kinds, k)
		}
	}
	return r
}

func rigOf(t testing.TB, h Harness) *rig {
	t.Helper()
	return newRig(t, open(t, h), h)
}

func (r *rig) has(c gpu.Capability) bool { return r.info.Capabilities.Has(c) }

// reached are the kinds that kernels and copies reach.
func (r *rig) reached() []gpu.Kind {
	return slices.DeleteFunc(slices.Clone(r.kinds), func(k gpu.Kind) bool { return k == gpu.PinnedMemory })
}

type closer interface{ Close() error }

func (r *rig) closeLater(c closer) {
	r.Cleanup(func() {
		if err := c.Close(); err != nil {
			r.Errorf("close: %v", err)
		}
	})
}

func (r *rig) stream() *gpu.Stream {
	r.Helper()
	s, err := r.c.NewStream(gpu.StreamOptions{})
	r.ok(err)
	r.closeLater(s)
	return s
}

func (r *rig) alloc(k gpu.Kind, size uint64) *gpu.Memory {
	r.Helper()
	m, err := r.c.Alloc(gpu.MemoryOptions{Kind: k, Size: size})
	r.ok(err)
	r.closeLater(m)
	return m
}

func (r *rig) event(timing bool) *gpu.Event {
	r.Helper()
	e, err := r.c.NewEvent(gpu.EventOptions{Timing: timing})
	r.ok(err)
	r.closeLater(e)
	return e
}

// kernel is the first kernel of a program, loaded once.
func (r *rig) kernel(p *gpu.Program) *gpu.Kernel {
	r.Helper()
	m := r.loaded[p]
	if m == nil {
		var err error
		m, err = r.c.Load(p)
		r.ok(err)
		r.closeLater(m)
		r.loaded[p] = m
	}
	k, err := m.Kernel(p.Kernels[0].Name)
	r.ok(err)
	return k
}

func (r *rig) call(p *gpu.Program, args ...gpu.Arg) *gpu.Call {
	r.Helper()
	c, err := r.kernel(p).Prepare(args...)
	r.ok(err)
	r.closeLater(c)
	return c
}

func (r *rig) ok(err error) {
	if err != nil {
		r.Helper()
		r.Fatal(err)
	}
}

// is fails unless err wraps want.
func (r *rig) is(what string, err, want error) {
	r.Helper()
	if !errors.Is(err, want) {
		r.Errorf("%s: got error %v, expected one that wraps %q", what, err, want)
	}
}

// write puts bytes into memory, and waits for that.
func (r *rig) write(s *gpu.Stream, m *gpu.Memory, b []byte) {
	r.Helper()
	r.ok(s.Write(gpu.Span{Memory: m, Len: uint64(len(b))}, b))
}

// holds fails unless the memory begins with want.
func (r *rig) holds(what string, s *gpu.Stream, m *gpu.Memory, want []byte) bool {
	r.Helper()
	got := make([]byte, len(want))
	r.ok(s.Read(got, gpu.Span{Memory: m, Len: uint64(len(want))}))
	return r.same(what, got, want)
}

func (r *rig) same(what string, got, want []byte) bool {
	if bytes.Equal(got, want) {
		return true
	}
	r.Helper()
	wrong, first := 0, -1
	for i := range want {
		if got[i] != want[i] {
			if wrong++; first < 0 {
				first = i
			}
		}
	}
	r.Errorf("%s: %d of %d bytes are wrong, the first at %d: %#02x, expected %#02x", what, wrong, len(want), first,
		got[first], want[first])
	return false
}

// noise is n bytes of a seed.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	x := rand.NewPCG(seed, 0x9e3779b97f4a7c15)
	for i := range b {
		b[i] = byte(x.Uint64())
	}
	return b
}

// block puts work into s that is not done until release is called. ok is false for a device that
// lacks a capability for it, which the log names: a check that is about nothing else ends.
func (r *rig) block(s *gpu.Stream) (release func(), ok bool) {
	r.Helper()
	if r.h.Block != nil {
		release = r.h.Block(r.TB, s)
		r.Cleanup(release)
		return release, true
	}
	if r.h.NoKernels || !r.has(gpu.CapResident) || !r.has(gpu.CapSharedAtomics) {
		r.Logf("%s cannot hold a stream: no kernels: %v, resident: %+v, shared atomics: %+v", r.c.Device(),
			r.h.NoKernels, r.info.Capabilities[gpu.CapResident], r.info.Capabilities[gpu.CapSharedAtomics])
		return nil, false
	}
	kind := gpu.MappedMemory
	if !r.has(gpu.CapMapped) {
		kind = gpu.SharedMemory
	}
	m := r.alloc(kind, 64)
	call := r.call(kernels.Hold, gpu.Buffer(m.All()))
	clear(m.Bytes())
	words := m.Bytes()
	release = func() { kernels.Word(words).Store(1) }
	r.Cleanup(func() {
		release()
		if err := s.Wait(always); err != nil && r.c.Err() == nil {
			r.Errorf("wait for the kernel that was let go: %v", err)
		}
	})
	r.ok(s.Launch(call, gpu.Grid{Groups: 1, Group: 1}))
	for kernels.Word(words[4:]).Load() == 0 { // it has begun
		_, err := s.Query()
		r.ok(err)
		runtime.Gosched()
	}
	return release, true
}
