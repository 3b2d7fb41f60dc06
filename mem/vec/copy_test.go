package vec

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
)

// way is one of the package's ways to copy, by name.
type way struct {
	name string
	copy func(dst, src []byte) int
}

func ways() []way {
	w := []way{
		{"Copy", Copy},
		{"CopyPart", func(dst, src []byte) int { return CopyPart(dst, src, 1<<30) }},
	}
	for _, k := range Kernels() {
		w = append(w, way{k.String(), k.Copy})
	}
	return w
}

// useKernel makes Copy use k for all large sizes until the test ends.
func useKernel(t testing.TB, k Kernel) {
	old := current.Load()
	tab := new(table)
	for i := range tab.kernels {
		tab.kernels[i] = k
	}
	current.Store(tab)
	t.Cleanup(func() { current.Store(old) })
}

func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n), 7})
	r.Read(b)
	return b
}

const canary = 192 // bytes watched on either side of a destination

// tester copies inside buffers that are made once: allocating megabytes per case would be most of
// the test's time.
type tester struct{ src, dst, want []byte }

func newTester(max int) *tester {
	n := max + 64 + 2*canary
	return &tester{noise(n), make([]byte, n), make([]byte, n)}
}

// check copies n bytes between the given misalignments and compares all of the destination's
// surroundings with the twin.
func (b *tester) check(t *testing.T, w way, n, dstOff, srcOff int) {
	t.Helper()
	end := canary + dstOff + n + canary
	dst, want := b.dst[:end], b.want[:end]
	fill := byte(n ^ dstOff ^ srcOff)
	for i := range canary + 64 {
		dst[i], dst[end-1-i] = fill, fill
	}
	copy(want, dst)
	src := b.src[srcOff : srcOff+n : srcOff+n]
	scalarCopy(want[canary+dstOff:][:n], src)
	got := w.copy(dst[canary+dstOff:][:n:n], src)
	if got != n || !bytes.Equal(dst, want) {
		at := 0
		for at < end-1 && dst[at] == want[at] {
			at++
		}
		t.Fatalf("%s of %d bytes, dst+%d, src+%d: returned %d; first difference at byte %d of the copy", w.name, n,
			dstOff, srcOff, got, at-canary-dstOff)
	}
	// Leave nothing that would make the next copy of the same bytes look right.
	clear(dst[canary+dstOff:][:n])
}

func TestCopyEveryLength(t *testing.T) {
	b := newTester(1025)
	for _, w := range ways() {
		for n := 0; n <= 1025; n++ {
			for range 3 {
				b.check(t, w, n, rand.IntN(64), rand.IntN(64))
			}
		}
	}
}

func TestCopyEveryMisalignment(t *testing.T) {
	lengths := []int{1, 65, 129, 257, 319, 1025, 1200}
	b := newTester(lengths[len(lengths)-1])
	for _, w := range ways() {
		for _, n := range lengths {
			for d := range 64 {
				for s := range 64 {
					b.check(t, w, n, d, s)
				}
			}
		}
	}
}

// TestCopyBoundaries goes around the sizes at which a kernel changes its loop or the package
// changes its kernel.
func TestCopyBoundaries(t *testing.T) {
	small := []int{4096, 8192, 16 << 10, 32 << 10, 48 << 10, LargeCopy}
	large := []int{classes[1].over, block, 2 * block}
	b := newTester(2*block + 512)
	for _, k := range Kernels() {
		useKernel(t, k)
		for _, w := range ways() {
			for _, m := range small {
				for _, d := range []int{-129, -128, -127, -65, -64, -63, -1, 0, 1, 63, 64, 65, 127, 128, 129, 255, 256,
					257} {
					b.check(t, w, m+d, rand.IntN(64), rand.IntN(64))
				}
			}
		}
		for _, m := range large {
			for _, d := range []int{-1, 0, 1, 63, 130} {
				b.check(t, way{"Copy by " + k.String(), Copy}, m+d, rand.IntN(64), rand.IntN(64))
			}
		}
	}
}

func TestCopyLengthsDiffer(t *testing.T) {
	for _, w := range ways() {
		for _, n := range []int{0, 100, 5000, LargeCopy + 100} {
			for _, m := range []int{0, 99, 5001, LargeCopy + 200} {
				dst, src := make([]byte, n+64), noise(m)
				want := make([]byte, n+64)
				if got := w.copy(dst[:n], src); got != scalarCopy(want[:n], src) {
					t.Errorf("%s(%d bytes, %d bytes) = %d", w.name, n, m, got)
				}
				if !bytes.Equal(dst, want) {
					t.Errorf("%s(%d bytes, %d bytes): wrong bytes", w.name, n, m)
				}
			}
		}
	}
}

func TestCopyOverlap(t *testing.T) {
	for _, k := range Kernels() {
		useKernel(t, k)
		for _, w := range ways() {
			for _, n := range []int{300, 20000, LargeCopy + 1000} {
				for _, shift := range []int{0, 1, 63, 64, 100, n - 1} {
					for _, forward := range []bool{true, false} {
						got := noise(n + shift)
						want := bytes.Clone(got)
						if forward {
							copy(want[shift:], want[:n])
							w.copy(got[shift:], got[:n])
						} else {
							copy(want[:n], want[shift:])
							w.copy(got[:n], got[shift:])
						}
						if !bytes.Equal(got, want) {
							t.Fatalf("%s with %s: %d bytes moved by %d (forward %v) differ from the built-in copy",
								w.name, k, n, shift, forward)
						}
					}
				}
			}
		}
	}
}

func TestOverlap(t *testing.T) {
	b := make([]byte, 100)
	for _, c := range []struct {
		p, q int
		want bool
	}{{0, 50, false}, {50, 0, false}, {0, 49, true}, {49, 0, true}, {7, 7, true}} {
		if got := overlap(b[c.p:c.p+50], b[c.q:c.q+50]); got != c.want {
			t.Errorf("50 bytes at %d and at %d: overlap = %v", c.p, c.q, got)
		}
	}
	if overlap(b[:0], b[:0]) {
		t.Error("empty slices overlap")
	}
}

func TestParts(t *testing.T) {
	// Two writers copy alternating parts, as two processes do.
	const total = 3<<20 + 777
	for _, k := range Kernels() {
		useKernel(t, k)
		src, dst := noise(total), make([]byte, total+64)
		var wg sync.WaitGroup
		for w := range 2 {
			wg.Go(func() {
				const part = 32 * PartAlign
				for at := w * part; at < total; at += 2 * part {
					end := min(at+part, total)
					if n := CopyPart(dst[at:end], src[at:end], total); n != end-at {
						t.Errorf("part at %d: %d bytes", at, n)
					}
				}
			})
		}
		wg.Wait()
		if !bytes.Equal(dst[:total], src) || !bytes.Equal(dst[total:], make([]byte, 64)) {
			t.Errorf("%s: parts do not make up the whole", k)
		}
	}
}

func TestCopyAllocatesNothing(t *testing.T) {
	src, dst := noise(1<<20), make([]byte, 1<<20)
	for _, k := range Kernels() {
		useKernel(t, k)
		for _, w := range ways() {
			for _, n := range []int{100, 4096, 1 << 20} {
				if a := testing.AllocsPerRun(5, func() { w.copy(dst[:n], src[:n]) }); a != 0 {
					t.Errorf("%s of %d bytes: %v allocations", w.name, n, a)
				}
			}
		}
	}
	if a := testing.AllocsPerRun(10, func() {
		var d, s [64]byte // must stay on the stack
		Copy(d[:], s[:])
		NTAVX2.Copy(d[:], s[:])
	}); a != 0 {
		t.Errorf("copies between stack buffers: %v allocations", a)
	}
}

func TestKernelNames(t *testing.T) {
	seen := map[string]bool{}
	for k := range Kernel(kernels + 1) {
		if seen[k.String()] || k.String() == "" {
			t.Errorf("kernel %d: name %q", k, k)
		}
		seen[k.String()] = true
	}
	if Kernel(kernels).Available() || Kernel(kernels).NonTemporal() {
		t.Error("a kernel that does not exist is available")
	}
	dst := make([]byte, 2000)
	if n := Kernel(200).Copy(dst, noise(2000)); n != 2000 || !bytes.Equal(dst, noise(2000)) {
		t.Error("an unavailable kernel does not copy")
	}
}

func FuzzCopy(f *testing.F) {
	f.Add([]byte("penstock"), uint8(1), uint8(63), uint16(300))
	f.Add(noise(300), uint8(0), uint8(0), uint16(5))
	f.Add(noise(1000), uint8(17), uint8(40), uint16(65535))
	f.Fuzz(func(t *testing.T, seed []byte, dstOff, srcOff uint8, repeat uint16) {
		src := bytes.Repeat(seed, 1+int(repeat)/max(1, len(seed)))
		if int(srcOff) > len(src) {
			return
		}
		src = src[srcOff:]
		want := bytes.Repeat([]byte{0xa5}, int(dstOff)+len(src)+100)
		got := bytes.Clone(want)
		scalarCopy(want[dstOff:][:len(src)], src)
		for _, w := range ways() {
			clear(got)
			for i := range got {
				got[i] = 0xa5
			}
			w.copy(got[dstOff:][:len(src)], src)
			if !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes to +%d differ", w.name, len(src), dstOff)
			}
		}
		if a, b := CRC32C(0, src), scalarCRC32C(0, src); a != b {
			t.Errorf("CRC32C = %08x, bit by bit %08x", a, b)
		}
	})
}

func BenchmarkCopy(b *testing.B) {
	const most = 256 << 20
	Calibrate()
	b.Log("\n" + Explain())
	src, dst := make([]byte, most), make([]byte, most)
	for i := 0; i < most; i += 4096 {
		src[i], dst[i] = 1, 1
	}
	for n := 4 << 10; n <= most; n *= 4 {
		w := ways()
		w[0], w[3] = w[3], w[0] // builtin first, then Copy beside it
		for _, w := range w {
			b.Run(fmt.Sprintf("size=%s/%s", size(n), w.name), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					w.copy(dst[:n], src[:n])
				}
			})
		}
	}
}

// BenchmarkSmall is the price of the choice where there is nothing to choose.
func BenchmarkSmall(b *testing.B) {
	src, dst := make([]byte, LargeCopy), make([]byte, LargeCopy)
	for _, n := range []int{8, 64, 4096} {
		b.Run(fmt.Sprintf("size=%d/builtin", n), func(b *testing.B) {
			for b.Loop() {
				copy(dst[:n], src[:n])
			}
		})
		b.Run(fmt.Sprintf("size=%d/Copy", n), func(b *testing.B) {
			for b.Loop() {
				Copy(dst[:n], src[:n])
			}
		})
	}
}
