package prog

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"
)

// Registers that keep their meaning through a program. R0 to R5 are scratch, and are lost in every
// call.
const (
	rCtx  = asm.R6
	rData = asm.R7 // first byte of the frame
	rEnd  = asm.R8 // behind the last byte of its first buffer
	rAt   = asm.R9 // offset of the header that is being read
)

// Offsets of the stack, of 512 bytes. Numbers lie in words of 4 bytes that are not at multiples of
// 8: what is there the verifier forgets, but for its size. Otherwise it would follow each way
// through the headers on its own through all that comes behind, because it knows what it wrote: a
// hundred times as many steps.
const (
	sLen      = -4 // of the frame
	sType     = -12
	sVLAN     = -20
	sInner    = -28
	sVersion  = -36 // 4, 6, or 0 when it is not IP
	sL3       = -44
	sEnd      = -52
	sIPLen    = -60
	sProto    = -68
	sPart     = -76 // not 0: a fragment
	sOffset   = -84 // not 0: a later fragment
	sPorts    = -92 // as they lie in the packet
	sHasPorts = -100
	sPayload  = -108
	sHasMAC   = -116
	sScratch  = -124

	sMAC   = -140 // 12 bytes
	sIP    = -184 // a copy of 40 bytes of the IP header, when it does not lie in one piece
	sAddr  = -216 // 32 bytes of addresses, source first
	sBuf   = -232 // 16 bytes of a header that does not lie in one piece
	sRules = -240 // the vector of rules grows down from here, in words of 8 bytes
)

// farthest is the highest offset of a header in a frame: eight extension headers of IPv6 can be as
// long.
const farthest = 1 << 15

func load(dst asm.Register, slot int16) asm.Instruction {
	return asm.LoadMem(dst, asm.RFP, slot, asm.Word)
}

func store(slot int16, src asm.Register) asm.Instruction {
	return asm.StoreMem(asm.RFP, slot, src, asm.Word)
}

// storeImm stores a constant, which must not be 0: the verifier remembers zeros.
func storeImm(slot int16, v int64) asm.Instruction { return asm.StoreImm(asm.RFP, slot, v, asm.Word) }

// emitter collects instructions.
type emitter struct {
	t      *tables
	need   needs
	o      options
	ins    asm.Instructions
	label  string // of the next instruction
	labels int
}

// options is what a program is besides its rules.
type options struct {
	blob, counters, sockets int // descriptors of the maps
	queues, slots, counts   int
	metadata, frags         bool
	subtract                bool // pointers may be subtracted
	hints                   hints
}

func (e *emitter) emit(ins ...asm.Instruction) {
	for _, i := range ins {
		if e.label != "" {
			i = i.WithSymbol(e.label)
			e.label = ""
		}
		e.ins = append(e.ins, i)
	}
}

// fresh returns a name for a label.
func (e *emitter) fresh(name string) string {
	e.labels++
	return fmt.Sprintf("%s%d", name, e.labels)
}

// at puts a label before the next instruction.
func (e *emitter) at(label string) {
	if e.label != "" {
		e.emit(asm.Ja.Label(label)) // two labels in one place: the first leads to the second
	}
	e.label = label
}

// leads reports whether any instruction leads to a label: the verifier refuses what none leads to.
func (e *emitter) leads(label string) bool {
	return slices.ContainsFunc(e.ins, func(i asm.Instruction) bool { return i.Reference() == label })
}

// blobAt puts the address of a place of the tables into dst.
func (e *emitter) blobAt(dst asm.Register, off int) {
	e.emit(asm.LoadMapValue(dst, e.o.blob, uint32(off)))
}

// view makes R1 point to n bytes at offset rAt+off of the frame, and jumps to short if they end
// behind what the slot says, sLen or sEnd. It copies them to the stack at buf if they are not in
// the first buffer of the frame.
func (e *emitter) view(off, n int, slot int16, short string, buf int16) {
	if slot != sLen {
		e.beyond(off+n, slot, short)
	}
	e.emit(asm.Mov.Reg(asm.R1, rData), asm.Add.Reg(asm.R1, rAt))
	e.add(asm.R1, off)
	e.emit(asm.Mov.Reg(asm.R2, asm.R1), asm.Add.Imm(asm.R2, int32(n)))
	if !e.o.frags { // the first buffer is all there is
		if slot != sLen {
			short = "fault"
		}
		e.emit(asm.JGT.Reg(asm.R2, rEnd, short))
		return
	}
	near := e.fresh("near")
	e.emit(asm.JLE.Reg(asm.R2, rEnd, near))
	if slot == sLen {
		e.beyond(off+n, slot, short)
	}
	e.emit(asm.Mov.Reg(asm.R1, rCtx), asm.Mov.Reg(asm.R2, rAt))
	e.add(asm.R2, off)
	e.emit(
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, int32(buf)),
		asm.Mov.Imm(asm.R4, int32(n)),
		asm.FnXdpLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "fault"),
		asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, int32(buf)),
	)
	e.at(near)
}

func (e *emitter) add(r asm.Register, n int) {
	if n != 0 {
		e.emit(asm.Add.Imm(r, int32(n)))
	}
}

// beyond jumps when rAt+n is more than what is in the slot.
func (e *emitter) beyond(n int, slot int16, label string) {
	e.emit(
		asm.Mov.Reg(asm.R2, rAt),
		asm.Add.Imm(asm.R2, int32(n)),
		load(asm.R3, slot),
		asm.JGT.Reg(asm.R2, asm.R3, label),
	)
}

// forget makes the verifier forget where the header at rAt is, and what is known of the frame.
func (e *emitter) forget() {
	e.emit(store(sScratch, rAt))
	e.offset(sScratch)
}

// offset puts the offset in the slot into rAt, and the frame into rData and rEnd.
func (e *emitter) offset(slot int16) {
	e.emit(
		load(rAt, slot),
		asm.JGT.Imm(rAt, farthest, "fault"),
	)
	e.frame()
}

// frame puts the frame's first buffer into rData and rEnd.
func (e *emitter) frame() {
	e.emit(
		asm.LoadMem(rData, rCtx, ctxData, asm.Word),
		asm.LoadMem(rEnd, rCtx, ctxEnd, asm.Word),
	)
}

// be16 makes a number of the network's of dst.
func be16(dst asm.Register) asm.Instruction { return asm.HostTo(asm.BE, dst, asm.Half) }

// byteShift is where byte k of memory lies in a word that was loaded.
func byteShift(k int) int32 {
	if littleEndian {
		return int32(8 * k)
	}
	return int32(24 - 8*k)
}

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// store64 stores a constant of 8 bytes, which asm.StoreImm does not do.
func store64(dst asm.Register, off int16, v int64) asm.Instruction {
	return asm.Instruction{OpCode: asm.StoreImmOp(asm.DWord), Dst: dst, Offset: off, Constant: v}
}
