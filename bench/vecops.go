package bench

import (
	"bytes"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"

	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/convert"
	"github.com/penstock-io/penstock/tensor/synth"
)

// vecBuffers is what an operation works on, and what it returned.
type vecBuffers struct {
	src, other, dst []byte
	sum             uint64
}

// vecOp is an operation of Vec.
type vecOp struct {
	name, peer    string
	fill          func(b *vecBuffers, seed uint64) // src
	ours, theirs  func(*vecBuffers)
	check         func(b *vecBuffers, seed uint64) error
	reads, writes float64 // bytes of memory that it moves for each byte of its size; 0 and 0: not compared with memory
}

var vecOps = []vecOp{
	{"vec.Copy", "built-in copy", fillNoise, func(b *vecBuffers) { vec.Copy(b.dst, b.src) }, func(b *vecBuffers) { copy(b.dst, b.src) }, checkCopy, 0, 0},
	{"vec.CopyCRC32C", "copy, then CRC32C", fillNoise, func(b *vecBuffers) { b.sum = uint64(vec.CopyCRC32C(b.dst, b.src, 0)) },
		func(b *vecBuffers) { copy(b.dst, b.src); b.sum = uint64(vec.CRC32C(0, b.dst)) }, checkCopyCRC, 1, 1},
	{"vec.CRC32C", "hash/crc32", fillNoise, func(b *vecBuffers) { b.sum = uint64(vec.CRC32C(0, b.src)) },
		func(b *vecBuffers) { b.sum = uint64(crc32.Checksum(b.src, castagnoli)) }, checkCRC, 1, 0},
	{"vec.Sum", "64 bits at a time", fillNoise, func(b *vecBuffers) {
		b.sum = uint64(vec.Sum(b.src))
	}, func(b *vecBuffers) { b.sum = uint64(wordsSum(b.src)) }, checkSum, 1, 0},
	{"vec.Set", "copy of the front", fillNoise, func(b *vecBuffers) { vec.Set(b.dst, setPattern) }, setByCopy, checkSet, 0, 1},
	{"vec.Xor", "subtle.XORBytes", fillNoise, func(b *vecBuffers) {
		vec.Xor(b.dst, b.src, b.other)
	}, func(b *vecBuffers) { subtle.XORBytes(b.dst, b.src, b.other) }, checkXor, 2, 1},
	{"vec.Swap of 4", "32 bits at a time", fillNoise, func(b *vecBuffers) {
		vec.Swap(b.dst, b.src, 4)
	}, func(b *vecBuffers) { swapWords(b.dst, b.src) }, checkSwap, 1, 1},
	{"vec.Index in noise", "bytes.Index", fillNoise, func(b *vecBuffers) {
		b.sum = uint64(vec.Index(b.src, lastOf(b.src)))
	}, func(b *vecBuffers) { b.sum = uint64(bytes.Index(b.src, lastOf(b.src))) }, checkIndex, 1, 0},
	{"vec.Index in like bytes", "bytes.Index", fillLike, func(b *vecBuffers) {
		b.sum = uint64(vec.Index(b.src, likePattern))
	}, func(b *vecBuffers) { b.sum = uint64(bytes.Index(b.src, likePattern)) }, checkIndex, 1, 0},
	{"vec.Scatter of 4", "copy of each", fillNoise, func(b *vecBuffers) {
		vec.Scatter(b.dst, scatterStride, b.src[:scattered(b)], 4)
	}, scatterByCopy, checkScatter, 0, 0},
	{"vec.Gather of 4", "copy of each", fillNoise, func(b *vecBuffers) {
		vec.Gather(b.dst[:scattered(b)], b.src, scatterStride, 4)
	}, gatherByCopy, checkGather, 0, 0},
	{"int16 to f32", "copy of the output", fillNoise, func(b *vecBuffers) {
		toF32.Convert(b.dst, b.src[:len(b.dst)/4*2])
	}, func(b *vecBuffers) { copy(b.dst, b.src) }, checkF32, 0.5, 1},
	{"int8 to f16", "copy of the output", fillNoise, func(b *vecBuffers) {
		toF16.Convert(b.dst, b.src[:len(b.dst)/2])
	}, func(b *vecBuffers) { copy(b.dst, b.src) }, checkF16, 0.5, 1},
}

var (
	castagnoli  = crc32.MakeTable(crc32.Castagnoli)
	likePattern = append(bytes.Repeat([]byte{'a'}, 63), 'b')
	toF32       = converter(convert.Spec{From: convert.Format{Bits: 16, BigEndian: true}, To: tensor.F32})
	toF16       = converter(convert.Spec{From: convert.Format{Bits: 8}, To: tensor.F16})
)

const (
	setPattern    = 0x0706050403020100
	scatterStride = 32
)

func converter(s convert.Spec) *convert.Converter {
	c, err := convert.New(s)
	if err != nil {
		panic(err) // a conversion that there is
	}
	return c
}

func fillNoise(b *vecBuffers, seed uint64) { synth.Fill(b.src, seed) }

// fillLike makes bytes in each place of which the pattern nearly is; it is at the end.
func fillLike(b *vecBuffers, _ uint64) {
	vec.Set(b.src, 'a'*0x0101010101010101)
	copy(lastOf(b.src), likePattern)
}

// lastOf is what Index looks for.
func lastOf(p []byte) []byte { return p[max(0, len(p)-len(likePattern)):] }

func checkCopy(b *vecBuffers, _ uint64) error {
	if !bytes.Equal(b.dst, b.src) {
		return errors.New("the copy differs")
	}
	return nil
}

func checkCRC(b *vecBuffers, _ uint64) error {
	return expect(b, uint64(crc32.Checksum(b.src, castagnoli)))
}

func checkCopyCRC(b *vecBuffers, seed uint64) error {
	return errors.Join(checkCopy(b, seed), checkCRC(b, seed))
}

func checkIndex(b *vecBuffers, _ uint64) error {
	return expect(b, uint64(max(0, len(b.src)-len(likePattern))))
}

func checkSum(b *vecBuffers, _ uint64) error { return expect(b, uint64(wordsSum(b.src))) }

func checkRead(b *vecBuffers, _ uint64) error { return expect(b, readAll(b.src)) }

func expect(b *vecBuffers, want uint64) error {
	if b.sum != want {
		return fmt.Errorf("the result is %#x: expected %#x", b.sum, want)
	}
	return nil
}

// each fails where element i, of size bytes, of dst is not as want says.
func each(b *vecBuffers, n, size int, want func(i int, e []byte) bool) error {
	for i := range n {
		if !want(i, b.dst[i*size:][:size]) {
			return fmt.Errorf("element %d of %d is wrong", i, n)
		}
	}
	return nil
}

func checkSet(b *vecBuffers, _ uint64) error {
	if binary.LittleEndian.Uint64(b.dst) != setPattern || !bytes.Equal(b.dst[8:], b.dst[:len(b.dst)-8]) {
		return errors.New("the pattern is wrong")
	}
	return nil
}

func checkXor(b *vecBuffers, seed uint64) error {
	subtle.XORBytes(b.dst, b.dst, b.other)
	if bad, ok := synth.Verify(b.dst, seed, 0); !ok {
		return fmt.Errorf("byte %d is wrong", bad)
	}
	return nil
}

func checkSwap(b *vecBuffers, _ uint64) error {
	return each(b, len(b.dst)/4, 4, func(i int, e []byte) bool {
		return binary.BigEndian.Uint32(e) == binary.LittleEndian.Uint32(b.src[4*i:])
	})
}

func checkF32(b *vecBuffers, _ uint64) error {
	if bytes.Equal(b.dst, b.src) {
		return nil // the copy
	}
	return each(b, len(b.dst)/4, 4, func(i int, e []byte) bool {
		return math.Float32frombits(binary.LittleEndian.Uint32(e)) == float32(int16(binary.BigEndian.Uint16(b.src[2*i:])))
	})
}

// checkF16 decodes numbers that int8 has: none is subnormal.
func checkF16(b *vecBuffers, _ uint64) error {
	if bytes.Equal(b.dst, b.src) {
		return nil
	}
	return each(b, len(b.dst)/2, 2, func(i int, e []byte) bool {
		v := binary.LittleEndian.Uint16(e)
		x := 0.0
		if v&0x7fff != 0 {
			x = math.Ldexp(float64(v&0x3ff|0x400), int(v>>10&31)-25)
		}
		if v>>15 == 1 {
			x = -x
		}
		return x == float64(int8(b.src[i]))
	})
}

func scattered(b *vecBuffers) int { return len(b.src) / scatterStride * 4 }

func scatterByCopy(b *vecBuffers) {
	for i := range scattered(b) / 4 {
		copy(b.dst[i*scatterStride:][:4], b.src[4*i:])
	}
}

func gatherByCopy(b *vecBuffers) {
	for i := range scattered(b) / 4 {
		copy(b.dst[4*i:][:4], b.src[i*scatterStride:])
	}
}

func checkScatter(b *vecBuffers, _ uint64) error {
	return each(b, scattered(b)/4, scatterStride, func(i int, e []byte) bool {
		return bytes.Equal(e[:4], b.src[4*i:][:4])
	})
}

func checkGather(b *vecBuffers, _ uint64) error {
	return each(b, scattered(b)/4, 4, func(i int, e []byte) bool { return bytes.Equal(e, b.src[i*scatterStride:][:4]) })
}

func setByCopy(b *vecBuffers) {
	var p [8]byte
	binary.LittleEndian.PutUint64(p[:], setPattern)
	for n := copy(b.dst, p[:]); n < len(b.dst); {
		n += copy(b.dst[n:], b.dst[:n])
	}
}

func swapWords(dst, src []byte) {
	for ; len(src) >= 4; dst, src = dst[4:], src[4:] {
		binary.LittleEndian.PutUint32(dst, bits.ReverseBytes32(binary.LittleEndian.Uint32(src)))
	}
}

// wordsSum is the internet checksum's sum, as a loop in Go has it.
func wordsSum(p []byte) uint16 {
	var s, c uint64
	for ; len(p) >= 8; p = p[8:] {
		s, c = bits.Add64(s, binary.BigEndian.Uint64(p), c)
	}
	var rest [8]byte
	copy(rest[:], p)
	s, c = bits.Add64(s, binary.BigEndian.Uint64(rest[:]), c)
	s, c = bits.Add64(s, 0, c)
	s += c
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// readAll reads memory and does nearly nothing else.
func readAll(p []byte) uint64 {
	le := binary.LittleEndian
	var a, b, c, d uint64
	for ; len(p) >= 64; p = p[64:] {
		a ^= le.Uint64(p) ^ le.Uint64(p[32:])
		b ^= le.Uint64(p[8:]) ^ le.Uint64(p[40:])
		c ^= le.Uint64(p[16:]) ^ le.Uint64(p[48:])
		d ^= le.Uint64(p[24:]) ^ le.Uint64(p[56:])
	}
	for _, x := range p {
		a ^= uint64(x)
	}
	return a ^ b ^ c ^ d
}
