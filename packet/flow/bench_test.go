package flow_test

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/packet/flow/flowtest"
)

// parsing says what becomes of packet.Parse in a benchmark.
type parsing string

const (
	// all packets were parsed before: their Layers come from far memory, as they never do in use
	parsed parsing = "before"
	both   parsing = "with"  // parsed and then classified; the time is that of both
	apart  parsing = "apart" // the same, but the time is that of classifying
)

// benchmark classifies the packets of a sequence, one pass after the other, and reports packets per
// second.
func benchmark(b *testing.B, rules int, o flowtest.TrafficOptions, parse parsing, cached bool) {
	set := flowtest.Rules(1, rules)
	c, err := flow.Compile(set)
	if err != nil {
		b.Fatal(err)
	}
	o.Seed, o.Packets = 2, 1<<16
	t := flowtest.NewTraffic(set, o)
	layers := make([]packet.Layers, len(t.Frames))
	for i, f := range t.Frames {
		packet.Parse(f, &layers[i])
	}
	cache, err := flow.NewCache(0)
	if err != nil {
		b.Fatal(err)
	}
	const size = 32 // frames of a round
	out := make([]flow.Decision, size)
	ls := make([]packet.Layers, size)
	b.ReportAllocs()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	h0, m0 := cache.Stats()
	start := threadTime(b)
	b.ResetTimer()
	n := 0
	var classifying time.Duration
	for at := 0; n < b.N; at = (at + size) % len(t.Frames) {
		frames := t.Frames[at : at+size]
		use := layers[at : at+size]
		if parse != parsed {
			use = ls
			for i, f := range frames {
				if packet.Parse(f, &ls[i]) != packet.OK {
					b.Fatal("bad frame")
				}
			}
		}
		var from time.Time
		if parse == apart {
			from = time.Now()
		}
		for i, f := range frames {
			if cached {
				out[i] = cache.Classify(c, f, &use[i])
			} else {
				out[i] = c.Classify(f, &use[i])
			}
		}
		if parse == apart {
			classifying += time.Since(from)
		}
		n += size
	}
	if parse != apart {
		classifying = threadTime(b) - start
	}
	b.ReportMetric(float64(n)/classifying.Seconds()/1e6, "Mpps/core")
	if h, m := cache.Stats(); cached {
		b.ReportMetric(float64(h-h0)/float64(h+m-h0-m0), "hits")
	}
}

// threadTime is how long this thread has run: on a shared machine the clock on the wall says little
// about a core.
func threadTime(b *testing.B) time.Duration {
	const thread = 1 // RUSAGE_THREAD
	var u syscall.Rusage
	if err := syscall.Getrusage(thread, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

var zipf = flowtest.TrafficOptions{Flows: 10_000, Skew: 1.1}

var uniform = flowtest.TrafficOptions{Flows: 1 << 12}

// BenchmarkClassify1000 measures 1,000 mixed rules, Zipf traffic, through a cache. The other
// benchmarks take its parts away.
func BenchmarkClassify1000(b *testing.B) {
	for _, parse := range []parsing{both, apart, parsed} {
		for _, o := range []flowtest.TrafficOptions{zipf, uniform} {
			for _, cached := range []bool{true, false} {
				name := fmt.Sprintf("parse=%v/skew=%v/cache=%v", parse, o.Skew, cached)
				b.Run(name, func(b *testing.B) { benchmark(b, 1000, o, parse, cached) })
			}
		}
	}
}

// BenchmarkClassifyRules shows how the cold path grows with the set.
func BenchmarkClassifyRules(b *testing.B) {
	for _, n := range []int{10, 100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmark(b, n, uniform, parsed, false) })
	}
}

func BenchmarkCompile1000(b *testing.B) {
	set := flowtest.Rules(1, 1000)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := flow.Compile(set); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkValidate1000(b *testing.B) {
	set := flowtest.Rules(1, 1000)
	b.ReportAllocs()
	for b.Loop() {
		if err := flow.Validate(set).Err(); err != nil {
			b.Fatal(err)
		}
	}
}
