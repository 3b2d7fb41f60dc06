package prog

import (
	"fmt"
	"sync"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// What a NIC knows of a packet comes by functions of the kernel ("kfuncs",
// Documentation/networking/xdp-rx-metadata.rst), whose numbers are in the type information of the
// running kernel, and which only programs may call that are loaded for one device.

// xdpDevBound is BPF_F_XDP_DEV_BOUND_ONLY.
const xdpDevBound = 1 << 6

// hints are the numbers of the functions that the program calls; 0: none.
type hints struct{ hash, time int32 }

// hintFunctions looks the functions up once; the kernel does not change.
var hintFunctions = sync.OnceValues(func() (h hints, err error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return h, fmt.Errorf("the kernel has no type information (CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	for _, f := range []struct {
		name string
		to   *int32
	}{{"bpf_xdp_metadata_rx_hash", &h.hash}, {"bpf_xdp_metadata_rx_timestamp", &h.time}} {
		var of *btf.Func
		if err := kernel.TypeByName(f.name, &of); err != nil {
			return h, fmt.Errorf("the kernel has no %s, which came with Linux 6.3: %w", f.name, err)
		}
		id, err := kernel.TypeID(of)
		if err != nil {
			return h, fmt.Errorf("%s: %w", f.name, err)
		}
		*f.to = int32(id)
	}
	return h, nil
})

// hintsOf are the functions for what a Spec asks.
func hintsOf(s *Spec) (hints, error) {
	if !s.Metadata || !s.Hash && !s.Time {
		return hints{}, nil
	}
	h, err := hintFunctions()
	if err != nil {
		return hints{}, err
	}
	if !s.Hash {
		h.hash = 0
	}
	if !s.Time {
		h.time = 0
	}
	return h, nil
}

// Where the answers lie on the stack.
const (
	sTime     = sBuf     // 8 bytes
	sHash     = sBuf + 8 // 4
	sHashType = sBuf + 12
)

// hints asks the driver, and leaves the flags of a Meta in sScratch.
func (e *emitter) hints() {
	e.emit(store64(asm.RFP, sTime, 0), store64(asm.RFP, sHash, 0), asm.Mov.Imm(asm.R1, 0), store(sScratch, asm.R1))
	argument := func(r asm.Register, slot int32) {
		e.emit(asm.Mov.Reg(r, asm.RFP), asm.Add.Imm(r, slot))
	}
	flag := func(bit int32) {
		e.emit(load(asm.R1, sScratch), asm.Or.Imm(asm.R1, bit), store(sScratch, asm.R1))
	}
	if id := e.o.hints.hash; id != 0 {
		e.emit(asm.Mov.Reg(asm.R1, rCtx))
		argument(asm.R2, sHash)
		argument(asm.R3, sHashType)
		e.emit(kfunc(id), asm.JNE.Imm(asm.R0, 0, "nohash"))
		flag(metaHash)
		e.at("nohash")
	}
	if id := e.o.hints.time; id != 0 {
		e.emit(asm.Mov.Reg(asm.R1, rCtx))
		argument(asm.R2, sTime)
		e.emit(kfunc(id), asm.JNE.Imm(asm.R0, 0, "notime"))
		// Some drivers say that all is well, and that it is 1970.
		e.emit(asm.LoadMem(asm.R1, asm.RFP, sTime, asm.DWord), asm.JEq.Imm(asm.R1, 0, "notime"))
		flag(metaTime)
		e.at("notime")
	}
}

func kfunc(id int32) asm.Instruction {
	return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall,
		Constant: int64(id)}
}
