package vec

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// checkBytes compares each operation with its twin for n bytes at some alignments, and what lies
// around the result.
func checkBytes(t *testing.T, name string, n int) {
	t.Helper()
	d, x, y := rand.IntN(64), rand.IntN(64), rand.IntN(64)
	p, q := noise(n + 64)[x:][:n:n], noise(n + 65)[y:][:n:n]
	pattern := rand.Uint64()
	around := func(what string, op, twin func(dst []byte)) {
		t.Helper()
		got, want := noise(d+n+canary), noise(d+n+canary)
		op(got[d:][:n:n])
		twin(want[d:][:n:n])
		if !bytes.Equal(got, want) {
			t.Fatalf("%s, %s: %d bytes at +%d, of +%d and +%d: wrong bytes", name, what, n, d, x, y)
		}
	}
	around("Set", func(dst []byte) { Set(dst, pattern) }, func(dst []byte) { scalarSet(dst, pattern) })
	around("Set 0", func(dst []byte) { Set(dst, 0) }, func(dst []byte) { clear(dst) })
	around("Xor", func(dst []byte) {
		if Xor(dst, p, q) != n {
			t.Errorf("%s: Xor of %d bytes returned another number", name, n)
		}
	}, func(dst []byte) { scalarXor(dst, p, q) })
	around("Xor into the first", func(dst []byte) { Xor(dst, dst, q) }, func(dst []byte) { scalarXor(dst, dst, q) })
	around("Xor into the second", func(dst []byte) { Xor(dst, p, dst) }, func(dst []byte) { scalarXor(dst, p, dst) })
	around("Xor with itself", func(dst []byte) { Xor(dst, dst, dst) }, func(dst []byte) { clear(dst) })
	for _, size := range []int{2, 4, 8} {
		around(fmt.Sprint("Swap ", size), func(dst []byte) {
			if Swap(dst, p, size) != n/size*size {
				t.Errorf("%s: Swap of %d bytes returned another number", name, n)
			}
		}, func(dst []byte) { scalarSwap(dst, p, size) })
		around(fmt.Sprint("Swap in place ", size), func(dst []byte) {
			Swap(dst, dst, size)
		}, func(dst []byte) { scalarSwap(dst, bytes.Clone(dst), size) })
	}
	if got, want := Sum(p), scalarSum(p); got != want {
		t.Fatalf("%s, Sum: %d bytes at +%d: %#x, want %#x", name, n, x, got, want)
	}
}

func TestBytesEveryLength(t *testing.T) {
	processors(func(name string) {
		for n := range 1030 {
			checkBytes(t, name, n)
		}
	})
}

// TestBytesBoundaries goes around the sizes where kernels are called again, and where they store
// past the caches.
func TestBytesBoundaries(t *testing.T) {
	for _, k := range []Kernel{Builtin, anyNonTemporal} {
		useKernel(t, k)
		processors(func(name string) {
			for _, d := range []int{0, 1, 257} {
				checkBytes(t, fmt.Sprintf("%s by %v", name, k), LargeCopy+d)
			}
		})
	}
	checkBytes(t, "two calls", block+257)
}

func TestLengthsDiffer(t *testing.T) {
	a, b, dst := noise(700), noise(800), make([]byte, 600)
	for _, c := range []struct{ got, want int }{{Xor(dst, a, b), 600}, {Xor(dst, a[:500], b), 500},
		{Xor(dst, a, b[:400]), 400}, {Xor(nil, a, b), 0},
		{Swap(dst, a, 8), 600}, {Swap(dst[:301], a, 2), 300}, {Swap(dst, a[:303], 4), 300}, {Swap(dst, nil, 4), 0}} {
		if c.got != c.want {
			t.Errorf("%d bytes, want %d", c.got, c.want)
		}
	}
}

// Sums are those of the definition where every addition carries, and 0 only of zeros.
func TestSumCarries(t *testing.T) {
	processors(func(name string) {
		for n := range 700 {
			for _, fill := range []uint64{0, 1<<64 - 1, 0x8000800080008000, 0xfffeffffffffffff} {
				p := make([]byte, n)
				scalarSet(p, fill)
				if got, want := Sum(p), scalarSum(p); got != want {
					t.Fatalf("%s: %d bytes of %x: %#x, want %#x", name, n, fill, got, want)
				}
			}
		}
		if got := Sum(bytes.Repeat([]byte{0xff}, block+300)); got != 0xffff {
			t.Errorf("%s: %#x", name, got)
		}
	})
}

// TestIndex finds patterns of all lengths that were put at a place, among bytes that are like them,
// and does not find those that are not there.
func TestIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	processors(func(name string) {
		for letters := 1; letters <= 256; letters = letters*3 + 1 {
			for range 150 {
				p := make([]byte, r.IntN(2000))
				for i := range p {
					p[i] = byte(r.IntN(letters))
				}
				pattern := make([]byte, r.IntN(100))
				for i := range pattern {
					pattern[i] = byte(r.IntN(letters))
				}
				if len(pattern) > 0 && r.IntN(2) == 0 {
					pattern[r.IntN(len(pattern))] = byte(letters)
				}
				if len(pattern) <= len(p) && r.IntN(2) == 0 {
					copy(p[r.IntN(len(p)-len(pattern)+1):], pattern)
				}
				if got, want := Index(p, pattern), scalarIndex(p, pattern); got != want {
					t.Fatalf("%s: %d among %d bytes of %d letters: at %d, want %d\n%x\n%x", name, len(pattern), len(p),
						letters, got, want, pattern, p)
				}
			}
		}
	})
}

// TestIndexEveryPlace has a pattern at each place, behind one that is nearly the same at each
// place.
func TestIndexEveryPlace(t *testing.T) {
	processors(func(name string) {
		for _, n := range []int{2, 3, 17, 64, 70} {
			pattern := bytes.Repeat([]byte{'a'}, n)
			pattern[n/2] = 'b'
			for at := range 600 {
				p := bytes.Repeat([]byte{'a'}, 600+n)
				if got := Index(p, pattern); got != -1 {
					t.Fatalf("%s: %d bytes that are not there at %d", name, n, got)
				}
				copy(p[at:], pattern)
				if got := Index(p, pattern); got != at {
					t.Fatalf("%s: %d bytes at %d: found at %d", name, n, at, got)
				}
				if got := Index(p[:at+n:at+n], pattern); got != at {
					t.Fatalf("%s: %d bytes at the end, %d: found at %d", name, n, at, got)
				}
			}
		}
	})
}

func TestScatterGather(t *testing.T) {
	for size := 1; size <= 17; size++ {
		for stride := size; stride < size+9; stride++ {
			for n := range 20 {
				src := noise(n*size + size/2)
				dst := make([]byte, n*stride)
				want := bytes.Clone(dst)
				for i := range n * size {
					want[i/size*stride+i%size] = src[i]
				}
				Scatter(dst, stride, src, size)
				back := make([]byte, n*size+size/2)
				Gather(back, dst, stride, size)
				if !bytes.Equal(dst, want) || !bytes.Equal(back[:n*size], src[:n*size]) ||
					!bytes.Equal(back[n*size:], make([]byte, size/2)) {
					t.Fatalf("%d elements of %d bytes every %d: wrong bytes", n, size, stride)
				}
			}
		}
	}
	for name, f := range map[string]func(){
		"no size":   func() { Scatter(make([]byte, 9), 1, make([]byte, 9), 0) },
		"overlap":   func() { Gather(make([]byte, 9), make([]byte, 9), 1, 2) },
		"too short": func() { Scatter(make([]byte, 9), 4, make([]byte, 8), 2) },
		"short src": func() { Gather(make([]byte, 8), make([]byte, 13), 4, 2) },
		"swap of 3": func() { Swap(make([]byte, 9), make([]byte, 9), 3) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestBytesAllocateNothing(t *testing.T) {
	if n := testing.AllocsPerRun(10, func() {
		var a, b [2048]byte // must stay on the stack
		Set(a[:], 7)
		Xor(a[:], a[:], b[:])
		Swap(b[:], a[:], 4)
		if Sum(b[:]) == 1 || Index(a[:], b[:9]) == 5 {
			a[0]++
		}
		Scatter(a[:], 4, b[:512], 2)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestBytesFault reads and writes across the end of a truncated file by each kernel: see
// TestFaultIsAPanic.
func TestBytesFault(t *testing.T) {
	const pages, good = 40, 21
	processors(func(name string) {
		mapped := faulty(t, pages, good)
		plain := make([]byte, len(mapped))
		first := len(mapped) / pages * good
		for what, f := range map[string]func(){
			"Set": func() {
				Set(mapped, 1)
			}, "Xor write": func() { Xor(mapped, plain, plain) }, "Xor read": func() { Xor(plain, plain, mapped) },
			"Sum": func() {
				Sum(mapped)
			}, "Swap": func() { Swap(plain, mapped, 2) }, "Index": func() { Index(mapped, []byte("penstock")) },
		} {
			mustFault(t, name+", "+what, mapped, first, f)
		}
	})
}

func FuzzBytes(f *testing.F) {
	f.Add([]byte("penstock"), []byte("toc"), uint8(1), uint16(300))
	f.Add(noise(300), noise(40), uint8(3), uint16(5))
	f.Add([]byte("aaaaaaaa"), []byte("aaab"), uint8(0), uint16(999))
	f.Fuzz(func(t *testing.T, seed, other []byte, off uint8, repeat uint16) {
		p := bytes.Repeat(seed, 1+int(repeat)/max(1, len(seed)))
		p = p[min(int(off), len(p)):]
		q := bytes.Repeat(other, 1+len(p)/max(1, len(other)))
		q = q[:min(len(p), len(q))]
		processors(func(name string) {
			got, want := make([]byte, len(q)), make([]byte, len(q))
			Xor(got, p, q)
			if scalarXor(want, p, q); !bytes.Equal(got, want) {
				t.Errorf("%s: Xor differs", name)
			}
			Set(got, uint64(off)<<17|uint64(repeat))
			if scalarSet(want, uint64(off)<<17|uint64(repeat)); !bytes.Equal(got, want) {
				t.Errorf("%s: Set differs", name)
			}
			size := 2 << (off % 3)
			Swap(got, p, size)
			if scalarSwap(want, p, size); !bytes.Equal(got, want) {
				t.Errorf("%s: Swap differs", name)
			}
			if a, b := Sum(p), scalarSum(p); a != b {
				t.Errorf("%s: Sum = %04x, want %04x", name, a, b)
			}
			if a, b := Index(p, other), bytes.Index(p, other); a != b {
				t.Errorf("%s: Index = %d, want %d", name, a, b)
			}
		})
	})
}
