package kernels_test

import (
	"encoding/binary"
	"math"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/kernels"
)

// reordering are arguments of Reorder: any plan, packets of one part or of several, batches with
// gaps, and entries that are wrong.
func reordering(t *rapid.T) []any {
	le := binary.LittleEndian
	p := kernels.ReorderPlan{
		Per:      1 << rapid.IntRange(0, 7).Draw(t, "per"),
		Channels: rapid.SampledFrom([]int{0, 0, 1, 2, 3}).Draw(t, "channels"),
		To:       kernels.Element(rapid.IntRange(0, int(kernels.F64)).Draw(t, "to")),
		Bits:     rapid.SampledFrom([]int{4, 8, 12, 14, 16, 32}).Draw(t, "bits"),
		Unsigned: rapid.Bool().Draw(t, "unsigned"), BigEndian: rapid.Bool().Draw(t, "big"),
		Scale: 1, SeqOff: rapid.IntRange(0, 100).Draw(t, "seq"), SeqWidth: rapid.IntRange(1, 32).Draw(t, "width"),
		BatchOff:   rapid.IntRange(0, 100).Draw(t, "batch"),
		BatchWidth: rapid.IntRange(0, 32).Draw(t, "batch width"),
	}
	if rapid.Bool().Draw(t, "scaled") {
		p.Scale = rapid.OneOf(rapid.Map(rapid.IntRange(-30, 10), func(e int) float64 {
			return 1.5 * math.Ldexp(1, e)
		}), rapid.Map(rapid.IntRange(-120, 120), func(e int) float64 {
			return math.Ldexp(1, e)
		}), rapid.Float64Range(-1e6, 1e6), rapid.Float64()).Draw(t, "scale")
		if p.Scale == 0 || math.IsNaN(p.Scale) || math.IsInf(p.Scale, 0) {
			p.Scale = 3
		}
	}
	if rapid.Bool().Draw(t, "moved") {
		p.Offset = rapid.Float64Range(-1e5, 1e5).Draw(t, "offset")
	}
	wide := rapid.IntRange(0, 2).Draw(t, "wide") == 0 // what the kernel converts eight samples at a time
	if wide {
		p.Channels, p.Bits, p.Offset = min(p.Channels, 1), 16, 0
		p.To = rapid.SampledFrom([]kernels.Element{kernels.F16, kernels.BF16}).Draw(t, "half")
		p.Scale = math.Ldexp(1, rapid.OneOf(rapid.Just(0), rapid.IntRange(-99, 89)).Draw(t, "power"))
	}
	// A payload of so many units, and its elements.
	unit, samples := 1, 1
	if p.To != kernels.Bytes {
		for unit = 1; unit*8%p.Bits != 0; unit++ {
		}
		samples = unit * 8 / p.Bits
	}
	size := map[kernels.Element]int{kernels.I16: 2, kernels.U16: 2, kernels.F16: 2, kernels.BF16: 2, kernels.I32: 4,
		kernels.U32: 4, kernels.F32: 4, kernels.F64: 8}[p.To]
	size = max(size, 1) * samples
	channels := max(p.Channels, 1)
	each := rapid.IntRange(1, 200/channels+1).Draw(t, "units") // of a channel
	if wide && rapid.IntRange(0, 3).Draw(t, "odd places") > 0 {
		each = size8(each)
	}
	in, place := each*channels*unit, each*channels*size

	var src [kernels.ReorderSources][]byte
	for k := range src {
		src[k] = content(t, size8(in+32+7*k))
	}
	table := make([]byte, 1<<16)
	part := 0
	parts := func(n int) (first, count uint32) { // n bytes in parts
		first = uint32(part)
		for count == 0 || n > 0 {
			k := n
			if rapid.IntRange(0, 2).Draw(t, "cut") == 0 {
				k = rapid.IntRange(0, n).Draw(t, "part")
			}
			from := rapid.IntRange(0, kernels.ReorderSources-1).Draw(t, "source")
			off := uint64(rapid.IntRange(0, len(src[from])-k).Draw(t, "off"))
			if wide && rapid.IntRange(0, 3).Draw(t, "odd part") > 0 {
				off &^= 15
			}
			if rapid.IntRange(0, 40).Draw(t, "wrong part") == 0 {
				off = number(t, "off", len(src[from])) | 1<<20
			}
			if rapid.IntRange(0, 60).Draw(t, "no source") == 0 {
				from = 4
			}
			e := table[16*part:]
			le.PutUint64(e, off)
			le.PutUint32(e[8:], uint32(k))
			le.PutUint32(e[12:], uint32(from))
			part, n, count = part+1, n-k, count+1
		}
		return first, count
	}
	entry := func(at int, long uint64, words ...uint32) {
		le.PutUint64(table[at:], long)
		for i, w := range words {
			le.PutUint32(table[at+8+4*i:], w)
		}
	}
	const moves, gaps, looks, masks, outs, refused = 40000, 42000, 44000, 46000, 48000, 50000
	batch := (p.Per*place + 7) &^ 7
	nmoves, ngaps, nlooks := rapid.IntRange(0, min(p.Per, 12)).Draw(t, "moves"),
		rapid.IntRange(0, min(2, bufBytes/batch-1)).Draw(t, "gaps"), rapid.IntRange(0, 20).Draw(t, "looks")
	dst := content(t, batch*(1+ngaps))
	for i := range nmoves {
		n := in
		if p.Channels == 0 {
			n = rapid.IntRange(0, each).Draw(t, "short") * unit
		}
		first, count := parts(n)
		to := uint64(i * place / channels)
		if rapid.IntRange(0, 30).Draw(t, "wrong move") == 0 {
			to = uint64(len(dst)) - 8 | rapid.SampledFrom([]uint64{0, 1 << 32, 1 << 63}).Draw(t, "far")
			to = max(to, uint64(len(dst)-place/channels+8)&^7)
		}
		entry(moves+24*i, to, first, count, uint32(n), uint32(place))
	}
	for i := range ngaps {
		copy(table[masks+16*i:masks+16*i+16], content(t, 16))
		entry(gaps+24*i, uint64(batch*(1+i)), masks+16*uint32(i), 0, uint32(place))
	}
	for i := range nlooks {
		n := max((max(p.SeqOff+p.SeqWidth, p.BatchOff+p.BatchWidth)+7)/8, 1)
		if n > in {
			nlooks = 0
			break
		}
		first, count := parts(n)
		entry(looks+24*i, outs+8*uint64(i), first, count, uint32(n))
	}
	args := []any{dst, uint64(len(dst))}
	for k := range src {
		args = append(args, src[k], uint64(len(src[k])))
	}
	return append(args, table, p.Encode(), uint64(moves), uint32(nmoves), uint64(gaps), uint32(ngaps), uint64(looks),
		uint32(nlooks), uint64(refused))
}

func size8(n int) int { return (n + 7) &^ 7 }
