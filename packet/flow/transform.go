package flow

import (
	"errors"

	"github.com/penstock-io/penstock/packet"
)

// Refusal says why a packet could not be transformed. Such a packet is dropped and counted by it.
type Refusal uint8

// The refusals.
const (
	Applied    Refusal = iota // none: the packet is transformed
	NoHeadroom                // the headers to add do not fit before the frame; see Headroom
	NoTag                     // vlan-pop of an untagged frame
	NoTunnel                  // decap of a packet that is not in such a tunnel
	BadInner                  // decap of a packet whose content is malformed, or fails its checksum
	TooLong                   // the outer length fields end at 65,535
	NotIP                     // encap into GRE of IP, of a frame that does not carry that version of IP
	Malformed                 // the frame is too short for what is to be done
	BadAction                 // the action is not one that Validate accepts
	NumRefusals
)

var refusalNames = [NumRefusals]string{"applied", "no headroom", "no VLAN tag", "no such tunnel",
	"malformed inner packet", "too long",
	"not the IP of the tunnel", "malformed", "bad action"}

func (r Refusal) String() string {
	if r < NumRefusals {
		return refusalNames[r]
	}
	return "unknown"
}

// Headroom returns how many bytes before a frame are always enough for the transformations in
// actions.
func Headroom(actions []Action) int {
	now, most := 0, 0
	for i := range actions {
		switch a := &actions[i]; a.Kind {
		case PushVLAN:
			now += packet.VLANLen
		case Encap:
			e := a.Tunnel.encap()
			now += e.Overhead()
		}
		// What is removed in between gives room too, but how much depends on the packet.
		most = max(most, now)
	}
	return most
}

// encap returns the tunnel as package packet takes it.
func (t *Tunnel) encap() packet.Encap {
	e := packet.Encap{
		Kind:     packet.Tunnel(t.Type),
		SrcMAC:   t.EthSrc,
		DstMAC:   t.EthDst,
		Src:      t.Src,
		Dst:      t.Dst,
		TTL:      t.TTL,
		TOS:      t.TOS,
		VNI:      t.VNI,
		SrcPort:  t.SrcPort,
		DstPort:  t.DstPort,
		FlowID:   t.FlowID,
		Protocol: t.Protocol,
	}
	if t.Type == GRE && t.Protocol == 0 {
		e.Protocol = packet.EtherTypeIPv4
	}
	return e
}

// Transform carries out the transformations among actions, in order, on the frame that is
// buf[off:], whose layers Parse has put into l. It returns the new frame, a part of buf, and puts
// its layers into l. Bytes before off are headroom, which may be overwritten. The terminal action
// is not looked at.
//
// On a refusal the packet is to be dropped: buf and l are in any state then. It allocates nothing.
func Transform(actions []Action, buf []byte, off int, l *packet.Layers) ([]byte, Refusal) {
	if off < 0 || off > len(buf) {
		return nil, NoHeadroom
	}
	for i := range actions {
		a := &actions[i]
		if a.Kind.Terminal() {
			break
		}
		frame, why := a.transform(buf, off, l)
		if why != Applied {
			return nil, why
		}
		// The frame lies in buf; what is left of its capacity says where.
		off = cap(buf) - cap(frame)
		buf = buf[:off+len(frame)]
	}
	return buf[off:], Applied
}

func (a *Action) transform(buf []byte, off int, l *packet.Layers) ([]byte, Refusal) {
	var frame []byte
	var err error
	switch a.Kind {
	case PopVLAN:
		frame, _, _, err = packet.PopVLAN(buf[off:])
	case PushVLAN:
		frame, err = packet.PushVLAN(buf, off, a.Tag.TPID, packet.MakeTCI(a.Tag.ID, a.Tag.PCP, a.Tag.DEI))
	case Encap:
		e := a.Tunnel.encap()
		frame, err = e.Push(buf, off)
	case Decap:
		return a.decap(buf[off:], l)
	default:
		return nil, BadAction
	}
	if err != nil {
		return nil, refusalOf(err)
	}
	if packet.Parse(frame, l) != packet.OK && a.Kind == Encap {
		return nil, Malformed
	}
	return frame, Applied
}

func (a *Action) decap(frame []byte, l *packet.Layers) ([]byte, Refusal) {
	var inner packet.Layers
	switch why := packet.ParseTunnel(frame, l, &inner); {
	case why == packet.NoTunnel:
		return nil, NoTunnel
	// which is GRE with a key
	case a.Tunnel.Type != TunnelType(l.Tunnel) && !(a.Tunnel.Type == GRE && l.Tunnel == packet.TunnelNVGRE):
		return nil, NoTunnel
	case why != packet.OK:
		return nil, BadInner
	}
	out, why := packet.Decap(frame, l, &inner)
	if why != packet.OK {
		return nil, BadInner
	}
	*l = inner
	return out, Applied
}

func refusalOf(err error) Refusal {
	switch {
	case errors.Is(err, packet.ErrHeadroom):
		return NoHeadroom
	case errors.Is(err, packet.ErrNoTag):
		return NoTag
	case errors.Is(err, packet.ErrLength):
		return TooLong
	case errors.Is(err, packet.ErrTunnel):
		return NotIP
	case errors.Is(err, packet.ErrField), errors.Is(err, packet.ErrAddress):
		return BadAction
	}
	return Malformed
}
