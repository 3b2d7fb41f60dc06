package prog

import (
	"github.com/cilium/ebpf/asm"
	"github.com/penstock-io/penstock/packet/flow"
)

// What an XDP program returns (linux/bpf.h, enum xdp_action).
const (
	xdpAborted  = 0
	xdpDrop     = 1
	xdpPass     = 2
	xdpRedirect = 4
)

// The first slots of the counters; those of rules come behind them.
const (
	slotRedirected = iota
	slotKernel
	slotDiscarded
	slotNoSocket
	slotFault
	slotUnmatched
	slotBare
	slotRules
)

// counterSize is the size of a counter: packets and bytes.
const counterSize = 16

// Offsets in struct xdp_md.
const (
	ctxData  = 0
	ctxEnd   = 4
	ctxMeta  = 8
	ctxQueue = 16
)

// finish emits what happens to a packet whose outcome is in rAt.
func (e *emitter) finish() {
	e.counters()
	// The counters of this CPU are in R8 now, and the program needs the frame no more.
	e.emit(
		asm.LoadMem(asm.R1, rAt, outcomeCounter, asm.Word),
		asm.JGE.Imm(asm.R1, int32(e.o.counts), "broken"),
	)
	e.scale(asm.R1, counterSize)
	e.emit(asm.Mov.Reg(asm.R2, asm.R8), asm.Add.Reg(asm.R2, asm.R1))
	e.increment(asm.R2, 0)
	e.emit(
		asm.LoadMem(asm.R1, rAt, outcomeVerdict, asm.Byte),
		asm.JEq.Imm(asm.R1, verdictDeliver, "deliver"),
		asm.JEq.Imm(asm.R1, verdictDiscard, "discard"),
	)
	if e.t.spreads > 0 {
		e.emit(asm.JEq.Imm(asm.R1, verdictSpread, "spread"))
	}
	e.end(slotKernel, xdpPass)
	e.at("discard")
	e.end(slotDiscarded, xdpDrop)
	if e.t.spreads > 0 {
		e.at("spread")
		e.hash()
		e.emit(
			asm.And.Imm(asm.R0, flow.IndirectionEntries-1), asm.LSh.Imm(asm.R0, 1),
			asm.LoadMem(asm.R1, rAt, outcomeSpread, asm.Half),
			asm.JGE.Imm(asm.R1, int32(e.t.spreads), "broken"),
		)
		e.scale(asm.R1, 2*flow.IndirectionEntries)
		e.blobAt(asm.R3, e.t.spread)
		e.emit(
			asm.Add.Reg(asm.R1, asm.R0),
			asm.Add.Reg(asm.R3, asm.R1),
			asm.LoadMem(rData, asm.R3, 0, asm.Half),
			asm.Ja.Label("queue"),
		)
	}
	e.at("deliver")
	e.emit(asm.LoadMem(rData, rAt, outcomeQueue, asm.Word))
	e.at("queue")
	e.emit(asm.JGE.Imm(rData, int32(e.o.slots), "nosocket"))
	if e.o.metadata {
		e.metadata()
	}
	e.emit(
		asm.LoadMem(asm.R2, rCtx, ctxQueue, asm.Word),
		asm.JGE.Imm(asm.R2, int32(e.o.queues), "nosocket"),
		asm.Mul.Imm(asm.R2, int32(e.o.slots)),
		asm.Add.Reg(asm.R2, rData),
		asm.LoadMapPtr(asm.R1, e.o.sockets),
		asm.Mov.Imm(asm.R3, xdpDrop), // when there is none
		asm.FnRedirectMap.Call(),
		asm.JNE.Imm(asm.R0, xdpRedirect, "nosocket"),
	)
	e.end(slotRedirected, xdpRedirect)
	e.at("nosocket")
	e.end(slotNoSocket, xdpDrop)

	// Jumps that cannot happen, which the verifier does not know. They are counted all the same.
	if e.leads("fault") {
		e.at("fault")
		e.counters()
	}
	e.at("broken")
	e.end(slotFault, xdpDrop)
	e.at("aborted")
	e.emit(asm.Mov.Imm(asm.R0, xdpAborted), asm.Return())
}

// direct emits a program that gives every packet to the socket of one logical queue, and counts
// only those for which there is none.
func (e *emitter) direct(queue int) {
	e.emit(
		asm.Mov.Reg(rCtx, asm.R1),
		asm.LoadMem(asm.R2, asm.R1, ctxQueue, asm.Word),
	)
	// A NIC queue that has no sockets is beyond the end of the map.
	e.scale(asm.R2, e.o.slots)
	e.add(asm.R2, queue)
	e.emit(
		asm.LoadMapPtr(asm.R1, e.o.sockets),
		asm.Mov.Imm(asm.R3, xdpDrop), // when there is none
		asm.FnRedirectMap.Call(),
		asm.JNE.Imm(asm.R0, xdpRedirect, "nosocket"),
		asm.Return(),
	)
	e.at("nosocket")
	e.emit(asm.Mov.Reg(asm.R1, rCtx), asm.FnXdpGetBuffLen.Call(), store(sLen, asm.R0))
	e.counters()
	e.end(slotNoSocket, xdpDrop)
	e.at("aborted")
	e.emit(asm.Mov.Imm(asm.R0, xdpAborted), asm.Return())
}

// counters puts the address of this CPU's counters into R8.
func (e *emitter) counters() {
	e.emit(
		asm.FnGetSmpProcessorId.Call(),
		store(sScratch, asm.R0),
		asm.LoadMapPtr(asm.R1, e.o.counters),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, sScratch),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "aborted"),
		asm.Mov.Reg(asm.R8, asm.R0),
	)
}

// increment counts the packet at base+off. No other program writes counters of this CPU while this
// one runs.
func (e *emitter) increment(base asm.Register, off int16) {
	e.emit(
		asm.LoadMem(asm.R3, base, off, asm.DWord),
		asm.Add.Imm(asm.R3, 1),
		asm.StoreMem(base, off, asm.R3, asm.DWord),
		asm.LoadMem(asm.R3, base, off+8, asm.DWord),
		load(asm.R4, sLen),
		asm.Add.Reg(asm.R3, asm.R4),
		asm.StoreMem(base, off+8, asm.R3, asm.DWord),
	)
}

// end counts the packet and returns.
func (e *emitter) end(slot int16, action int32) {
	e.increment(asm.R8, slot*counterSize)
	e.emit(asm.Mov.Imm(asm.R0, action), asm.Return())
}

// hash puts the Toeplitz hash of packet.Toeplitz.Frame into R0. It uses R1 to R3.
func (e *emitter) hash() {
	bytes := func(n int, row int, slot int16) {
		for i := range n {
			e.emit(asm.LoadMem(asm.R1, asm.RFP, slot+int16(i), asm.Byte), asm.LSh.Imm(asm.R1, 2))
			e.blobAt(asm.R2, e.t.toeplitz+(row+i)*256*4)
			e.emit(asm.Add.Reg(asm.R2, asm.R1), asm.LoadMem(asm.R3, asm.R2, 0, asm.Word), asm.Xor.Reg(asm.R0, asm.R3))
		}
	}
	ports := func(row int) {
		e.emit(load(asm.R1, sHasPorts), asm.JEq.Imm(asm.R1, 0, "hashed"), load(asm.R1, sPart),
			asm.JNE.Imm(asm.R1, 0, "hashed"))
		bytes(4, row, sPorts)
	}
	e.emit(asm.Mov.Imm(asm.R0, 0), load(asm.R1, sVersion), asm.JEq.Imm(asm.R1, 4, "hash4"),
		asm.JNE.Imm(asm.R1, 6, "hashed"))
	bytes(32, 0, sAddr)
	ports(32)
	e.emit(asm.Ja.Label("hashed"))
	e.at("hash4")
	bytes(8, 0, sAddr)
	ports(8)
	e.at("hashed")
}

// metadata puts a Meta in front of the packet; the queue is in R7.
func (e *emitter) metadata() {
	hinted := e.o.hints != hints{}
	if hinted {
		e.hints()
	}
	e.emit(
		asm.Mov.Reg(asm.R1, rCtx), asm.Mov.Imm(asm.R2, -MetaSize), asm.FnXdpAdjustMeta.Call(),
		asm.JNE.Imm(asm.R0, 0, "bare"),
		asm.LoadMem(asm.R1, rCtx, ctxMeta, asm.Word),
		asm.LoadMem(asm.R2, rCtx, ctxData, asm.Word),
		asm.Mov.Reg(asm.R3, asm.R1), asm.Add.Imm(asm.R3, MetaSize),
		asm.JGT.Reg(asm.R3, asm.R2, "broken"),
		asm.StoreImm(asm.R1, metaMagicAt, metaMagic, asm.Word),
		asm.LoadMem(asm.R2, rAt, outcomeID, asm.Word),
		asm.StoreMem(asm.R1, metaRuleAt, asm.R2, asm.Word),
		asm.StoreMem(asm.R1, metaQueueAt, rData, asm.Half),
	)
	if hinted {
		e.emit(
			load(asm.R2, sScratch), asm.StoreMem(asm.R1, metaFlagsAt, asm.R2, asm.Half),
			load(asm.R2, sHash), asm.StoreMem(asm.R1, metaHashAt, asm.R2, asm.Word),
			asm.LoadMem(asm.R2, asm.RFP, sTime, asm.DWord), asm.StoreMem(asm.R1, metaTimeAt, asm.R2, asm.DWord),
		)
	} else {
		e.emit(asm.StoreImm(asm.R1, metaFlagsAt, 0, asm.Half), asm.StoreImm(asm.R1, metaHashAt, 0, asm.Word),
			store64(asm.R1, metaTimeAt, 0))
	}
	e.emit(asm.Ja.Label("redirect"))
	e.at("bare")
	e.increment(asm.R8, slotBare*counterSize)
	e.at("redirect")
}
