package abi

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

// The rights and the flags of penstock.h.
const (
	Read, Write uint32 = 1, 2
	Huge        uint32 = 1 // of Alloc
	Pinned      uint32 = 2 // of Alloc: for the CUDA devices
	WholeRegion uint32 = 1 // of Export and Publish
	Tensors     uint32 = 1 // of Serve
)

type region struct {
	r       *mem.Region
	adopted bool
	users   atomic.Int64 // exports and prepared lists
}

// close waits for transfers that use memory of the caller, and refuses what would be waited for
// without an end. Memory of ours goes when its last user does.
func (r *region) close() error {
	if n := r.users.Load(); r.adopted && n > 0 {
		return fmt.Errorf("%d exports or prepared lists use the memory: close them first: %w", n, ErrInvalid)
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

// Alloc makes a region that peers on this host can map.
func (t *Table) Alloc(name string, size uint64, flags uint32) (uint64, error) {
	o := mem.Options{Name: name, Size: int(size)}
	switch {
	case size == 0 || size > 1<<47:
		return 0, fmt.Errorf("a region of %d bytes: expected 1 to 2^47: %w", size, ErrInvalid)
	case flags != 0 && flags != Huge && flags != Pinned:
		return 0, fmt.Errorf("flags %#x: expected PENSTOCK_HUGE, PENSTOCK_PINNED or 0: %w", flags, ErrInvalid)
	case flags == Pinned:
		a, err := Card(0)
		if err != nil {
			return 0, err
		}
		r, err := a.Alloc(name, mem.HostPinned, o.Size)
		return made(t, &region{r: r}, err)
	case flags == Huge:
		o.Kind, o.AllowFallback = mem.Huge, true
	}
	r, err := mem.Alloc(o)
	return made(t, &region{r: r}, err)
}

// Adopt keeps a region of memory of the caller.
func (t *Table) Adopt(r *mem.Region) uint64 { return t.keep(&region{r: r, adopted: true}) }

// Region is the region of a handle.
func (t *Table) Region(h uint64) (*mem.Region, error) {
	r, err := get[*region](t, h)
	if err != nil {
		return nil, err
	}
	return r.r, nil
}

// Export lets peers of a system name a part of a region.
func (t *Table) Export(h, memory, offset, length uint64, name string, rights, flags uint32) (uint64, error) {
	return t.export(h, memory, offset, length, nil, name, rights, flags)
}

// Publish is Export of a tensor, which says how long the part is.
func (t *Table) Publish(h, memory, offset uint64, d tensor.Desc, name string, rights, flags uint32) (uint64, error) {
	if err := d.Validate(); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	size, err := d.Bytes()
	if err != nil {
		return 0, err
	}
	return t.export(h, memory, offset, uint64(size), &d, name, rights, flags)
}

func (t *Table) export(h, memory, offset, length uint64, d *tensor.Desc, name string, rights, flags uint32) (uint64,
	error) {
	_, node, err := t.nodeOf(h)
	if err != nil {
		return 0, err
	}
	r, err := get[*region](t, memory)
	if err != nil {
		return 0, err
	}
	if rights == 0 || rights&^(Read|Write) != 0 || flags&^WholeRegion != 0 {
		return 0, fmt.Errorf("rights %#x and flags %#x: expected PENSTOCK_READ, PENSTOCK_WRITE or both, and "+
			"PENSTOCK_WHOLE_REGION or 0: %w", rights, flags, ErrInvalid)
	}
	span, err := r.r.Span(offset, length)
	if err != nil {
		return 0, err
	}
	o := transfer.ExportOptions{Name: name, WholeRegion: flags != 0, Tensor: d}
	if rights&Read != 0 {
		o.Rights |= path.Read
	}
	if rights&Write != 0 {
		o.Rights |= path.Write
	}
	e, err := node.Export(span, o)
	if err != nil {
		return 0, err
	}
	r.users.Add(1)
	return t.keep(&export{e, r}), nil
}

// RightsOf are the rights that a peer gives.
func RightsOf(r *transfer.Remote) (out uint32) {
	if r.Desc.Rights&path.Read != 0 {
		out |= Read
	}
	if r.Desc.Rights&path.Write != 0 {
		out |= Write
	}
	return out
}
