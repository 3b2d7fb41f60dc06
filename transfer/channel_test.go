package transfer

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/inbox"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// channelOf is the channel of a peer that is set up.
func channelOf(t testing.TB, p *Peer, name string) *channel {
	t.Helper()
	ch, err := p.openedChannel(name)
	if ch == nil {
		t.Fatalf("no %s channel: %v", name, err)
	}
	return ch
}

// One small put with nothing in flight is handed to the path at once, by the caller itself. Those
// that come while it is under way wait for each other, and then share one call of the path and
// about one of the kernel.
func TestBatching(t *testing.T) {
	d := over("tcp")
	var mu sync.Mutex
	var calls []int // operations of each Post
	var syscalls []uint64
	closed := true // events are held back
	d.post = func(p path.Path, ops []path.Op) (int, error) {
		before := p.Stats().Syscalls
		n, err := p.Post(ops)
		mu.Lock()
		calls = append(calls, n)
		syscalls = append(syscalls, p.Stats().Syscalls-before)
		mu.Unlock()
		return n, err
	}
	d.poll = func(p path.Path, events []path.Event) int {
		mu.Lock()
		defer mu.Unlock()
		if closed {
			return 0
		}
		return p.Poll(events)
	}
	gate := func(shut bool) {
		mu.Lock()
		closed, calls, syscalls = shut, nil, nil
		mu.Unlock()
	}
	seen := func() ([]int, []uint64) {
		mu.Lock()
		defer mu.Unlock()
		return calls, syscalls
	}
	gate(false)
	p := newPair(t, Options{Paths: []setup.Driver{d}})
	export(t, p.b, region(t, 4096), "dst", path.Write)
	rem, src := lookup(t, p.ab, "dst"), region(t, 4096)
	put := func() *Transfer {
		local, _ := src.Span(0, 64)
		x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, local)}, PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	wait(t, put(), nil)
	ch := channelOf(t, p.ab, "tcp")
	ch.mu.Lock()
	ch.batch.Delay = time.Hour // so that only count, bytes and completions flush
	ch.mu.Unlock()
	gate(true)
	all := []*Transfer{put()}
	handed := func(calls int) { // by put, or by the loop, if it has the channel at that moment
		until(t, "the operations at the path", func() bool { c, _ := seen(); return len(c) == calls })
	}
	handed(1)
	if c, _ := seen(); c[0] != 1 {
		t.Fatalf("a single put was handed over in calls of %v operations", c)
	}
	for range 15 {
		all = append(all, put())
	}
	if c, _ := seen(); len(c) != 1 {
		t.Fatalf("15 puts behind one in flight were handed over as %v", c)
	}
	all = append(all, put())
	handed(2)
	c, s := seen()
	if c[1] != 16 {
		t.Fatalf("16 puts were handed over as %v", c)
	}
	if s[1] > 2 {
		t.Errorf("16 puts cost %d system calls", s[1])
	}
	// Five more: too few, until what is in flight has ended.
	for range 5 {
		all = append(all, put())
	}
	if c, _ := seen(); len(c) != 2 {
		t.Fatalf("5 puts behind 17 in flight were handed over as %v", c)
	}
	gate(false)
	p.a.loop.Kick(ch)
	for _, x := range all {
		wait(t, x, nil)
		addsUp(t, x)
	}
}

// A fence finds the window full: it is posted later, and the revocation succeeds.
func TestFenceWhenTheWindowIsFull(t *testing.T) {
	d := over("tcp")
	var refused atomic.Int64
	d.post = func(p path.Path, ops []path.Op) (int, error) {
		if ops[0].Kind == path.Fence && refused.Add(1) <= 3 {
			return 0, path.ErrFull
		}
		return p.Post(ops)
	}
	p := newPair(t, Options{Paths: []setup.Driver{d}})
	r := region(t, 4096)
	x := export(t, p.b, r, "dst", path.Write)
	y, err := p.ab.Notify(ctx(t), nil, PutOptions{})
	wait(t, y, err)
	done := make(chan struct{})
	var rerr error
	go func() {
		rerr = x.Revoke(ctx(t))
		close(done)
	}()
	for end := false; !end; { // completions make room
		select {
		case <-done:
			end = true
		default:
			y, err := p.ba.Notify(ctx(t), nil, PutOptions{})
			wait(t, y, err)
		}
	}
	if rerr != nil {
		t.Fatal(rerr)
	}
	r.Close()
	soon(t, r.Unmapped(), "the end of the export's lease")
}

// The window is smaller than what is handed over, so the path refuses the rest again and again:
// order and count hold.
func TestRefusedOperationsKeepTheirOrder(t *testing.T) {
	d := over("tcp")
	var n atomic.Int64
	d.post = func(p path.Path, ops []path.Op) (int, error) {
		if k := int(n.Add(1)) % 5; k < len(ops) { // accepts 0 to 4
			if k == 0 {
				k = 1
			}
			done, err := p.Post(ops[:k])
			if err == nil && done < len(ops) {
				err = path.ErrFull
			}
			return done, err
		}
		return p.Post(ops)
	}
	p := newPair(t, Options{Paths: []setup.Driver{d}, Streams: 1})
	const count = 3000
	var last *Transfer
	for i := range count {
		x, err := p.ab.Notify(ctx(t), binary.BigEndian.AppendUint32(nil, uint32(i)), PutOptions{})
		if i == 0 {
			wait(t, x, err) // the channel exists: order holds from here
		} else if err != nil {
			t.Fatal(err)
		}
		last = x
	}
	wait(t, last, nil)
	for i := range count {
		if in := <-p.heard; binary.BigEndian.Uint32(in.Msg) != uint32(i) {
			t.Fatalf("notification %d is number %d", i, binary.BigEndian.Uint32(in.Msg))
		}
	}
}

// A path refuses one operation in the middle of a large transfer: that one fails, once, and those
// behind it succeed.
func TestRefusedPiece(t *testing.T) {
	d := over("tcp")
	bad := errors.New("this one never")
	var left atomic.Int64
	left.Store(3)
	d.post = func(p path.Path, ops []path.Op) (int, error) {
		for i, op := range ops {
			if op.Bytes() >= ShareSize && left.Add(-1) == 0 {
				n, err := 0, error(nil)
				if i > 0 {
					n, err = p.Post(ops[:i])
				}
				if n == i {
					err = bad
				}
				return n, err
			}
		}
		return p.Post(ops)
	}
	p := newPair(t, Options{Paths: []setup.Driver{d}})
	size := 4 * PieceSize
	src, dst := region(t, size), region(t, size)
	export(t, p.b, dst, "dst", path.Write)
	rem := lookup(t, p.ab, "dst")
	small, _ := src.Span(0, 64)
	y, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, small)}, PutOptions{})
	wait(t, y, err)
	calls := make(chan *Transfer, 4)
	x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	x.OnDone(func(x *Transfer) { calls <- x })
	y, err = p.ab.Put(ctx(t), []path.Copy{rem.At(0, small)}, PutOptions{})
	wait(t, y, err)
	soon(t, x.Done(), "the end of the refused transfer")
	if !errors.Is(x.Err(), bad) {
		t.Errorf("ended with %v", x.Err())
	}
	addsUp(t, x)
	<-calls
	src.Close()
	soon(t, src.Unmapped(), "the return of the leases")
	if len(calls) != 0 {
		t.Error("it ended twice")
	}
}

// The application is slow: the receiver holds the sender back, nothing grows without bound, no
// goroutine spins, and nothing is lost.
func TestSlowConsumer(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Options{})
			open, blocked := make(chan struct{}), make(chan struct{}, 1)
			p.b.opts.OnTransfer = func(i Incoming) {
				select {
				case blocked <- struct{}{}:
				default:
				}
				<-open
				p.heard <- i
			}
			// More than the inbox, the window and the kernel's buffers hold together.
			const count = 6000
			p.heard = make(chan Incoming, count)
			export(t, p.b, region(t, 4096), "dst", path.Write)
			rem, src := lookup(t, p.ab, "dst"), region(t, 4096)
			local, _ := src.Span(0, 64)
			var ended atomic.Int64
			pad := make([]byte, MaxPayload-4)
			var all []*Transfer
			for i := range count {
				o := PutOptions{Paths: []string{name},
					Msg: append(binary.BigEndian.AppendUint32(nil, uint32(i)), pad...)}
				x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, local)}, o)
				if err != nil {
					t.Fatal(err)
				}
				if i == 0 {
					wait(t, x, nil)
				}
				x.OnDone(func(*Transfer) { ended.Add(1) })
				all = append(all, x)
			}
			<-blocked
			// It has come to rest when nothing ends any more for a while.
			for before := int64(-1); before != ended.Load(); {
				before = ended.Load()
				<-time.After(100 * time.Millisecond)
			}
			if n := ended.Load(); n == count {
				t.Error("nothing was held back")
			}
			waiting := p.ba.inbox.Len()
			if waiting > inbox.Max+64 {
				t.Errorf("%d notifications wait in the inbox", waiting)
			}
			if share := cpuShare(t, 400*time.Millisecond); share > 0.3 {
				t.Errorf("waiting for the application took %.0f %% of a core", 100*share)
			}
			close(open)
			for i := range count {
				select {
				case in := <-p.heard:
					if n := binary.BigEndian.Uint32(in.Msg); n != uint32(i) {
						t.Fatalf("heard number %d as the %d-th", n, i)
					}
				case <-ctx(t).Done():
					t.Fatalf("only %d of %d were delivered", i, count)
				}
			}
			for _, x := range all {
				wait(t, x, nil)
			}
			if len(p.heard) != 0 {
				t.Errorf("%d were delivered again", len(p.heard))
			}
		})
	}
}

// Progress never falls, and each callback comes once, while others cancel at any moment.
func TestProgressAndCallbacks(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Options{})
			size := 2*PieceSize + 4096
			src, dst := region(t, size), region(t, size)
			export(t, p.b, dst, "dst", path.Write|path.Read)
			rem := lookup(t, p.ab, "dst")
			rng := rand.New(rand.NewPCG(1, 2))
			var wg sync.WaitGroup
			for i := range 40 {
				span := src.All()
				if i%2 == 1 {
					span.Len = 1 + uint64(rng.IntN(8192))
				}
				do := p.ab.Put
				if i%4 >= 2 {
					do = p.ab.Get
				}
				x, err := do(ctx(t), []path.Copy{rem.At(0, span)}, PutOptions{Paths: []string{name}})
				if err != nil {
					t.Fatal(err)
				}
				var calls atomic.Int64
				called := make(chan struct{}, 3)
				for range 2 {
					x.OnDone(func(*Transfer) { calls.Add(1); called <- struct{}{} })
				}
				wg.Add(2)
				after := rng.IntN(3) * 40
				go func() {
					defer wg.Done()
					for last := 0.0; ; {
						now := x.Progress()
						if now < last || now > 1 {
							t.Errorf("progress went from %v to %v", last, now)
						}
						last = now
						select {
						case <-x.Done():
							if x.Err() == nil && x.Progress() != 1 {
								t.Errorf("done at %v", x.Progress())
							}
							return
						default:
							runtime.Gosched()
						}
					}
				}()
				go func() {
					defer wg.Done()
					if after < 80 {
						for range after {
							runtime.Gosched()
						}
						x.Cancel()
						x.Cancel()
					}
					soon(t, x.Done(), "the end of a transfer")
					x.OnDone(func(*Transfer) { calls.Add(1); called <- struct{}{} })
					for range 3 {
						<-called
					}
					if x.Cancel() {
						t.Error("a transfer that has ended can be canceled")
					}
					if n := calls.Load(); n != 3 {
						t.Errorf("3 callbacks were called %d times", n)
					}
					if err := x.Err(); err != nil && !errors.Is(err, path.ErrCanceled) {
						t.Errorf("ended with %v", err)
					}
					addsUp(t, x)
				}()
			}
			wg.Wait()
			src.Close()
			soon(t, src.Unmapped(), "the return of the leases")
		})
	}
}
