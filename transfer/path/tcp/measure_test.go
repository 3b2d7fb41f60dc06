package tcp

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

// way moves src through a connection into dst, on the calling thread.
type way struct {
	name string
	move func(dst, src []byte)
}

// spread is what interleaved trials gave: a median and the middle half.
type spread struct{ q1, median, q3 float64 }

func spreadOf(v []float64) spread {
	v = slices.Clone(v)
	slices.Sort(v)
	return spread{v[len(v)/4], v[len(v)/2], v[len(v)*3/4]}
}

// repeats is the number of moves in one trial: short, so that most trials are not interrupted.
func repeats(size int) int { return max(2, min(100, (2<<20)/size)) }

// compareWays runs the ways in turn, round by round, and reports their speed relative to the first
// one of the same round. Each trial moves other bytes, and they are compared at its end.
func compareWays(b *testing.B, size int, ways []way) {
	src, dst := region(b, size).All().Bytes(), region(b, size).All().Bytes()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	repeat := repeats(size)
	rates, ratios := make([][]float64, len(ways)), make([][]float64, len(ways))
	for round := range max(b.N, 200) {
		first := 0.0
		for w := range ways {
			for i := range src {
				src[i] = byte(i*7 + i>>11 + round + w)
			}
			clear(dst)
			t0 := time.Now()
			for range repeat {
				ways[w].move(dst, src)
			}
			rate := float64(repeat) * float64(size) / time.Since(t0).Seconds()
			if !bytes.Equal(dst, src) {
				b.Fatalf("%s: other bytes came than were sent", ways[w].name)
			}
			if w == 0 {
				first = rate
			}
			rates[w], ratios[w] = append(rates[w], rate), append(ratios[w], rate/first)
		}
	}
	for w := range ways {
		r, q := spreadOf(rates[w]), spreadOf(ratios[w])
		b.Logf("%8d B  %-46s %7.3f GB/s, %7.0f ns, ratio %.2f (%.2f to %.2f), of the best %.2f",
			size, ways[w].name, r.median/1e9, float64(size)/r.median*1e9, q.median, q.q1, q.q3,
			slices.Max(rates[w])/slices.Max(rates[0]))
	}
}

// duel runs blocks of rounds over plain sockets and over a path in turn, on the same two threads,
// and returns the one-way times of each block. Only so does other work on the machine fall on both
// alike.
func duel(t testing.TB, blocks, rounds int, noCRC bool) (raw, ours []quantiles) {
	const size = 64
	e := newBench(t, Options{CongestionControl: "reno"}, 1, noCRC, 1<<16)
	a, b := rawPair(t, "reno")
	ping := func(r *mem.Region, k path.Key) []path.Op {
		return []path.Op{{Kind: path.Put, Notify: true,
			Copies: []path.Copy{{Local: mem.Span{Region: r, Len: size}, Key: k}}}}
	}
	await := func(p *Path, ev []path.Event) error {
		for {
			for _, x := range ev[:p.Poll(ev)] {
				if x.Err != nil {
					return x.Err
				}
				if x.Kind == path.EventNotify {
					return nil
				}
			}
		}
	}
	go func() {
		defer close(e.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var ev [64]path.Event
		buf, op := make([]byte, size), ping(e.lb, e.ka)
		for range blocks {
			for range rounds {
				if rawRecv(b, buf) != 0 || rawSend(b, buf) != 0 {
					return
				}
			}
			for range rounds {
				if await(e.b, ev[:]) != nil {
					return
				}
				if _, err := e.b.Post(op); err != nil {
					return
				}
			}
		}
		for !e.stop.Load() {
			e.b.Poll(ev[:])
		}
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	buf, op := make([]byte, size), ping(e.la, e.kb)
	for range blocks {
		q := make(quantiles, 0, rounds)
		for range rounds {
			t0 := time.Now()
			if rawSend(a, buf) != 0 || rawRecv(a, buf) != 0 {
				t.Fatal("raw ping-pong failed")
			}
			q = append(q, time.Since(t0)/2)
		}
		raw = append(raw, q)
		q = make(quantiles, 0, rounds)
		for range rounds {
			t0 := time.Now()
			if _, err := e.a.Post(op); err != nil {
				t.Fatal(err)
			}
			if err := await(e.a, e.ev[:]); err != nil {
				t.Fatal(err)
			}
			q = append(q, time.Since(t0)/2)
		}
		ours = append(ours, q)
	}
	return raw, ours
}

// BenchmarkDuel compares 64-byte puts between two spinning threads with the same bytes over plain
// sockets, block by block.
func BenchmarkDuel(b *testing.B) {
	for _, noCRC := range []bool{false, true} {
		b.Run(fmt.Sprintf("crc=%v", !noCRC), func(b *testing.B) {
			raw, ours := duel(b, max(b.N, 60), 200, noCRC)
			for _, at := range []float64{.5, .99} {
				var r, o, q []float64
				for i := range raw {
					x, y := raw[i].at(at), ours[i].at(at)
					r, o, q = append(r, x), append(o, y), append(q, y/x)
				}
				s := spreadOf(q)
				b.Logf("p%.0f: %.2f us, plain sockets %.2f us, ratio of a block %.2f (%.2f to %.2f), of the best "+
					"blocks %.2f",
					100*at, spreadOf(o).median, spreadOf(r).median, s.median, s.q1, s.q3, slices.Min(o)/slices.Min(r))
			}
		})
	}
}

// BenchmarkEcho is BenchmarkDuel on one thread: what the calls and the code around them take,
// without any waiting.
func BenchmarkEcho(b *testing.B) {
	const size, rounds = 64, 100
	for _, noCRC := range []bool{false, true} {
		b.Run(fmt.Sprintf("crc=%v", !noCRC), func(b *testing.B) {
			e := newBench(b, Options{CongestionControl: "reno"}, 1, noCRC, 1<<16)
			close(e.done)
			x, y := rawPair(b, "reno")
			there := []path.Op{{Kind: path.Put, Notify: true,
				Copies: []path.Copy{{Local: mem.Span{Region: e.la, Len: size}, Key: e.kb}}}}
			back := []path.Op{{Kind: path.Put, Notify: true,
				Copies: []path.Copy{{Local: mem.Span{Region: e.lb, Len: size}, Key: e.ka}}}}
			half := func(from, to *Path, op []path.Op) {
				if _, err := from.Post(op); err != nil {
					b.Fatal(err)
				}
				for {
					for _, x := range e.ev[:to.Poll(e.ev[:])] {
						if x.Kind == path.EventNotify {
							return
						}
					}
				}
			}
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			buf := make([]byte, size)
			var r, o, q []float64
			calls := e.a.Stats().Syscalls + e.b.Stats().Syscalls
			blocks := max(b.N, 300)
			for range blocks {
				t0 := time.Now()
				for range rounds {
					rawSend(x, buf)
					rawRecv(y, buf)
					rawSend(y, buf)
					rawRecv(x, buf)
				}
				t1 := time.Now()
				for range rounds {
					half(e.a, e.b, there)
					half(e.b, e.a, back)
				}
				d, dr := time.Since(t1).Seconds(), t1.Sub(t0).Seconds()
				r, o, q = append(r, dr/rounds/2*1e9), append(o, d/rounds/2*1e9), append(q, d/dr)
			}
			calls = e.a.Stats().Syscalls + e.b.Stats().Syscalls - calls
			s := spreadOf(q)
			b.Logf("half a round: %.0f ns, plain sockets %.0f ns, ratio %.3f (%.3f to %.3f), of the best %.3f, "+
				"%.2f calls",
				spreadOf(o).median, spreadOf(r).median, s.median, s.q1, s.q3, slices.Min(o)/slices.Min(r),
				float64(calls)/float64(2*rounds*blocks))
		})
	}
}

// putRate puts n times with depth outstanding over a pair that is there already, and returns bytes
// per second.
func putRate(t testing.TB, e *bench, ops []path.Op, depth, n int) float64 {
	t0 := time.Now()
	for posted, done := 0, 0; done < n; {
		for posted < n && posted-done < depth {
			if _, err := e.a.Post(ops); err != nil {
				t.Fatal(err)
			}
			posted++
		}
		for _, x := range e.ev[:e.a.Poll(e.ev[:])] {
			if x.Err != nil {
				t.Fatal(x.Err)
			}
			done++
		}
	}
	return float64(n) * float64(ops[0].Bytes()) / time.Since(t0).Seconds()
}

// BenchmarkSizes compares socket buffers and frame sizes between two threads, each relative to the
// first one of its round.
func BenchmarkSizes(b *testing.B) {
	type variant struct {
		name         string
		o            Options
		noCRC        bool
		frame, batch int
		buffers      int
	}
	for _, size := range []int{1 << 20, 16 << 20} {
		b.Run(fmt.Sprintf("%dMiB", size>>20), func(b *testing.B) {
			variants := []variant{
				{name: "as shipped, checksum off", noCRC: true},
				{name: "SO_SNDBUF and SO_RCVBUF 200 KiB", buffers: 200 << 10, noCRC: true},
				{name: "bbr", o: Options{CongestionControl: "bbr"}, noCRC: true},
				{name: "bbr, SO_SNDBUF and SO_RCVBUF 200 KiB", o: Options{CongestionControl: "bbr"}, buffers: 200 << 10, noCRC: true},
				{name: "frames of 256 KiB", noCRC: true, frame: 256 << 10, batch: 256 << 10},
				{name: "as shipped, checksum on"},
				{name: "checksum, frames of 64 KiB", frame: 64 << 10, batch: 64 << 10},
				{name: "checksum, frames of 128 KiB", frame: 128 << 10, batch: 128 << 10},
				{name: "checksum, frames of 128 KiB, two in a send", frame: 128 << 10, batch: 256 << 10},
				{name: "checksum, frames of 256 KiB, two in a send", frame: 256 << 10, batch: 512 << 10},
				{name: "checksum, frames of 256 KiB", frame: 256 << 10, batch: 256 << 10},
				{name: "checksum, frames of 512 KiB, two in a send", frame: 512 << 10, batch: 1 << 20},
				{name: "frames of 1 MiB", noCRC: true, frame: 1 << 20, batch: 1 << 20},
				{name: "frames of 1 MiB, two in a send", noCRC: true, frame: 1 << 20, batch: 2 << 20},
			}
			n := max(2, (16<<20)/size)
			rates, ratios := make([][]float64, len(variants)), make([][]float64, len(variants))
			var pairs []*bench
			var ops [][]path.Op
			for _, v := range variants {
				if v.o.CongestionControl == "" {
					v.o.CongestionControl = "reno"
				}
				e := newBench(b, v.o, 1, v.noCRC, size)
				close(e.done)
				if v.buffers > 0 {
					buffers(b, e.a, v.buffers)
					buffers(b, e.b, v.buffers)
				}
				if v.frame > 0 {
					e.a.frame, e.a.batch = v.frame, v.batch
				}
				pairs = append(pairs, e)
				ops = append(ops, []path.Op{{Kind: path.Put, Copies: []path.Copy{{Local: e.la.All(), Key: e.kb}}}})
			}
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for range max(b.N, 60) {
				first := 0.0
				for i, e := range pairs {
					var stop atomic.Bool
					gone := make(chan struct{})
					go func() { // one peer at a time: the others would take its core
						defer close(gone)
						runtime.LockOSThread()
						defer runtime.UnlockOSThread()
						var ev [64]path.Event
						for !stop.Load() {
							e.b.Poll(ev[:])
						}
					}()
					putRate(b, e, ops[i], 2, 2)
					rate := putRate(b, e, ops[i], 2, n)
					stop.Store(true)
					<-gone
					if i == 0 {
						first = rate
					}
					rates[i], ratios[i] = append(rates[i], rate), append(ratios[i], rate/first)
				}
			}
			var out strings.Builder
			for i, v := range variants {
				r, q := spreadOf(rates[i]), spreadOf(ratios[i])
				fmt.Fprintf(&out, "\n%-44s %5.1f GB/s (best %.1f), ratio %.2f (%.2f to %.2f), of the best %.2f",
					v.name, r.median/1e9, slices.Max(rates[i])/1e9, q.median, q.q1, q.q3,
					slices.Max(rates[i])/slices.Max(rates[0]))
			}
			fmt.Println(out.String()) // b.Log drops all but ten lines
		})
	}
}
