package flowtest

import (
	"encoding/binary"
	"slices"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

// Matches reports whether m accepts the frame whose layers are l. It reads the match literally,
// field after field, and is what the classifier is checked against.
func Matches(m *flow.Match, frame []byte, l *packet.Layers) bool {
	eth := func(o flow.Opt[packet.MAC], at int) bool {
		return !o.Set || l.HasL2 && len(frame) >= int(l.L2)+packet.EthernetLen &&
			packet.MAC(frame[int(l.L2)+at:][:6]) == o.Value
	}
	if !eth(m.EthDst, 0) || !eth(m.EthSrc, 6) || m.EtherType.Set && m.EtherType.Value != l.EtherType {
		return false
	}
	for i, v := range []flow.Opt[flow.VLAN]{m.VLAN, m.InnerVLAN} {
		tagged := int(l.NumTags) > i
		if v.Set && (v.Value == flow.Untagged && tagged || v.Value != flow.Untagged &&
			!(tagged && l.Tags[i].ID() == uint16(v.Value))) {
			return false
		}
	}
	if m.Src.IsValid() && !m.Src.Contains(l.Src(frame)) || m.Dst.IsValid() && !m.Dst.Contains(l.Dst(frame)) {
		return false
	}
	if m.Proto.Set && (l.IPVersion == 0 || l.Proto != m.Proto.Value) {
		return false
	}
	if m.Length.Set && (l.IPVersion == 0 || !m.Length.Value.Contains(uint16(min(l.IPLen, 65535)))) {
		return false
	}
	if m.SrcPort.Set && !(l.HasPorts && m.SrcPort.Value.Contains(l.SrcPort)) || m.DstPort.Set &&
		!(l.HasPorts && m.DstPort.Value.Contains(l.DstPort)) {
		return false
	}
	for _, f := range m.Flex {
		if !l.HasPorts {
			return false
		}
		payload := frame[l.Payload:l.End]
		if int(f.Offset)+4 > len(payload) || binary.BigEndian.Uint32(payload[f.Offset:])&f.Mask != f.Value {
			return false
		}
	}
	return !m.ECPRI.Set() || ecpri(m, frame, l)
}

func ecpri(m *flow.Match, frame []byte, l *packet.Layers) bool {
	var message []byte
	switch {
	case m.Proto.Set && l.Proto == packet.ProtoUDP && l.HasPorts:
		message = frame[l.Payload:l.End]
	case !m.Proto.Set && l.EtherType == packet.EtherTypeECPRI:
		message = frame[l.L3:l.End]
	}
	if len(message) < 4 || m.ECPRI.Type.Set && message[1] != m.ECPRI.Type.Value {
		return false
	}
	id := func(o flow.Opt[uint16], types ...byte) bool {
		return !o.Set || slices.Contains(types, message[1]) && len(message) >= 6 &&
			binary.BigEndian.Uint16(message[4:]) == o.Value
	}
	return id(m.ECPRI.PCID, 0, 1) && id(m.ECPRI.RTCID, 2)
}

// First returns the index of the rule that wins for the frame, by trying every rule; -1 if none
// accepts it.
func First(rules []flow.Rule, frame []byte, l *packet.Layers) int {
	best := -1
	for i := range rules {
		if (best < 0 || rules[i].Priority > rules[best].Priority) && Matches(&rules[i].Match, frame, l) {
			best = i
		}
	}
	return best
}
