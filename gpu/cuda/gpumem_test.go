package cuda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/gpu/gpumem/gpumemtest"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/cuda"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
)

// Its memory as regions, on the fake driver, which reports every call that the manual does not
// allow.
func TestMemory(t *testing.T) {
	library, _ := built(t)
	var f *fake.Control
	gpumemtest.Run(t, gpumemtest.Harness{
		Open: func(t testing.TB) *gpu.Runtime {
			if f == nil || f.Live() == 0 {
				_, f = start(t, "devices 2; device * memory 256M")
			}
			return must[*gpu.Runtime](t)(Open(Options{Library: library}))
		},
		Lose: func(t testing.TB, c *gpu.Context) {
			ok(t, f.Script("sticky * CUDA_ERROR_ILLEGAL_ADDRESS"))
		},
		Importer: []string{"GPU_CUDA_TEST_LIBRARY=" + library},
		Idle:     func(t testing.TB) { clean(t, f) },
	})
}

// regions uses about everything of a Provider and closes all of it, as scenario does for the rest.
func regions(library string) (err error) {
	rt, err := Open(Options{Library: library})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Close()) }()
	c, err := rt.Devices()[0].Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	p, err := gpumem.New(c, gpumem.Options{Streams: 2, Bounce: 4096})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	const n = 64 << 10
	var all [3]*mem.Region
	for i, k := range []mem.Kind{mem.Device, mem.HostPinned, mem.Host} {
		o := mem.Options{Name: k.String(), Kind: k, Size: n}
		if k != mem.Host {
			o.Provider = p
		}
		r, err := mem.Alloc(o)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		all[i] = r
	}
	dev, pinned, other := all[0], all[1], all[2]
	span := func(r *mem.Region) mem.Span { return mem.Span{Region: r, Len: n} }
	copy(pinned.All().Bytes(), bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7}, n/7))
	for _, step := range []func() (mem.Move, error){
		func() (mem.Move, error) { return dev.Mover().Store(0, span(pinned)) },
		func() (mem.Move, error) { return dev.Mover().Load(span(other), 0) },
		func() (mem.Move, error) { return dev.Mover().Store(0, span(other)) },
		func() (mem.Move, error) { clear(pinned.All().Bytes()); return dev.Mover().Load(span(pinned), 0) },
	} {
		m, err := step()
		if err == nil {
			err = m.Wait(context.Background())
		}
		if err != nil {
			return err
		}
	}
	if b := pinned.All().Bytes(); b[0] != 1 || b[6] != 7 || b[n-10] != byte((n-10)%7+1) {
		return fmt.Errorf("the bytes are % x", b[:8])
	}
	if _, err := p.Export(dev); err != nil {
		return err
	}
	fd, err := dev.DMABuf(0, dev.Len())
	if err != nil {
		return err
	}
	return sys.Close(fd)
}

// Every call that fails now and then, and every one that fails from some time on, is an error or no
// harm, and nothing is left: no region, object or descriptor.
func TestMemoryWhenCallsFail(t *testing.T) {
	library, f := start(t, "")
	ok(t, regions(library))
	clean(t, f)
	results := []string{"OUT_OF_MEMORY", "INVALID_VALUE", "ILLEGAL_ADDRESS"}
	if slow {
		results = results[1:2]
	}
	for _, name := range []string{"cuStreamCreateWithPriority", "cuEventCreate", "cuMemHostAlloc", "cuMemAlloc",
		"cuMemHostRegister", "cuMemHostGetDevicePointer",
		"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuEventRecord", "cuEventQuery", "cuIpcGetMemHandle",
		"cuMemGetHandleForAddressRange", "cuPointerSetAttribute"} {
		for _, result := range results {
			errs := 0
			for call := range 40 {
				library, f = start(t, fmt.Sprintf("fail %s call %d CUDA_ERROR_%s", name, call+1, result))
				err := regions(library)
				if err != nil {
					errs++
				}
				if err != nil && !strings.Contains(err.Error(), name) {
					t.Errorf("call %d of %s gives %s: %v", call+1, name, result, err)
				}
				if result != "ILLEGAL_ADDRESS" || err == nil { // else nothing can be given back one by one
					clean(t, f)
				}
				if ls := mem.LeakReport(); len(ls) > 0 {
					t.Fatalf("call %d of %s gives %s: memory is left:\n%s", call+1, name, result, ls)
				}
				if err == nil && f.Calls(name) < call+1 && f.Calls(name+"_v2") < call+1 {
					break // there is no such call
				}
			}
			if errs == 0 {
				t.Errorf("%s gives %s, and nobody heard of it", name, result)
			}
		}
	}
	start(t, "")
}

// On a slow device no move ends before its copy, and the provider gives back no memory under a copy
// whose user has dropped the move.
func TestMemoryOfASlowDevice(t *testing.T) {
	rt, f := opened(t, "latency copy 3ms")
	c := must[*gpu.Context](t)(rt.Devices()[0].Open())
	p := must[*gpumem.Provider](t)(gpumem.New(c, gpumem.Options{Bounce: 4096}))
	const n = 2 << 20
	alloc := func(k mem.Kind) *mem.Region {
		return must[*mem.Region](t)(mem.Alloc(mem.Options{Name: k.String(), Kind: k, Size: n, Provider: p}))
	}
	for round := range 10 {
		dev, src, dst := alloc(mem.Device), alloc(mem.HostPinned), alloc(mem.HostPinned)
		want := bytes.Repeat([]byte{byte(round), 1, 2, 3}, n/4)
		copy(src.All().Bytes(), want)
		var moves []mem.Move
		for i := range uint64(8) { // in pieces, on all streams
			s := must[mem.Span](t)(src.Span(i*n/8, n/8))
			moves = append(moves, must[mem.Move](t)(dev.Mover().Store(s.Off, s)))
		}
		for _, m := range moves {
			for {
				done, err := m.Done()
				ok(t, err)
				if done {
					break
				}
				runtime.Gosched()
			}
		}
		ok(t, must[mem.Move](t)(dev.Mover().Load(dst.All(), 0)).Wait(t.Context()))
		if !bytes.Equal(dst.All().Bytes(), want) {
			t.Fatalf("round %d: other bytes came back", round)
		}
		must[mem.Move](t)(dev.Mover().Store(0, src.All())) // and away
		must[mem.Move](t)(dev.Mover().Load(dst.All(), 0))
		ok(t, errors.Join(dst.Close(), dev.Close(), src.Close()))
		if f.Violations() != 0 {
			t.Fatal("memory was given back under a copy")
		}
	}
	ok(t, errors.Join(p.Close(), c.Close()))
}

// A move whose event fails ends only when its copy is over: its bytes are the caller's again.
func TestMoveWithoutAnEnd(t *testing.T) {
	rt, f := opened(t, "")
	c := must[*gpu.Context](t)(rt.Devices()[0].Open())
	p := must[*gpumem.Provider](t)(gpumem.New(c, gpumem.Options{}))
	const n = 1 << 20
	dev := must[*mem.Region](t)(mem.Alloc(mem.Options{Kind: mem.Device, Size: n, Provider: p}))
	h := must[*mem.Region](t)(mem.Alloc(mem.Options{Kind: mem.HostPinned, Size: n, Provider: p}))
	ok(t, must[mem.Move](t)(dev.Mover().Store(0, mem.Span{Region: h, Len: n})).Wait(t.Context()))
	b := h.All().Bytes()
	for i := range b {
		b[i] = 9
	}
	ok(t, f.Script("latency copy 200ms; fail cuEventRecord CUDA_ERROR_INVALID_VALUE"))
	if _, err := dev.Mover().Load(mem.Span{Region: h, Len: n}, 0); !errors.Is(err, gpu.ErrDriver) {
		t.Errorf("%v", err)
	}
	if b[0] != 0 || b[n-1] != 0 {
		t.Error("the copy goes on")
	}
	for i := range b {
		b[i] = 9
	}
	m := must[mem.Move](t)(dev.Mover().Load(mem.Span{Region: h, Len: n}, 0))
	ok(t, f.Script("fail cuEventQuery CUDA_ERROR_INVALID_VALUE"))
	if done, err := m.Done(); !done || !errors.Is(err, gpu.ErrDriver) {
		t.Errorf("%v, %v", done, err)
	}
	if b[0] != 0 || b[n-1] != 0 {
		t.Error("the copy goes on after its end")
	}
	ok(t, errors.Join(dev.Close(), h.Close(), p.Close(), c.Close()))
}

// A region of device memory is one allocation of the driver, as large as the region, and begins
// where a dma-buf can.
func TestRegionsAreAllocations(t *testing.T) {
	rt, f := opened(t, "")
	c := must[*gpu.Context](t)(rt.Devices()[0].Open())
	p := must[*gpumem.Provider](t)(gpumem.New(c, gpumem.Options{}))
	free, _, err := c.MemoryInfo()
	ok(t, err)
	calls := f.Calls("cuMemAlloc_v2")
	var all []*mem.Region
	for _, size := range []int{1, 2 << 20, 3 << 20} {
		all = append(all, must[*mem.Region](t)(mem.Alloc(mem.Options{Kind: mem.Device, Size: size, Provider: p})))
	}
	now, _, err := c.MemoryInfo()
	ok(t, err)
	if n := f.Calls("cuMemAlloc_v2") - calls; n != 3 || free-now != 8<<20 {
		t.Errorf("3 regions of 8 MiB together took %d allocations of %d bytes", n, free-now)
	}
	for _, r := range all {
		if a := gpumem.Memory(r).Addr(); a%(2<<20) != 0 || r.PageSize() != 2<<20 {
			t.Errorf("%d bytes at %#x, in pages of %d", r.Len(), a, r.PageSize())
		}
		ok(t, r.Close())
	}
	ok(t, errors.Join(p.Close(), c.Close()))
}
