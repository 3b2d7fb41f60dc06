package main

/*
#define PENSTOCK_NO_PROTOTYPES
#include "penstock.h"

extern unsigned long long loads(void);
*/
import "C"

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/penstock-io/penstock/bindings/abi"
	"github.com/penstock-io/penstock/internal/cuda"
	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/mem"
)

func adoptDevice(name string, device int, addr, size uint64) (*mem.Region, error) {
	a, err := abi.Card(device)
	if err != nil {
		return nil, err
	}
	return a.Adopt(name, addr, size)
}

//export penstock_alloc
func penstock_alloc(name *C.char, size C.uint64_t, flags C.uint32_t, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (uint64, error) { return table.Alloc(str(name), uint64(size), uint32(flags)) })
}

//export penstock_adopt
func penstock_adopt(name *C.char, memory unsafe.Pointer, size C.uint64_t, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (uint64, error) {
		r, err := adopted(str(name), memory, uint64(size), false)
		if err != nil {
			return 0, err
		}
		return table.Adopt(r), nil
	})
}

// noDriver is the count of loaded libraries at which CUDA's driver was not among them.
var noDriver atomic.Uint64

// driverLoaded reports whether the process has loaded CUDA's driver. To ask the loader for a
// library that is not there takes longer than a put of 64 KiB, so it is asked again only when it
// has loaded something.
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

// adopted is a region of memory of the caller. With touched its pages are taken for present: what
// is read once gains nothing from a look at them.
func adopted(name string, memory unsafe.Pointer, size uint64, touched bool) (*mem.Region, error) {
	if size == 0 { // as of a tensor without elements
		return mem.Adopt(name, nil, nil)
	}
	if memory == nil || size > 1<<47 {
		return nil, fmt.Errorf("memory of %d bytes: expected an address and at most 2^47 bytes: %w", size,
			abi.ErrInvalid)
	}
	if driverLoaded() {
		if device, is := cuda.DeviceOf(uintptr(memory)); is {
			return adoptDevice(name, device, uint64(uintptr(memory)), size)
		}
	}
	return mem.AdoptMapping(name, mem.Mapping{Kind: mem.Foreign, Bytes: unsafe.Slice((*byte)(memory), size), Size: size,
		PageSize: os.Getpagesize(),
		FD:       -1, NUMANode: -1, Present: touched})
}

//export penstock_memory
func penstock_memory(h C.penstock_handle, size *C.uint64_t, out *C.penstock_error) unsafe.Pointer {
	data, err := abi.Guarded(func() (unsafe.Pointer, error) {
		r, err := table.Region(uint64(h))
		if err != nil {
			return nil, err
		}
		if size != nil {
			*size = C.uint64_t(r.Len())
		}
		if r.Len() == 0 {
			return nil, nil
		}
		return unsafe.Pointer(unsafe.SliceData(r.All().Bytes())), nil // nil for memory of a device
	})
	fail(out, err)
	return data
}

//export penstock_export
func penstock_export(h, memory C.penstock_handle, offset, length C.uint64_t, name *C.char, rights, flags C.uint32_t,
	out *C.penstock_error) C.penstock_handle {
	return made(out, func() (uint64, error) {
		return table.Export(uint64(h), uint64(memory), uint64(offset), uint64(length), str(name), uint32(rights),
			uint32(flags))
	})
}
