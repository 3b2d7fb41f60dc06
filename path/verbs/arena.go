package verbs

import (
	"errors"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/mem"
)

// arena is a path's memory for frames: slots of frameSize bytes, known to the adapter, outside the Go heap.
type arena struct {
	region *mem.Region
	lease  mem.Lease
	mr     *ibv.MR // of what is received
	out    *ibv.MR // of what is sent
	bytes  []byte
	stride int
	used   int // slots given away
}

// open makes the memory for messages that come into domain d, and go out of domain source.
func (a *arena) open(d, source *domain, slots int) (err error) {
	a.stride = (frameSize + 63) / 64 * 64
	if a.region, err = mem.Alloc(mem.Options{Name: "verbs frames", Size: slots * a.stride}); err != nil {
		return err
	}
	if a.lease, err = a.region.Lease(); err != nil {
		return errors.Join(err, a.region.Close())
	}
	a.bytes = a.lease.Bytes()
	a.mr, err = d.pd.RegMR(ibv.MRSpec{Addr: uintptr(address(a.bytes)), Length: uint64(len(a.bytes)), Access: ibv.LocalWrite})
	if a.out = a.mr; err == nil && source != d {
		a.out, err = source.pd.RegMR(ibv.MRSpec{Addr: uintptr(address(a.bytes)), Length: uint64(len(a.bytes))})
	}
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

// sge names the first n bytes of a slot for a receive, from for a request that sends them.
func (a *arena) sge(i, n int) ibv.SGE  { return a.mr.SGE(uint64(i*a.stride), uint32(n)) }
func (a *arena) from(i, n int) ibv.SGE { return a.out.SGE(uint64(i*a.stride), uint32(n)) }

// unregister takes the memory from the adapter; it stays readable until close.
func (a *arena) unregister() error {
	if a.mr == nil {
		return nil
	}
	err := a.mr.Close()
	if a.out != nil && a.out != a.mr {
		err = errors.Join(err, a.out.Close())
	}
	a.mr, a.out = nil, nil
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
