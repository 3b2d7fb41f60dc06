package transfer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/fault"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

// answerVerbs has a node answer everything that can be asked of it, until its process ends.
func answerVerbs(ctx context.Context, n *Node) error {
	if _, err := n.Handle("echo", func(_ context.Context, _ *Peer, b []byte) ([]byte, error) {
		return b, nil
	}); err != nil {
		return err
	}
	n.AcceptQueues("verbs")
	go func() {
		for {
			q, err := n.AcceptQueue(ctx, "verbs")
			if err != nil {
				return
			}
			go func() {
				defer q.Close()
				var events [16]path.Event
				for {
					if _, err := q.Wait(ctx, events[:], 0); err != nil {
						return
					}
				}
			}()
		}
	}()
	go func() {
		for {
			r, err := n.Receive(ctx, "pushed")
			switch {
			case err == nil:
				r.Release()
			case errors.Is(err, ErrClosed) || ctx.Err() != nil:
				return
			}
		}
	}()
	return nil
}

// verb is one way to use a peer: it returns the error of one use, and may be called by several
// goroutines.
type verb struct {
	name string
	use  func() error
}

// verbsOf are all uses of a peer by one path. The export has at least 1 MiB.
func verbsOf(t *testing.T, ctx context.Context, p *Peer, via, name string) []verb {
	t.Helper()
	const size = 1 << 20
	rem := lookup(t, p, name)
	o := PutOptions{Paths: []string{via}}
	span := func(off uint64, r *mem.Region) path.Copy { return rem.At(off, mem.Span{Region: r, Len: size}) }
	ended := func(x *Transfer, err error) error {
		if err != nil {
			return err
		}
		<-x.Done()
		return x.Err()
	}
	moves := func(begin func(context.Context, []path.Copy, PutOptions) (*Transfer, error), o PutOptions) func() error {
		r := region(t, size)
		return func() error { return ended(begin(ctx, []path.Copy{span(0, r)}, o)) }
	}
	digest := o
	digest.Digest = true
	tensors := region(t, size)
	queued := region(t, size)
	vs := []verb{
		{"put", moves(p.Put, o)},
		{"get", moves(p.Get, o)},
		{"put with a digest", moves(p.Put, digest)},
		{"notify", func() error { return ended(p.Notify(ctx, []byte("x"), o)) }},
		{"send tensor", func() error {
			return ended(p.SendTensor(ctx, "pushed", tensor.Desc{DType: tensor.U8, Shape: []int64{size}}, tensors.All(),
				o))
		}},
		{"lookup", func() error { _, err := p.Lookup(ctx, name); return err }},
		{"list", func() error { _, err := p.List(ctx, ""); return err }},
		{"call", func() error { _, err := p.Call(ctx, "echo", []byte("x")); return err }},
		{"open queue", func() error {
			q, err := p.OpenQueue(ctx, QueueOptions{Path: via, Name: "verbs"})
			if err != nil {
				return err
			}
			defer q.Close()
			if _, err = q.Post([]path.Op{{Kind: path.Get, Copies: []path.Copy{span(0, queued)}}}); errors.Is(err,
				path.ErrDown) {
				err = nil // Wait says why
			}
			var events [4]path.Event
			for err == nil {
				var n int
				if n, err = q.Wait(ctx, events[:], 0); n > 0 {
					if err = events[0].Err; err == nil && events[0].Kind == path.EventDone {
						return nil
					}
				}
			}
			return err
		}},
		{"queue", sync.OnceValue(func() error { // one queue, used until it ends
			q, err := p.OpenQueue(ctx, QueueOptions{Path: via, Name: "verbs"})
			if err != nil {
				return err
			}
			defer q.Close()
			r := region(t, size)
			var events [16]path.Event
			for {
				if ctx.Err() == nil { // so that Wait has nothing to report any more
					_, err := q.Post([]path.Op{{Kind: path.Get, Copies: []path.Copy{span(0, r)}}, {Kind: path.Notify}})
					if err != nil && !errors.Is(err, path.ErrFull) && !errors.Is(err, path.ErrDown) {
						// Wait says why it is down
						return err
					}
				}
				n, err := q.Wait(ctx, events[:], 0)
				if err != nil {
					return err
				}
				for i := range n {
					if events[i].Err != nil {
						return events[i].Err
					}
				}
			}
		})},
	}
	if via == "shm" {
		vs = append(vs, verb{"borrow", func() error {
			v, err := p.Borrow(ctx, rem, 0, size)
			if err == nil {
				err = v.Release()
			}
			return err
		}})
	}
	return vs
}

// errorsOf uses every verb until it fails, has happen called when each has worked once, and returns
// the errors.
func errorsOf(t *testing.T, vs []verb, happen func()) map[string]error {
	t.Helper()
	out := map[string]error{}
	var mu sync.Mutex
	var worked, all sync.WaitGroup
	for _, v := range vs {
		worked.Add(1)
		all.Go(func() {
			var err error
			once := sync.OnceFunc(worked.Done)
			defer once()
			if v.name == "queue" { // it works until it fails
				once()
			}
			for err == nil {
				err = v.use()
				once()
			}
			mu.Lock()
			out[v.name] = err
			mu.Unlock()
		})
	}
	worked.Wait()
	happen()
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	soon(t, done, "the end of every verb")
	return out
}

// TestDeadPeer is the row of the table for a peer that dies: whatever was asked of it, by whichever
// path, and however it dies.
func TestDeadPeer(t *testing.T) {
	for _, via := range paths {
		for _, how := range []string{"killed", "stopped", "cut off"} {
			t.Run(via+"/"+how, func(t *testing.T) {
				times := testenv.Rounds(10)
				if how != "killed" {
					times = 1
				}
				for range times {
					c := startChild(t, "verbs")
					n := open(t, Options{Name: "parent", HeartbeatEvery: 100 * time.Millisecond,
						DeadAfter: time.Second})
					proxy, err := fault.NewProxy("tcp", strings.TrimPrefix(c.addr, "tcp://"), fault.Plan{})
					if err != nil {
						t.Fatal(err)
					}
					defer proxy.Close()
					addr := "tcp://" + proxy.Addr()
					p, err := n.Dial(ctx(t), addr)
					if err != nil {
						t.Fatal(err)
					}
					all := errorsOf(t, verbsOf(t, t.Context(), p, via, "child"), func() {
						switch how {
						case "killed":
							c.kill()
						case "stopped":
							c.Process.Signal(syscall.SIGSTOP)
						case "cut off":
							proxy.Refuse(true)
							proxy.Cut()
						}
					})
					for name, err := range all {
						if !errors.Is(err, ErrPeerLost) || errors.Is(err, ErrClosed) ||
							errors.Is(err, context.Canceled) || !Retriable(err) {
							t.Errorf("%s: %v", name, err)
						}
					}
					n.Close()
					c.kill()
				}
			})
		}
	}
}

// A path that is being dialed ends with its peer, although nothing else ends its dialing.
func TestDialingEndsWithItsPeer(t *testing.T) {
	dialing, ended := make(chan struct{}), make(chan error, 1)
	d := &fakeDriver{ListenDriver: tcp.New(tcp.Options{}), name: "tcp", dial: func(ctx context.Context) error {
		close(dialing)
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}}
	p := newPair(t, Options{Paths: []setup.Driver{d}, DeadAfter: never})
	p.b.AcceptQueues(defaultQueue)
	failed := make(chan error, 1)
	go func() {
		_, err := p.ab.OpenQueue(t.Context(), QueueOptions{Path: "tcp"})
		failed <- err
	}()
	soon(t, dialing, "the dialing")
	p.b.Close()
	if err, end := <-failed, <-ended; !errors.Is(err, ErrPeerLost) || !errors.Is(end, context.Canceled) {
		t.Errorf("open queue: %v; the dialing ended by %v", err, end)
	}
}

// due is a context that says when it will end, and goes on then.
type due struct {
	context.Context
	at time.Time
}

func (d due) Deadline() (time.Time, bool) { return d.at, true }

// TestHandshakeAsPatientAsItsDialer: the dialer's deadline bounds both handshakes, above and below
// what a node grants to a machine without rights, and the error says how far the handshake came.
func TestHandshakeAsPatientAsItsDialer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for { // it accepts, and says nothing
			if _, err := l.Accept(); err != nil {
				return
			}
		}
	}()
	p := newPair(t, Options{})
	// else the end of the context, shortly after that of the handshake, may be seen first
	ctx := due{t.Context(), time.Now().Add(time.Second / 2)}
	if _, err := p.a.Dial(ctx, "tcp://"+l.Addr().String()); err == nil ||
		!strings.Contains(err.Error(), "0 bytes of a") {
		t.Errorf("a node that says nothing: %v", err)
	}
	long, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if d := p.ab.patience(long); d < time.Hour/2 {
		t.Errorf("the dialer has an hour, its handshakes %v", d)
	}
	if d := p.ba.patience(long); d > time.Minute {
		t.Errorf("a new peer has %v for a handshake", d)
	}
}

// answering are two nodes of this process, of which b answers every verb.
func answering(t *testing.T) (*pair, *Export) {
	t.Helper()
	p := newPair(t, Options{})
	p.ignore(t)
	if err := answerVerbs(t.Context(), p.b); err != nil {
		t.Fatal(err)
	}
	x := export(t, p.b, region(t, 16<<20), "child", path.Read|path.Write)
	return p, x
}

// TestOwnClose is the row for what this side closes, the node or the peer.
func TestOwnClose(t *testing.T) {
	for _, via := range paths {
		for _, what := range []string{"node", "peer"} {
			t.Run(via+"/"+what, func(t *testing.T) {
				p, _ := answering(t)
				all := errorsOf(t, verbsOf(t, t.Context(), p.ab, via, "child"), func() {
					if what == "node" {
						p.a.Close()
					} else {
						p.ab.Close()
					}
				})
				for name, err := range all {
					if !errors.Is(err, ErrClosed) || errors.Is(err, ErrPeerLost) || Retriable(err) {
						t.Errorf("%s: %v", name, err)
					}
				}
				if err := p.ab.Err(); !errors.Is(err, ErrClosed) {
					t.Errorf("the peer: %v", err)
				}
				<-p.ba.Gone()
				if err := p.ba.Err(); !errors.Is(err, ErrPeerLost) { // over there
					t.Errorf("the other side: %v", err)
				}
			})
		}
	}
}

// TestCallersEnd is the rows for a deadline and a cancellation: of the context that was given to
// the verb, with its cause.
func TestCallersEnd(t *testing.T) {
	cause := errors.New("the caller's reason")
	type row struct {
		name string
		end  func(context.Context) (context.Context, context.CancelFunc)
		want error
	}
	rows := []row{
		{"deadline", func(c context.Context) (context.Context, context.CancelFunc) {
			return context.WithDeadlineCause(c, time.Now(), cause)
		}, context.DeadlineExceeded},
		{"cancel", func(c context.Context) (context.Context, context.CancelFunc) {
			c, cancel := context.WithCancelCause(c)
			return c, func() { cancel(cause) }
		}, context.Canceled},
	}
	for _, via := range paths {
		for _, r := range rows {
			t.Run(via+"/"+r.name, func(t *testing.T) {
				p, _ := answering(t)
				c := &switched{Context: t.Context(), done: make(chan struct{})}
				all := errorsOf(t, verbsOf(t, c, p.ab, via, "child"), func() {
					ended, cancel := r.end(t.Context())
					cancel()
					c.end(ended)
				})
				moves := map[string]bool{"put": true, "get": true, "put with a digest": true, "notify": true,
					"job": true}
				for name, err := range all {
					if !errors.Is(err, r.want) || moves[name] && !errors.Is(err, path.ErrCanceled) ||
						errors.Is(err, ErrPeerLost) {
						t.Errorf("%s: %v", name, err)
					}
					if asked := name == "lookup" || name == "list" || name == "call"; (asked || moves[name]) &&
						Retriable(err) != (asked && r.want == context.DeadlineExceeded) {
						t.Errorf("%s: retriable: %v: %v", name, Retriable(err), err)
					}
				}
				if p.ab.Err() != nil {
					t.Error("the session did not survive")
				}
			})
		}
	}
	t.Run("cause", func(t *testing.T) {
		p, _ := answering(t)
		rem := lookup(t, p.ab, "child")
		c, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		src := region(t, 16<<20)
		var err error
		for err == nil { // until one is caught under way
			var x *Transfer
			if x, err = p.ab.Put(c, []path.Copy{rem.At(0, src.All())}, PutOptions{Paths: []string{"tcp"}}); err == nil {
				cancel(cause)
				<-x.Done()
				err = x.Err()
			}
		}
		if !errors.Is(err, cause) || !errors.Is(err, context.Canceled) || !errors.Is(err, path.ErrCanceled) {
			t.Error(err)
		}
		for err = nil; err == nil; {
			var x *Transfer
			if x, err = p.ab.Put(t.Context(), []path.Copy{rem.At(0, src.All())},
				PutOptions{Paths: []string{"tcp"}}); err == nil {
				x.Cancel()
				<-x.Done()
				err = x.Err()
			}
		}
		if !errors.Is(err, context.Canceled) || !errors.Is(err, path.ErrCanceled) {
			t.Error(err)
		}
	})
}

// switched is a context that ends as another one did, at a moment of the test's choice.
type switched struct {
	context.Context
	done chan struct{}
	mu   sync.Mutex
	as   context.Context
}

func (c *switched) Done() <-chan struct{} { return c.done }

func (c *switched) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.as == nil {
		return nil
	}
	return c.as.Err()
}

func (c *switched) end(as context.Context) {
	c.mu.Lock()
	c.as = as
	c.mu.Unlock()
	close(c.done)
}

// TestRevokedRemote is the row for an export that its node revokes: the same kind of error before a
// transfer, in it, and for ever after.
func TestRevokedRemote(t *testing.T) {
	for _, via := range paths {
		t.Run(via, func(t *testing.T) {
			for i := range testenv.Rounds(10) {
				p, x := answering(t)
				var vs []verb
				for _, v := range verbsOf(t, t.Context(), p.ab, via, "child") {
					switch v.name {
					case "put", "get", "put with a digest", "borrow":
						vs = append(vs, v)
					}
				}
				revoked := make(chan error, 1)
				all := errorsOf(t, vs, func() { go func() { revoked <- x.Revoke(ctx(t)) }() })
				if err := <-revoked; err != nil {
					t.Fatal(err)
				}
				for range 2 { // the second time long after
					for name, err := range all {
						if !errors.Is(err, path.ErrRevoked) || errors.Is(err, ErrPeerLost) || !Retriable(err) {
							t.Errorf("round %d: %s: %v", i, name, err)
						}
					}
					for _, v := range vs {
						all[v.name] = v.use()
					}
				}
				if err := errors.Join(p.a.Close(), p.b.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	t.Run("forged", func(t *testing.T) {
		p, _ := answering(t)
		d := lookup(t, p.ab, "child").Desc
		d.Key.Secret++
		rem := p.ab.Import(d)
		for _, via := range paths {
			x, err := p.ab.Put(t.Context(), []path.Copy{rem.At(0, region(t, 1<<20).All())},
				PutOptions{Paths: []string{via}})
			if err == nil {
				<-x.Done()
				err = x.Err()
			}
			if !errors.Is(err, path.ErrKey) || errors.Is(err, path.ErrRevoked) {
				t.Errorf("%s: %v", via, err)
			}
		}
	})
}

// TestOutcome is the rule itself.
func TestOutcome(t *testing.T) {
	p := &Peer{peerExports: peerExports{remotes: map[path.Key]remote{{Index: 1}: {named: true}, {Index: 2}: {}},
		revokedTo: map[uint32]uint32{3: 7}}}
	down := fmt.Errorf("x: %w", path.ErrDown)
	for _, c := range []struct {
		name      string
		lost, err error
		canceled  error
		key       path.Key
		is, not   []error
	}{
		{name: "path", err: down, is: []error{path.ErrDown}, not: []error{ErrPeerLost}},
		{name: "lost", err: down, lost: ErrPeerLost, is: []error{path.ErrDown, ErrPeerLost}},
		{name: "closed", err: down, lost: ErrClosed, is: []error{path.ErrDown, ErrClosed}, not: []error{ErrPeerLost}},
		{name: "its own", err: path.ErrIntegrity, lost: ErrPeerLost, is: []error{path.ErrIntegrity}, not: []error{ErrPeerLost}},
		{name: "canceled", err: path.ErrCanceled, lost: ErrPeerLost, canceled: context.Canceled,
			is: []error{path.ErrCanceled, context.Canceled}, not: []error{ErrPeerLost}},
		{name: "too late", err: down, lost: ErrPeerLost, canceled: context.DeadlineExceeded, is: []error{path.ErrDown, ErrPeerLost, context.DeadlineExceeded}},
		{name: "ended with the peer", err: context.Canceled, lost: ErrPeerLost, is: []error{ErrPeerLost}, not: []error{context.Canceled}},
		{name: "named", err: path.ErrKey, key: path.Key{Index: 1}, is: []error{path.ErrKey, path.ErrRevoked}},
		{name: "imported", err: path.ErrKey, key: path.Key{Index: 2}, is: []error{path.ErrKey}, not: []error{path.ErrRevoked}},
		{name: "revoked", err: path.ErrKey, key: path.Key{Index: 3, Epoch: 7}, is: []error{path.ErrKey, path.ErrRevoked}},
		{name: "newer", err: path.ErrKey, key: path.Key{Index: 3, Epoch: 8}, is: []error{path.ErrKey}, not: []error{path.ErrRevoked}},
	} {
		p.lost = c.lost
		err := p.outcome(c.err, c.canceled, c.key)
		for _, e := range c.is {
			if !errors.Is(err, e) {
				t.Errorf("%s: %v does not match %v", c.name, err, e)
			}
		}
		for _, e := range c.not {
			if errors.Is(err, e) {
				t.Errorf("%s: %v matches %v", c.name, err, e)
			}
		}
	}
	if p.outcome(nil, context.Canceled) != nil {
		t.Error("a success that failed")
	}
}

// TestRevocationsAreBounded: a peer that revokes for ever costs a bounded number of entries.
func TestRevocationsAreBounded(t *testing.T) {
	p := &Peer{peerExports: peerExports{remotes: map[path.Key]remote{}, revokedTo: map[uint32]uint32{}}}
	for i := range uint32(3 * maxRevoked) {
		k := path.Key{Index: i, Epoch: i + 1}
		p.forgetRemote(k) // a key that this side never knew leaves nothing
		if p.wasRevoked(k) {
			t.Fatal("an unknown export counts as revoked")
		}
		p.remotes[k] = remote{named: true}
		p.forgetRemote(k)
		if !p.wasRevoked(k) || len(p.remotes) > 0 || len(p.revokedTo) > maxRevoked {
			t.Fatalf("after %d: %d known, %d revoked", i, len(p.remotes), len(p.revokedTo))
		}
	}
}
