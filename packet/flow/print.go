package flow

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/packet"
)

// String writes the form that ParseRule reads: [id N] [name NAME] [prio N] [mark N] MATCH ->
// ACTION, ACTION.
func (r *Rule) String() string {
	var b strings.Builder
	if r.ID != 0 {
		fmt.Fprintf(&b, "id %d ", r.ID)
	}
	if r.Name != "" {
		b.WriteString("name " + quoteName(r.Name) + " ")
	}
	if r.Priority != 0 {
		fmt.Fprintf(&b, "prio %d ", r.Priority)
	}
	if r.Mark.Set {
		fmt.Fprintf(&b, "mark %d ", r.Mark.Value)
	}
	b.WriteString(r.Match.String())
	b.WriteString(" ->")
	for i := range r.Actions {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte(' ')
		b.WriteString(r.Actions[i].String())
	}
	return b.String()
}

// quoteName leaves plain words as they are.
func quoteName(s string) string {
	for _, c := range []byte(s) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '_' && c != '.' && c != '-' {
			return strconv.Quote(s)
		}
	}
	if strings.Contains(s, "->") {
		return strconv.Quote(s)
	}
	return s
}

// String writes the form that ParseRule reads, such as "vlan 100 ip src 10.0.0.0/8 len 64-1500 udp
// dst 5000-5010 flex 4 0x1/0xff"; "any" when everything is accepted.
func (m *Match) String() string {
	var b strings.Builder
	group := ""
	add := func(g, field string, v any) {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		if g != group {
			b.WriteString(g + " ")
			group = g
		}
		if field != "" {
			b.WriteString(field + " ")
		}
		fmt.Fprint(&b, v)
	}
	if m.EthSrc.Set {
		add("eth", "src", m.EthSrc.Value)
	}
	if m.EthDst.Set {
		add("eth", "dst", m.EthDst.Value)
	}
	if m.EtherType.Set {
		add("eth", "type", fmt.Sprintf("0x%04x", uint16(m.EtherType.Value)))
	}
	if m.VLAN.Set {
		add("vlan", "", m.VLAN.Value)
	}
	if m.InnerVLAN.Set {
		add("inner-vlan", "", m.InnerVLAN.Value)
	}
	if m.Src.IsValid() {
		add("ip", "src", m.Src)
	}
	if m.Dst.IsValid() {
		add("ip", "dst", m.Dst)
	}
	if m.Length.Set {
		add("ip", "len", m.Length.Value)
	}
	ports := "port"
	switch {
	case !m.Proto.Set:
	case m.Proto.Value == packet.ProtoUDP:
		ports = "udp"
	case m.Proto.Value == packet.ProtoTCP:
		ports = "tcp"
	default:
		add("ip", "proto", uint8(m.Proto.Value))
	}
	if ports != "port" {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(ports)
		group = ports
	}
	if m.SrcPort.Set {
		add(ports, "src", m.SrcPort.Value)
	}
	if m.DstPort.Set {
		add(ports, "dst", m.DstPort.Value)
	}
	for _, f := range m.Flex {
		group = ""
		if f.Mask == 0xffffffff {
			add("flex", strconv.Itoa(int(f.Offset)), fmt.Sprintf("0x%x", f.Value))
		} else {
			add("flex", strconv.Itoa(int(f.Offset)), fmt.Sprintf("0x%x/0x%x", f.Value, f.Mask))
		}
	}
	if m.ECPRI.Type.Set {
		add("ecpri", "type", m.ECPRI.Type.Value)
	}
	if m.ECPRI.PCID.Set {
		add("ecpri", "pc_id", m.ECPRI.PCID.Value)
	}
	if m.ECPRI.RTCID.Set {
		add("ecpri", "rtc_id", m.ECPRI.RTCID.Value)
	}
	if b.Len() == 0 {
		return "any"
	}
	return b.String()
}

// String writes the form that rules have behind "->", such as "queue 3", "rss 0-7" or "vlan-push
// 100 pcp 3".
func (a *Action) String() string {
	var b strings.Builder
	switch a.Kind {
	case ToQueue:
		fmt.Fprintf(&b, "queue %d", a.Queue)
	case RSS:
		b.WriteString("rss")
		for i := 0; i < len(a.Queues); {
			n := 1
			for i+n < len(a.Queues) && int(a.Queues[i+n]) == int(a.Queues[i])+n {
				n++
			}
			if n < 3 {
				n = 1
			}
			b.WriteByte(' ')
			b.WriteString(Range{a.Queues[i], a.Queues[i+n-1]}.String())
			i += n
		}
	case PushVLAN:
		fmt.Fprintf(&b, "vlan-push %d", a.Tag.ID)
		if a.Tag.PCP != 0 {
			fmt.Fprintf(&b, " pcp %d", a.Tag.PCP)
		}
		if a.Tag.DEI {
			b.WriteString(" dei 1")
		}
		if a.Tag.TPID != 0 {
			fmt.Fprintf(&b, " tpid 0x%04x", uint16(a.Tag.TPID))
		}
	case Decap:
		fmt.Fprintf(&b, "%v-decap", a.Tunnel.Type)
	case Encap:
		a.Tunnel.write(&b)
	default:
		b.WriteString(a.Kind.String())
	}
	return b.String()
}

func (t *Tunnel) write(b *strings.Builder) {
	fmt.Fprintf(b, "%v-encap", t.Type)
	if t.EthSrc != (packet.MAC{}) {
		fmt.Fprintf(b, " eth-src %v", t.EthSrc)
	}
	if t.EthDst != (packet.MAC{}) {
		fmt.Fprintf(b, " eth-dst %v", t.EthDst)
	}
	if t.Src.IsValid() {
		fmt.Fprintf(b, " ip-src %v", t.Src)
	}
	if t.Dst.IsValid() {
		fmt.Fprintf(b, " ip-dst %v", t.Dst)
	}
	num := func(name string, v uint64) {
		if v != 0 {
			fmt.Fprintf(b, " %s %d", name, v)
		}
	}
	num("ttl", uint64(t.TTL))
	num("tos", uint64(t.TOS))
	num("udp-src", uint64(t.SrcPort))
	num("udp-dst", uint64(t.DstPort))
	num("vni", uint64(t.VNI))
	num("flow-id", uint64(t.FlowID))
	if t.Protocol != 0 {
		fmt.Fprintf(b, " proto 0x%04x", uint16(t.Protocol))
	}
}
