package convert

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/tensor"
)

// pack writes samples as bits, one after the other: the model of Format.
func pack(f Format, samples []int64) []byte {
	out := make([]byte, len(samples)*f.Bits/8)
	for i, v := range samples {
		for k := range f.Bits {
			at, bit := i*f.Bits+k, v>>k&1
			if f.BigEndian {
				at, bit = i*f.Bits+k, v>>(f.Bits-1-k)&1
				out[at/8] |= byte(bit) << (7 - at%8)
				continue
			}
			out[at/8] |= byte(bit) << (at % 8)
		}
	}
	return out
}

// formats are all that there are.
func formats() (out []Format) {
	for _, bits := range []int{4, 8, 12, 14, 16, 32} {
		for _, unsigned := range []bool{false, true} {
			for _, big := range []bool{false, true} {
				out = append(out, Format{bits, unsigned, big})
			}
		}
	}
	return out
}

var elements = []tensor.DType{tensor.I8, tensor.U8, tensor.I16, tensor.U16, tensor.I32, tensor.U32, tensor.F16,
	tensor.BF16, tensor.F32, tensor.F64}

// samplesOf are all samples of a narrow format, and many of a wide one.
func samplesOf(f Format, r *rand.Rand) []int64 {
	low, high := int64(0), int64(1)<<f.Bits-1
	if !f.Unsigned {
		low, high = -(int64(1) << (f.Bits - 1)), int64(1)<<(f.Bits-1)-1
	}
	var s []int64
	if f.Bits <= 16 {
		for v := low; v <= high; v++ {
			s = append(s, v)
		}
	} else {
		s = append(s, low, high, 0, 1, 1<<24, 1<<24+1, 1<<24+3, 1<<25+2, 1<<30+1<<22+1, 1<<30+1<<21+1<<22)
		for k := range f.Bits - 1 {
			for d := int64(-2); d <= 2; d++ {
				s = append(s, min(max(int64(1)<<k+d, low), high))
			}
		}
		for range 3000 {
			s = append(s, low+r.Int64N(high-low+1)>>r.IntN(f.Bits))
		}
	}
	for len(s)%(f.unit()*8/f.Bits) != 0 {
		s = append(s, 1)
	}
	r.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
	return s
}

// grid are all finite numbers of a format of 16 bits, in order, with their codes.
type grid struct {
	values []*big.Rat
	codes  []uint16
	beyond *big.Rat // from here on it is infinite
}

func newGrid(exp, frac int) *grid {
	g := new(grid)
	value := func(code int) *big.Rat {
		e, m := code>>frac, code&(1<<frac-1)
		x := big.NewRat(int64(m), 1)
		if e > 0 {
			x = big.NewRat(int64(m+1<<frac), 1)
			e--
		}
		p := e - (1<<(exp-1) - 2) - frac
		two := new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), uint(max(p, -p))))
		if p < 0 {
			two.Inv(two)
		}
		return x.Mul(x, two)
	}
	top := (1<<exp - 1) << frac
	for code := range top {
		g.values, g.codes = append(g.values, value(code)), append(g.codes, uint16(code))
	}
	last, before := g.values[top-1], g.values[top-2]
	step := new(big.Rat).Sub(last, before)
	g.beyond = step.Add(last, step.Mul(step, big.NewRat(1, 2)))
	return g
}

// nearest is the code of the number nearest to x, ties to even.
func (g *grid) nearest(x *big.Rat, infinite uint16) uint16 {
	if x.Sign() < 0 {
		return g.nearest(new(big.Rat).Neg(x), infinite) | 0x8000
	}
	if x.Cmp(g.beyond) >= 0 {
		return infinite
	}
	i, found := slices.BinarySearchFunc(g.values, x, (*big.Rat).Cmp)
	if found || i == 0 {
		return g.codes[i]
	}
	if i == len(g.values) {
		return g.codes[i-1]
	}
	below, above := new(big.Rat).Sub(x, g.values[i-1]), new(big.Rat).Sub(g.values[i], x)
	if c := below.Cmp(above); c < 0 || c == 0 && g.codes[i-1]&1 == 0 {
		return g.codes[i-1]
	}
	return g.codes[i]
}

var grids = map[tensor.DType]*grid{tensor.F16: newGrid(5, 10), tensor.BF16: newGrid(8, 7)}

var infinities = map[tensor.DType]uint16{tensor.F16: 0x7c00, tensor.BF16: 0x7f80}

// ranges of the integers.
var ranges = map[tensor.DType][2]int64{tensor.I8: {-128, 127}, tensor.U8: {0, 255}, tensor.I16: {-32768, 32767},
	tensor.U16: {0, 65535},
	tensor.I32: {math.MinInt32, math.MaxInt32}, tensor.U32: {0, math.MaxUint32}}

// model is the element of one exact value, as bits.
func model(to tensor.DType, x *big.Rat) uint64 {
	switch to {
	case tensor.F16, tensor.BF16:
		return uint64(grids[to].nearest(x, infinities[to]))
	case tensor.F32:
		v, _ := x.Float32()
		return uint64(math.Float32bits(v))
	case tensor.F64:
		v, _ := x.Float64()
		return math.Float64bits(v)
	}
	twice := new(big.Rat).Mul(x, big.NewRat(2, 1))
	// floor(x + 1/2)
	n := new(big.Int).Div(new(big.Int).Add(twice.Num(), twice.Denom()), new(big.Int).Mul(twice.Denom(), big.NewInt(2)))
	if half := new(big.Rat).Sub(new(big.Rat).SetInt(n), x); half.Cmp(big.NewRat(1, 2)) == 0 && n.Bit(0) == 1 {
		n.Sub(n, big.NewInt(1))
	}
	r := ranges[to]
	v := r[1]
	if n.IsInt64() {
		v = min(max(n.Int64(), r[0]), r[1])
	} else if n.Sign() < 0 {
		v = r[0]
	}
	return uint64(v) & (1<<to.Bits() - 1)
}

// element i of converted bytes, as bits.
func element(to tensor.DType, b []byte, i int) uint64 {
	switch to.Bits() {
	case 8:
		return uint64(b[i])
	case 16:
		return uint64(binary.LittleEndian.Uint16(b[2*i:]))
	case 32:
		return uint64(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return binary.LittleEndian.Uint64(b[8*i:])
}

// Every sample of a narrow format, and many of a wide one, become the elements that exact
// arithmetic gives, by each conversion.
func TestAgainstModel(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	cases := 0
	known := map[tensor.DType]map[int64]uint64{}
	for _, f := range formats() {
		samples := samplesOf(f, r)
		src := pack(f, samples)
		for _, to := range elements {
			if known[to] == nil {
				known[to] = map[int64]uint64{}
			}
			wants := make([]uint64, len(samples))
			for i, v := range samples {
				want, ok := known[to][v]
				if !ok {
					want = model(to, new(big.Rat).SetInt64(v))
					known[to][v] = want
				}
				wants[i] = want
			}
			for k, c := range each(t, Spec{From: f, To: to}) {
				dst := make([]byte, c.OutLen(len(src)))
				if n := c.Convert(dst, src); n != len(samples)*to.Bits()/8 {
					t.Fatalf("%v to %v: %d bytes of %d samples", f, to, n, len(samples))
				}
				for i, v := range samples {
					if got := element(to, dst, i); got != wants[i] {
						t.Fatalf("%v to %v, processor %d: sample %d became %#x, want %#x", f, to, k, v, got, wants[i])
					}
				}
				cases += len(samples)
			}
		}
	}
	t.Logf("%d conversions of samples", cases)
}

// With scale and offset the value is rounded as float64 twice, and then once to the element.
func TestScaled(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, f := range formats() {
		samples := samplesOf(f, r)
		n := 150 / (f.unit() * 8 / f.Bits) * (f.unit() * 8 / f.Bits)
		samples = samples[:min(len(samples), n)]
		for len(samples)%(f.unit()*8/f.Bits) != 0 {
			samples = samples[:len(samples)-1]
		}
		src := pack(f, samples)
		for _, to := range elements {
			for _, x := range []struct{ scale, offset float64 }{{1.0 / 2048, 0}, {0.5, 0.25}, {-3.7, 1e-3}, {1e-9, 0},
				{1e6, -1e7}, {0, 0.5}, {1e-43, 0}, {1.0 / 3, 0.1}, {1e38, 3e38}, {0x1p-24, 0x1p-25}} {
				var outs [][]byte
				for _, c := range each(t, Spec{From: f, To: to, Scale: x.scale, Offset: x.offset}) {
					dst := make([]byte, c.OutLen(len(src)))
					c.Convert(dst, src)
					outs = append(outs, dst)
				}
				if x.scale == 0 {
					x.scale = 1
				}
				zero := uint64(1) << (to.Bits() - 1) // negative: the model knows one zero only
				for i, v := range samples {
					product, _ := new(big.Rat).Mul(new(big.Rat).SetInt64(v), new(big.Rat).SetFloat64(x.scale)).Float64()
					value, _ := new(big.Rat).Add(new(big.Rat).SetFloat64(product),
						new(big.Rat).SetFloat64(x.offset)).Float64()
					want := model(to, new(big.Rat).SetFloat64(value))
					_, integer := ranges[to]
					for k, dst := range outs {
						got := element(to, dst, i)
						if got != want && (integer || got&^zero|want&^zero != 0) {
							t.Fatalf("%v to %v, *%v %+v, processor %d: sample %d became %#x, want %#x", f, to, x.scale,
								x.offset, k, v, got, want)
						}
					}
				}
			}
		}
	}
}

// Each length that is a number of whole units gives what one unit after the other gives, also
// across blocks.
func TestLengths(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, f := range formats() {
		for _, to := range []tensor.DType{tensor.F32, tensor.C64} {
			for _, c := range each(t, Spec{From: f, To: to}) {
				src := make([]byte, 3*block/c.samples*c.unit+5*c.unit)
				for i := range src {
					src[i] = byte(r.Uint32())
				}
				var want []byte
				for at := 0; at < len(src); at += c.Unit() {
					one := make([]byte, c.out)
					c.Convert(one, src[at:at+c.Unit()])
					want = append(want, one...)
				}
				for n := 0; n <= len(src); n += 1 + n/100 { // each of the short ones
					dst := slices.Repeat([]byte{0xa5}, c.OutLen(n)+3)
					k := c.Convert(dst, src[:n])
					if k != c.OutLen(n) || c.InLen(k) != n/c.unit*c.unit || !slices.Equal(dst[:k], want[:k]) ||
						dst[k] != 0xa5 {
						t.Fatalf("%v to %v: %d bytes became %d", f, to, n, k)
					}
				}
			}
		}
	}
}

func TestRefused(t *testing.T) {
	for _, s := range []Spec{{}, {From: Format{Bits: 10}, To: tensor.F32}, {From: Format{Bits: 8}},
		{From: Format{Bits: 8}, To: tensor.F8E4M3},
		{From: Format{Bits: 8}, To: tensor.F32, Scale: math.NaN()},
		{From: Format{Bits: 8}, To: tensor.F32, Offset: math.Inf(1)}} {
		if c, err := New(s); c != nil || !errors.Is(err, ErrSpec) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if s := fmt.Sprint(Format{12, true, true}); s != "uint12 big-endian" {
		t.Error(s)
	}
}

// NaN and infinities do not come from samples; rounding writes them as IEEE 754 has them all the
// same.
func TestRound(t *testing.T) {
	for x, want := range map[float64][2]uint16{math.Inf(1): {0x7c00, 0x7f80}, math.Inf(-1): {0xfc00, 0xff80},
		65504: {0x7bff, 0x4780}, 65520: {0x7c00, 0x4780}, 65519.99: {0x7bff, 0x4780},
		math.Copysign(0, -1): {0x8000, 0x8000}, 0x1p-24: {1, 0x3380}, 0x1p-25: {0, 0x3300}, 0x1.8p-25: {1, 0x3340},
		0x1p-133: {0, 1}, 0x1p-134: {0, 0}, math.SmallestNonzeroFloat64: {0, 0}, math.MaxFloat64: {0x7c00, 0x7f80}} {
		if got := [2]uint16{f16(x), bf16(x)}; got != want {
			t.Errorf("%v: %#x, want %#x", x, got, want)
		}
	}
	if f16(math.NaN()) != 0x7e00 || bf16(math.NaN()) != 0x7fc0 {
		t.Errorf("NaN: %#x, %#x", f16(math.NaN()), bf16(math.NaN()))
	}
}

func BenchmarkConvert(b *testing.B) {
	for _, f := range []Format{{8, false, false}, {12, false, true}, {16, false, true}, {32, false, false}} {
		for _, to := range []tensor.DType{tensor.F16, tensor.BF16, tensor.F32, tensor.I8} {
			b.Run(fmt.Sprintf("%v to %v", f, to), func(b *testing.B) {
				c, err := New(Spec{From: f, To: to})
				if err != nil {
					b.Fatal(err)
				}
				src := make([]byte, 8190/c.Unit()*c.Unit())
				for i := range src {
					src[i] = byte(i * 7)
				}
				dst := make([]byte, c.OutLen(len(src)))
				b.SetBytes(int64(len(dst)))
				for b.Loop() {
					c.Convert(dst, src)
				}
			})
		}
	}
}

// A sample of 32 bits that is scaled into the range of a small type is rounded once.
func TestRoundedOnce(t *testing.T) {
	const v = 1<<26 + 1<<15 + 1 // just above the middle of two elements; a float32 between would be the middle
	f := Format{Bits: 32}
	src := pack(f, slices.Repeat([]int64{v}, 16))
	for _, to := range []tensor.DType{tensor.F16, tensor.BF16} {
		for k, c := range each(t, Spec{From: f, To: to, Scale: 1.0 / 2048}) {
			dst := make([]byte, c.OutLen(len(src)))
			c.Convert(dst, src)
			if got, want := element(to, dst, 0), model(to, big.NewRat(v, 2048)); got != want {
				t.Errorf("%v, processor %d: %#x, want %#x", to, k, got, want)
			}
		}
	}
}

// Converting allocates nothing, also where Go code does it.
func TestAllocs(t *testing.T) {
	for _, f := range formats() {
		src, dst := make([]byte, 21*8*4+f.unit()), make([]byte, 1<<15)
		for _, to := range elements {
			for _, c := range each(t, Spec{From: f, To: to, Scale: 0.3}) {
				if n := testing.AllocsPerRun(2, func() { c.Convert(dst, src[:len(src)/c.unit*c.unit]) }); n > 0 {
					t.Errorf("%v to %v: %v allocations", f, to, n)
				}
			}
		}
	}
}
