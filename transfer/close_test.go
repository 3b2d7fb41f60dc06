package transfer

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/path"
)

// Close comes at any moment: whatever is under way ends, and nothing is left (TestMain looks for
// goroutines).
func TestCloseAtAnyMoment(t *testing.T) {
	for i := range 12 {
		p := newPair(t, Options{})
		r, src := region(t, 1<<20), region(t, 1<<20)
		export(t, p.b, r, "dst", path.Read|path.Write)
		var wg sync.WaitGroup
		work := func(f func() error) {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for f() == nil {
				}
			}()
		}
		for k := range 4 {
			work(func() error {
				rem, err := p.ab.Lookup(ctx(t), "dst")
				if err != nil {
					return err
				}
				x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{Paths: []string{paths[k%2]}})
				if err != nil {
					return err
				}
				soon(t, x.Done(), "the end of a transfer")
				return x.Err()
			})
		}
		work(func() error {
			x, err := p.b.Export(r.All(), ExportOptions{Rights: path.Write})
			if err != nil {
				return err
			}
			return x.Revoke(ctx(t))
		})
		work(func() error {
			_, err := p.b.Receive(ctx(t), "never")
			return err
		})
		work(func() error {
			_, err := p.ab.SendTensor(ctx(t), "never", tensor.Desc{DType: tensor.U8, Shape: []int64{1}}, src.All(),
				PutOptions{})
			return err
		})
		work(func() error {
			_, err := p.b.AcceptQueue(ctx(t), "never")
			return err
		})
		work(func() error {
			q, err := p.ab.OpenQueue(ctx(t), QueueOptions{Path: paths[i%2]})
			if err != nil {
				runtime.Gosched()
				return p.ab.Err()
			}
			return q.Close()
		})
		work(func() error {
			x, err := p.a.Dial(ctx(t), p.b.Addrs()[0])
			if err != nil {
				return err
			}
			return x.Close()
		})
		<-time.After(time.Duration(i*i) * time.Millisecond / 2)
		first, second := p.a, p.b
		if i%2 == 1 {
			first, second = second, first
		}
		if err := first.Close(); err != nil {
			t.Error(err)
		}
		if err := second.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		r.Close()
		src.Close()
		soon(t, r.Unmapped(), "the return of the destination's leases")
		soon(t, src.Unmapped(), "the return of the source's leases")
	}
}

func TestCloseFromCallbacks(t *testing.T) {
	for _, where := range []string{"OnPeer", "OnTransfer", "OnDone"} {
		t.Run(where, func(t *testing.T) {
			closed := make(chan struct{})
			var n *Node
			ready := make(chan struct{})
			end := func() {
				<-ready
				if err := n.Close(); err != nil {
					t.Error(err)
				}
				close(closed)
			}
			o := Options{Name: "b", Listen: []string{"tcp://127.0.0.1:0"}}
			switch where {
			case "OnPeer":
				o.OnPeer = func(*Peer) { end() }
			case "OnTransfer":
				o.OnTransfer = func(Incoming) { end() }
			case "OnDone":
				o.OnPeer = func(p *Peer) {
					x, err := p.Notify(ctx(t), nil, PutOptions{})
					if err != nil {
						t.Error(err)
						return
					}
					x.OnDone(func(*Transfer) { end() })
				}
			}
			n = open(t, o)
			close(ready)
			a := open(t, Options{Name: "a"})
			p, err := a.Dial(ctx(t), n.Addrs()[0])
			if err == nil && where == "OnTransfer" {
				p.Notify(ctx(t), nil, PutOptions{})
			}
			soon(t, closed, "Close inside "+where)
		})
	}
}

// Waiting calls end with the node.
func TestCloseEndsWaiting(t *testing.T) {
	n := open(t, Options{})
	errs := make(chan error, 2)
	go func() {
		_, err := n.Receive(ctx(t), "x")
		errs <- err
	}()
	go func() {
		_, err := n.AcceptQueue(ctx(t), "x")
		errs <- err
	}()
	waiting(t, n, "x", 1)
	n.Close()
	for range 2 {
		if err := <-errs; !errors.Is(err, ErrClosed) {
			t.Errorf("ended with %v", err)
		}
	}
}

// A queue that the application never accepts must not keep its descriptors when its peer leaves,
// nor delay a revocation.
func TestQueueThatNobodyAccepts(t *testing.T) {
	p := newPair(t, Options{})
	p.b.AcceptQueues("idle")
	p.b.AcceptQueues("taken")
	r := region(t, 4096)
	x := export(t, p.b, r, "dst", path.Write)
	for _, name := range paths {
		q, err := p.ab.OpenQueue(ctx(t), QueueOptions{Path: name, Name: "idle"})
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
	}
	for owned := 0; owned < 2; { // the accepting side is a moment later
		p.b.mu.Lock()
		owned = len(p.b.owned)
		p.b.mu.Unlock()
		runtime.Gosched()
	}
	if err := x.Revoke(ctx(t)); err != nil {
		t.Fatal(err)
	}
	p.ab.Close()
	<-p.ba.Gone()
	p.b.mu.Lock()
	owned := len(p.b.owned)
	p.b.mu.Unlock()
	if owned != 0 {
		t.Errorf("%d queues of a lost peer are open", owned)
	}
}

// After the end of a queue its owner still learns what became of its operations, and waiting does
// not hang.
func TestQueueAfterItsEnd(t *testing.T) {
	for _, name := range paths {
		for _, how := range []string{"closed", "peer lost"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				p := newPair(t, Options{})
				src, dst := region(t, 16<<20), region(t, 16<<20)
				export(t, p.b, dst, "dst", path.Write)
				rem := lookup(t, p.ab, "dst")
				p.b.AcceptQueues("")
				q, err := p.ab.OpenQueue(ctx(t), QueueOptions{Path: name})
				if err != nil {
					t.Fatal(err)
				}
				defer q.Close()
				for i := range 8 { // the other side has no owner: nothing large can end
					if _, err := q.Post([]path.Op{{Kind: path.Put, Token: uint64(i),
						Copies: []path.Copy{rem.At(0, src.All())}}}); err != nil {
						t.Fatal(err)
					}
				}
				if how == "closed" {
					q.Close()
				} else {
					p.b.Close()
					<-p.ab.Gone()
				}
				ev := make([]path.Event, 3)
				done, down := 0, 0
				for {
					n, err := q.Wait(ctx(t), ev, 0)
					if err != nil {
						if !errors.Is(err, path.ErrDown) {
							t.Errorf("waiting ended with %v", err)
						}
						break
					}
					for _, e := range ev[:n] {
						switch e.Kind {
						case path.EventDone:
							done++
						case path.EventDown:
							down++
						}
					}
				}
				if done != 8 || down != 1 {
					t.Errorf("%d operations ended, the path went down %d times", done, down)
				}
				if _, err := q.Post([]path.Op{{Kind: path.Notify}}); !errors.Is(err, path.ErrDown) &&
					!errors.Is(err, ErrPeerLost) {
					t.Errorf("post after the end: %v", err)
				}
				q.Interrupt()
				if _, err := q.Wait(ctx(t), ev, 0); !errors.Is(err, path.ErrDown) {
					t.Errorf("waiting again ended with %v", err)
				}
			})
		}
	}
}

// TestRequestsEndWithTheSession leaves many requests without an answer when the other side says
// goodbye: each ends with the error of a lost peer, whichever news comes first.
func TestRequestsEndWithTheSession(t *testing.T) {
	p := newPair(t, Options{})
	const calls = 64
	began := make(chan struct{}, calls)
	remove, err := p.b.Handle("slow", func(ctx context.Context, _ *Peer, _ []byte) ([]byte, error) {
		began <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	errs := make(chan error, calls)
	for range calls {
		go func() {
			_, err := p.ab.Call(ctx(t), "slow", nil)
			errs <- err
		}()
	}
	for range calls {
		<-began
	}
	p.ba.Close()
	for range calls {
		if err := <-errs; !errors.Is(err, ErrPeerLost) {
			t.Fatalf("a request ended with %v, expected the error of a lost peer", err)
		}
	}
}
