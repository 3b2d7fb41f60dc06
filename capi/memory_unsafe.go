package main

/*
#define PENSTOCK_NO_PROTOTYPES
#include "penstock.h"

extern unsigned long long loads(void);
*/
import "C"

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/penstock-io/penstock/internal/accel"
	"github.com/penstock-io/penstock/internal/cuda"
	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer"
)

type region struct {
	r       *mem.Region
	data    unsafe.Pointer // nil for memory of a device
	adopted bool
	users   atomic.Int64 // exports and prepared lists
}

// close waits for transfers that use memory of the caller, and refuses what would be waited for without an end. Memory of ours goes when its
// last user does.
func (r *region) close() error {
	if n := r.users.Load(); r.adopted && n > 0 {
		return fmt.Errorf("%d exports or prepared lists use the memory: close them first: %w", n, errInvalid)
	}
	err := r.r.Close()
	if r.adopted {
		<-r.r.Unmapped()
	}
	return err
}

type export struct {
	x *transfer.Export
	r *region
}

func (x *export) close() error {
	defer x.r.users.Add(-1)
	return x.x.Revoke(context.Background())
}

func newRegion(r *mem.Region, adopted bool, err error) (*region, error) {
	if err != nil {
		return nil, err
	}
	return &region{r: r, data: unsafe.Pointer(unsafe.SliceData(r.All().Bytes())), adopted: adopted}, nil
}

// cards are the CUDA devices that memory was adopted of, by their numbers. They stay open until the process ends.
var cards struct {
	mu   sync.Mutex
	open map[int]*accel.Accelerator
}

func card(device int) (*accel.Accelerator, error) {
	cards.mu.Lock()
	defer cards.mu.Unlock()
	if a := cards.open[device]; a != nil {
		return a, nil
	}
	a, err := accel.Open(accel.Options{Runtime: "cuda", Device: device})
	if err != nil {
		return nil, err
	}
	if cards.open == nil {
		cards.open = map[int]*accel.Accelerator{}
	}
	cards.open[device] = a
	return a, nil
}

func adoptDevice(name string, device int, addr, size uint64) (*region, error) {
	a, err := card(device)
	if err != nil {
		return nil, err
	}
	r, err := a.Adopt(name, addr, size)
	if err != nil {
		return nil, err
	}
	return &region{r: r, adopted: true}, nil
}

//export penstock_alloc
func penstock_alloc(name *C.char, size C.uint64_t, flags C.uint32_t, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (*region, error) {
		o := mem.Options{Name: str(name), Size: int(size)}
		switch {
		case size == 0 || size > 1<<47:
			return nil, fmt.Errorf("a region of %d bytes: expected 1 to 2^47: %w", uint64(size), errInvalid)
		case flags != 0 && flags != C.PENSTOCK_HUGE && flags != C.PENSTOCK_PINNED:
			return nil, fmt.Errorf("flags %#x: expected PENSTOCK_HUGE, PENSTOCK_PINNED or 0: %w", uint32(flags), errInvalid)
		case flags == C.PENSTOCK_PINNED:
			a, err := card(0)
			if err != nil {
				return nil, err
			}
			r, err := a.Alloc(o.Name, mem.HostPinned, o.Size)
			return newRegion(r, false, err)
		case flags == C.PENSTOCK_HUGE:
			o.Kind, o.AllowFallback = mem.Huge, true
		}
		r, err := mem.Alloc(o)
		return newRegion(r, false, err)
	})
}

//export penstock_adopt
func penstock_adopt(name *C.char, memory unsafe.Pointer, size C.uint64_t, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (*region, error) { return adopted(str(name), memory, uint64(size), false) })
}

// noDriver is the count of loaded libraries at which CUDA's driver was not among them.
var noDriver atomic.Uint64

// driverLoaded reports whether the process has loaded CUDA's driver. To ask the loader for a library that is not there takes longer than a put of
// 64 KiB, so it is asked again only when it has loaded something.
func driverLoaded() bool {
	n := uint64(C.loads())
	if n > 0 && n == noDriver.Load() {
		return false
	}
	if dl.Loaded(cuda.Library) {
		return true
	}
	noDriver.Store(n)
	return false
}

// adopted is a region of memory of the caller. With touched its pages are taken for present: what is read once gains nothing from a look at them.
func adopted(name string, memory unsafe.Pointer, size uint64, touched bool) (*region, error) {
	if memory == nil || size == 0 || size > 1<<47 {
		return nil, fmt.Errorf("memory of %d bytes: expected an address and 1 to 2^47 bytes: %w", size, errInvalid)
	}
	if driverLoaded() {
		if device, is := cuda.DeviceOf(uintptr(memory)); is {
			return adoptDevice(name, device, uint64(uintptr(memory)), size)
		}
	}
	r, err := mem.AdoptMapping(name, mem.Mapping{Kind: mem.Foreign, Bytes: unsafe.Slice((*byte)(memory), size), Size: size, PageSize: os.Getpagesize(),
		FD: -1, NUMANode: -1, Present: touched})
	return newRegion(r, true, err)
}

//export penstock_memory
func penstock_memory(h C.penstock_handle, size *C.uint64_t, out *C.penstock_error) unsafe.Pointer {
	data, err := guarded(func() (unsafe.Pointer, error) {
		r, err := get[*region](uint64(h))
		if err != nil {
			return nil, err
		}
		if size != nil {
			*size = C.uint64_t(r.r.Len())
		}
		return r.data, nil
	})
	fail(out, err)
	return data
}

//export penstock_export
func penstock_export(h, memory C.penstock_handle, offset, length C.uint64_t, name *C.char, rights, flags C.uint32_t, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (*export, error) {
		return newExport(h, memory, uint64(offset), uint64(length), nil, name, rights, flags)
	})
}

func newExport(h, memory C.penstock_handle, offset, length uint64, d *tensor.Desc, name *C.char, rights, flags C.uint32_t) (*export, error) {
	_, node, err := nodeOf(h)
	if err != nil {
		return nil, err
	}
	r, err := get[*region](uint64(memory))
	if err != nil {
		return nil, err
	}
	if rights == 0 || rights&^(C.PENSTOCK_READ|C.PENSTOCK_WRITE) != 0 || flags&^C.PENSTOCK_WHOLE_REGION != 0 {
		return nil, fmt.Errorf("rights %#x and flags %#x: expected PENSTOCK_READ, PENSTOCK_WRITE or both, and PENSTOCK_WHOLE_REGION or 0: %w", uint32(rights), uint32(flags), errInvalid)
	}
	span, err := r.r.Span(offset, length)
	if err != nil {
		return nil, err
	}
	o := transfer.ExportOptions{Name: str(name), WholeRegion: flags != 0, Tensor: d}
	if rights&C.PENSTOCK_READ != 0 {
		o.Rights |= path.Read
	}
	if rights&C.PENSTOCK_WRITE != 0 {
		o.Rights |= path.Write
	}
	e, err := node.Export(span, o)
	if err == nil {
		r.users.Add(1)
	}
	return &export{e, r}, err
}
