package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"math/bits"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"pgregory.net/rapid"
)

// pair makes two ends of a link with faults in the direction from a to b.
func pair(t testing.TB, seed uint64, f Faults) (n *Network, cable *Link, a, b *end) {
	t.Helper()
	n = network(t, Options{Seed: seed})
	cable, err := n.Link("a", "b")
	if err == nil {
		err = cable.SetFaultsFrom("a", f)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n, cable, newEnd(t, n, "a", 1024), newEnd(t, n, "b", 1024)
}

// numbered makes frames that carry the numbers from to to-1.
func numbered(from, to int) (frames [][]byte) {
	for i := from; i < to; i++ {
		frames = append(frames, udp(1, 2, 1, 2, fmt.Sprint(i)))
	}
	return frames
}

// TestRateIsExact: frames leave one after the other to the nanosecond, fractions carried on, and
// what finds the queue full is lost.
func TestRateIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _, a, b := pair(t, 1, Faults{Rate: 7_000_000, Queue: 10, Delay: time.Millisecond})
		start := time.Now().UnixNano()
		size := len(numbered(0, 1)[0])
		a.send(t, numbered(0, 9)...)
		a.send(t, numbered(9, 12)...) // the last two find 10 there
		time.Sleep(time.Second)
		times := func() []int64 {
			return take(t, b.rx, func(b *burst.Burst, i int) int64 {
				ns, _ := b.Time(i)
				return ns - start - int64(time.Millisecond)
			})
		}
		got := times()
		if len(got) != 10 {
			t.Fatalf("%d frames, expected 10", len(got))
		}
		num := uint64(0)
		for i, at := range got {
			num += uint64(size) * 8 * 1e9
			if want := int64((num + 7_000_000 - 1) / 7_000_000); at != want {
				t.Errorf("frame %d left after %d ns, expected %d", i, at, want)
			}
		}
		start = time.Now().UnixNano() // idle: restarts
		a.send(t, numbered(0, 1)...)
		time.Sleep(time.Second)
		equal(t, "after a rest", times(), fmt.Sprintf("[%d]", (uint64(size)*8*1e9+7_000_000-1)/7_000_000))
		w := balanced(t, n).Find("wire", "a>b")
		if w.Drops != (engine.Drops{engine.DropQueueFull: 2}) || w.Delayed != 11 {
			t.Errorf("%v", w)
		}
	})
}

func TestDelayKeepsOrderAndReorderDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, shape := range []Shape{Uniform, Normal, Exponential} {
			_, cable, a, b := pair(t, 1, Faults{Delay: time.Millisecond, Jitter: time.Millisecond, Shape: shape})
			start := time.Now().UnixNano()
			var spread int64
			run := func() (order []string, late []int64) {
				for i := range 200 {
					a.send(t, numbered(i, i+1)...)
					time.Sleep(100 * time.Microsecond)
				}
				time.Sleep(time.Second)
				take(t, b.rx, func(b *burst.Burst, i int) int {
					ns, _ := b.Time(i)
					order = append(order, string(b.Bytes(i, 0)[42:]))
					late = append(late, ns-start)
					return 0
				})
				return order, late
			}
			order, late := run()
			for i, s := range order {
				if s != fmt.Sprint(i) {
					t.Fatalf("shape %d: %v is not in order", shape, order)
				}
				spread = max(spread, late[i]-int64(i)*100_000)
				if d := late[i] - int64(i)*100_000; d < 0 || shape == Uniform && d > 2_000_000 {
					t.Errorf("shape %d: a delay of %d ns", shape, d)
				}
			}
			if len(order) != 200 || spread < 1_200_000 {
				t.Errorf("shape %d: %d packets, the longest delay %d ns", shape, len(order), spread)
			}
			if err := cable.SetFaultsFrom("a", Faults{Delay: time.Millisecond, Reorder: 0.1,
				ReorderBy: 350 * time.Microsecond}); err != nil {
				t.Fatal(err)
			}
			order, _ = run()
			if len(order) != 200 {
				t.Fatalf("%d packets", len(order))
			}
			moved := 0
			for i := 1; i < len(order); i++ {
				if order[i] != fmt.Sprint(i) {
					moved++
				}
			}
			if moved < 20 {
				t.Errorf("%d packets out of place", moved)
			}
		}
	})
}

func TestLossDuplicationCorruption(t *testing.T) {
	n, cable, a, b := pair(t, 1, Faults{Loss: 0.25})
	w := func() *Entry { return balanced(t, n).Find("wire", "a>b") }
	const many = 512
	a.send(t, numbered(0, many)...)
	lost := int(w().Drops[engine.DropInjected])
	if got := len(b.got(t)); got != many-lost || lost < many/5 || lost > many/3 {
		t.Errorf("%d lost, %d received", lost, got)
	}
	cable.SetFaultsFrom("a", Faults{Duplicate: 0.5})
	a.send(t, numbered(0, many)...)
	made := int(w().Made)
	got := b.payloads(t)
	if len(got) != many+made || made < many/3 || len(slices.Compact(got)) != many {
		t.Errorf("%d duplicates, %d received", made, len(got))
	}
	cable.SetFaultsFrom("a", Faults{Corrupt: 1, Bits: 3})
	frames := numbered(0, 100)
	a.send(t, frames...)
	for i, g := range b.got(t) {
		flipped := 0
		for k := range g {
			flipped += bits.OnesCount8(g[k] ^ frames[i][k])
		}
		if len(g) != len(frames[i]) || flipped != 3 && flipped != 1 {
			t.Errorf("%d bits are different", flipped)
		}
	}
	if c := w().Corrupted; c != 100 {
		t.Errorf("%d corrupted", c)
	}
	if s := stats(b.port); s.Drops[engine.DropInjected] != uint64(lost) {
		t.Errorf("%v", &s.Drops)
	}
	cable.SetFaultsFrom("a", Faults{Loss: 1})
	a.send(t, numbered(0, 10)...)
	equal(t, "all lost", len(b.got(t)), 0)
}

// trace runs a program on a network of four ports with every fault, and returns a digest of all
// that was received, and when.
func trace(t *testing.T, seed uint64) (sum string) {
	synctest.Test(t, func(t *testing.T) {
		n := network(t, Options{Seed: seed, Shared: true})
		names := []string{"a", "b", "c", "d"}
		var ends []*end
		for _, name := range names {
			ends = append(ends, newEnd(t, n, name, 4096))
			l, err := n.Cable(name)
			if err == nil {
				err = l.SetFaults(Faults{Loss: 0.05, Corrupt: 0.05, Duplicate: 0.05, Rate: 50e6, Queue: 10,
					Delay:  100 * time.Microsecond,
					Jitter: 50 * time.Microsecond, Shape: Normal, Reorder: 0.05})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		flap, _ := n.Cable("d")
		n.At(time.Now().Add(20*time.Millisecond), func() { flap.SetUp(false) })
		n.At(time.Now().Add(30*time.Millisecond), func() { flap.SetUp(true) })
		var all sync.WaitGroup
		sums := make([]hash.Hash, len(ends))
		for i, e := range ends {
			sums[i] = sha256.New()
			all.Go(func() {
				for k := range 60 {
					var frames [][]byte
					for j := range 1 + (i+k)%20 {
						frames = append(frames, udp(byte(i), byte((i+j)%4), 1, 2, fmt.Sprint(k, j)))
					}
					e.send(t, frames...)
					time.Sleep(time.Duration(900+i) * time.Microsecond)
					take(t, e.rx, func(b *burst.Burst, p int) int {
						ns, _ := b.Time(p)
						binary.Write(sums[i], binary.BigEndian, ns)
						sums[i].Write(b.Bytes(p, 0))
						return 0
					})
				}
			})
		}
		all.Wait()
		time.Sleep(time.Second)
		l := balanced(t, n)
		if l.Drops[engine.DropInjected] == 0 || l.Drops[engine.DropQueueFull] == 0 || l.Drops[engine.DropDown] == 0 ||
			l.Made == 0 {
			t.Errorf("faults that did not happen:\n%v", l)
		}
		s := sha256.New()
		for _, h := range sums {
			s.Write(h.Sum(nil))
		}
		fmt.Fprint(s, l)
		sum = fmt.Sprintf("%x", s.Sum(nil))
	})
	return sum
}

// TestDeterminism: the same seed, the same bytes at the same nanoseconds, and the same ledger.
func TestDeterminism(t *testing.T) {
	first := trace(t, 1)
	for range 3 {
		if again := trace(t, 1); again != first {
			t.Fatal("two runs with the same seed differ")
		}
	}
	if other := trace(t, 2); other == first {
		t.Error("the seed makes no difference")
	}
}

// TestLedgerProperty: whatever a random program does to a random network with random faults, the
// accounts balance at each step.
func TestLedgerProperty(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		synctest.Test(t, func(t *testing.T) { randomProgram(t, r) })
	})
}

func randomProgram(t *testing.T, r *rapid.T) {
	n := network(t, Options{Seed: rapid.Uint64().Draw(r, "seed"), MTU: 300, Shared: true})
	names := []string{"a", "b", "c"}
	if rapid.Bool().Draw(r, "links") { // else all are on the segment
		n.Link("a", "b")
		n.Loop("c")
	}
	small, big := pool(t, "small", 128, 40), pool(t, "big", 512, 300)
	pools := []*mem.Pool{small, big}
	share := rapid.SampledFrom([]float64{0, 0, 0.1, 0.5})
	duration := rapid.SampledFrom([]time.Duration{0, 0, time.Microsecond, time.Millisecond})
	faults := rapid.Custom(func(r *rapid.T) Faults {
		return Faults{Loss: share.Draw(r, "loss"), Corrupt: share.Draw(r, "corrupt"),
			Duplicate: share.Draw(r, "duplicate"),
			Rate:      rapid.SampledFrom([]uint64{0, 0, 1e6, 1e9}).Draw(r, "rate"),
			Queue:     rapid.IntRange(0, 20).Draw(r, "queue"),
			Delay:     duration.Draw(r, "delay"), Jitter: duration.Draw(r, "jitter"), Reorder: share.Draw(r, "reorder"),
			InFlight: rapid.IntRange(0, 30).Draw(r, "in flight")}
	})
	port := map[string]engine.Port{}
	type queues struct {
		tx engine.TxQueue
		rx engine.RxQueue
	}
	open := map[string]*queues{}
	b := burst.NewSegmented(64, 128)
	name := rapid.SampledFrom(names)
	r.Repeat(map[string]func(*rapid.T){
		"open": func(r *rapid.T) {
			k := name.Draw(r, "port")
			if port[k] != nil {
				return
			}
			p, err := n.OpenPort(t.Context(), engine.PortSpec{Address: k})
			if err != nil {
				r.Fatal(err)
			}
			m := rapid.SampledFrom(pools)
			q := &queues{}
			q.tx = addTx(t, p, engine.TxSpec{Depth: 64, Pools: []*mem.Pool{m.Draw(r, "tx pool")}})
			spec := engine.RxSpec{Depth: rapid.IntRange(1, 50).Draw(r, "depth"),
				Pools: []*mem.Pool{m.Draw(r, "rx pool")}}
			if rapid.Bool().Draw(r, "split") {
				spec.Pools = append(spec.Pools, m.Draw(r, "payload pool"))
			}
			q.rx = addRx(t, p, spec)
			port[k], open[k] = p, q
		},
		"close": func(r *rapid.T) {
			k := name.Draw(r, "port")
			if port[k] != nil {
				port[k].Close()
				delete(port, k)
			}
		},
		"send": func(r *rapid.T) {
			k := name.Draw(r, "port")
			if port[k] == nil {
				return
			}
			got, err := open[k].tx.Alloc(b, rapid.IntRange(0, 64).Draw(r, "packets"), 100)
			if got == 0 && err != engine.ErrNoBuffers && err != nil {
				r.Fatal(err)
			}
			for i := range got {
				b.SetLen(i, 0, rapid.IntRange(0, b.SegmentCap(i, 0)).Draw(r, "length"))
				copy(b.Bytes(i, 0), udp(byte(rapid.IntRange(0, 5).Draw(r, "from")),
					byte(rapid.IntRange(0, 5).Draw(r, "to")), 1, 2, ""))
			}
			if err := open[k].tx.Send(b); err != nil {
				r.Fatal(err)
			}
		},
		"receive": func(r *rapid.T) {
			k := name.Draw(r, "port")
			if port[k] == nil {
				return
			}
			open[k].rx.TryRecv(b)
			if rapid.Bool().Draw(r, "forward") {
				if m, _ := open[k].tx.Forward(b); m != b.Live() {
					r.Fatalf("Forward: %d of %d", m, b.Live())
				}
				open[k].tx.Send(b)
			}
			b.Release()
		},
		"faults": func(r *rapid.T) {
			if l, err := n.Cable(name.Draw(r, "port")); err == nil {
				if err := l.SetFaults(faults.Draw(r, "faults")); err != nil {
					r.Fatal(err)
				}
			}
		},
		"link": func(r *rapid.T) {
			if l, err := n.Cable(name.Draw(r, "port")); err == nil {
				l.SetUp(rapid.Bool().Draw(r, "up"))
			}
		},
		"wait": func(r *rapid.T) { time.Sleep(duration.Draw(r, "time")) },
		"": func(r *rapid.T) {
			if l := n.Ledger(); l.Err() != nil {
				r.Fatalf("%v\n%v", l.Err(), l)
			}
		},
	})
	n.Close()
	l := n.Ledger()
	if l.Err() != nil || l.Held != 0 {
		r.Fatalf("at the end: %v\n%v", l.Err(), l)
	}
	for _, m := range pools {
		if out := m.Stats().InUse; out != 0 {
			r.Fatalf("%d slots of pool %s are out at the end", out, m.Name())
		}
	}
}

// TestCloseUnderLoad closes ports, queues and the network while four goroutines send and receive,
// and reads the accounts all the time.
func TestCloseUnderLoad(t *testing.T) {
	for _, f := range []Faults{{}, {Loss: 0.1, Duplicate: 0.1, Delay: 50 * time.Microsecond, Rate: 1e9}} {
		n := network(t, Options{Seed: 1, Shared: true})
		m := pool(t, "all", 256, 2000)
		started := make(chan struct{}, 8)
		var all sync.WaitGroup
		work := func(name string) {
			p, err := n.OpenPort(t.Context(), engine.PortSpec{Address: name})
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close()
			if l, err := n.Cable(name); err != nil || name < "c" && l.SetFaults(f) != nil {
				t.Error(err)
			}
			tx, rx := addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{m}}),
				addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{m}, Depth: 100})
			b := burst.New(32)
			frame := udp(name[0], 'a'+(name[0]-'a'+1)%4, 1, 2, "payload")
			for k := 0; ; k++ {
				got, err := tx.Alloc(b, 20, len(frame))
				if err == engine.ErrClosed {
					return
				}
				for i := range got {
					copy(b.Bytes(i, 0), frame)
				}
				tx.Send(b)
				if _, err := rx.TryRecv(b); err == engine.ErrClosed {
					b.Release()
					return
				}
				b.Release()
				if k == 50 {
					started <- struct{}{}
				}
				if k > 50 && k%100 == 0 && name == "c" {
					if err := rx.Close(); err != nil {
						t.Error(err)
					}
					if rx, err = p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{m}}); err != nil {
						return
					}
				}
			}
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			all.Go(func() { work(name) })
		}
		for range 4 {
			<-started
		}
		for range 50 {
			balanced(t, n)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		all.Wait()
		if l := balanced(t, n); l.Held != 0 || l.Sent == 0 {
			t.Errorf("%v", l)
		}
		if out := m.Stats().InUse; out != 0 {
			t.Errorf("%d slots are out", out)
		}
	}
}

func TestAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, cable, a, b := pair(t, 1, Faults{})
		start := time.Now()
		n.At(start.Add(2*time.Second), func() { cable.SetUp(true) })
		synctest.Wait() // the goroutine sleeps until then, and is to wake earlier
		n.At(start.Add(time.Second), func() { cable.SetUp(false) })
		n.At(start.Add(time.Hour), func() { t.Error("called after Close") })
		for i := range 30 {
			a.send(t, numbered(i, i+1)...)
			time.Sleep(100*time.Millisecond + time.Microsecond)
		}
		got := b.payloads(t)
		if len(got) != 20 || got[9] != "9" || got[10] != "20" {
			t.Errorf("received %v", got)
		}
		if b.port.Info().Up != true {
			t.Error("the link is down")
		}
	})
}
