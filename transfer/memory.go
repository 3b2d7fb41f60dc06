package transfer

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/bounce"
	"github.com/penstock-io/penstock/transfer/path"
)

// landingClasses are the block sizes for pushed tensors, in bytes: a factor of four apart, so that
// at most three quarters of a block lie idle.
var landingClasses = []uint64{64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20}

func (n *Node) openMemory() error {
	var err error
	// Each pushed tensor gets a region of its own: shared memory hands over whole regions only.
	n.pool, err = mem.NewAllocator(mem.AllocatorOptions{Name: n.opts.Name + " tensors", Budget: n.opts.Budget,
		Classes: landingClasses, Dedicated: true})
	if err != nil {
		return fmt.Errorf("transfer: %w", err)
	}
	n.regs, err = mem.NewRegCache(mem.RegCacheOptions{Name: n.opts.Name, Registrar: mem.Populate,
		MaxBytes: n.opts.RegistrationBudget})
	if err != nil {
		return fmt.Errorf("transfer: %w", err)
	}
	n.staging, err = bounce.New(n.opts.Staging, ErrClosed)
	return err
}

func (n *Node) closeMemory() error {
	serr := n.staging.Close()
	err := n.regs.Close()
	if errors.Is(err, mem.ErrInUse) {
		// a Put that began just now: it finds its peer lost and gives its registrations back
		err = nil
	}
	// Tensors that the application still holds stay valid; they are given back as they are
	// released.
	if perr := n.pool.Close(); perr != nil && !errors.Is(perr, mem.ErrInUse) {
		err = errors.Join(err, perr)
	}
	return errors.Join(err, serr)
}

// maxRegistrations is how many scattered blocks of one transfer are registered one by one. Beyond
// it the pages that are not present yet are touched by the copy instead.
const maxRegistrations = 64

// register makes the local memory of a transfer present: as one range per region where the blocks
// lie close together, block by block where they do not, so that a sparse region is not filled by a
// transfer of a few of its pages.
func (n *Node) register(t *Transfer, kind path.OpKind, copies []path.Copy) error {
	access := mem.ReadAccess
	if kind == path.Get {
		access = mem.WriteAccess
	}
	for i := 0; i < len(copies); {
		r := copies[i].Local.Region
		lo, hi, sum := copies[i].Local.Off, copies[i].Local.Off, uint64(0)
		first := i
		for ; i < len(copies) && copies[i].Local.Region == r; i++ {
			s := copies[i].Local
			lo, hi, sum = min(lo, s.Off), max(hi, s.Off+s.Len), sum+s.Len
		}
		if sum == 0 || copies[first].Local.Bytes() == nil { // what the CPU cannot reach is there already
			continue
		}
		if hi-lo <= 4*sum+1<<20 {
			if err := n.registerSpan(t, mem.Span{Region: r, Off: lo, Len: hi - lo}, access); err != nil {
				return err
			}
			continue
		}
		if i-first > maxRegistrations-len(t.regs) {
			continue
		}
		for _, c := range copies[first:i] {
			if c.Local.Len > 0 {
				if err := n.registerSpan(t, c.Local, access); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (n *Node) registerSpan(t *Transfer, s mem.Span, a mem.Access) error {
	g, err := n.regs.Get(s, a)
	if errors.Is(err, mem.ErrRegCacheClosed) {
		return ErrClosed
	}
	if err != nil {
		return fmt.Errorf("transfer: register local memory: %w", err)
	}
	t.regs = append(t.regs, g)
	return nil
}

// landingSize is how much memory a pushed tensor of so many bytes occupies.
func landingSize(size uint64) uint64 {
	for _, c := range landingClasses {
		if size <= c {
			return c
		}
	}
	const page = 4 << 10
	return max(size, size+page-1) &^ (page - 1)
}
