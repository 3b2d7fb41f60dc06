package prog

import (
	"math/bits"

	"github.com/cilium/ebpf/asm"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

var (
	fieldsMAC  = []flow.Field{flow.FieldEthSrc, flow.FieldEthDst}
	fieldsAddr = []flow.Field{flow.FieldSrc, flow.FieldDst}
)

func (t *tables) asks(fields ...flow.Field) bool {
	for _, f := range fields {
		if len(t.lookups[f]) > 0 {
			return true
		}
	}
	return false
}

// rule returns the stack slot of word w of the rules that are left.
func rule(w int) int16 { return sRules - 8*int16(w) }

// match emits the search. It ends at the label "outcome", with the outcome of the packet in rAt.
func (e *emitter) match() {
	t := e.t
	e.at("match")
	if t.n == 0 {
		e.blobAt(rAt, t.outcomes)
		return
	}
	e.blobAt(asm.R3, t.all.at)
	for w := range t.words {
		e.emit(asm.LoadMem(asm.R4, asm.R3, int16(8*w), asm.DWord), asm.StoreMem(asm.RFP, rule(w), asm.R4, asm.DWord))
	}
	e.either(sHasMAC, t.asks(fieldsMAC...), func() {
		for k, f := range []flow.Field{flow.FieldEthDst, flow.FieldEthSrc} {
			for _, l := range t.lookups[f] {
				e.emit(asm.LoadMem(asm.R1, asm.RFP, sMAC+int16(6*k)+2*int16(l.piece.part), asm.Half), be16(asm.R1))
				e.lookup(&l)
			}
		}
	}, func() { e.absent(flow.FieldEthSrc) })
	for f, slot := range map16 {
		for _, l := range t.lookups[flow.Field(f)] {
			if slot != 0 {
				e.emit(load(asm.R1, slot))
				e.lookup(&l)
			}
		}
	}
	e.addresses()
	e.either(sHasPorts, t.asks(flow.FieldSrcPort, flow.FieldDstPort) || len(t.offsets) > 0, func() {
		for k, f := range []flow.Field{flow.FieldSrcPort, flow.FieldDstPort} {
			for _, l := range t.lookups[f] {
				e.emit(asm.LoadMem(asm.R1, asm.RFP, sPorts+2*int16(k), asm.Half), be16(asm.R1))
				e.lookup(&l)
			}
		}
		e.flexWords()
	}, func() { e.absent(flow.FieldSrcPort) })
	e.ecpri()
	e.first()
}

// map16 is where the fields that every packet has lie.
var map16 = [...]int16{flow.FieldEtherType: sType, flow.FieldVLAN: sVLAN, flow.FieldInnerVLAN: sInner}

// either emits one of two pieces of code, by a flag on the stack; nothing if there is nothing to
// do.
func (e *emitter) either(flag int16, wanted bool, yes, no func()) {
	if !wanted {
		return
	}
	other, done := e.fresh("absent"), e.fresh("done")
	e.emit(load(asm.R1, flag), asm.JEq.Imm(asm.R1, 0, other))
	yes()
	e.emit(asm.Ja.Label(done))
	e.at(other)
	no()
	e.at(done)
}

func (e *emitter) absent(f flow.Field) {
	if m, ok := e.t.no[f]; ok {
		e.mask(m)
	}
}

// mask takes away the rules that are not in m.
func (e *emitter) mask(m mask) {
	e.blobAt(asm.R3, m.at)
	e.intersect(m.words)
}

// skip jumps when all rules that are left are in m: then no rule asks for the field that those in m
// do without.
func (e *emitter) skip(m mask, label string) {
	e.blobAt(asm.R3, m.at)
	e.emit(asm.Mov.Imm(asm.R0, 0))
	for k, w := range m.words {
		e.emit(
			asm.LoadMem(asm.R4, asm.RFP, rule(w), asm.DWord),
			asm.LoadMem(asm.R5, asm.R3, int16(8*k), asm.DWord),
			asm.Xor.Imm(asm.R5, -1),
			asm.And.Reg(asm.R4, asm.R5),
			asm.Or.Reg(asm.R0, asm.R4),
		)
	}
	e.emit(asm.JEq.Imm(asm.R0, 0, label))
}

// intersect takes away the rules that are not in the words at R3.
func (e *emitter) intersect(words []int) {
	for k, w := range words {
		e.emit(
			asm.LoadMem(asm.R4, asm.RFP, rule(w), asm.DWord),
			asm.LoadMem(asm.R5, asm.R3, int16(8*k), asm.DWord),
			asm.And.Reg(asm.R4, asm.R5),
			asm.StoreMem(asm.RFP, rule(w), asm.R4, asm.DWord),
		)
	}
}

// lookup takes away the rules that do not accept the value in R1, which is not more than the piece
// can be.
func (e *emitter) lookup(l *lookup) {
	switch {
	case l.starts != nil:
		done := e.fresh("class")
		e.emit(asm.Mov.Imm(asm.R2, 0))
		for i, s := range l.starts[1:] {
			e.emit(asm.JLT.Imm(asm.R1, int32(s), done), asm.Mov.Imm(asm.R2, int32((i+1)*l.row)))
		}
		e.at(done)
	case l.piece.narrow():
		e.blobAt(asm.R3, l.index)
		e.emit(
			asm.And.Imm(asm.R1, 0xff), asm.LSh.Imm(asm.R1, 1),
			asm.Add.Reg(asm.R3, asm.R1),
			asm.LoadMem(asm.R2, asm.R3, 0, asm.Half),
			asm.JGE.Imm(asm.R2, int32(l.classes), "fault"),
		)
		e.scale(asm.R2, l.row)
	default:
		e.blobAt(asm.R3, l.index)
		e.emit(
			asm.And.Imm(asm.R1, 0xffff),
			asm.Mov.Reg(asm.R2, asm.R1), asm.RSh.Imm(asm.R2, pageShift), asm.LSh.Imm(asm.R2, 1),
			asm.Add.Reg(asm.R3, asm.R2),
			asm.LoadMem(asm.R2, asm.R3, 0, asm.Half),
			asm.JGT.Imm(asm.R2, int32(l.page), "fault"),
		)
		e.scale(asm.R2, 2*pageSize)
		e.emit(asm.And.Imm(asm.R1, pageSize-1), asm.LSh.Imm(asm.R1, 1), asm.Add.Reg(asm.R2, asm.R1))
		e.blobAt(asm.R3, l.pages)
		e.emit(
			asm.Add.Reg(asm.R3, asm.R2),
			asm.LoadMem(asm.R2, asm.R3, 0, asm.Half),
			asm.JGE.Imm(asm.R2, int32(l.classes), "fault"),
		)
		e.scale(asm.R2, l.row)
	}
	e.blobAt(asm.R3, l.rows)
	e.emit(asm.Add.Reg(asm.R3, asm.R2))
	e.intersect(l.words)
}

// scale multiplies.
func (e *emitter) scale(r asm.Register, by int) {
	if by&(by-1) == 0 {
		e.emit(asm.LSh.Imm(r, int32(bits.TrailingZeros(uint(by)))))
	} else {
		e.emit(asm.Mul.Imm(r, int32(by)))
	}
}

// addresses looks up what IP packets have.
func (e *emitter) addresses() {
	t := e.t
	if len(t.version) == 0 && !t.asks(flow.FieldProto, flow.FieldLength) {
		return
	}
	four, six, done := e.fresh("four"), e.fresh("six"), e.fresh("done")
	e.emit(load(asm.R1, sVersion), asm.JEq.Imm(asm.R1, 4, four), asm.JEq.Imm(asm.R1, 6, six))
	e.of(0)
	e.emit(asm.Ja.Label(done))
	for _, v := range []int{4, 6} {
		at, pieces, size := four, t.lookups, int16(4)
		if v == 6 {
			at, pieces, size = six, t.six, 16
		}
		e.at(at)
		e.of(v)
		for k, f := range fieldsAddr {
			for _, l := range pieces[f] {
				e.emit(asm.LoadMem(asm.R1, asm.RFP, sAddr+size*int16(k)+2*int16(l.piece.part), asm.Half), be16(asm.R1))
				e.lookup(&l)
			}
		}
		if v == 4 {
			e.emit(asm.Ja.Label("internet"))
		}
	}
	e.at("internet")
	for _, l := range t.lookups[flow.FieldProto] {
		e.emit(load(asm.R1, sProto))
		e.lookup(&l)
	}
	for _, l := range t.lookups[flow.FieldLength] {
		short := e.fresh("short")
		e.emit(load(asm.R1, sIPLen), asm.JLE.Imm(asm.R1, 0xffff, short), asm.Mov.Imm(asm.R1, 0xffff))
		e.at(short)
		e.lookup(&l)
	}
	e.at(done)
}

func (e *emitter) of(version int) {
	if m, ok := e.t.version[version]; ok {
		e.mask(m)
	}
}

func (e *emitter) flexWords() {
	for _, at := range e.t.offsets {
		short, done := e.fresh("short"), e.fresh("done")
		e.skip(e.t.noFlex[at], done)
		e.offset(sPayload)
		e.view(int(at), 4, sEnd, short, sBuf)
		e.emit(asm.LoadMem(asm.R0, asm.R1, 0, asm.Word)) // one load, for which a word on the stack is aligned
		for _, l := range e.t.flex[at] {
			e.emit(asm.Mov.Reg(asm.R1, asm.R0))
			if shift := byteShift(int(l.piece.part)); shift > 0 {
				e.emit(asm.RSh.Imm(asm.R1, shift))
			}
			e.lookup(&l)
		}
		e.emit(asm.Ja.Label(done))
		e.at(short)
		e.mask(e.t.noFlex[at])
		e.at(done)
	}
}

// ecpriHeader is the length of the common header of eCPRI; an identifier of 16 bits is behind it
// (eCPRI specification 2.0, 3.1.3 and 3.2.4).
const ecpriHeader = 4

// ecpri looks up the fields of an eCPRI message in Ethernet or UDP.
func (e *emitter) ecpri() {
	t := e.t
	if !t.asks(flow.FieldECPRIType) {
		return
	}
	inUDP, message, none, noID, done := e.fresh("udp"), e.fresh("message"), e.fresh("none"), e.fresh("noid"),
		e.fresh("done")
	e.skip(t.no[flow.FieldECPRIType], done)
	e.emit(
		load(asm.R1, sType),
		asm.JNE.Imm(asm.R1, int32(packet.EtherTypeECPRI), inUDP),
		load(asm.R2, sL3),
		asm.Ja.Label(message),
	)
	e.at(inUDP)
	e.emit(
		load(asm.R1, sHasPorts), asm.JEq.Imm(asm.R1, 0, none),
		load(asm.R1, sProto), asm.JNE.Imm(asm.R1, int32(packet.ProtoUDP), none),
		load(asm.R2, sPayload),
	)
	e.at(message)
	e.emit(store(sL3, asm.R2))
	e.offset(sL3)
	e.view(0, ecpriHeader, sEnd, none, sBuf)
	e.emit(asm.LoadMem(asm.R0, asm.R1, 1, asm.Byte), store(sScratch, asm.R0)) // the type of the message
	for _, l := range t.lookups[flow.FieldECPRIType] {
		e.emit(asm.Mov.Reg(asm.R1, asm.R0))
		e.lookup(&l)
	}
	if ids := t.lookups[flow.FieldECPRIID]; len(ids) > 0 {
		e.emit(load(asm.R0, sScratch), asm.JGT.Imm(asm.R0, 2, noID)) // others have no identifier
		e.offset(sL3)
		e.view(ecpriHeader, 2, sEnd, noID, sBuf)
		e.emit(asm.LoadMem(asm.R1, asm.R1, 0, asm.Half), be16(asm.R1))
		for _, l := range ids {
			e.lookup(&l)
		}
		e.emit(asm.Ja.Label(done))
		e.at(noID)
		e.absent(flow.FieldECPRIID)
	}
	e.emit(asm.Ja.Label(done))
	e.at(none)
	e.absent(flow.FieldECPRIType)
	e.at(done)
}

// first finds the first rule that is left, and its outcome.
func (e *emitter) first() {
	t := e.t
	for w := range t.words {
		e.emit(asm.LoadMem(asm.R1, asm.RFP, rule(w), asm.DWord), asm.Mov.Imm(asm.R2, int32(64*w)),
			asm.JNE.Imm(asm.R1, 0, "found"))
	}
	e.emit(asm.Mov.Imm(asm.R1, int32(t.n)), asm.Ja.Label("numbered"))
	e.at("found")
	// or the verifier follows each word on its own
	e.emit(store(sScratch, asm.R2), load(asm.R2, sScratch))
	e.emit(asm.Mov.Reg(asm.R3, asm.R1), asm.Neg.Imm(asm.R3, 0), asm.And.Reg(asm.R1, asm.R3)) // the lowest bit alone
	e.emit(asm.LoadImm(asm.R3, deBruijn, asm.DWord), asm.Mul.Reg(asm.R1, asm.R3), asm.RSh.Imm(asm.R1, 58))
	e.blobAt(asm.R3, t.bits)
	e.emit(
		asm.Add.Reg(asm.R3, asm.R1),
		asm.LoadMem(asm.R1, asm.R3, 0, asm.Byte),
		asm.Add.Reg(asm.R1, asm.R2),
		asm.JGT.Imm(asm.R1, int32(t.n), "fault"),
	)
	e.at("numbered")
	e.scale(asm.R1, outcomeSize)
	e.blobAt(rAt, t.outcomes)
	e.emit(asm.Add.Reg(rAt, asm.R1))
}
