package gputest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/internal/kernels"
)

func checkPrograms(t testing.TB, h Harness) {
	r := rigOf(t, h)
	nop := func(gpu.Grid, []gpu.GoArg) {}
	sig := []gpu.Signature{{Name: "nop"}}
	for _, x := range []struct {
		what string
		p    *gpu.Program
		want error
	}{
		{"no program", nil, gpu.ErrArgument},
		{"a program without kernels", &gpu.Program{Name: "empty"}, gpu.ErrArgument},
		{"a program with a kernel twice", &gpu.Program{Kernels: []gpu.Signature{{Name: "a"}, {Name: "a"}}}, gpu.ErrArgument},
		{"a program with half of its kernels in Go", &gpu.Program{Kernels: []gpu.Signature{{Name: "a"}}, Go: map[string]gpu.GoFunc{"b": nop}}, gpu.ErrArgument},
		{"a program in no form", &gpu.Program{Name: "formless", Kernels: sig}, gpu.ErrArch},
	} {
		m, err := r.c.Load(x.p)
		r.is(x.what, err, x.want)
		if m != nil {
			r.closeLater(m)
		}
	}
	if r.has(gpu.CapSource) {
		_, err := r.c.Load(&gpu.Program{Name: "wrong", Kernels: sig,
			Source: "__kernel void nop() {\n int x = not_there_at_all;\n}\n"})
		r.is("a program that does not compile", err, gpu.ErrBuild)
		var e *gpu.Error
		if !errors.As(err, &e) || e.Log == "" {
			t.Errorf("the error of a program that does not compile has no log: %v", err)
		}
		_, err = r.c.Load(&gpu.Program{Name: "other", Kernels: sig, Source: "__kernel void other() {}\n"})
		r.is("a program without the kernel that it names", err, gpu.ErrArgument)
		_, err = r.c.Load(&gpu.Program{Name: "more", Kernels: sig, Source: "__kernel void nop(int more) {}\n"})
		r.is("a program whose kernel has other parameters", err, gpu.ErrArgument)
	}
	if r.has(gpu.CapPTX) {
		_, err := r.c.Load(&gpu.Program{Name: "later", Kernels: sig,
			PTX: []gpu.PTX{{SM: 990, Version: 990, Text: ".version 99.0\n.target sm_990\n"}}})
		r.is("a program of a later architecture", err, gpu.ErrArch)
	}
	if r.has(gpu.CapGoKernels) {
		_, err := r.c.Load(&gpu.Program{Name: "only source", Kernels: sig, Source: "__kernel void nop() {}\n"})
		if !r.has(gpu.CapSource) {
			r.is("a program that is not in Go", err, gpu.ErrArch)
		}
	}
	m, err := r.c.Load(kernels.Fill)
	r.ok(err)
	r.closeLater(m)
	_, err = m.Kernel("file")
	r.is("a kernel that is not in the program", err, gpu.ErrArgument)
	again, err := r.c.Load(kernels.Fill) // a second time is another module
	r.ok(err)
	r.closeLater(again)
	if n := r.c.Live(); n != 2 {
		t.Errorf("%d objects, expected two modules: those that were refused are still there", n)
	}
}

func checkArguments(t testing.TB, h Harness) {
	r := rigOf(t, h)
	m, err := r.c.Load(kernels.Fill)
	r.ok(err)
	r.closeLater(m)
	k, err := m.Kernel("fill")
	r.ok(err)
	d, p := r.alloc(gpu.DeviceMemory, 1<<16), r.alloc(gpu.PinnedMemory, 100)
	u, buf := gpu.U64(1), gpu.Buffer(d.All())
	for _, x := range []struct {
		what string
		args []gpu.Arg
		want error
	}{
		{"no arguments", nil, gpu.ErrArgument},
		{"too many", []gpu.Arg{buf, u, u, u, u}, gpu.ErrArgument},
		{"a number for a buffer", []gpu.Arg{u, u, u, u}, gpu.ErrArgument},
		{"a buffer for a number", []gpu.Arg{buf, buf, u, u}, gpu.ErrArgument},
		{"32 bits for 64", []gpu.Arg{buf, u, gpu.U32(1), u}, gpu.ErrArgument},
		{"signed for unsigned", []gpu.Arg{buf, u, gpu.I64(1), u}, gpu.ErrArgument},
		{"a float", []gpu.Arg{buf, u, gpu.F64(1), u}, gpu.ErrArgument},
		{"pinned memory", []gpu.Arg{gpu.Buffer(p.All()), u, u, u}, gpu.ErrArgument},
		{"beyond the end", []gpu.Arg{gpu.Buffer(gpu.Span{Memory: d, Off: 1 << 16, Len: 1}), u, u, u}, gpu.ErrBounds},
		{"no memory", []gpu.Arg{gpu.Buffer(gpu.Span{}), u, u, u}, gpu.ErrArgument},
	} {
		c, err := k.Prepare(x.args...)
		r.is(x.what, err, x.want)
		if c != nil {
			r.closeLater(c)
		}
	}
	if a := r.info.ArgAlign; a > 1 {
		_, err := k.Prepare(gpu.Buffer(gpu.Span{Memory: d, Off: a / 2, Len: 8}), u, u, u)
		r.is("an offset that the device cannot take", err, gpu.ErrArgument)
	}
	c, err := k.Prepare(gpu.Buffer(gpu.Span{Memory: d, Off: 77}), u, u, u) // an empty span, wherever it is
	r.ok(err)
	r.closeLater(c)
	if c.Kernel() != k || k.Signature().Name != "fill" {
		t.Errorf("the call is of %+v", c.Kernel().Signature())
	}
	r.is("set an argument that there is not", c.Set(4, u), gpu.ErrArgument)
	r.is("set a number to a buffer", c.Set(1, buf), gpu.ErrArgument)
	s, f := r.stream(), r.info
	r.is("a group that is too large", s.Launch(c, gpu.Grid{Groups: 1, Group: f.MaxGroup + 1}), gpu.ErrArgument)
	if f.MaxGroups < ^uint32(0) {
		r.is("too many groups", s.Launch(c, gpu.Grid{Groups: f.MaxGroups + 1, Group: 1}), gpu.ErrArgument)
	}
	r.ok(s.Launch(c, gpu.Grid{}))
	r.ok(s.Launch(c, gpu.Grid{Groups: 5}))
	r.ok(s.Launch(c, gpu.Grid{Group: 5}))
	r.ok(s.Wait(always))
}

// grids are launches of few and many items, with few sizes of groups: some compilers work again for
// each.
var grids = []gpu.Grid{{Groups: 1, Group: 1}, {Groups: 3, Group: 7}, {Groups: 20, Group: 64}}

// grid is the i-th of grids, within what the device does.
func (r *rig) grid(i int) gpu.Grid {
	g := grids[i%len(grids)]
	g.Group = min(g.Group, r.info.MaxGroup)
	return g
}

// run launches a program once on buffers of a kind with the given contents, and compares all of
// them with what the reference in Go makes of them.
func (r *rig) run(s *gpu.Stream, p *gpu.Program, kind gpu.Kind, g gpu.Grid, args []any) bool {
	r.Helper()
	var list []gpu.Arg
	var ref []gpu.GoArg
	var mems []*gpu.Memory
	var wants [][]byte // what the memory is to hold
	for _, a := range args {
		switch v := a.(type) {
		case []byte:
			// A word of guard on either side of what the kernel may touch.
			at := max(r.info.ArgAlign, 16)
			all := slices.Concat(bytes.Repeat([]byte{0xa5}, int(at)), v, bytes.Repeat([]byte{0xa5}, 16))
			m, err := r.c.Alloc(gpu.MemoryOptions{Kind: kind, Size: uint64(len(all))})
			r.ok(err)
			defer m.Close()
			r.write(s, m, all)
			mems = append(mems, m)
			list = append(list, gpu.Buffer(gpu.Span{Memory: m, Off: at, Len: uint64(len(v))}))
			ref = append(ref, gpu.GoArg{Bytes: all[at : int(at)+len(v)]})
			wants = append(wants, all)
		case uint32:
			list = append(list, gpu.U32(v))
			ref = append(ref, gpu.GoArg{Bits: uint64(v)})
		case uint64:
			list = append(list, gpu.U64(v))
			ref = append(ref, gpu.GoArg{Bits: v})
		default:
			r.Fatalf("an argument of type %T", a)
		}
	}
	c, err := r.kernel(p).Prepare(list...)
	r.ok(err)
	defer c.Close()
	r.ok(s.Launch(c, g))
	r.ok(s.Wait(always))
	if r.h.NoKernels {
		return true
	}
	p.Go[p.Kernels[0].Name](g, ref)
	for i, m := range mems {
		if !r.holds(fmt.Sprintf("%s on %s memory with %d groups of %d: buffer %d", p.Name, kind, g.Groups, g.Group, i),
			s, m, wants[i]) {
			return false
		}
	}
	return true
}

// table is a table of pieces within size bytes, some of which are wrong. With apart they do not
// overlap.
func table(rnd *rand.Rand, n, size, stride int, apart bool) []byte {
	var b []byte
	at := 0
	for range n {
		off, length := uint64(rnd.IntN(size+1)), uint64(rnd.IntN(stride+1))
		if apart {
			off = uint64(at + rnd.IntN(3))
			at = int(off + length)
		}
		switch rnd.IntN(8) {
		case 0: // far outside, in a way that 32 bits would not notice
			off |= uint64(1+rnd.IntN(9)) << 32
		case 1:
			length |= 1 << 32
		case 2: // the end overflows
			off = -length + 1
		case 3:
			length = 0
		}
		b = binary.LittleEndian.AppendUint64(b, off)
		b = binary.LittleEndian.AppendUint64(b, length)
	}
	return b
}

func checkKernels(t testing.TB, h Harness) {
	r := rigOf(t, h)
	s := r.stream()
	rnd := rand.New(rand.NewPCG(1, 2))
	for i, n := range []int{0, 1, 3, 4, 15, 16, 17, 63, 64, 65, 1000, 4096, 70001} {
		kind := r.reached()[i%len(r.reached())]
		g := r.grid(i)
		for _, off := range []uint64{0, 1, 4, 16} {
			if !r.run(s, kernels.Copy, kind, g, []any{noise(1, n+40), off, noise(2, n+40), 16 + off*uint64(i%2),
				uint64(n)}) ||
				!r.run(s, kernels.Fill, kind, g, []any{noise(3, n+40), off, uint64(n), rnd.Uint64()}) {
				return
			}
		}
		count, stride := i*3, n%777+1
		src, dst := noise(4, n+1), noise(5, count*stride)
		refused := make([]byte, 4)
		if !r.run(s, kernels.Gather, kind, g, []any{dst, uint64(len(dst)), uint64(stride), src, uint64(len(src)),
			table(rnd, count, len(src), stride, false), uint32(count), refused}) ||
			!r.run(s, kernels.Scatter, kind, g, []any{noise(6, 2*len(dst)+10), uint64(2*len(dst) + 10),
				table(rnd, count, len(dst), stride, true), uint32(count), dst, uint64(len(dst)), uint64(stride),
				make([]byte, 4)}) ||
			!r.run(s, kernels.Checksum, kind, g, []any{make([]byte, 4*count), src, uint64(len(src)),
				table(rnd, count, len(src), len(src), false), uint32(count)}) {
			return
		}
		stride = 16 + n%100
		if !r.run(s, kernels.Process, kind, g, []any{make([]byte, count*kernels.ResultBytes),
			packets(rnd, count, stride), uint64(stride), uint32(count)}) {
			return
		}
	}
}

// packets are slots for kernels.Process with lengths around what fits.
func packets(rnd *rand.Rand, n, stride int) []byte {
	b := noise(rnd.Uint64(), n*stride)
	for i := range n {
		slot := b[i*stride:]
		binary.LittleEndian.PutUint32(slot[8:], uint32(rnd.IntN(stride-kernels.SlotHeader+3)))
		binary.LittleEndian.PutUint32(slot[12:], uint32(rnd.IntN(4)))
	}
	return b
}

// checkSet launches one call many times with other arguments each time, all of it under way at
// once.
func checkSet(t testing.TB, h Harness) {
	r := rigOf(t, h)
	const n = 100
	s := r.stream()
	a, b := r.alloc(gpu.DeviceMemory, 8*n), r.alloc(gpu.DeviceMemory, 8*n)
	c := r.call(kernels.Fill, gpu.Buffer(a.All()), gpu.U64(0), gpu.U64(8), gpu.U64(0))
	var want [2][]byte
	for i := range uint64(n) {
		for j, m := range []*gpu.Memory{a, b} {
			v := i*0x0101010101 + uint64(j)<<56
			r.ok(errors.Join(c.Set(0, gpu.Buffer(m.All())), c.Set(1, gpu.U64(8*i)), c.Set(3, gpu.U64(v)),
				s.Launch(c, gpu.Grid{Groups: 1, Group: 7})))
			want[j] = binary.LittleEndian.AppendUint64(want[j], v)
		}
	}
	r.ok(s.Wait(always))
	if !h.NoKernels {
		r.holds("100 launches with other arguments", s, a, want[0])
		r.holds("100 launches on another buffer", s, b, want[1])
	}
}

// checkBlockedSet changes arguments of launches that have certainly not begun.
func checkBlockedSet(t testing.TB, h Harness) {
	r := rigOf(t, h)
	if h.NoKernels {
		return
	}
	s, m := r.stream(), r.alloc(gpu.DeviceMemory, 16)
	c := r.call(kernels.Fill, gpu.Buffer(m.All()), gpu.U64(0), gpu.U64(8), gpu.U64(1))
	r.write(s, m, make([]byte, 16))
	release, ok := r.block(s)
	if !ok {
		return
	}
	r.ok(s.Launch(c, gpu.Grid{Groups: 1, Group: 1}))
	r.ok(errors.Join(c.Set(1, gpu.U64(8)), c.Set(3, gpu.U64(2)), s.Launch(c, gpu.Grid{Groups: 1, Group: 1}),
		c.Set(3, gpu.U64(3))))
	release()
	r.ok(s.Wait(always))
	r.holds("launches whose call was changed behind them", s, m, []byte{1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0})
}

// checkGrids shows that results do not depend on the grid.
func checkGrids(t testing.TB, h Harness) {
	r := rigOf(t, h)
	s := r.stream()
	for _, g := range []gpu.Grid{{Groups: 1, Group: 1}, {Groups: 1, Group: min(1024, r.info.MaxGroup)},
		{Groups: 1000, Group: 1}, {Groups: 2, Group: 7}, {Groups: 17, Group: min(64, r.info.MaxGroup)}} {
		src := noise(20, 5000)
		pieces := table(rand.New(rand.NewPCG(3, 4)), 50, len(src), len(src), false)
		if !r.run(s, kernels.Checksum, gpu.DeviceMemory, g,
			[]any{make([]byte, 200), src, uint64(len(src)), pieces, uint32(50)}) ||
			!r.run(s, kernels.Copy, gpu.DeviceMemory, g,
				[]any{make([]byte, 5000), uint64(0), src, uint64(0), uint64(5000)}) {
			return
		}
	}
}
