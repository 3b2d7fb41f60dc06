package prog

import (
	"github.com/cilium/ebpf/asm"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

// needs is what of a packet the rules look at.
type needs struct {
	mac, ethertype, vlan, inner    bool
	ip, addr4, addr6, proto, iplen bool
	ports, payload                 bool
}

func (t *tables) needs() (n needs) {
	ecpri := t.asks(flow.FieldECPRIType)
	n.mac = t.asks(fieldsMAC...)
	n.ethertype = t.asks(flow.FieldEtherType) || ecpri
	n.vlan, n.inner = t.asks(flow.FieldVLAN), t.asks(flow.FieldInnerVLAN)
	n.payload = ecpri || len(t.offsets) > 0
	n.ports = n.payload || t.spreads > 0 || t.asks(flow.FieldSrcPort, flow.FieldDstPort)
	n.proto, n.iplen = t.asks(flow.FieldProto), t.asks(flow.FieldLength)
	n.addr4 = t.spreads > 0 || len(t.lookups[flow.FieldSrc])+len(t.lookups[flow.FieldDst]) > 0
	n.addr6 = t.spreads > 0 || len(t.six[flow.FieldSrc])+len(t.six[flow.FieldDst]) > 0
	n.ip = len(t.version) > 0 || n.ports || n.proto || n.iplen || n.addr4 || n.addr6
	return n
}

// parse emits what packet.Parse does, up to the label "match". It leaves the fields that are needed
// in the stack, as far as there are any: a malformed frame ends at its fault.
func (e *emitter) parse() {
	e.need = e.t.needs()
	e.emit(asm.Mov.Reg(rCtx, asm.R1))
	if e.o.subtract && !e.o.frags {
		e.frame()
		e.emit(asm.Mov.Reg(asm.R0, rEnd), asm.Sub.Reg(asm.R0, rData))
	} else {
		e.emit(asm.FnXdpGetBuffLen.Call())
	}
	e.emit(store(sLen, asm.R0))
	if e.need == (needs{}) {
		return
	}
	e.blobAt(asm.R1, 0)
	e.emit(asm.LoadMem(asm.R1, asm.R1, 0, asm.Word)) // 0, which the verifier does not know
	for _, s := range []struct {
		slot   int16
		wanted bool
	}{{sType, e.need.ethertype}, {sVersion, e.need.ip}, {sOffset, e.need.ip}, {sPart, e.need.ports},
		{sHasPorts, e.need.ports}, {sHasMAC, e.need.mac}} {
		if s.wanted {
			e.emit(store(s.slot, asm.R1))
		}
	}
	if e.need.vlan {
		e.emit(storeImm(sVLAN, noTag))
	}
	if e.need.inner {
		e.emit(storeImm(sInner, noTag))
	}
	if e.need.payload {
		e.emit(store(sEnd, asm.R0))
	}
	e.ethernet()
	if e.need.ip {
		e.ipv4()
		e.ipv6()
		e.transport()
	}
}

func (e *emitter) ethernet() {
	e.emit(asm.Mov.Imm(rAt, 0))
	if e.o.frags {
		e.frame()
	}
	e.view(0, packet.EthernetLen, sLen, "match", sIP)
	if e.need.mac {
		for k := int16(0); k < 12; k += 2 {
			e.emit(asm.LoadMem(asm.R2, asm.R1, k, asm.Half), asm.StoreMem(asm.RFP, sMAC+k, asm.R2, asm.Half))
		}
		e.emit(storeImm(sHasMAC, 1))
	}
	if n := e.need; !n.ip && !n.ethertype && !n.vlan && !n.inner {
		return
	}
	e.emit(
		asm.LoadMem(asm.R0, asm.R1, 12, asm.Half), be16(asm.R0),
		asm.Mov.Imm(rAt, packet.EthernetLen),
	)
	for i, tag := range []int16{sVLAN, sInner} {
		tagged := e.fresh("tagged")
		e.emit(asm.JEq.Imm(asm.R0, int32(packet.EtherTypeIPv4), "typed")) // most are
		for _, t := range []packet.EtherType{packet.EtherTypeVLAN, packet.EtherTypeQinQ, packet.EtherTypeQinQ1} {
			e.emit(asm.JEq.Imm(asm.R0, int32(t), tagged))
		}
		e.emit(asm.Ja.Label("typed"))
		e.at(tagged)
		e.view(0, packet.VLANLen, sLen, "match", sBuf)
		if i == 0 && e.need.vlan || i == 1 && e.need.inner {
			e.emit(asm.LoadMem(asm.R2, asm.R1, 0, asm.Half), be16(asm.R2), asm.And.Imm(asm.R2, flow.MaxVLAN),
				store(tag, asm.R2))
		}
		e.emit(
			asm.LoadMem(asm.R0, asm.R1, 2, asm.Half), be16(asm.R0),
			asm.Add.Imm(rAt, packet.VLANLen),
		)
	}
	e.at("typed")
	if e.need.ethertype {
		e.emit(store(sType, asm.R0))
	}
	if e.need.payload {
		e.emit(store(sL3, rAt))
	}
	if e.need.ip {
		e.emit(
			asm.JEq.Imm(asm.R0, int32(packet.EtherTypeIPv4), "ipv4"),
			asm.JEq.Imm(asm.R0, int32(packet.EtherTypeIPv6), "ipv6"),
		)
	}
	e.emit(asm.Ja.Label("match"))
}

func (e *emitter) ipv4() {
	e.at("ipv4")
	e.view(0, packet.IPv4Len, sLen, "match", sIP)
	e.emit(
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Byte),
		asm.Mov.Reg(asm.R3, asm.R2), asm.RSh.Imm(asm.R3, 4), asm.JNE.Imm(asm.R3, 4, "match"),
		asm.And.Imm(asm.R2, 15), asm.LSh.Imm(asm.R2, 2), // R2: length of the header
		asm.JLT.Imm(asm.R2, packet.IPv4Len, "match"),
		asm.LoadMem(asm.R3, asm.R1, 2, asm.Half), be16(asm.R3), // R3: of the packet
		asm.JLT.Reg(asm.R3, asm.R2, "match"),
		asm.Mov.Reg(asm.R4, rAt), asm.Add.Reg(asm.R4, asm.R3), // R4: its end
		load(asm.R5, sLen),
		asm.JGT.Reg(asm.R4, asm.R5, "match"), // and so is its header in the frame
		storeImm(sVersion, 4), store(sIPLen, asm.R3), store(sEnd, asm.R4),
		asm.LoadMem(asm.R3, asm.R1, 9, asm.Byte), store(sProto, asm.R3),
		asm.LoadMem(asm.R3, asm.R1, 6, asm.Half), be16(asm.R3),
		asm.Mov.Reg(asm.R4, asm.R3), asm.And.Imm(asm.R4, 0x3fff), store(sPart, asm.R4),
		asm.And.Imm(asm.R3, 0x1fff), store(sOffset, asm.R3),
	)
	if e.need.addr4 {
		for k := int16(0); k < 8; k += 4 {
			e.emit(asm.LoadMem(asm.R3, asm.R1, 12+k, asm.Word), asm.StoreMem(asm.RFP, sAddr+k, asm.R3, asm.Word))
		}
	}
	e.emit(asm.Add.Reg(rAt, asm.R2), asm.Ja.Label("transport"))
}

func (e *emitter) ipv6() {
	e.at("ipv6")
	e.view(0, packet.IPv6Len, sLen, "match", sIP)
	e.emit(
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Byte), asm.RSh.Imm(asm.R2, 4), asm.JNE.Imm(asm.R2, 6, "match"),
		asm.LoadMem(asm.R3, asm.R1, 4, asm.Half), be16(asm.R3), asm.Add.Imm(asm.R3, packet.IPv6Len),
		asm.Mov.Reg(asm.R4, rAt), asm.Add.Reg(asm.R4, asm.R3),
		load(asm.R5, sLen),
		asm.JGT.Reg(asm.R4, asm.R5, "match"),
		storeImm(sVersion, 6), store(sIPLen, asm.R3), store(sEnd, asm.R4),
	)
	if e.need.addr6 {
		for k := int16(0); k < 32; k += 8 {
			e.emit(asm.LoadMem(asm.R3, asm.R1, 8+k, asm.DWord), asm.StoreMem(asm.RFP, sAddr+k, asm.R3, asm.DWord))
		}
	}
	e.emit(
		asm.LoadMem(asm.R0, asm.R1, 6, asm.Byte), store(sProto, asm.R0), // what follows
		asm.Add.Imm(rAt, packet.IPv6Len),
	)
	for range packet.MaxExtensions {
		ext := e.fresh("extension")
		e.forget()
		e.emit(load(asm.R0, sProto))
		e.emit(asm.JEq.Imm(asm.R0, int32(packet.ProtoUDP), "transport"),
			asm.JEq.Imm(asm.R0, int32(packet.ProtoTCP), "transport"))
		for _, p := range extensions {
			e.emit(asm.JEq.Imm(asm.R0, int32(p), ext))
		}
		e.emit(asm.Ja.Label("transport"))
		e.at(ext)
		e.extension()
	}
	// One more of them has no ports, whatever it is: it ends there.
}

var extensions = []packet.Proto{packet.ProtoHopByHop, packet.ProtoRouting, packet.ProtoFragment, packet.ProtoAH,
	packet.ProtoDestOpts, packet.ProtoMobility,
	packet.ProtoHIP, packet.ProtoShim6}

// extension reads one IPv6 extension header, whose type is in sProto, and leaves the type of the
// next one there.
func (e *emitter) extension() {
	fragment, auth, sized, next := e.fresh("fragment"), e.fresh("auth"), e.fresh("sized"), e.fresh("next")
	e.view(0, 8, sEnd, "match", sBuf)
	e.emit(
		load(asm.R0, sProto),
		asm.LoadMem(asm.R2, asm.R1, 1, asm.Byte),
		asm.JEq.Imm(asm.R0, int32(packet.ProtoFragment), fragment),
		asm.JEq.Imm(asm.R0, int32(packet.ProtoAH), auth),
		asm.Add.Imm(asm.R2, 1), asm.LSh.Imm(asm.R2, 3),
		asm.Ja.Label(sized),
	)
	e.at(auth)
	e.emit(asm.Add.Imm(asm.R2, 2), asm.LSh.Imm(asm.R2, 2), asm.JLT.Imm(asm.R2, 12, "match"))
	e.at(sized)
	e.emit(
		asm.Mov.Reg(asm.R3, rAt), asm.Add.Reg(asm.R3, asm.R2),
		load(asm.R4, sEnd),
		asm.JGT.Reg(asm.R3, asm.R4, "match"),
		asm.LoadMem(asm.R0, asm.R1, 0, asm.Byte), store(sProto, asm.R0),
		asm.Add.Reg(rAt, asm.R2),
		asm.Ja.Label(next),
	)
	e.at(fragment)
	e.emit(
		asm.LoadMem(asm.R0, asm.R1, 0, asm.Byte), store(sProto, asm.R0),
		asm.LoadMem(asm.R3, asm.R1, 2, asm.Half), be16(asm.R3),
		asm.Mov.Reg(asm.R4, asm.R3), asm.And.Imm(asm.R4, 0xfff9), store(sPart, asm.R4),
		asm.And.Imm(asm.R3, 0xfff8), store(sOffset, asm.R3),
		asm.Add.Imm(rAt, 8),
	)
	e.at(next)
	// A fragment may come at last after other headers, and then a header with what follows: only a
	// later fragment ends the list.
	e.emit(load(asm.R3, sOffset), asm.JNE.Imm(asm.R3, 0, "match"))
}

// transport reads the ports of UDP and TCP.
func (e *emitter) transport() {
	e.at("transport")
	if !e.need.ports {
		return
	}
	e.forget()
	e.emit(
		load(asm.R3, sOffset), asm.JNE.Imm(asm.R3, 0, "match"),
		load(asm.R0, sProto),
		asm.JEq.Imm(asm.R0, int32(packet.ProtoTCP), "tcp"),
		asm.JNE.Imm(asm.R0, int32(packet.ProtoUDP), "match"),
	)
	e.view(0, packet.UDPLen, sEnd, "match", sBuf)
	e.emit(
		asm.LoadMem(asm.R2, asm.R1, 4, asm.Half), be16(asm.R2),
		asm.JLT.Imm(asm.R2, packet.UDPLen, "match"),
		asm.Add.Reg(asm.R2, rAt), // where the datagram ends
		load(asm.R3, sEnd),
		asm.JLE.Reg(asm.R2, asm.R3, "whole"),
		load(asm.R3, sPart), asm.JEq.Imm(asm.R3, 0, "match"), // only that of a fragment may be longer
		asm.Ja.Label("udp"),
	)
	e.at("whole")
	e.emit(store(sEnd, asm.R2))
	e.at("udp")
	e.emit(
		asm.Mov.Imm(asm.R2, packet.UDPLen),
		asm.Ja.Label("ports"),
	)
	e.at("tcp")
	e.view(0, 16, sEnd, "match", sBuf) // what is read of the header; its length is looked at next
	e.emit(
		asm.LoadMem(asm.R2, asm.R1, 12, asm.Byte), asm.RSh.Imm(asm.R2, 4), asm.LSh.Imm(asm.R2, 2),
		asm.JLT.Imm(asm.R2, packet.TCPLen, "match"),
		asm.Mov.Reg(asm.R3, rAt), asm.Add.Reg(asm.R3, asm.R2),
		load(asm.R4, sEnd),
		asm.JGT.Reg(asm.R3, asm.R4, "match"),
	)
	e.at("ports")
	e.emit(
		asm.LoadMem(asm.R3, asm.R1, 0, asm.Word), store(sPorts, asm.R3),
		storeImm(sHasPorts, 1),
		asm.Add.Reg(rAt, asm.R2),
		store(sPayload, rAt),
	)
}
