package verbs

import (
	"errors"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
)

// arena is a path's memory for frames: slots of frameSize bytes, known to the adapter, outside the
// Go heap.
type arena struct {
	region *mem.Region
	lease  mem.Lease
	mr     *ibv.MR
	bytes  []byte
	stride int
	used   int // slots given away
}

// open makes the memory for so many messages.
func (a *arena) open(d *domain, slots int) (err error) {
	a.stride = (frameSize + 63) / 64 * 64
	if a.region, err = mem.Alloc(mem.Options{Name: "verbs frames", Size: slots * a.stride}); err != nil {
		return err
	}
	if a.lease, err = a.region.Lease(); err != nil {
		return errors.Join(err, a.region.Close())
	}
	a.bytes = a.lease.Bytes()
	a.mr, err = d.pd.RegMR(ibv.MRSpec{Addr: sys.Address(a.bytes), Length: uint64(len(a.bytes)), Access: ibv.LocalWrite})
	if err != nil {
		err = errors.Join(err, a.close())
	}
	return err
}

// slots gives n slots away and returns the number of the first.
func (a *arena) slots(n int) int {
	first := a.used
	a.used += n
	return first
}

// slot is the memory of a slot.
func (a *arena) slot(i int) []byte {
	return a.bytes[i*a.stride : i*a.stride+frameSize : i*a.stride+frameSize]
}

// sge names the first n bytes of a slot.
func (a *arena) sge(i, n int) ibv.SGE { return a.mr.SGE(uint64(i*a.stride), uint32(n)) }

// unregister takes the memory from the adapter; it stays readable until close.
func (a *arena) unregister() error {
	if a.mr == nil {
		return nil
	}
	err := a.mr.Close()
	a.mr = nil
	return err
}

func (a *arena) close() error {
	if a.region == nil {
		return nil
	}
	err := a.unregister()
	a.lease.Release()
	err = errors.Join(err, a.region.Close())
	a.region, a.bytes = nil, nil
	return err
}
