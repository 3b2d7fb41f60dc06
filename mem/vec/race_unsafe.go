//go:build race

package vec

import (
	"runtime"
	"unsafe"
)

// raceCopy tells the race detector what assembly is about to read and write, as the compiler does
// for the built-in copy. The pointers are hidden because the compiler takes what goes to the
// detector for kept, and stack buffers would escape.
func raceCopy(dst, src []byte) {
	raceRead(src)
	raceWrite(dst)
}

func raceRead(p []byte) {
	if len(p) > 0 {
		runtime.RaceReadRange(hide(unsafe.Pointer(unsafe.SliceData(p))), len(p))
	}
}

func raceWrite(p []byte) {
	if len(p) > 0 {
		runtime.RaceWriteRange(hide(unsafe.Pointer(unsafe.SliceData(p))), len(p))
	}
}
