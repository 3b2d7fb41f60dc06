package ocl

import (
	"fmt"
	"unsafe"

	"github.com/penstock-io/penstock/internal/dl"
)

// NewContext makes a context of one device.
func (l *Library) NewContext(d Device) (Context, error) {
	var code int32
	c := l.fn[createContext].Call6(0, 1, uintptr(unsafe.Pointer(&d)), 0, 0, uintptr(unsafe.Pointer(&code)))
	return Context(c), createContext.check(code)
}

// ReleaseContext gives a context back.
func (l *Library) ReleaseContext(c Context) error {
	return releaseContext.check(int32(l.fn[releaseContext].Call1(uintptr(c))))
}

// Flags of memory.
const (
	MemReadWrite  = 1 << 0
	memAllocHost  = 1 << 4
	memSVMFine    = 1 << 10
	memSVMAtomics = 1 << 11
)

// NewBuffer makes a buffer on the device; pinned asks for memory that the host reaches when it is
// mapped.
func (l *Library) NewBuffer(c Context, size uint64, pinned bool) (Mem, error) {
	flags := uintptr(MemReadWrite)
	if pinned {
		flags |= memAllocHost
	}
	var code int32
	m := l.fn[createBuffer].Call5(uintptr(c), flags, uintptr(size), 0, uintptr(unsafe.Pointer(&code)))
	return Mem(m), createBuffer.check(code)
}

// NewSubBuffer names n bytes from off of a buffer, where off is a multiple of the device's
// alignment.
func (l *Library) NewSubBuffer(m Mem, off, n uint64) (Mem, error) {
	const region = 0x1220
	at := [2]uintptr{uintptr(off), uintptr(n)}
	var code int32
	s := l.fn[createSubBuffer].Call5(uintptr(m), MemReadWrite, region, uintptr(unsafe.Pointer(&at)),
		uintptr(unsafe.Pointer(&code)))
	return Mem(s), createSubBuffer.check(code)
}

// ReleaseMem gives a buffer back, when no command uses it any more.
func (l *Library) ReleaseMem(m Mem) error {
	return releaseMem.check(int32(l.fn[releaseMem].Call1(uintptr(m))))
}

// SVMAlloc is the address of shared virtual memory that device and host see at once, aligned to
// align bytes; 0 where there is none left. HasSVM is true.
func (l *Library) SVMAlloc(c Context, size uint64, align uint32, atomics bool) uintptr {
	flags := uintptr(MemReadWrite | memSVMFine)
	if atomics {
		flags |= memSVMAtomics
	}
	return l.fn[svmAlloc].Call4(uintptr(c), flags, uintptr(size), uintptr(align))
}

// SVMFree gives shared virtual memory back. No command uses it any more.
func (l *Library) SVMFree(c Context, p uintptr) { l.fn[svmFree].Call2(uintptr(c), p) }

// NewProgram makes a program of source.
func (l *Library) NewProgram(c Context, source string) (Program, error) {
	text, err := dl.Alloc(len(source) + 1) // what is behind a pointer behind a pointer must not be Go's
	if err != nil {
		return 0, err
	}
	defer dl.Free(text)
	copy(text, source)
	at, n := dl.Address(text), uintptr(len(source))
	var code int32
	p := l.fn[createProgram].Call5(uintptr(c), 1, uintptr(unsafe.Pointer(&at)), uintptr(unsafe.Pointer(&n)),
		uintptr(unsafe.Pointer(&code)))
	return Program(p), createProgram.check(code)
}

// Build compiles a program for the device.
func (l *Library) Build(p Program, d Device, options string) error {
	o, err := dl.CString(options)
	if err != nil {
		return err
	}
	return buildProgram.check(int32(l.fn[buildProgram].Call6(uintptr(p), 1, uintptr(unsafe.Pointer(&d)),
		uintptr(unsafe.Pointer(o)), 0, 0)))
}

// ReleaseProgram gives a program back.
func (l *Library) ReleaseProgram(p Program) error {
	return releaseProgram.check(int32(l.fn[releaseProgram].Call1(uintptr(p))))
}

// NewKernel finds a kernel in a program. Each has its own arguments.
func (l *Library) NewKernel(p Program, name string) (Kernel, error) {
	n, err := dl.CString(name)
	if err != nil {
		return 0, err
	}
	var code int32
	k := l.fn[createKernel].Call3(uintptr(p), uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(&code)))
	return Kernel(k), createKernel.check(code)
}

// ReleaseKernel gives a kernel back.
func (l *Library) ReleaseKernel(k Kernel) error {
	return releaseKernel.check(int32(l.fn[releaseKernel].Call1(uintptr(k))))
}

// SetNumber sets argument i to a number of size bytes, at most 8.
func (l *Library) SetNumber(k Kernel, i, size int, bits uint64) error {
	if size < 1 || size > 8 {
		return fmt.Errorf("ocl: %s: an argument of %d bytes", names[setKernelArg], size)
	}
	w := pool.Get().(*words)
	defer pool.Put(w)
	w.number = bits
	return setKernelArg.check(int32(l.fn[setKernelArg].Call4(uintptr(k), uintptr(i), uintptr(size),
		uintptr(unsafe.Pointer(&w.number)))))
}

// SetMem sets argument i to a buffer.
func (l *Library) SetMem(k Kernel, i int, m Mem) error {
	return setKernelArg.check(int32(l.fn[setKernelArg].Call4(uintptr(k), uintptr(i), unsafe.Sizeof(m),
		uintptr(unsafe.Pointer(&m)))))
}

// SetSVM sets argument i to an address in shared virtual memory.
func (l *Library) SetSVM(k Kernel, i int, p uintptr) error {
	return setKernelArgSVM.check(int32(l.fn[setKernelArgSVM].Call3(uintptr(k), uintptr(i), p)))
}

// Retain counts one more owner of the event, Release one less.
func (l *Library) Retain(e Event) error {
	return retainEvent.check(int32(l.fn[retainEvent].Call1(uintptr(e))))
}

// Release counts one owner of the event less.
func (l *Library) Release(e Event) error {
	return releaseEvent.check(int32(l.fn[releaseEvent].Call1(uintptr(e))))
}
