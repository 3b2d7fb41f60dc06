package kernels

import (
	"math"

	"github.com/penstock-io/penstock/gpu/driver"
)

// Reorder places payloads of packets into batches, converted on the way, clears the places of
// packets that are missing, and reads numbers of packets. Package reorder has the meaning. Its
// table, little-endian, has entries of these kinds wherever the caller wants them:
//
//	part  PieceBytes     ulong off; uint len, src        bytes of source src, 0 to 3
//	move  ReorderBytes   ulong dst; uint part, parts, len, place
//	                     the first len bytes of that many parts, the first of which is at part*16 of the table, go to the place of place bytes at dst;
//	                     with channels dst is where its part of channel 0 begins
//	gap   ReorderBytes   ulong dst, mask; uint place, unused
//	                     of the batch at dst, the places whose bit in the bytes at mask of the table is 0 become 0
//	look  ReorderBytes   ulong out; uint part, parts, len, unused
//	                     the sequence number and that of the batch of a packet of len bytes go to two uints at out of the table
//
// and plan is what ReorderPlan.Encode makes. The word at refused_at becomes 1 where an entry is
// outside its memories; that one is left out. dst and all elements are aligned to their size.
var Reorder = program("reorder", reorderGo, buffer("dst"), u64("dst_len"), buffer("src0"), u64("len0"), buffer("src1"),
	u64("len1"), buffer("src2"), u64("len2"),
	buffer("src3"), u64("len3"), buffer("table"), buffer("plan"), u64("moves_at"), u32("moves"), u64("gaps_at"),
	u32("gaps"), u64("looks_at"), u32("looks"), u64("refused_at"))

// The arguments of Reorder by number. Those of source k are ReorderSource+2*k and the one behind
// it.
const (
	ReorderSource = 2
	ReorderTable  = 10
	ReorderMoves  = 12
	ReorderGaps   = 14
	ReorderLooks  = 16
	ReorderOut    = 18
	// ReorderBytes is the size of an entry of each kind but parts.
	ReorderBytes = 24
	// ReorderSources is the number of sources.
	ReorderSources = 4
)

// Element is what a sample becomes.
type Element uint32

// Bytes is no conversion.
const (
	Bytes Element = iota
	I8
	U8
	I16
	U16
	I32
	U32
	F16
	BF16
	F32
	F64
)

var elementSizes = [...]int{1, 1, 1, 2, 2, 4, 4, 2, 2, 4, 8}

// ReorderPlan is what all batches have in common: packets of a batch, channels or 0, a conversion,
// and where numbers are in a packet, in bits.
type ReorderPlan struct {
	Per, Channels        int
	To                   Element
	Bits                 int // of a sample: 4, 8, 12, 14, 16, 32
	Unsigned, BigEndian  bool
	Scale, Offset        float64 // of To other than Bytes; Scale is not 0
	SeqOff, SeqWidth     int
	BatchOff, BatchWidth int
}

const (
	modeBytes = iota
	modeExact // in integers, or in float
	modeDouble
)

// mode is modeExact where that has the same results as float64: of integers without Scale and
// Offset, and of samples of up to 16 bits with a Scale that is a power of two.
func (p *ReorderPlan) mode() uint32 {
	frac, exp := math.Frexp(p.Scale)
	switch {
	case p.To == Bytes:
		return modeBytes
	case p.To < F16 && p.Scale == 1 && p.Offset == 0, p.To >= F16 && p.Bits <= 16 && p.Offset == 0 && frac == 0.5 &&
		exp > -100 && exp <= 90:
		return modeExact
	}
	return modeDouble
}

// ReorderPlanBytes is the size of what Encode makes.
const ReorderPlanBytes = 64

// Encode is the plan as the kernel reads it.
func (p *ReorderPlan) Encode() []byte {
	bit := map[bool]uint32{true: 1}
	var b []byte
	for _, v := range []uint32{uint32(p.Per), uint32(p.Channels), uint32(max(p.Bits, 1)), bit[p.Unsigned],
		bit[p.BigEndian], uint32(p.To), p.mode(), uint32(p.SeqOff), uint32(p.SeqWidth),
		uint32(p.BatchOff), uint32(p.BatchWidth), math.Float32bits(float32(p.Scale))} {
		b = le.AppendUint32(b, v)
	}
	b = le.AppendUint64(b, math.Float64bits(p.Scale))
	return le.AppendUint64(b, math.Float64bits(p.Offset))
}

// reorderArgs are the arguments, and what of them is for all entries.
type reorderArgs struct {
	dst, table                             []byte
	src                                    [ReorderSources][]byte
	per, channels, bits, to, mode          int
	isUnsigned, big                        bool
	seqOff, seqWidth, batchOff, batchWidth uint32
	scale, offset                          float64
}

func reorderGo(_ driver.Grid, a []driver.GoArg) {
	x := &reorderArgs{dst: a[0].Bytes[:a[1].U64()], table: a[ReorderTable].Bytes}
	for k := range x.src {
		x.src[k] = a[ReorderSource+2*k].Bytes[:a[ReorderSource+2*k+1].U64()]
	}
	plan := a[ReorderTable+1].Bytes
	word := func(i int) uint32 { return le.Uint32(plan[4*i:]) }
	x.per, x.channels, x.bits, x.isUnsigned, x.big, x.to, x.mode = int(word(0)), int(word(1)), int(word(2)),
		word(3) != 0, word(4) != 0, int(word(5)), int(word(6))
	x.seqOff, x.seqWidth, x.batchOff, x.batchWidth = word(7), word(8), word(9), word(10)
	x.scale, x.offset = math.Float64frombits(le.Uint64(plan[48:])), math.Float64frombits(le.Uint64(plan[56:]))
	refused := a[ReorderOut].U64()
	for _, kind := range []struct {
		arg int
		do  func(entry []byte) bool
	}{{ReorderMoves, x.move}, {ReorderGaps, x.gap}, {ReorderLooks, x.look}} {
		at := a[kind.arg].U64()
		for i := range uint64(a[kind.arg+1].U32()) {
			if !kind.do(x.table[at+i*ReorderBytes:][:ReorderBytes]) {
				le.PutUint32(x.table[refused:], 1)
			}
		}
	}
}

// parts are the first n bytes of parts, in one piece; ok is false where they are not inside.
func (x *reorderArgs) parts(first, count, n uint32) (all []byte, ok bool) {
	for k := range uint64(count) {
		e := x.table[(uint64(first)+k)*PieceBytes:]
		off, size, src := le.Uint64(e), uint64(le.Uint32(e[8:])), le.Uint32(e[12:])
		if src >= ReorderSources || !inside(off, size, uint64(len(x.src[src]))) {
			return nil, false
		}
		all = append(all, x.src[src][off:off+size]...)
	}
	if uint64(len(all)) < uint64(n) {
		return nil, false
	}
	return all[:n], true
}

func (x *reorderArgs) move(e []byte) bool {
	dst, place := le.Uint64(e), uint64(le.Uint32(e[20:]))
	channels := uint64(max(x.channels, 1))
	in, ok := x.parts(le.Uint32(e[8:]), le.Uint32(e[12:]), le.Uint32(e[16:]))
	out := place / channels
	row := out * uint64(x.per)
	if !ok || !inside((channels-1)*row, out, uint64(len(x.dst))) ||
		!inside(dst, (channels-1)*row+out, uint64(len(x.dst))) {
		return false
	}
	if x.mode != modeBytes {
		in = x.elements(in)
	}
	if uint64(len(in)) > place {
		return false
	}
	d := x.dst[dst:]
	if channels == 1 {
		clear(d[copy(d, in):place])
		return true
	}
	each := uint64(len(in)) / channels
	for c := range channels {
		copy(d[c*row:], in[c*each:][:each])
	}
	return true
}

// elements are the elements of whole units of samples.
func (x *reorderArgs) elements(in []byte) (out []byte) {
	unit := map[int]int{12: 3, 14: 7, 16: 2, 32: 4}[x.bits]
	for unit = max(unit, 1); len(in) >= unit; in = in[unit:] {
		for i := range unit * 8 / x.bits {
			v := int64(0)
			for k := range x.bits { // the most significant first
				bit := i*x.bits + k
				b := in[bit/8] >> (7 - bit%8)
				if !x.big {
					bit = (i+1)*x.bits - 1 - k
					b = in[bit/8] >> (bit % 8)
				}
				v = v<<1 | int64(b&1)
			}
			if !x.isUnsigned && v>>(x.bits-1) == 1 {
				v -= 1 << x.bits
			}
			out = x.element(out, v)
		}
	}
	return out
}

func (x *reorderArgs) element(out []byte, v int64) []byte {
	value := float64(float64(v)*x.scale) + x.offset
	size := elementSizes[x.to]
	switch Element(x.to) {
	case F16:
		return le.AppendUint16(out, nearest(value, 5, 10))
	case BF16:
		return le.AppendUint16(out, nearest(value, 8, 7))
	case F32:
		return le.AppendUint32(out, math.Float32bits(float32(value)))
	case F64:
		return le.AppendUint64(out, math.Float64bits(value))
	}
	low, high := -math.Ldexp(1, 8*size-1), math.Ldexp(1, 8*size-1)-1
	if Element(x.to) == U8 || Element(x.to) == U16 || Element(x.to) == U32 {
		low, high = 0, math.Ldexp(1, 8*size)-1
	}
	n := uint64(int64(min(max(math.RoundToEven(value), low), high)))
	for k := range size {
		out = append(out, byte(n>>(8*k)))
	}
	return out
}

// nearest is the number of a format of 16 bits, with an exponent of exp bits and a fraction of frac
// bits, that is nearest to v, ties to even.
func nearest(v float64, exp, frac int) uint16 {
	sign := uint16(math.Float64bits(v) >> 63 << 15)
	v = math.Abs(v)
	least := 2 - 1<<(exp-1) // exponent of the smallest normal number
	if v == 0 {
		return sign
	}
	if math.IsInf(v, 0) {
		return sign | uint16(1<<exp-1)<<frac
	}
	_, e := math.Frexp(v) // v is in [2^(e-1), 2^e)
	e = max(e-1, least)
	steps := math.RoundToEven(math.Ldexp(v, frac-e)) // between numbers of this exponent
	if steps >= math.Ldexp(2, frac) {
		e, steps = e+1, steps/2
	}
	if e > 1<<(exp-1)-1 {
		return sign | uint16(1<<exp-1)<<frac
	}
	if steps < math.Ldexp(1, frac) {
		return sign | uint16(steps) // subnormal
	}
	return sign | uint16(e-least+1)<<frac | uint16(steps-math.Ldexp(1, frac))
}

func (x *reorderArgs) gap(e []byte) bool {
	dst, mask, place := le.Uint64(e), x.table[le.Uint64(e[8:]):], uint64(le.Uint32(e[16:]))
	channels, per := uint64(max(x.channels, 1)), uint64(x.per)
	if !inside(dst, place*per, uint64(len(x.dst))) {
		return false
	}
	out := place / channels
	for at := range per {
		if mask[at/8]>>(at%8)&1 == 1 {
			continue
		}
		for c := range channels {
			clear(x.dst[dst+(c*per+at)*out:][:out])
		}
	}
	return true
}

func (x *reorderArgs) look(e []byte) bool {
	p, ok := x.parts(le.Uint32(e[8:]), le.Uint32(e[12:]), le.Uint32(e[16:]))
	if !ok {
		return false
	}
	field := func(off, width uint32) (v uint32) {
		for k := off; k < off+width; k++ {
			v = v<<1 | uint32(p[k/8]>>(7-k%8)&1)
		}
		return v
	}
	out := x.table[le.Uint64(e):]
	le.PutUint32(out, field(x.seqOff, x.seqWidth))
	le.PutUint32(out[4:], field(x.batchOff, x.batchWidth))
	return true
}
