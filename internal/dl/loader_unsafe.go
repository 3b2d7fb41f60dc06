//go:build linux && (amd64 || arm64) && !static

package dl

import (
	"unsafe"

	"github.com/ebitengine/purego"
)

// The addresses of the assembly, which runs on the thread's own stack in the manner of C.
var fewPC, manyPC uintptr

// cgocall runs fn(arg) on the thread's own stack, told to the scheduler like a system call. purego
// is among the packages for which the Go project keeps this name and its signature
// (go.dev/issue/67401).
//
// arg may be on the goroutine's stack: it is not moved while the call lasts, because a stack
// shrinks or grows only outside of system calls and C does not call back into Go.
//
//go:linkname cgocall runtime.cgocall
//go:noescape
func cgocall(fn uintptr, arg unsafe.Pointer) int32

func dlopen(name string) (uintptr, error) {
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

// loaded asks the loader for a library that it has, and for no other (RTLD_NOLOAD).
func loaded(name string) bool {
	const noLoad = 4
	h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL|noLoad)
	if err != nil || h == 0 {
		return false
	}
	purego.Dlclose(h)
	return true
}

func dlsym(handle uintptr, name string) (uintptr, error) { return purego.Dlsym(handle, name) }

func dlclose(handle uintptr) error { return purego.Dlclose(handle) }

// everything is the handle in which dlsym finds what the libraries of the program itself have.
const everything = purego.RTLD_DEFAULT
