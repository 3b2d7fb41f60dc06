package transfer

import (
	"context"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/path"
)

// descriptors are the open descriptors of this process, by what they are of.
func descriptors(t testing.TB) map[string]int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, d := range all {
		to, err := os.Readlink("/proc/self/fd/" + d.Name())
		if err != nil {
			continue // the descriptor of the directory
		}
		to, _, _ = strings.Cut(to, ":[")
		out[to]++
	}
	return out
}

// mappings is how many mappings of memfds this process has.
func mappings(t testing.TB) (n int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(b)) {
		if strings.Contains(l, "/memfd:") {
			n++
		}
	}
	return n
}

func total(of map[string]int) (n int) {
	for _, k := range of {
		n += k
	}
	return n
}

// heap is what the heap holds after everything that is garbage has gone.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestSessionsLeaveNothing: a session that ended leaves no descriptor, no mapping and no memory
// behind, whatever it was used for.
func TestSessionsLeaveNothing(t *testing.T) {
	uses := map[string]func(t *testing.T, n *Node, accepting *Node, p *Peer, r *path.Copy){}
	use := func(name string, f func(t *testing.T, n, accepting *Node, p *Peer, c *path.Copy)) { uses[name] = f }
	for _, via := range paths {
		use("put/"+via, func(t *testing.T, n, _ *Node, p *Peer, c *path.Copy) {
			x, err := p.Put(ctx(t), []path.Copy{*c}, PutOptions{Paths: []string{via}})
			wait(t, x, err)
		})
		use("get/"+via, func(t *testing.T, n, _ *Node, p *Peer, c *path.Copy) {
			x, err := p.Get(ctx(t), []path.Copy{*c}, PutOptions{Paths: []string{via}})
			wait(t, x, err)
		})
		for _, first := range []string{"opener", "accepter"} {
			use("queue/"+via+"/"+first+" closes first", func(t *testing.T, n, accepting *Node, p *Peer, c *path.Copy) {
				q, err := p.OpenQueue(ctx(t), QueueOptions{Path: via, Name: "q"})
				if err != nil {
					t.Fatal(err)
				}
				other, err := accepting.AcceptQueue(ctx(t), "q")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := q.Post([]path.Op{{Kind: path.Get, Copies: []path.Copy{*c}}}); err != nil {
					t.Fatal(err)
				}
				for done := false; !done; {
					var events [4]path.Event
					other.Poll(events[:])
					for i := range q.Poll(events[:]) {
						done = done || events[i].Kind == path.EventDone
					}
				}
				if first == "accepter" {
					q, other = other, q
				}
				q.Close()
				other.Close()
			})
		}
	}
	use("borrow", func(t *testing.T, n, _ *Node, p *Peer, c *path.Copy) {
		v, err := p.Borrow(ctx(t), p.Import(path.Desc{Key: c.Key, Size: c.Local.Len, Rights: path.Read, Whole: true}),
			0, 16)
		if err != nil {
			t.Fatal(err)
		}
		v.Release()
	})
	use("nothing", func(t *testing.T, n, _ *Node, p *Peer, c *path.Copy) {})
	for _, name := range slices.Sorted(maps.Keys(uses)) {
		t.Run(name, func(t *testing.T) {
			peers := make(chan *Peer, 1)
			a := open(t, Options{Name: "a"})
			b := open(t, Options{Name: "b", Listen: []string{"tcp://127.0.0.1:0"}, OnPeer: func(p *Peer) {
				peers <- p
			}})
			b.AcceptQueues("q")
			export(t, b, region(t, 1<<16), "x", path.Read|path.Write)
			local := region(t, 1<<16)
			cycle := func() {
				p, err := a.Dial(ctx(t), b.Addrs()[0])
				if err != nil {
					t.Fatal(err)
				}
				c := lookup(t, p, "x").At(0, local.All())
				uses[name](t, a, b, p, &c)
				p.Close()
				soon(t, (<-peers).Gone(), "the end of the accepting side")
			}
			const warm, cycles = 40, 120
			const perSession = 16 << 10 // what events and statistics keep of a session, up to a bound
			for range warm {
				cycle()
			}
			before, mapped, held := descriptors(t), mappings(t), heap()
			for range cycles {
				cycle()
			}
			// A closed path keeps something until its peer has let go; the node's loop frees it
			// when it notices.
			for end := ctx(t); total(descriptors(t)) > total(before) && end.Err() == nil; {
				runtime.Gosched()
			}
			if now := descriptors(t); total(now) > total(before) {
				t.Errorf("descriptors after %d more sessions: %v, before: %v", cycles, now, before)
			}
			if now := mappings(t); now > mapped {
				t.Errorf("%d mappings after %d more sessions, %d before", now, cycles, mapped)
			}
			now := heap()
			for end := ctx(t); now > held+cycles*perSession && end.Err() == nil; now = heap() {
				// goroutines of the last sessions may still be ending
				runtime.Gosched()
			}
			if now > held+cycles*perSession {
				t.Errorf("%d bytes in the heap after %d more sessions, %d before", now, cycles, held)
			}
			t.Logf("%d bytes of a session stay", (int64(now)-int64(held))/cycles)
		})
	}
}

// TestSetupWithoutDescriptors: a session, path or queue that cannot be set up because the process
// has no descriptor left gives back those that it had, at whichever of them it failed.
func TestSetupWithoutDescriptors(t *testing.T) {
	var all syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &all); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &all)
	a := open(t, Options{Name: "a"})
	b := open(t, Options{Name: "b", Listen: []string{"tcp://127.0.0.1:0"}})
	b.AcceptQueues("q")
	export(t, b, region(t, 1<<16), "x", path.Read|path.Write)
	local := region(t, 1<<16)
	var failed error
	use := func(via string) error {
		// the dial may wait for the other side, which has no descriptor
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		p, err := a.Dial(ctx, b.Addrs()[0])
		if err != nil {
			return err
		}
		defer p.Close()
		r, err := p.Lookup(ctx, "x")
		if err != nil {
			return err
		}
		x, err := p.Put(ctx, []path.Copy{r.At(0, local.All())}, PutOptions{Paths: []string{via}})
		if err == nil {
			err = x.Wait(ctx)
		}
		if err != nil {
			return err
		}
		q, err := p.OpenQueue(ctx, QueueOptions{Path: via, Name: "q"})
		if err != nil {
			return err
		}
		defer q.Close()
		other, err := b.AcceptQueue(ctx, "q")
		if err != nil {
			return err
		}
		return other.Close()
	}
	for _, via := range paths {
		t.Run(via, func(t *testing.T) {
			for range 3 {
				if err := use(via); err != nil {
					t.Fatal(err)
				}
			}
			next := fillDescriptors(t)
			before := descriptors(t)
			ok := false
			for more := uint64(0); !ok && more < 64; more++ {
				limit := all
				limit.Cur = next + more
				if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
					t.Fatal(err)
				}
				failed = use(via)
				ok = failed == nil
				if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &all); err != nil {
					t.Fatal(err)
				}
			}
			if !ok {
				t.Fatal(failed)
			}
			for end := ctx(t); total(descriptors(t)) > total(before) && end.Err() == nil; {
				runtime.Gosched()
			}
			if now := descriptors(t); total(now) > total(before) {
				t.Errorf("descriptors after the failures: %v, before: %v", now, before)
			}
		})
	}
}

// fillDescriptors takes the free numbers below the highest descriptor of this process until the
// test ends, and returns the next number.
func fillDescriptors(t *testing.T) uint64 {
	t.Helper()
	for {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		above := false
		for _, e := range open {
			n, _ := strconv.Atoi(e.Name())
			_, err := os.Lstat("/proc/self/fd/" + e.Name()) // the directory's own descriptor is closed again
			above = above || err == nil && n > int(f.Fd())
		}
		if !above {
			return uint64(f.Fd()) + 1
		}
	}
}
