package dl

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Hot calls allocate nothing, nor do arguments that point to memory which is on the heap anyway.
func TestCallsAllocateNothing(t *testing.T) {
	l := library(t)
	six, add := symbol(t, l, "weigh6"), symbol(t, l, "add")
	words := new([4]uint64)
	escape = words
	var sum uintptr
	if n := testing.AllocsPerRun(1000, func() {
		sum += six.Call0() + six.Call1(1) + six.Call2(1, 2) + six.Call3(1, 2, 3) + six.Call4(1, 2, 3, 4) +
			six.Call5(1, 2, 3, 4, 5) + six.Call6(1, 2, 3, 4, 5, 6)
		add.Call3(uintptr(unsafe.Pointer(words)), 4, 1)
	}); n != 0 {
		t.Errorf("%v allocations for eight calls, want 0", n)
	}
	if words[3] == 0 || sum == 0 {
		t.Error("the calls did nothing")
	}
}

var escape any

// errno is that of the thread on which the function ran, whatever other threads call meanwhile, and
// 0 where the function left it alone.
func TestErrno(t *testing.T) {
	fail := symbol(t, library(t), "fail")
	var wg sync.WaitGroup
	for g := range 50 {
		wg.Go(func() {
			for i := range 200 {
				want := 1 + (g*200+i)%4000
				if ret, e := fail.CallErrno(uintptr(want)); int32(ret) != -1 || e != want {
					t.Errorf("fail(%d) = %d, errno %d", want, int32(ret), e)
					return
				}
				if ret, e := fail.CallErrno(0); ret != 0 || e != 0 {
					t.Errorf("fail(0) = %d, errno %d: what an earlier call left on the thread", int32(ret), e)
					return
				}
			}
		})
	}
	wg.Wait()
}

// grow makes the goroutine's stack larger by depth frames and calls f at the bottom, so that the
// stack was just copied.
func grow(depth int, f func()) byte {
	var frame [512]byte
	frame[depth%len(frame)] = byte(depth)
	if depth == 0 {
		f()
	} else {
		frame[0] = grow(depth-1, f)
	}
	return frame[depth%len(frame)] + frame[0]
}

// Goroutines whose stacks grow and shrink call C with the addresses of their own variables, while
// the garbage collector runs all the time and the profiler interrupts the threads.
func TestStacksAndCollector(t *testing.T) {
	l := library(t)
	add, deep, weigh := symbol(t, l, "add"), symbol(t, l, "deep"), symbol(t, l, "weigh6")
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	if err := pprof.StartCPUProfile(io.Discard); err != nil {
		t.Logf("without the profiler, which somebody else uses: %v", err)
	} else {
		defer pprof.StopCPUProfile()
	}
	const goroutines, rounds = 100, 20
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for r := range rounds {
				var words [64]uint64
				for i := range words {
					words[i] = uint64(i)
				}
				var got uintptr
				grow((g*7+r*13)%97, func() {
					add.Call3(uintptr(unsafe.Pointer(&words[0])), uintptr(len(words)), uintptr(g*1000+r))
					got = weigh.Call6(uintptr(g), uintptr(r), 3, 4, 5, 6)
				})
				// The C stack is the thread's, much larger than a goroutine's.
				if sum := deep.Call1(64); sum != 64*1024 {
					t.Errorf("64 KiB of C stack hold %d", sum)
					return
				}
				for i, w := range words {
					if w != uint64(i+g*1000+r) {
						t.Errorf("goroutine %d, round %d: word %d is %d, want %d", g, r, i, w, i+g*1000+r)
						return
					}
				}
				if want := uintptr(g + 3*r + 5*3 + 7*4 + 11*5 + 13*6); got != want {
					t.Errorf("goroutine %d, round %d: %d, want %d", g, r, got, want)
					return
				}
				escape2.Store(&[]byte{byte(r)}) // work for the collector
			}
		})
	}
	wg.Wait()
}

var escape2 atomic.Pointer[[]byte]

// A function that blocks holds its thread only: other goroutines and the collector, which would
// shrink the caller's stack, go on.
func TestBlockingCall(t *testing.T) {
	l := library(t)
	block := symbol(t, l, "block")
	flag, err := Alloc(4)
	if err != nil {
		t.Fatal(err)
	}
	defer Free(flag)
	const n = 4
	var entered, wg sync.WaitGroup
	entered.Add(n)
	results := make([]uintptr, n)
	for g := range n {
		wg.Go(func() {
			grow(200, func() {}) // a stack that is far too large for what follows
			mark := [3]int{g, g + 1, g + 2}
			entered.Done()
			results[g] = 1 + block.Call1(Address(flag))
			if mark != [3]int{g, g + 1, g + 2} {
				t.Errorf("variables of the caller are %v", mark)
			}
		})
	}
	entered.Wait()
	for range 4 {
		runtime.GC()
	}
	atomic.StoreInt32(At[int32](Address(flag)), 1)
	wg.Wait()
	for g, r := range results {
		if r == 0 {
			t.Errorf("call %d has no result", g)
		}
	}
}

// C finds its stack aligned, and may use every register that its rules let it use.
func TestRulesOfC(t *testing.T) {
	l := library(t)
	for name, f := range map[string]func(Func) uintptr{
		"few":             func(f Func) uintptr { return f.Call1(6) },
		"many":            func(f Func) uintptr { return f.Call(6) },
		"many with errno": func(f Func) uintptr { r, _ := f.CallErrno(6); return r },
	} {
		if off := int32(f(symbol(t, l, "misaligned"))); off != 0 {
			t.Errorf("%s: the stack is %d bytes off", name, off)
		}
		if got := f(symbol(t, l, "clobber")); got != 7 {
			t.Errorf("%s: a function that uses all registers returned %d", name, got)
		}
	}
}

// Mistakes of the caller are panics that say what is wrong, before C sees them.
func TestMistakes(t *testing.T) {
	nothing := symbol(t, library(t), "nothing")
	for name, f := range map[string]func(){
		"zero Func, hot":    func() { Func(0).Call1(1) },
		"zero Func":         func() { Func(0).Call(1) },
		"too many":          func() { nothing.Call(make([]uintptr, MaxArgs+1)...) },
		"too many, errno":   func() { nothing.CallErrno(make([]uintptr, MaxArgs+1)...) },
		"zero Func, errno ": func() { Func(0).CallErrno() },
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
	if got := nothing.Call(make([]uintptr, MaxArgs)...); got != 42 {
		t.Errorf("nothing() = %d", got)
	}
}

func BenchmarkCall(b *testing.B) {
	l := library(b)
	six, add := symbol(b, l, "weigh6"), symbol(b, l, "fail")
	for n, f := range []func(){
		func() {
			six.Call0()
		}, func() {
			six.Call1(1)
		}, nil, func() { six.Call3(1, 2, 3) }, nil, nil, func() { six.Call6(1, 2, 3, 4, 5, 6) },
	} {
		if f != nil {
			b.Run(fmt.Sprintf("Call%d", n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					f()
				}
			})
		}
	}
	b.Run("Call", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			six.Call(1, 2, 3, 4, 5, 6)
		}
	})
	b.Run("CallErrno", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			add.CallErrno(0)
		}
	})
	b.Run("SyscallN of purego", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			purego.SyscallN(uintptr(six), 1, 2, 3, 4, 5, 6)
		}
	})
}
