package engine

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/burst"
)

// Several goroutines send through a device that is full again and again and keeps packets, and it
// is closed under them: each packet is sent once or dropped, those of one goroutine in order, and
// all descriptors and slots come back.
func TestOutboxStress(t *testing.T) {
	rounds := 150
	if testenv.Race || testenv.Invariants {
		rounds = 50
	}
	for seed := range testenv.Rounds(4) {
		for mode := range 8 {
			outboxStress(t, uint64(seed), mode, rounds)
		}
	}
}

func outboxStress(t *testing.T, seed uint64, mode, rounds int) {
	const senders, depth = 3, 64
	p := newPackets(t, 200)
	d := &device{async: mode&1 != 0, keeps: mode&2 != 0}
	r := rand.New(rand.NewPCG(seed, uint64(mode)))
	wake := make(chan struct{}, 1)
	if mode&4 != 0 {
		d.every = 10 * time.Microsecond // tries again by itself, and is kicked besides
	}
	d.onCall = func(int) {
		d.room = r.IntN(2 * depth)
		if r.IntN(3) == 0 {
			d.room = 0
		}
		if d.held != nil {
			d.room = min(d.room, d.held.Room())
		}
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	o := newOutbox(t, d, depth)
	end, over := make(chan struct{}), make(chan struct{})
	go func() { // the device's interrupts
		defer close(over)
		for {
			select {
			case <-wake:
				runtime.Gosched()
				d.allow(0)
			case <-end:
				return
			}
		}
	}()
	var refused, reserved atomic.Uint64
	closeAt := -1
	if seed%2 == 1 {
		closeAt = rounds / 2
	}
	var wg sync.WaitGroup
	for id := range uint64(senders) {
		rs := rand.New(rand.NewPCG(seed, id))
		wg.Go(func() {
			b, c := burst.New(128), burst.New(128)
			next := id << 32
			for round := range rounds {
				if id == 0 && round == closeAt {
					o.Close()
					d.mu.Lock()
					d.closed = true
					d.mu.Unlock()
				}
				n := p.alloc(o, b, 1+rs.IntN(40), next)
				if n == 0 {
					runtime.Gosched()
					continue
				}
				switch rs.IntN(8) {
				case 0:
					b.Release() // changed our mind
					continue
				case 1: // in two parts
					c2 := burst.New(1 + rs.IntN(n))
					k := b.MoveTo(c2)
					reserved.Add(uint64(k))
					if o.Send(c2) != nil {
						refused.Add(uint64(k))
					}
					next += uint64(k)
					n -= k
				case 2: // through another burst
					b.MoveTo(c)
					b, c = c, b
				case 3:
					k := rs.IntN(n)
					b.Truncate(k)
					n = k
				}
				reserved.Add(uint64(n))
				next += uint64(n)
				if err := o.Send(b); err != nil {
					refused.Add(uint64(n))
				}
				if rs.IntN(16) == 0 && closeAt < 0 {
					if err := o.Drain(t.Context()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if closeAt < 0 {
		if err := o.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	}
	o.Close()
	close(end)
	<-over
	d.allow(0)
	var drops Drops
	o.AddDrops(&drops)
	if got, want := uint64(len(d.got))+drops[DropClosed], reserved.Load(); got != want ||
		drops.Total() != drops[DropClosed] {
		t.Errorf("seed %d mode %d: sent %d and dropped %v of %d", seed, mode, len(d.got), drops.String(), want)
	}
	if drops[DropClosed] < refused.Load() || closeAt < 0 && drops.Total() != 0 {
		t.Errorf("seed %d mode %d: dropped %v, refused %d", seed, mode, drops.String(), refused.Load())
	}
	next := [senders]uint64{}
	for _, n := range d.got {
		id := n >> 32
		if n&(1<<32-1) < next[id] {
			t.Fatalf("seed %d mode %d: packet %#x came late", seed, mode, n)
		}
		next[id] = n&(1<<32-1) + 1
	}
}

func TestOutboxAllocs(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace|testenv.WithInvariants, "this build allocates for its checks")
	p := newPackets(t, 256)
	for _, room := range []int{1 << 30, 0} {
		d := &device{room: room}
		o := newOutbox(t, d, 128)
		d.got, d.when = make([]uint64, 0, 1<<17), make([]time.Time, 0, 1<<17)
		b := burst.New(64)
		if n := testing.AllocsPerRun(200, func() {
			p.alloc(o, b, 64, 0)
			o.Send(b)
			if room == 0 { // the long way, over the goroutine
				d.allow(64)
				for o.Queued() > 0 {
					runtime.Gosched()
				}
			}
		}); n != 0 {
			t.Errorf("room %d: %v allocations", room, n)
		}
	}
}

type nullSink struct{}

func (nullSink) Transmit(_ *burst.Burst, _, to int) (int, time.Time) { return to, time.Time{} }

// Reserve, Send and release of 64 packets by one goroutine, without the pool. "fill" is the part
// that makes the burst.
func BenchmarkOutboxDirect(b *testing.B) {
	const n = 64
	o, err := NewOutbox(nullSink{}, 1024, false)
	if err != nil {
		b.Fatal(err)
	}
	defer o.Close()
	src := burst.NewSource(nil, nil, nobody{})
	bu := burst.New(n)
	run := func(name string, end func()) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			before, err := sys.ProcessCPU()
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				for i := range uint64(n) {
					bu.Builder().Add(src, burst.Segment{Handle: burst.Handle(i), Len: 64})
				}
				end()
			}
			after, _ := sys.ProcessCPU()
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/packet")
			b.ReportMetric(float64((after-before).Nanoseconds())/float64(b.N*n), "cpu-ns/packet") // on a busy machine
		})
	}
	run("fill", bu.Builder().Forget)
	run("send", func() {
		bu.Builder().Reserve(o, o.Reserve(n))
		o.Send(bu)
	})
}

type nobody struct{}

func (nobody) Reclaim([]burst.Handle) {}

// pacer is a device that takes one packet each interval.
type pacer struct {
	o        *Outbox
	async    bool
	interval time.Duration
	free     time.Time
	got      []uint64
	when     []time.Time
}

func (d *pacer) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	for i := from; i < to; i++ {
		now := time.Now()
		if now.Before(d.free) {
			return i, d.free
		}
		d.free = now.Add(d.interval)
		d.got, d.when = append(d.got, number(b, i)), append(d.when, now)
		if d.async {
			d.o.Complete(1)
		}
	}
	return to, time.Time{}
}

// However packets are cut into bursts, whenever they come, and however often the test kicks: each
// leaves at once if the device is free, or else exactly when it is.
func TestOutboxPaced(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			p := newPackets(t, 64)
			d := &pacer{async: r.IntN(2) == 0, interval: time.Duration(1+r.IntN(5)) * time.Second}
			o, err := NewOutbox(d, 32, d.async)
			if err != nil {
				t.Fatal(err)
			}
			d.o = o
			defer o.Close()
			end := make(chan struct{})
			var kicking sync.WaitGroup
			kicking.Go(func() {
				for r := rand.New(rand.NewPCG(seed, 2)); ; {
					select {
					case <-end:
						return
					case <-time.After(time.Duration(1 + r.IntN(7e9))):
						o.Kick()
					}
				}
			})
			var want []time.Time
			b := burst.New(32)
			for range 40 {
				n := p.alloc(o, b, 1+r.IntN(8), uint64(len(want)))
				for range n {
					at := time.Now()
					if k := len(want); k > 0 && at.Before(want[k-1].Add(d.interval)) {
						at = want[k-1].Add(d.interval)
					}
					want = append(want, at)
				}
				if err := o.Send(b); err != nil {
					t.Fatal(err)
				}
				switch r.IntN(4) {
				case 0:
					time.Sleep(time.Duration(r.IntN(40)) * time.Second)
				case 1:
					time.Sleep(time.Duration(r.IntN(3e9)))
				case 2:
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(9))*time.Second)
					err := o.Drain(ctx)
					cancel()
					if now := time.Now(); err == nil && want[len(want)-1].After(now) {
						t.Errorf("seed %d: drained at %v, the last packet leaves at %v", seed, now, want[len(want)-1])
					}
				}
			}
			if err := o.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			close(end)
			kicking.Wait()
			if !slices.Equal(d.got, upTo(len(want))) || o.Free() != 32 || o.Queued() != 0 {
				t.Fatalf("seed %d: sent %v of %d", seed, d.got, len(want))
			}
			for i := range want {
				if !d.when[i].Equal(want[i]) {
					t.Fatalf("seed %d: packet %d left at %v, want %v", seed, i, d.when[i], want[i])
				}
			}
		})
	}
}
