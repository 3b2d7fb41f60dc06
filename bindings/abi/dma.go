package abi

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibvmem"
	"github.com/penstock-io/penstock/mem"
)

// adapter is an RDMA device that is asked what it reaches.
type adapter struct {
	name   string
	pd     *ibv.PD
	memory *ibvmem.Adapter
}

// adapters are the RDMA devices of the machine. They stay open until the process ends.
var adapters struct {
	mu   sync.Mutex
	open []adapter
}

// openAdapters opens the devices once there are some. Devices that cannot be opened are left out,
// if another one can.
func openAdapters() ([]adapter, error) {
	adapters.mu.Lock()
	defer adapters.mu.Unlock()
	if len(adapters.open) > 0 {
		return adapters.open, nil
	}
	lib, err := ibv.Load(ibv.Options{})
	if err != nil {
		return nil, err
	}
	devices, err := lib.Devices()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, d := range devices {
		ctx, err := d.Open()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		pd, err := ctx.AllocPD()
		if err != nil {
			errs = append(errs, err, ctx.Close())
			continue
		}
		adapters.open = append(adapters.open, adapter{d.Name(), pd, ibvmem.New(ctx, ibvmem.Options{})})
	}
	if len(adapters.open) == 0 {
		return nil, errors.Join(errs...)
	}
	return adapters.open, nil
}

// dma reports whether an adapter reaches a region itself, and how, or why none does.
func dma(r *mem.Region) (bool, string) {
	if r.Len() == 0 {
		return true, "it has no bytes"
	}
	all, err := openAdapters()
	if err != nil {
		return false, err.Error()
	}
	var why []string
	for _, a := range all {
		err := a.memory.Reaches(a.pd, r)
		if err == nil {
			return true, fmt.Sprintf("%s reaches it: %s", a.name, a.memory.Way(r))
		}
		why = append(why, fmt.Sprintf("%s: %v", a.name, err))
	}
	return false, strings.Join(why, "; ")
}

// DMA reports whether an adapter reaches a region itself, and how, or why none does.
func (t *Table) DMA(memory uint64) (can bool, why string, err error) {
	r, err := get[*region](t, memory)
	if err != nil {
		return false, "", err
	}
	can, why = dma(r.r)
	return can, why, nil
}
