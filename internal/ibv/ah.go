package ibv

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/penstock-io/penstock/internal/dl"
)

// Address is the way to a port: of a connected queue pair's peer, or of a receiver of datagrams.
type Address struct {
	Port         uint8      // the local port to leave by; 0: port 1
	DGID         netip.Addr // the peer's GID; not valid: within an InfiniBand subnet, by LID only
	SGIDIndex    uint8      // the local GID (GID.Index) to send from
	HopLimit     uint8      // 0: 64
	TrafficClass uint8      // the upper 6 bits are the DSCP of RoCE v2
	FlowLabel    uint32     // 20 bits; RoCE v2 derives the UDP source port from it
	LID          uint16     // the peer's, on InfiniBand
	SL           uint8      // service level; on Ethernet the priority
	PathBits     uint8
	StaticRate   uint8 // an ibv_rate; 0: that of the port
}

func (a Address) check(op, on string) error {
	switch {
	case !a.DGID.IsValid() && a.LID == 0:
		return invalid(op, on, "no peer: expected a GID (Ethernet) or a LID (InfiniBand)")
	case a.FlowLabel >= 1<<20:
		return invalid(op, on, "flow label %#x: expected 20 bits", a.FlowLabel)
	case a.SL > 15:
		return invalid(op, on, "service level %d: expected 0 to 15", a.SL)
	}
	return nil
}

func (a Address) put(c *cAHAttr) {
	*c = cAHAttr{dlid: a.LID, sl: a.SL, pathBits: a.PathBits, rate: a.StaticRate, port: max(a.Port, 1)}
	if !a.DGID.IsValid() {
		return
	}
	c.global, c.dgid = 1, a.DGID.As16()
	c.sgidIndex, c.hopLimit, c.trafficClass, c.flowLabel = a.SGIDIndex, a.HopLimit, a.TrafficClass, a.FlowLabel
	if c.hopLimit == 0 {
		c.hopLimit = 64
	}
}

func (c *cAHAttr) address() Address {
	a := Address{Port: c.port, LID: c.dlid, SL: c.sl, PathBits: c.pathBits, StaticRate: c.rate}
	if c.global != 0 {
		a.DGID = netip.AddrFrom16(c.dgid).Unmap()
		a.SGIDIndex, a.HopLimit, a.TrafficClass, a.FlowLabel = c.sgidIndex, c.hopLimit, c.trafficClass, c.flowLabel
	}
	return a
}

// AHSpec is a receiver of datagrams.
type AHSpec struct{ To Address }

// AH is an address handle, for SendChain.To. It must stay open until the requests that use it have
// completed.
type AH struct {
	object
	pd *PD
}

// CreateAH makes an address handle. On RoCE it may ask the network for the peer's hardware address,
// and so take a while.
func (p *PD) CreateAH(s AHSpec) (*AH, error) {
	const op = "create_ah"
	if err := p.usable(op); err != nil {
		return nil, err
	}
	if err := s.To.check(op, p.name); err != nil {
		return nil, err
	}
	t, err := newTemp[cAHAttr]()
	if err != nil {
		return nil, err
	}
	defer t.free()
	s.To.put(t.v)
	h, e := made(op, p.name, p.ctx.lib.f.createAH, p.h, t.p())
	if e != nil {
		e.Hint = fmt.Sprintf("to GID %v, LID %d, from GID index %d: the peer must be reachable from there", s.To.DGID,
			s.To.LID, s.To.SGIDIndex)
		return nil, e
	}
	ah := &AH{pd: p}
	c := dl.At[cAH](h)
	err = same(field{"ibv_ah.context", uint64(c.context), uint64(p.ctx.h)},
		field{"ibv_ah.pd", uint64(c.pd), uint64(p.h)})
	if err == nil {
		err = ah.open(&p.ctx.tree, "address handle", fmt.Sprintf("address handle to %v of %s", s.To.DGID, p.ctx.name),
			h, nil, &p.object)
	}
	if err != nil {
		return nil, errors.Join(err, p.ctx.returned("destroy_ah", p.name, p.ctx.lib.f.destroyAH, h))
	}
	return ah, nil
}

// Close ends the handle.
func (a *AH) Close() error {
	return a.close("destroy_ah", func(h uintptr) error {
		return a.pd.ctx.returned("destroy_ah", a.name, a.pd.ctx.lib.f.destroyAH, h)
	})
}
