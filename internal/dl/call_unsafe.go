package dl

import "unsafe"

// Func is the address of a C function: what [Library.Symbol] found, or a pointer out of a table of
// operations that a library keeps. All arguments and the result are integers or pointers. A C int
// as result fills the lower half of the word only, so that callers write int32(f.Call1(a)).
//
// An argument may be the address of Go memory, written as uintptr(unsafe.Pointer(p)) in the call
// itself: it stays where it is until the call returns. C must not keep it: what C keeps comes from
// [Alloc]. A call of the zero Func panics.
//
// A C function may block; other goroutines go on meanwhile, as with a system call. A Go function
// cannot be called back from it.
type Func uintptr

// MaxArgs is the highest number of arguments of [Func.Call].
const MaxArgs = 15

// few is a call whose arguments all fit into registers. The assembly knows its layout.
type few struct {
	fn  uintptr
	a   [6]uintptr
	ret uintptr
}

// many is a call with arguments on the stack as well, or one whose errno is wanted. The assembly
// knows its layout.
type many struct {
	fn       uintptr
	a        [MaxArgs]uintptr
	ret      uintptr
	location uintptr // the C function that tells where this thread's errno is; 0: it is not wanted
	errno    uintptr
}

func (f *few) call() uintptr {
	if f.fn == 0 {
		panic("dl: call of a C function that was never found (a zero Func)")
	}
	cgocall(fewPC, unsafe.Pointer(f))
	return f.ret
}

func (m *many) call() uintptr {
	if m.fn == 0 {
		panic("dl: call of a C function that was never found (a zero Func)")
	}
	cgocall(manyPC, unsafe.Pointer(m))
	return m.ret
}

// Call calls f with up to MaxArgs arguments and returns its result. More arguments panic. It is for
// set-up: the list of arguments is allocated.
//
//go:uintptrescapes
func (f Func) Call(args ...uintptr) uintptr {
	m := many{fn: uintptr(f)}
	m.fill(args)
	return m.call()
}

// CallErrno is Call that also returns errno as the function left it on the thread that it ran on,
// and 0 when it did not set it.
//
//go:uintptrescapes
func (f Func) CallErrno(args ...uintptr) (ret uintptr, errno int) {
	c, err := libc()
	if err != nil {
		panic(err)
	}
	m := many{fn: uintptr(f), location: uintptr(c.errno)}
	m.fill(args)
	ret = m.call()
	return ret, int(int32(m.errno))
}

// CallErrno3 is CallErrno with three arguments, and allocates nothing.
//
//go:uintptrescapes
func (f Func) CallErrno3(a, b, c uintptr) (ret uintptr, errno int) {
	l, err := libc()
	if err != nil {
		panic(err)
	}
	m := many{fn: uintptr(f), a: [MaxArgs]uintptr{a, b, c}, location: uintptr(l.errno)}
	ret = m.call()
	return ret, int(int32(m.errno))
}

func (m *many) fill(args []uintptr) {
	if len(args) > MaxArgs {
		panic("dl: a call with more arguments than MaxArgs")
	}
	copy(m.a[:], args)
}

// Call0 calls f without arguments. Like all calls with a number it allocates nothing.
func (f Func) Call0() uintptr {
	c := few{fn: uintptr(f)}
	return c.call()
}

// Call1 calls f with one argument.
//
//go:uintptrescapes
func (f Func) Call1(a uintptr) uintptr {
	c := few{fn: uintptr(f), a: [6]uintptr{a}}
	return c.call()
}

// Call2 calls f with two arguments.
//
//go:uintptrescapes
func (f Func) Call2(a, b uintptr) uintptr {
	c := few{fn: uintptr(f), a: [6]uintptr{a, b}}
	return c.call()
}

// Call3 calls f with three arguments.
//
//go:uintptrescapes
func (f Func) Call3(a, b, c uintptr) uintptr {
	x := few{fn: uintptr(f), a: [6]uintptr{a, b, c}}
	return x.call()
}

// Call4 calls f with four arguments.
//
//go:uintptrescapes
func (f Func) Call4(a, b, c, d uintptr) uintptr {
	x := few{fn: uintptr(f), a: [6]uintptr{a, b, c, d}}
	return x.call()
}

// Call5 calls f with five arguments.
//
//go:uintptrescapes
func (f Func) Call5(a, b, c, d, e uintptr) uintptr {
	x := few{fn: uintptr(f), a: [6]uintptr{a, b, c, d, e}}
	return x.call()
}

// Call6 calls f with six arguments.
//
//go:uintptrescapes
func (f Func) Call6(a, b, c, d, e, g uintptr) uintptr {
	x := few{fn: uintptr(f), a: [6]uintptr{a, b, c, d, e, g}}
	return x.call()
}
