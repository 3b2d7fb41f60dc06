//go:build dpdk

package dpdk

import (
	"errors"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/internal/cdpdk"
	"github.com/penstock-io/penstock/mem"
)

// headroom is what a driver leaves free in front of a packet (RTE_PKTMBUF_HEADROOM).
const headroom = 128

// external says why the driver of a device takes no buffers that are not in memory of DPDK; ""
// where it does.
func external(where string) (why string) {
	switch driver(where) {
	case "net_af_xdp":
		return "net_af_xdp receives into one area of DPDK's own memory (UMEM)"
	case "net_virtio_user":
		return "the other end of virtio-user maps DPDK's own memory"
	case "net_memif":
		if strings.Contains(where, "zero-copy=yes") {
			return "the other end of memif with zero-copy=yes maps DPDK's own memory"
		}
	}
	return ""
}

// reads reports whether the driver also sends from memory that is not DPDK's.
func reads(where string) bool {
	return external(where) == "" || driver(where) == "net_af_xdp" // which copies what is not in its area
}

// dials reports whether the driver connects to another process when it starts, and only then.
func dials(where string) bool {
	return driver(where) == "net_memif" && !strings.Contains(where, "role=server")
}

// span is memory of the process.
type span struct {
	base uintptr
	size uint64
}

// reachedBy says which cards reach memory: all that VFIO serves, which share one view of it, or one
// whose driver registers memory itself.
type reachedBy struct {
	span
	card cdpdk.Device // zero for those of VFIO
}

// reached counts the ports for which memory was registered and mapped: what two ports share stays
// until the second lets it go.
var reached = struct {
	sync.Mutex
	registered map[span]int
	mapped     map[reachedBy]int
}{registered: map[span]int{}, mapped: map[reachedBy]int{}}

// registrar lets a card reach memory. It implements mem.Registrar.
type registrar struct {
	card  cdpdk.Device
	alone bool // what other cards reach this one does not
}

func (p *Port) registrar() registrar {
	return registrar{p.card, strings.HasPrefix(p.info.Driver, "mlx")}
}

func (r registrar) by(s span) reachedBy {
	if r.alone {
		return reachedBy{s, r.card}
	}
	return reachedBy{span: s}
}

// Register implements mem.Registrar.
func (r registrar) Register(s mem.Span, _ mem.Access) (any, error) {
	x := span{address(s.Bytes()), s.Len}
	reached.Lock()
	defer reached.Unlock()
	if reached.registered[x] == 0 {
		if err := cdpdk.Register(x.base, x.size, uint64(s.Region.PageSize())); err != nil {
			return nil, err
		}
	}
	reached.registered[x]++
	if by := r.by(x); reached.mapped[by] == 0 {
		if err := r.card.MapDMA(x.base, x.size); err != nil {
			return nil, errors.Join(err, r.unregister(x))
		}
	}
	reached.mapped[r.by(x)]++
	return x, nil
}

// unregister has one port less use memory. The caller holds the lock of reached.
func (r registrar) unregister(x span) error {
	if reached.registered[x]--; reached.registered[x] > 0 {
		return nil
	}
	delete(reached.registered, x)
	return cdpdk.Unregister(x.base, x.size)
}

// Deregister implements mem.Registrar.
func (r registrar) Deregister(handle any) (err error) {
	x := handle.(span)
	reached.Lock()
	defer reached.Unlock()
	by := r.by(x)
	if reached.mapped[by]--; reached.mapped[by] == 0 {
		delete(reached.mapped, by)
		err = r.card.UnmapDMA(x.base, x.size)
	}
	return errors.Join(err, r.unregister(x))
}

// reach lets the device reach a region, for as long as the result is not released.
func (p *Port) reach(r *mem.Region) (mem.Registration, error) {
	if p.regs == nil {
		return mem.Registration{}, nil
	}
	reg, err := p.regs.Get(r.All(), mem.ReadAccess|mem.WriteAccess)
	if err != nil {
		return reg, unavailable(err)
	}
	return reg, nil
}

// unreach takes all memory from a device that has stopped. It is called before the driver closes
// it: VFIO unmaps nothing once its last device is gone, and DPDK then maps that memory again for
// the next one.
func (p *Port) unreach(halves []*half) (err error) {
	if p.regs == nil {
		return nil
	}
	for _, h := range halves {
		err = errors.Join(err, h.reg.Release())
		h.reg = mem.Registration{}
	}
	for _, q := range p.leftTx {
		q.mu.Lock()
		for _, reg := range q.regs {
			err = errors.Join(err, reg.Release())
		}
		clear(q.regs)
		q.mu.Unlock()
	}
	return errors.Join(err, p.regs.Close())
}
