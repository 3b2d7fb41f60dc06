package vec

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/sys"
)

// faulty maps a memfd of pages pages and truncates it, so that touching a page from good on is a
// SIGBUS.
func faulty(t *testing.T, pages, good int) []byte {
	t.Helper()
	fd, err := sys.MemfdCreate("vec test", int64(pages*sys.PageSize), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(fd)
	b, err := sys.Mmap(fd, 0, pages*sys.PageSize, sys.ProtRead|sys.ProtWrite, sys.MapShared)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sys.Munmap(b) })
	if err := sys.Ftruncate(fd, int64(good*sys.PageSize)); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestFaultIsAPanic copies across the end of a truncated file, which must reach the caller as a
// panic with the address of the fault, from every kernel, reading and writing.
func TestFaultIsAPanic(t *testing.T) {
	for _, size := range []struct{ pages, good int }{{2, 1}, {40, 1}, {40, 21}, {300, 299}} {
		n := size.pages * sys.PageSize
		mapped, plain := faulty(t, size.pages, size.good), make([]byte, n)
		first := sys.PageSize * size.good
		for _, k := range Kernels() {
			useKernel(t, k)
			for _, w := range ways() {
				for _, off := range []int{0, 3} {
					name := fmt.Sprintf("%s (large: %s), page %d of %d, +%d", w.name, k, size.good, size.pages, off)
					mustFault(t, name+", write", mapped, first, func() { w.copy(mapped[off:], plain) })
					mustFault(t, name+", read", mapped, first, func() { w.copy(plain, mapped[off:]) })
				}
			}
			mustFault(t, "CopyCRC32C write", mapped, first, func() { CopyCRC32C(mapped, plain, 0) })
			mustFault(t, "CopyCRC32C read", mapped, first, func() { CopyCRC32C(plain, mapped, 0) })
		}
		mustFault(t, "CRC32C", mapped, first, func() { CRC32C(0, mapped) })
		// The goroutine is as good as before.
		src := noise(n)
		for _, w := range ways() {
			w.copy(plain, src)
			if string(plain) != string(src) {
				t.Errorf("%s after a fault: wrong bytes", w.name)
			}
		}
	}
}

// mustFault calls f and checks that it panics with a fault address in mapped, on or after the byte
// first.
func mustFault(t *testing.T, name string, mapped []byte, first int, f func()) {
	t.Helper()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		t.Helper()
		v := recover()
		err, ok := v.(runtime.Error)
		if !ok {
			t.Errorf("%s: recovered %v, want a run-time error", name, v)
			return
		}
		if a, ok := v.(interface{ Addr() uintptr }); ok {
			if at := offsetIn(mapped, a.Addr()); at < first || at >= len(mapped) {
				t.Errorf("%s: fault at byte %d, want %d or later", name, at, first)
			}
		} else if !strings.Contains(err.Error(), "invalid memory address") {
			t.Errorf("%s: %v", name, err)
		}
	}()
	f()
}

// TestPartUsesKernelOfTotal sees from the stack of a fault which kernel ran, and with it that
// assembly frames unwind.
func TestPartUsesKernelOfTotal(t *testing.T) {
	if anyNonTemporal == Builtin {
		return // a build without assembly has one kernel
	}
	old := current.Load()
	defer current.Store(old)
	tab := new(table)
	tab.kernels[len(classes)-1] = anyNonTemporal
	current.Store(tab)
	mapped, plain := faulty(t, 32, 1), make([]byte, 32*sys.PageSize)
	for total, want := range map[int]bool{1 << 30: true, 1 << 20: false} {
		stack := faultStack(func() { CopyPart(mapped, plain, total) })
		if got := strings.Contains(stack, "vec.copyNT"); got != want ||
			!strings.Contains(stack, "vec.TestPartUsesKernelOfTotal") {
			t.Errorf("a part of %s: non-temporal kernel %v, want %v\n%s", size(total), got, want, stack)
		}
	}
}

func faultStack(f func()) (stack string) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			stack = string(debug.Stack())
		}
	}()
	f()
	return ""
}
