package kernels

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/penstock-io/penstock/gpu/driver"
)

// Word is the 32-bit word at b, which is aligned to 4 bytes and not in the Go heap, for atomic
// access beside a running kernel.
func Word(b []byte) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&b[:4][0])) }

// Word64 is the 64-bit word at b, aligned to 8 bytes, likewise.
func Word64(b []byte) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b[:8][0])) }

func holdGo(_ driver.Grid, a []driver.GoArg) {
	words := a[0].Bytes
	Word(words[4:]).Store(1)
	for Word(words).Load() == 0 {
		runtime.Gosched()
	}
}

func tallyGo(group uint32, _ driver.Grid, a []driver.GoArg) {
	words := a[1].Bytes
	p := driver.Enter(a[0].Bytes, group)
	count, did := p.Checkpoint()[0], uint32(0)
	for p.Pass(did) {
		did = 0
		if count != Word(words).Load() {
			did = 1
			count++
			Word(words[4*(1+group):]).Store(count)
		}
	}
	p.Checkpoint()[0] = count
	p.Leave()
}
