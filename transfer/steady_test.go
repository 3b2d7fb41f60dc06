package transfer

import (
	"bytes"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/transfer/path"
)

// queues opens a queue and returns both of its ends.
func queues(t testing.TB, p *pair, name string) (qa, qb *Queue) {
	t.Helper()
	p.b.AcceptQueues("")
	qa, err := p.ab.OpenQueue(ctx(t), QueueOptions{Path: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { qa.Close() })
	if qb, err = p.b.AcceptQueue(ctx(t), ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { qb.Close() })
	return qa, qb
}

// mover returns a function that does one put over a queue, both of whose ends it polls.
func mover(t testing.TB, p *pair, name string) func() {
	export(t, p.b, region(t, 4096), "queue "+name, path.Write)
	rem, src := lookup(t, p.ab, "queue "+name), region(t, 4096)
	local, _ := src.Span(0, 64)
	qa, qb := queues(t, p, name)
	ops := []path.Op{{Kind: path.Put, Notify: true, Msg: make([]byte, 16), Token: 1,
		Copies: []path.Copy{rem.At(0, local)}}}
	ev := make([]path.Event, 16)
	return func() {
		if n, err := qa.Post(ops); n != 1 {
			t.Fatal(err)
		}
		for done, heard := false, false; !done || !heard; {
			for _, e := range ev[:qa.Poll(ev)] {
				if e.Kind != path.EventDone || e.Err != nil {
					t.Fatalf("%+v", e)
				}
				done = true
			}
			for _, e := range ev[:qb.Poll(ev)] {
				if e.Kind != path.EventNotify {
					t.Fatalf("%+v", e)
				}
				heard = true
			}
		}
	}
}

// putter returns a function that does k puts at once by the convenient API.
func putter(t testing.TB, p *pair, name string, k int) func() {
	export(t, p.b, region(t, 4096), "put "+name, path.Write)
	rem, src := lookup(t, p.ab, "put "+name), region(t, 4096)
	local, _ := src.Span(0, 64)
	copies := []path.Copy{rem.At(0, local)}
	o := PutOptions{Paths: []string{name}}
	all := make([]*Transfer, k)
	c := ctx(t)
	return func() {
		for i := range all {
			x, err := p.ab.Put(c, copies, o)
			if err != nil {
				t.Fatal(err)
			}
			all[i] = x
		}
		for _, x := range all {
			<-x.Done()
			if x.Err() != nil {
				t.Fatal(x.Err())
			}
			<-p.heard
		}
	}
}

func TestQueueAllocatesNothing(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace, "the race detector allocates")
	for _, name := range paths {
		move := mover(t, newPair(t, Options{}), name)
		move()
		if n := testing.AllocsPerRun(3000, move); n > 0 {
			t.Errorf("%s: %v allocations per put", name, n)
		}
	}
}

func openFiles(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// Memory, descriptors, goroutines and leases stay the same over many transfers.
func TestSteadyState(t *testing.T) {
	count := testenv.Rounds(100_000)
	for _, name := range paths {
		for _, how := range []string{"queue", "put"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				p := newPair(t, Options{})
				each := 1
				var work func()
				if how == "queue" {
					work = mover(t, p, name)
				} else {
					each = 200
					work = putter(t, p, name, each)
				}
				measure := func() (heap uint64, files, routines int) {
					runtime.GC()
					runtime.GC()
					var m runtime.MemStats
					runtime.ReadMemStats(&m)
					return m.HeapAlloc, openFiles(t), runtime.NumGoroutine()
				}
				for range count / each / 10 {
					work()
				}
				heap, files, routines := measure()
				for range count / each {
					work()
				}
				heap2, files2, routines2 := measure()
				if heap2 > heap+512<<10 || files2 > files || routines2 > routines+3 {
					t.Errorf("after %d more transfers: heap %d to %d bytes, files %d to %d, goroutines %d to %d",
						count, heap, heap2, files, files2, routines, routines2)
				}
				for _, ch := range []*Peer{p.ab, p.ba} {
					ch.mu.Lock()
					for _, l := range ch.paths {
						l.mu.Lock()
						if l.inflight != 0 || len(l.free) != len(l.slots) || l.queue.Len() != 0 || l.bulk != 0 ||
							l.bulkLen != 0 {
							t.Errorf("%d in flight, %d of %d slots free, %d queued", l.inflight, len(l.free),
								len(l.slots), l.queue.Len())
						}
						l.mu.Unlock()
					}
					ch.mu.Unlock()
				}
			})
		}
	}
}

// Many goroutines put and get random pieces of their own part of an export, over both paths; what
// each of them reads is what it wrote last.
func TestConcurrentModel(t *testing.T) {
	p := newPair(t, Options{})
	const workers, part = 12, 256 << 10
	dst := region(t, workers*part)
	export(t, p.b, dst, "dst", path.Read|path.Write)
	rem := lookup(t, p.ab, "dst")
	p.ignore(t)
	rounds := 150
	if testenv.Race {
		rounds = 50
	}
	var wg sync.WaitGroup
	model := make([][]byte, workers)
	for w := range workers {
		buf := region(t, part)
		model[w] = make([]byte, part)
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			for range rounds {
				var copies []path.Copy
				var at []uint64
				pos := uint64(0)
				for range 1 + rng.IntN(5) {
					pos += rng.Uint64N(part / 8)
					n := rng.Uint64N(part / 8)
					if pos+n > part {
						break
					}
					s, _ := buf.Span(pos, n)
					copies = append(copies, rem.At(uint64(w)*part+pos, s))
					at = append(at, pos)
					pos += n
				}
				o := PutOptions{Paths: paths[rng.IntN(2):][:1]}
				if rng.IntN(2) == 0 {
					for i, c := range copies {
						b := c.Local.Bytes()
						for k := range b {
							b[k] = byte(rng.Uint32())
						}
						copy(model[w][at[i]:], b)
					}
					x, err := p.ab.Put(ctx(t), copies, o)
					if err == nil {
						err = x.Wait(ctx(t))
					}
					if err != nil {
						t.Error(err)
						return
					}
					continue
				}
				for _, c := range copies {
					clear(c.Local.Bytes())
				}
				x, err := p.ab.Get(ctx(t), copies, o)
				if err == nil {
					err = x.Wait(ctx(t))
				}
				if err != nil {
					t.Error(err)
					return
				}
				for i, c := range copies {
					if !bytes.Equal(c.Local.Bytes(), model[w][at[i]:at[i]+c.Local.Len]) {
						t.Errorf("worker %d read other bytes than it wrote, %d at %d", w, c.Local.Len, at[i])
						return
					}
				}
			}
		}()
	}
	wg.Wait()
	for w := range workers {
		if !bytes.Equal(dst.All().Bytes()[w*part:][:part], model[w]) {
			t.Errorf("the export has other bytes than worker %d wrote", w)
		}
	}
}

// A node with idle peers uses next to no processor time, also after traffic, and with Spin once
// that time is over.
func TestIdleCostsNothing(t *testing.T) {
	for _, spin := range []time.Duration{-1, 0, 20 * time.Millisecond} {
		t.Run(spin.String(), func(t *testing.T) {
			p := newPair(t, Options{Spin: spin})
			for range 6 {
				if _, err := p.a.Dial(ctx(t), p.b.Addrs()[0]); err != nil {
					t.Fatal(err)
				}
			}
			var puts []func()
			for _, name := range paths {
				put := putter(t, p, name, 50)
				for range 20 {
					put()
				}
				puts = append(puts, put)
			}
			<-time.After(10 * spin)
			if share := cpuShare(t, 500*time.Millisecond); share > 0.2 {
				t.Errorf("an idle node takes %.0f %% of a core", 100*share)
			}
			for _, put := range puts { // it still wakes up
				put()
			}
		})
	}
}
