package kernels_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/gpu/opencl"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/internal/sys"
)

// bench is a device of PoCL with buffers that are used again and again.
type bench struct {
	c     *gpu.Context
	s     *gpu.Stream
	bufs  []*gpu.Memory
	calls map[*gpu.Program]*gpu.Call
	mods  []*gpu.Module
}

const bufBytes = 1 << 20

func newBench(t *testing.T) *bench {
	t.Helper()
	platform := peers.PoCL(t)
	later := func(close func() error) {
		t.Cleanup(func() {
			if err := close(); err != nil {
				t.Error(err)
			}
		})
	}
	rt, err := opencl.Open(opencl.Options{Platform: platform})
	if err != nil {
		t.Fatal(err)
	}
	later(rt.Close)
	b := &bench{calls: map[*gpu.Program]*gpu.Call{}}
	if b.c, err = rt.Devices()[0].Open(); err != nil {
		t.Fatal(err)
	}
	later(b.c.Close)
	for i := range 7 {
		kind := gpu.DeviceMemory
		if i%2 == 1 && b.c.Info().Capabilities.Has(gpu.CapMapped) {
			kind = gpu.MappedMemory
		}
		m, err := b.c.Alloc(gpu.MemoryOptions{Kind: kind, Size: bufBytes})
		if err != nil {
			t.Fatal(err)
		}
		later(m.Close)
		b.bufs = append(b.bufs, m)
	}
	t.Cleanup(func() {
		for _, c := range b.calls {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		for _, m := range b.mods {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	if b.s, err = b.c.NewStream(gpu.StreamOptions{}); err != nil {
		t.Fatal(err)
	}
	later(b.s.Close)
	return b
}

// prepare loads a program and makes a call of its kernel.
func (b *bench) prepare(p *gpu.Program, args []gpu.Arg) (*gpu.Call, error) {
	m, err := b.c.Load(p)
	if err != nil {
		return nil, err
	}
	b.mods = append(b.mods, m)
	k, err := m.Kernel(p.Kernels[0].Name)
	if err != nil {
		return nil, err
	}
	return k.Prepare(args...)
}

type tb interface {
	Helper()
	Fatalf(string, ...any)
	Fatal(...any)
}

// same runs the kernel on the device and in Go and compares every buffer, with some bytes behind
// it. A []byte among the arguments is a buffer's content. It returns what is in the buffers
// afterwards.
func (b *bench) same(t tb, p *gpu.Program, g gpu.Grid, args ...any) (after [][]byte) {
	t.Helper()
	const guard = 64
	var list []gpu.Arg
	var ref []gpu.GoArg
	var want [][]byte
	for _, a := range args {
		switch v := a.(type) {
		case []byte:
			all := append(append(aligned(len(v) + guard)[:0], v...), bytes.Repeat([]byte{0x6b}, guard)...)
			m := b.bufs[len(want)]
			if err := b.s.Write(gpu.Span{Memory: m, Len: uint64(len(all))}, all); err != nil {
				t.Fatal(err)
			}
			list, ref, want = append(list, gpu.Buffer(gpu.Span{Memory: m, Len: uint64(len(v))})),
				append(ref, gpu.GoArg{Bytes: all[:len(v)]}), append(want, all)
		case uint32:
			list, ref = append(list, gpu.U32(v)), append(ref, gpu.GoArg{Bits: uint64(v)})
		case uint64:
			list, ref = append(list, gpu.U64(v)), append(ref, gpu.GoArg{Bits: v})
		}
	}
	c := b.calls[p]
	if c == nil {
		var err error
		if c, err = b.prepare(p, list); err != nil {
			t.Fatal(err)
		}
		b.calls[p] = c
	}
	for i, a := range list {
		if err := c.Set(i, a); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.s.Launch(c, g); err != nil {
		t.Fatal(err)
	}
	p.Go[p.Kernels[0].Name](g, ref)
	for i := range want {
		got := make([]byte, len(want[i]))
		if err := b.s.Read(got, gpu.Span{Memory: b.bufs[i], Len: uint64(len(got))}); err != nil {
			t.Fatal(err)
		}
		if at := differ(got, want[i]); at >= 0 {
			t.Fatalf("%s with %d groups of %d: byte %d of buffer %d is %#02x on the device and %#02x in Go", p.Name,
				g.Groups, g.Group, at, i, got[at], want[i][at])
		}
		after = append(after, want[i][:len(got)-guard])
	}
	return after
}

// aligned are n bytes on a line of their own, as the device's buffers are.
func aligned(n int) []byte {
	b := make([]byte, n+64)
	return b[-sys.Address(b)%64:][:n:n]
}

func differ(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// grids has few sizes of groups: PoCL compiles a kernel for each.
var grids = rapid.Custom(func(t *rapid.T) gpu.Grid {
	return gpu.Grid{Groups: rapid.Uint32Range(1, 20).Draw(t, "groups"),
		Group: rapid.SampledFrom([]uint32{1, 7, 64}).Draw(t, "group")}
})

// size is a length that is 0, 1, around a power of two, or anything.
func size(t *rapid.T, label string, most int) int {
	n := rapid.OneOf(rapid.IntRange(0, 40), rapid.Custom(func(t *rapid.T) int {
		return 1<<rapid.IntRange(3, 14).Draw(t, "power") + rapid.IntRange(-2, 2).Draw(t, "beside")
	}), rapid.IntRange(0, 20000)).Draw(t, label)
	return min(n, most)
}

// content is bytes that differ from each other: which, does not matter.
func content(t *rapid.T, n int) []byte {
	x := rapid.Uint64().Draw(t, "seed") | 1
	b := make([]byte, n)
	for i := range b {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = byte(x >> 56)
	}
	return b
}

// number is one that a table may have and should not, as well.
func number(t *rapid.T, label string, most int) uint64 {
	return rapid.OneOf(rapid.Uint64Range(0, uint64(most)), rapid.SampledFrom([]uint64{0, 1, uint64(most),
		uint64(most) + 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<32 + 1, 5 << 32, 1 << 63, ^uint64(0)}),
		rapid.Custom(func(t *rapid.T) uint64 { // right but for what 32 bits would not see
			return rapid.Uint64Range(0, uint64(most)).Draw(t, "low") | rapid.Uint64Range(1, 1<<31).Draw(t, "high")<<32
		})).Draw(t, label)
}

// pieces is a table that is right in most entries.
func pieces(t *rapid.T, count, within, stride int, apart bool) []byte {
	var b []byte
	at := uint64(0)
	for range count {
		off, n := uint64(rapid.IntRange(0, within).Draw(t, "off")), uint64(rapid.IntRange(0, stride).Draw(t, "len"))
		if apart {
			off = at + uint64(rapid.IntRange(0, 3).Draw(t, "gap"))
			at = off + n
		}
		if rapid.IntRange(0, 5).Draw(t, "wrong") == 0 {
			n = number(t, "wrong length", stride)
			if apart && n != 0 { // must not overlap the next
				n |= 1 << 32
			}
		}
		if rapid.IntRange(0, 5).Draw(t, "wrong") == 0 && !apart {
			off = number(t, "wrong offset", within)
		}
		b = binary.LittleEndian.AppendUint64(b, off)
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

func TestSameAsReference(t *testing.T) {
	b := newBench(t)
	for _, x := range []struct {
		p   *gpu.Program
		run func(*rapid.T, gpu.Grid)
	}{
		{kernels.Copy, func(t *rapid.T, g gpu.Grid) {
			n := size(t, "n", 40000)
			dst, src := content(t, n+64), content(t, n+64)
			b.same(t, kernels.Copy, g, dst, rapid.Uint64Range(0, 64).Draw(t, "dst_off"), src,
				rapid.Uint64Range(0, 64).Draw(t, "src_off"), uint64(n))
		}},
		{kernels.Fill, func(t *rapid.T, g gpu.Grid) {
			n := size(t, "n", 40000)
			b.same(t, kernels.Fill, g, content(t, n+64), rapid.Uint64Range(0, 64).Draw(t, "off"), uint64(n),
				rapid.Uint64().Draw(t, "pattern"))
		}},
		{kernels.Gather, func(t *rapid.T, g gpu.Grid) {
			count, stride, n := rapid.IntRange(0, 40).Draw(t, "count"), size(t, "stride", 3000), size(t, "n", 20000)
			dst := content(t, rapid.IntRange(0, count*stride+50).Draw(t, "dst"))
			b.same(t, kernels.Gather, g, dst, uint64(len(dst)), strides(t, stride), content(t, n), uint64(n),
				pieces(t, count, n, stride, false), uint32(count), content(t, 4))
		}},
		{kernels.Scatter, func(t *rapid.T, g gpu.Grid) {
			count, stride, n := rapid.IntRange(0, 40).Draw(t, "count"), size(t, "stride", 3000), size(t, "n", 60000)
			src := content(t, rapid.IntRange(0, count*stride+50).Draw(t, "src"))
			b.same(t, kernels.Scatter, g, content(t, n), uint64(n), pieces(t, count, n, stride, true), uint32(count),
				src, uint64(len(src)), strides(t, stride), content(t, 4))
		}},
		{kernels.Checksum, func(t *rapid.T, g gpu.Grid) {
			count, n := rapid.IntRange(0, 40).Draw(t, "count"), size(t, "n", 20000)
			src := content(t, n)
			if rapid.Bool().Draw(t, "ones") {
				src = bytes.Repeat([]byte{0xff}, n)
			}
			b.same(t, kernels.Checksum, g, content(t, 4*count), src, uint64(n), pieces(t, count, n, n, false),
				uint32(count))
		}},
		{kernels.Process, func(t *rapid.T, g gpu.Grid) {
			count, stride := rapid.IntRange(0, 30).Draw(t, "count"), rapid.IntRange(16, 300).Draw(t, "stride")
			b.same(t, kernels.Process, g, content(t, count*kernels.ResultBytes), slots(t, count, stride),
				uint64(stride), uint32(count))
		}},
		{kernels.Reorder, func(t *rapid.T, g gpu.Grid) { b.same(t, kernels.Reorder, g, reordering(t)...) }},
	} {
		t.Run(x.p.Name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { x.run(t, grids.Draw(t, "grid")) })
		})
	}
	if !t.Failed() { // a stride without a slot in it
		b.same(t, kernels.Process, gpu.Grid{Groups: 1, Group: 7}, make([]byte, 48), make([]byte, 64), uint64(15),
			uint32(2))
	}
}

// strides is the stride of a table, or one so large that a row's offset overflows.
func strides(t *rapid.T, stride int) uint64 {
	if rapid.IntRange(0, 7).Draw(t, "huge stride") == 0 {
		return rapid.SampledFrom([]uint64{0, 1 << 32, 1 << 60, 1 << 63, ^uint64(0)}).Draw(t, "stride")
	}
	return uint64(stride)
}

// slots are packets, many of them frames, for Process.
func slots(t *rapid.T, count, stride int) []byte {
	b := content(t, count*stride)
	for i := range count {
		slot := b[i*stride:][:stride]
		n := rapid.IntRange(0, stride-kernels.SlotHeader+2).Draw(t, "length")
		if rapid.IntRange(0, 2).Draw(t, "kind") > 0 {
			f := frame(t)
			n = copy(slot[kernels.SlotHeader:], f)
		}
		length := uint32(n)
		if rapid.IntRange(0, 20).Draw(t, "huge") == 0 {
			length |= 1 << 31
		}
		binary.LittleEndian.PutUint32(slot[8:], length)
		binary.LittleEndian.PutUint32(slot[12:], rapid.Uint32Range(0, 3).Draw(t, "flags"))
	}
	return b
}

// frame is UDP in Ethernet, with tags and options, and often with one thing wrong.
func frame(t *rapid.T) []byte {
	payload := content(t, rapid.IntRange(0, 40).Draw(t, "payload"))
	f := make([]byte, 12)
	for range rapid.IntRange(0, 3).Draw(t, "tags") {
		f = append(f, 0x81, 0, 0, 7)
	}
	udp := append([]byte{1, 2, 3, 4, 0, byte(8 + len(payload)), 0, 0}, payload...)
	ip, v6 := len(f)+2, rapid.Bool().Draw(t, "v6")
	if v6 {
		f = append(f, 0x86, 0xdd)
		f = append(f, 0x60, 0, 0, 0, 0, byte(len(udp)), 17, 64)
		f = append(f, make([]byte, 32)...)
	} else {
		words := rapid.IntRange(5, 8).Draw(t, "words")
		f = append(f, 8, 0)
		f = append(f, 0x40|byte(words), 0, 0, byte(4*words+len(udp)), 0, 0, 0x40, 0, 64, 17, 0, 0)
		f = append(f, make([]byte, 4*words-12)...)
	}
	at := len(f)
	f = append(f, udp...)
	f = append(f, make([]byte, rapid.IntRange(0, 6).Draw(t, "padding"))...)
	beside := func(b byte) byte { // a length that is a little wrong, or quite
		return rapid.SampledFrom([]byte{b - 1, b + 1, b + 6, b - 8, 0, 7, 8, 19, 20, 255}).Draw(t, "length")
	}
	switch rapid.IntRange(0, 7).Draw(t, "fault") {
	case 0:
		f = f[:rapid.IntRange(0, len(f)).Draw(t, "cut")]
	case 1:
		f[rapid.IntRange(12, len(f)-1).Draw(t, "where")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
	case 2:
		f[at+5] = beside(f[at+5])
	case 3:
		if v6 {
			f[ip+5] = beside(f[ip+5])
		} else {
			f[ip+3] = beside(f[ip+3])
		}
	case 4: // fragments, and what only looks like them
		if !v6 {
			f[ip+6], f[ip+7] = rapid.SampledFrom([]byte{0, 0x20, 0x40, 0x60, 0x10, 0x80}).Draw(t, "fragment"),
				rapid.SampledFrom([]byte{0, 0, 1}).Draw(t, "place")
		}
	}
	return f
}

// probe asks for everything in penstock.h that is arithmetic: a row of results for each pair of
// numbers.
var probe = &gpu.Program{
	Name: "probe",
	Kernels: []gpu.Signature{{Name: "probe", Params: []gpu.Param{{Name: "out"}, {Name: "in"},
		{Name: "count", Type: driver.U32}}}},
	Source: kernels.Source(`
KERNEL(probe)(__global ulong *out, __global const uchar *in, uint count) {
	for (ulong i = ps_global_id(); i < count; i += ps_global_size()) {
		__global const uchar *p = in + i * 32;
		__global ulong *r = out + i * 12;
		ulong a = ps_le64(p), b = ps_le64(p + 8), c = ps_le64(p + 16), d = ps_le64(p + 24);
		r[0] = ps_be16(p + 1);
		r[1] = ps_be32(p + 1);
		r[2] = ps_be64(p + 1);
		r[3] = ps_le16(p + 1);
		r[4] = ps_le32(p + 1);
		r[5] = ps_le64(p + 1);
		r[6] = ps_inside(a, b, c);
		r[7] = ps_row_inside(a, b, c, d);
		r[8] = ps_fold(a);
		r[9] = ps_global_size();
		__global uint *word = (__global uint *)(r + 10);
		ps_store_release_device(word, (uint)a);
		ps_store_release_system(word + 1, ps_load_acquire_device(word) + 1);
		r[11] = ps_load_acquire_system(word + 1);
	}
}
`),
	Go: map[string]gpu.GoFunc{"probe": func(g gpu.Grid, a []gpu.GoArg) {
		le, be := binary.LittleEndian, binary.BigEndian
		truth := func(b bool) uint64 {
			if b {
				return 1
			}
			return 0
		}
		// With numbers of any length, where nothing can overflow: another way than the device's.
		inside := func(off, n, size uint64) bool {
			sum, carry := bits.Add64(off, n, 0)
			return carry == 0 && sum <= size
		}
		for i := range int(a[2].U32()) {
			p, r := a[1].Bytes[32*i:], a[0].Bytes[96*i:]
			x, y, z, w := le.Uint64(p), le.Uint64(p[8:]), le.Uint64(p[16:]), le.Uint64(p[24:])
			hi, row := bits.Mul64(x, y)
			fold := x % 0xffff
			if fold == 0 && x != 0 {
				fold = 0xffff
			}
			for k, v := range []uint64{uint64(be.Uint16(p[1:])), uint64(be.Uint32(p[1:])), be.Uint64(p[1:]),
				uint64(le.Uint16(p[1:])), uint64(le.Uint32(p[1:])), le.Uint64(p[1:]),
				truth(inside(x, y, z)), truth(hi == 0 && inside(row, z, w)), fold, g.Items(),
				uint64(uint32(x)) | uint64(uint32(x)+1)<<32, uint64(uint32(x) + 1)} {
				le.PutUint64(r[8*k:], v)
			}
		}
	}},
}

// TestHeader compares the arithmetic of penstock.h with Go's, at the places where 16, 32 and 64
// bits end.
func TestHeader(t *testing.T) {
	b := newBench(t)
	edge := func(t *rapid.T) uint64 { return number(t, "number", 1<<rapid.IntRange(1, 40).Draw(t, "bits")) }
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(0, 20).Draw(t, "count")
		var in []byte
		for range 4 * count {
			in = binary.LittleEndian.AppendUint64(in, edge(t))
		}
		b.same(t, probe, grids.Draw(t, "grid"), make([]byte, 96*count), in, uint32(count))
	})
}

// TestMovesNothingBeyond4GiBWrongly names places that 32 bits would fold into the buffers.
func TestMovesNothingBeyond4GiBWrongly(t *testing.T) {
	b := newBench(t)
	var table []byte
	for _, p := range [][2]uint64{{1 << 32, 8}, {1<<32 + 8, 8}, {8, 1<<32 + 8}, {^uint64(0) - 7, 8},
		{^uint64(0) - 7, 16}, {0, 8}} {
		table = binary.LittleEndian.AppendUint64(table, p[0])
		table = binary.LittleEndian.AppendUint64(table, p[1])
	}
	src, dst, refused := bytes.Repeat([]byte{7}, 64), make([]byte, 64), make([]byte, 4)
	b.same(t, kernels.Gather, gpu.Grid{Groups: 3, Group: 7}, dst, uint64(64), uint64(8), src, uint64(64), table,
		uint32(6), refused)
	ref := []gpu.GoArg{{Bytes: dst}, {Bits: 64}, {Bits: 8}, {Bytes: src}, {Bits: 64}, {Bytes: table}, {Bits: 6},
		{Bytes: refused}}
	kernels.Gather.Go["gather"](gpu.Grid{}, ref)
	if refused[0] != 5 || !bytes.Equal(dst, append(make([]byte, 40),
		append(bytes.Repeat([]byte{7}, 8), make([]byte, 16)...)...)) {
		t.Errorf("refused %d pieces, expected 5; rows %v", refused[0], dst)
	}
}

func TestEveryKernelHasEveryForm(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range kernels.All() {
		if seen[p.Name] || len(p.Kernels) != 1 || p.Kernels[0].Name != p.Name || p.Go[p.Name] == nil ||
			!strings.Contains(p.Source, fmt.Sprintf("KERNEL(%s)", p.Name)) &&
				!strings.Contains(p.Source, fmt.Sprintf("PS_FEED(%s,", p.Name)) || len(p.PTX) != 2 {
			t.Errorf("program %q: kernels %v, source of %d bytes, %d PTX", p.Name, p.Kernels, len(p.Source), len(p.PTX))
		}
		seen[p.Name] = true
	}
}
