package tcp

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-io/penstock/transfer/path"
)

// threadCPU is the processor time of this thread in seconds, outside and inside the kernel.
func threadCPU() (u, s float64) {
	var r unix.Rusage
	unix.Getrusage(unix.RUSAGE_THREAD, &r)
	return float64(r.Utime.Sec) + float64(r.Utime.Usec)*1e-6, float64(r.Stime.Sec) + float64(r.Stime.Usec)*1e-6
}

// BenchmarkCPU is what a byte costs the sender and the receiver, in seconds of processor time for
// each GB, which other work on the machine changes less than rates.
func BenchmarkCPU(t *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, sealed := range []bool{true, false} {
		for _, size := range []int{1 << 20, 16 << 20, 64 << 20} {
			for _, crc := range []bool{false, true} {
				if sealed && crc {
					continue
				}
				sealedBench.Store(sealed)
				defer sealedBench.Store(false)
				e := newBench(t, Options{CongestionControl: "reno", KTLS: Off}, 2, !crc, size)
				close(e.done)
				op := []path.Op{{Kind: path.Put, Copies: []path.Copy{{Local: e.la.All(), Key: e.kb}}}}
				var ev [4]path.Event
				var au, as, bu, bs float64
				n := (512 << 20) / size
				var polls int
				for range n {
					u0, s0 := threadCPU()
					e.a.Post(op)
					u1, s1 := threadCPU()
					au += u1 - u0
					as += s1 - s0
					for done := false; !done; {
						polls++
						u0, s0 := threadCPU()
						e.b.Poll(ev[:])
						u1, s1 := threadCPU()
						bu += u1 - u0
						bs += s1 - s0
						for _, x := range ev[:e.a.Poll(ev[:])] {
							if x.Err != nil {
								t.Fatal(x.Err)
							}
							done = true
						}
						u2, s2 := threadCPU()
						au += u2 - u1
						as += s2 - s1
					}
				}
				gb := float64(n) * float64(size) / 1e9
				t.Logf("sealed %v crc %v size %d: sender user %.3f sys %.3f, receiver user %.3f sys %.3f per GB; %d "+
					"polls; syscalls a %d b %d", sealed, crc, size, au/gb, as/gb, bu/gb, bs/gb, polls,
					e.a.Stats().Syscalls, e.b.Stats().Syscalls)
			}
		}
	}
}
