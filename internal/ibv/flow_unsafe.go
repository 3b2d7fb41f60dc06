package ibv

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/sys"
)

// FlowSpec says which frames of a port come to a queue pair of raw packets. Each value counts under
// its mask: bits outside must be zero, and a zero mask matches anything. It is comparable: equal
// ones match the same.
type FlowSpec struct {
	Port uint8 // 0: port 1
	// Priority among rules that match: the lowest wins.
	Priority uint16
	// Default is all frames that no other rule sends elsewhere; the rest of the match is not looked
	// at.
	Default bool

	DstMAC, DstMACMask, SrcMAC, SrcMACMask   [6]byte
	EtherType, EtherTypeMask, VLAN, VLANMask uint16
	Version                                  uint8    // 4 or 6: addresses and Proto of that; 0: none
	Src, SrcMask, Dst, DstMask               [16]byte // an IPv4 address is the first four bytes
	Proto                                    uint8    // 6 or 17: ports are TCP's or UDP's; with ProtoSet
	ProtoSet                                 bool
	SrcPort, SrcPortMask                     uint16
	DstPort, DstPortMask                     uint16
}

// Flow is a rule of the device.
type Flow struct {
	object
	qp *QP
}

const (
	protoTCP, protoUDP = 6, 17
)

// cFlowAll is the longest rule: the attributes and the specifications of all layers.
type cFlowAll struct {
	attr cFlowAttr
	rest [unsafe.Sizeof(cFlowEth{}) + unsafe.Sizeof(cFlowIPv6{}) + unsafe.Sizeof(cFlowPorts{})]byte
}

// CreateFlow has frames come to the queue pair. It is closed before the queue pair is.
func (q *QP) CreateFlow(s FlowSpec) (*Flow, error) {
	const op = "create_flow"
	c := q.pd.ctx
	if err := q.usable(op); err != nil {
		return nil, err
	}
	if q.spec.Type != RawPacket {
		return nil, invalid(op, q.name, "rules are for queue pairs of raw packets")
	}
	if (s.SrcPortMask|s.DstPortMask != 0) && (!s.ProtoSet || s.Proto != protoTCP && s.Proto != protoUDP) ||
		s.ProtoSet && s.Version == 0 || s.Version != 0 && s.Version != 4 && s.Version != 6 {
		return nil, invalid(op, q.name, "version %d, protocol %d: ports are of TCP or UDP, which are of IPv4 or IPv6",
			s.Version, s.Proto)
	}
	create, destroy := c.x.createFlowFn(), c.x.destroyFlowFn()
	if create == 0 || destroy == 0 {
		return nil, unsupported(op, c.name, "the driver has no steering rules")
	}
	t, err := newTemp[cFlowAll]()
	if err != nil {
		return nil, err
	}
	defer t.free()
	s.write(t.v)
	h, e := made(op, q.name, create, q.h, t.p())
	if e != nil {
		switch e.Errno {
		case sys.EPERM, sys.EACCES:
			e.Kind, e.Hint = ErrRefused, "steering rules need CAP_NET_RAW"
		case sys.EINVAL, sys.EOPNOTSUPP:
			e.Kind, e.Hint = ErrUnsupported, "the device does not match these fields, under these masks, together"
		case sys.ENOSPC, sys.ENOMEM:
			e.Kind, e.Hint = ErrNoRoom, "the device has no room for another rule"
		case sys.EEXIST, sys.EBUSY:
			e.Kind, e.Hint = ErrInUse, "another program or queue pair has a rule for the same frames"
		}
		return nil, e
	}
	f := &Flow{qp: q}
	err = same(field{"ibv_flow.context", uint64(dl.At[cFlow](h).context), uint64(c.h)})
	if err == nil {
		err = f.open(&c.tree, "rule", fmt.Sprintf("rule %d of %s", dl.At[cFlow](h).handle, q.name), h, nil, &q.object)
	}
	if err != nil {
		return nil, errors.Join(err, c.returned("destroy_flow", q.name, destroy, h))
	}
	return f, nil
}

// Close ends the rule: from then on its frames go where they went before.
func (f *Flow) Close() error {
	return f.close("destroy_flow", func(h uintptr) error {
		c := f.qp.pd.ctx
		return c.returned("destroy_flow", f.name, c.x.destroyFlowFn(), h)
	})
}

// write writes the rule as C has it.
func (s *FlowSpec) write(to *cFlowAll) {
	a := &to.attr
	*a = cFlowAttr{typ: flowNormal, priority: s.Priority, port: max(s.Port, 1)}
	used := uintptr(0)
	if s.Default {
		a.typ = flowAllDefault
	} else {
		e := addSpec[cFlowEth](to, &used)
		e.typ = flowSpecEth
		e.val = cEthFilter{dst: s.DstMAC, src: s.SrcMAC, typ: be16(s.EtherType), vlan: be16(s.VLAN)}
		e.mask = cEthFilter{dst: s.DstMACMask, src: s.SrcMACMask, typ: be16(s.EtherTypeMask), vlan: be16(s.VLANMask)}
		ports := s.ProtoSet && (s.Proto == protoTCP || s.Proto == protoUDP)
		switch {
		case s.Version == 6:
			x := addSpec[cFlowIPv6](to, &used)
			x.typ = flowSpecIPv6
			x.val, x.mask = cIPv6Filter{src: s.Src, dst: s.Dst}, cIPv6Filter{src: s.SrcMask, dst: s.DstMask}
			if s.ProtoSet && !ports {
				x.val.next, x.mask.next = s.Proto, 0xff
			}
		case s.Version == 4 && s.ProtoSet && !ports:
			x := addSpec[cFlowIPv4Ext](to, &used)
			x.typ = flowSpecIPv4Ext
			x.val = cIPv4ExtFilter{src: [4]byte(s.Src[:4]), dst: [4]byte(s.Dst[:4]), proto: s.Proto}
			x.mask = cIPv4ExtFilter{src: [4]byte(s.SrcMask[:4]), dst: [4]byte(s.DstMask[:4]), proto: 0xff}
		case s.Version == 4:
			x := addSpec[cFlowIPv4](to, &used)
			x.typ = flowSpecIPv4
			x.val, x.mask = cIPv4Filter{[4]byte(s.Src[:4]), [4]byte(s.Dst[:4])},
				cIPv4Filter{[4]byte(s.SrcMask[:4]), [4]byte(s.DstMask[:4])}
		}
		if ports {
			x := addSpec[cFlowPorts](to, &used)
			if x.typ = flowSpecUDP; s.Proto == protoTCP {
				x.typ = flowSpecTCP
			}
			x.val, x.mask = cPortsFilter{be16(s.DstPort), be16(s.SrcPort)},
				cPortsFilter{be16(s.DstPortMask), be16(s.SrcPortMask)}
		}
	}
	a.size = uint16(unsafe.Sizeof(*a) + used)
}

// addSpec is the next specification of a rule: all begin with their type and size.
func addSpec[T any](to *cFlowAll, used *uintptr) *T {
	var t T
	p := unsafe.Pointer(&to.rest[*used])
	*used += unsafe.Sizeof(t)
	to.attr.specs++
	(*cFlowPorts)(p).size = uint16(unsafe.Sizeof(t))
	return (*T)(p)
}

func be16(v uint16) (b [2]byte) {
	binary.BigEndian.PutUint16(b[:], v)
	return b
}
