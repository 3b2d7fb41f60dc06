package vec

import (
	"bytes"
	"fmt"
	"testing"
)

// TestCRC32CVectors holds the vectors of RFC 3720 appendix B.4 and the check value of the CRC
// catalogue.
func TestCRC32CVectors(t *testing.T) {
	up, down := make([]byte, 32), make([]byte, 32)
	for i := range up {
		up[i], down[i] = byte(i), byte(31-i)
	}
	pdu := []byte{
		0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0,
		0, 0, 0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0,
	}
	for _, v := range []struct {
		name string
		in   []byte
		want uint32
	}{
		{"empty", nil, 0},
		{"32 bytes of zeros", make([]byte, 32), 0x8a9136aa},
		{"32 bytes of ones", bytes.Repeat([]byte{0xff}, 32), 0x62a8ab43},
		{"32 bytes up", up, 0x46dd794e},
		{"32 bytes down", down, 0x113fdb5c},
		{"iSCSI SCSI read command", pdu, 0xd9963a56},
		{"123456789", []byte("123456789"), 0xe3069283},
	} {
		dst := make([]byte, len(v.in))
		for name, got := range map[string]uint32{
			"CRC32C":     CRC32C(0, v.in),
			"CopyCRC32C": CopyCRC32C(dst, v.in, 0),
			"scalar":     scalarCRC32C(0, v.in),
		} {
			if got != v.want {
				t.Errorf("%s of %s: %08x, want %08x", name, v.name, got, v.want)
			}
		}
	}
}

func TestCRC32CEveryLength(t *testing.T) {
	b := noise(2*minFold + 100 + 64)
	for n := 0; n <= 2*minFold+100; n++ {
		for _, off := range []int{0, 1, 7, n % 64} {
			p := b[off:][:n]
			if got, want := CRC32C(0x1234, p), scalarCRC32C(0x1234, p); got != want {
				t.Fatalf("%d bytes at +%d: %08x, want %08x", n, off, got, want)
			}
		}
	}
	for _, n := range []int{block - 1, block + foldBlock, block + foldBlock + 1, 2*block + foldBlock + 255} {
		p := noise(n)
		if got, want := CRC32C(7, p), scalarCRC32C(7, p); got != want {
			t.Fatalf("%d bytes: %08x, want %08x", n, got, want)
		}
	}
}

func TestCopyCRC32C(t *testing.T) {
	lengths := []int{0, 1, 64, foldBlock, minFold, minFold + foldBlock, crcBlock, 5*crcBlock + 100, LargeCopy,
		block + foldBlock}
	for _, k := range []Kernel{Builtin, anyNonTemporal} { // it asks only whether the kernel is non-temporal
		useKernel(t, k)
		for name, f := range map[string]func(dst, src []byte, crc uint32) uint32{"CopyCRC32C": CopyCRC32C,
			"blocked": func(dst, src []byte, crc uint32) uint32 {
				return blockedCopyCRC32C(dst[:len(src)], src, crc)
			}} {
			for _, m := range lengths {
				for _, d := range []int{-65, -1, 0, 1, 63} {
					n := m + d
					if n < 0 {
						continue
					}
					src := noise(n + 3)[3:]
					got := bytes.Repeat([]byte{0x5a}, n+128)
					want := bytes.Clone(got)
					w := scalarCopyCRC32C(want[61:][:n], src, 99)
					if g := f(got[61:], src, 99); g != w {
						t.Errorf("%s with %s, %d bytes: CRC %08x, want %08x", name, k, n, g, w)
					}
					if !bytes.Equal(got, want) {
						t.Errorf("%s with %s, %d bytes: wrong bytes", name, k, n)
					}
				}
			}
		}
		// In place is legal: it is a checksum.
		p := noise(LargeCopy + 1000)
		want := bytes.Clone(p)
		if got := CopyCRC32C(p[5:], p[5:], 0); got != scalarCRC32C(0, want[5:]) || !bytes.Equal(p, want) {
			t.Errorf("with %s in place: CRC %08x, bytes kept: %v", k, got, bytes.Equal(p, want))
		}
	}
}

func TestCopyCRC32CShortDestination(t *testing.T) {
	dst := make([]byte, 100)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
		if !bytes.Equal(dst, make([]byte, 100)) {
			t.Error("something was copied")
		}
	}()
	CopyCRC32C(dst[:99:99], noise(100), 0)
}

func TestCRC32CAllocatesNothing(t *testing.T) {
	if !Kernels()[len(Kernels())-1].NonTemporal() {
		return // a build without assembly keeps CRC buffers on the heap, as the documentation says
	}
	if a := testing.AllocsPerRun(20, func() {
		var d, s [100]byte // must stay on the stack
		CRC32C(0, s[:])
		CopyCRC32C(d[:], s[:], 0)
	}); a != 0 {
		t.Errorf("%v allocations", a)
	}
	src, dst := noise(1<<20), make([]byte, 1<<20)
	for _, k := range Kernels() {
		useKernel(t, k)
		if a := testing.AllocsPerRun(5, func() { CopyCRC32C(dst, src, 0) }); a != 0 {
			t.Errorf("CopyCRC32C of 1 MiB with %s: %v allocations", k, a)
		}
	}
}

// TestCRC32CStackMoves grows the stack below a buffer whose origin is hidden from the compiler.
func TestCRC32CStackMoves(t *testing.T) {
	var deep func(n int, b []byte) uint32
	deep = func(n int, b []byte) uint32 {
		var pad [512]byte
		pad[n%512] = byte(n)
		if n == 0 {
			return CRC32C(0, b)
		}
		return deep(n-1, b) + uint32(pad[(n+1)%512])
	}
	want := scalarCRC32C(0, []byte("123456789"))
	for range 50 {
		done := make(chan uint32)
		go func() {
			b := [9]byte{'1', '2', '3', '4', '5', '6', '7', '8', '9'}
			done <- deep(100, b[:])
		}()
		if got := <-done; got != want {
			t.Fatalf("%08x, want %08x", got, want)
		}
	}
}

func BenchmarkCRC32C(b *testing.B) {
	const most = 64 << 20
	Calibrate()
	src, dst := make([]byte, most), make([]byte, most)
	for i := 0; i < most; i += 4096 {
		src[i], dst[i] = 1, 1
	}
	for _, n := range []int{64, 4 << 10, 64 << 10, 1 << 20, 16 << 20, most} {
		b.Run(fmt.Sprintf("size=%d/crc", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				CRC32C(0, src[:n])
			}
		})
		b.Run(fmt.Sprintf("size=%d/copy-then-crc", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				Copy(dst[:n], src[:n])
				CRC32C(0, dst[:n])
			}
		})
		b.Run(fmt.Sprintf("size=%d/CopyCRC32C", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				CopyCRC32C(dst[:n], src[:n], 0)
			}
		})
	}
}
