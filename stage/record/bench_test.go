package record

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// BenchmarkRecorder is what recording costs: the whole of it, and the processor time of both
// goroutines for a packet, from memory to a file of PENSTOCK_BENCH_DIR. Nothing is lost.
func BenchmarkRecorder(b *testing.B) {
	for _, size := range []int{64, 1400, 8900} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			dir := b.TempDir()
			if d := os.Getenv("PENSTOCK_BENCH_DIR"); d != "" {
				dir = d
			}
			name := filepath.Join(dir, "penstock-bench.pcapng")
			defer os.Remove(name)
			r := open(b, Options{Name: name, Format: PcapNG, Overwrite: true})
			const packets, stride = 64, 9216
			region, err := mem.Alloc(mem.Options{Size: 1024 * stride})
			if err != nil {
				b.Fatal(err)
			}
			defer region.Close()
			src, in := burst.NewSource(region, region.All().Bytes(), nobody{}), burst.New(packets)
			b.SetBytes(packets * int64(size))
			before, n := used(b), 0
			for b.Loop() {
				for range packets {
					i := in.Builder().Add(src, burst.Segment{Handle: burst.NoHandle, Off: uint64(n % 1024 * stride),
						Len: uint32(size)})
					in.Builder().SetReceived(i, size, burst.HasTime, int64(n))
					n++
				}
				if len(r.free) < 2 { // wait for the writer
					c := <-r.free
					r.free <- c
				}
				r.Add(in)
				in.Release()
			}
			if err := r.Close(limit(b)); err != nil {
				b.Error(err)
			}
			b.ReportMetric(float64(used(b)-before)/float64(n), "cpu-ns/packet")
			if s := r.Stats(); s.Packets != uint64(n) {
				b.Errorf("%+v", s)
			}
		})
	}
}

// used is the processor time of the process in nanoseconds.
func used(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
