package ring

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/puzpuzpuz/xsync/v4"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// The benchmarks move uint64 items in bursts through a queue of benchCapacity. The
// time is per item. Queues that have no batch calls are called item by item.
const benchCapacity = 1024

var bursts = []int{1, 8, 32, 256}

// queue is a competitor: put and get move up to len(b) items and return how many.
type queue struct {
	name     string
	put, get func(b []uint64) int
}

// one makes batch calls from calls for one item.
func one(put func(uint64) bool, get func() (uint64, bool)) (func([]uint64) int, func([]uint64) int) {
	return func(b []uint64) int {
			for i, v := range b {
				if !put(v) {
					return i
				}
			}
			return len(b)
		}, func(b []uint64) int {
			for i := range b {
				v, ok := get()
				if !ok {
					return i
				}
				b[i] = v
			}
			return len(b)
		}
}

func queues(b *testing.B, burst int) []queue {
	var qs []queue
	for _, name := range []string{"SPSC", "MPSC", "MPMC"} {
		r := heapRings[uint64](b, benchCapacity, 0)[name]
		if burst == 1 {
			put, get := one(r.Put, r.Get)
			qs = append(qs, queue{name, put, get})
		} else {
			qs = append(qs, queue{name, r.PutBatch, r.GetBatch})
		}
	}
	mw, mr, _ := messagesPair(b, benchCapacity, 0)
	var m Message
	put, get := one(func(v uint64) bool {
		ok, err := mw.Put(1, v, 2, 3, 4, nil)
		if err != nil {
			b.Error(err)
		}
		return ok
	}, func() (uint64, bool) {
		ok, err := mr.Get(&m)
		if err != nil {
			b.Error(err)
		}
		return m.Words[0], ok
	})
	qs = append(qs, queue{"Messages", put, get})

	c := make(chan uint64, benchCapacity)
	put, get = one(func(v uint64) bool {
		select {
		case c <- v:
			return true
		default:
			return false
		}
	}, func() (v uint64, ok bool) {
		select {
		case v = <-c:
			return v, true
		default:
			return 0, false
		}
	})
	qs = append(qs, queue{"channel", put, get})
	xs := xsync.NewSPSCQueue[uint64](benchCapacity)
	put, get = one(xs.TryEnqueue, xs.TryDequeue)
	qs = append(qs, queue{"xsyncSPSC", put, get})
	xm := xsync.NewMPMCQueue[uint64](benchCapacity)
	put, get = one(xm.TryEnqueue, xm.TryDequeue)
	qs = append(qs, queue{"xsyncMPMC", put, get})
	return qs
}

// BenchmarkOne is the cost of a burst put and got by one goroutine.
func BenchmarkOne(b *testing.B) {
	for _, burst := range bursts {
		for _, q := range queues(b, burst) {
			b.Run(fmt.Sprintf("%s/burst=%d", q.name, burst), func(b *testing.B) {
				b.ReportAllocs()
				buf := make([]uint64, burst)
				for n := 0; n < b.N; n += burst {
					if q.put(buf) != burst || q.get(buf) != burst {
						b.Fatal("queue lost items")
					}
				}
			})
		}
	}
}

// BenchmarkTwo is the throughput from one goroutine to another, both spinning.
func BenchmarkTwo(b *testing.B) {
	for _, burst := range bursts {
		for _, q := range queues(b, burst) {
			b.Run(fmt.Sprintf("%s/burst=%d", q.name, burst), func(b *testing.B) {
				b.ReportAllocs()
				done := make(chan struct{})
				go func() {
					defer close(done)
					buf := make([]uint64, burst)
					for left := b.N; left > 0; {
						k := q.put(buf[:min(burst, left)])
						if left -= k; k == 0 {
							runtime.Gosched()
						}
					}
				}()
				buf := make([]uint64, burst)
				for left := b.N; left > 0; {
					k := q.get(buf[:min(burst, left)])
					if left -= k; k == 0 {
						runtime.Gosched()
					}
				}
				<-done
			})
		}
	}
}

// BenchmarkChannelBlocking is what a user of channels would write, for comparison.
func BenchmarkChannelBlocking(b *testing.B) {
	c := make(chan uint64, benchCapacity)
	b.ReportAllocs()
	go func() {
		for range b.N {
			c <- 1
		}
	}()
	for range b.N {
		<-c
	}
}

// BenchmarkMessage is the cost of one message, put and got by one goroutine.
func BenchmarkMessage(b *testing.B) {
	for _, size := range []int{0, 24, 80, 256, 1024} {
		b.Run(fmt.Sprintf("payload=%d", size), func(b *testing.B) {
			w, r, _ := messagesPair(b, benchCapacity, 0)
			payload := make([]byte, size)
			var m Message
			b.ReportAllocs()
			for b.Loop() {
				w.Put(1, 2, 3, 4, 5, payload)
				if ok, _ := r.Get(&m); !ok {
					b.Fatal("lost")
				}
			}
		})
	}
}

// BenchmarkMessageRoundTrip is a message there and one back between two spinning
// goroutines; half of it is what one message takes to be put and seen.
func BenchmarkMessageRoundTrip(b *testing.B) {
	if runtime.GOMAXPROCS(0) < 2 {
		testenv.Missing(b, "two processors, for two goroutines that spin", errors.New("GOMAXPROCS is 1"))
	}
	w1, r1, _ := messagesPair(b, benchCapacity, 0)
	w2, r2, _ := messagesPair(b, benchCapacity, 0)
	b.ReportAllocs()
	done := make(chan struct{})
	go func() {
		defer close(done)
		var m Message
		for range b.N {
			for !r1.Ready() {
			}
			r1.Get(&m)
			w2.Put(1, m.Words[0], 2, 3, 4, nil)
		}
	}()
	var m Message
	for range b.N {
		w1.Put(1, 2, 3, 4, 5, nil)
		for !r2.Ready() {
		}
		r2.Get(&m)
	}
	<-done
}
