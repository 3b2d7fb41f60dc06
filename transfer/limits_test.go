package transfer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/sched"
)

// nothingInUse checks that every grant came back. Memory of tensors may come back by goroutines
// that wait for fences.
func nothingInUse(t testing.TB, nodes ...*Node) {
	t.Helper()
	for _, n := range nodes {
		until(t, "the return of all grants", func() bool {
			out, in := n.limits.Out.Use(), n.limits.In.Use()
			return out.Transfers == 0 && out.Bytes == 0 && in.Transfers == 0 && in.Bytes == 0 && in.Memory == 0
		})
	}
}

// Each limit of what a node begins refuses with its own error, at the node and at the peer, and
// only while it is reached.
func TestOutgoingLimits(t *testing.T) {
	for _, whose := range []string{"node", "peer", "name"} {
		for _, c := range []struct {
			what  string
			l     sched.Limits
			first uint64
			ask   uint64
			want  error
			later bool // it is let in once the first has ended
		}{
			{"transfers", sched.Limits{Transfers: 1}, 64, 64, sched.ErrTooMany, true},
			{"bytes", sched.Limits{Bytes: 1000}, 600, 500, sched.ErrTooManyBytes, true},
			{"bytes at all", sched.Limits{Bytes: 1000}, 600, 1001, sched.ErrTooManyBytes, false},
			{"largest", sched.Limits{Largest: 1000}, 64, 1001, sched.ErrTooLarge, false},
		} {
			t.Run(whose+"/"+c.what, func(t *testing.T) {
				o := Options{}
				switch q := (Quota{Out: c.l}); whose {
				case "node":
					o.Limits.Node = q
				case "peer":
					o.Limits.Peer = q
				case "name":
					o.Limits.Peer.Out.Transfers = 77
					o.Limits.ForPeer = func(name string) (Quota, bool) { return q, name == "b" }
				}
				s := newShared(t, 4096, o)
				s.r.close()
				first := s.put(c.first, PutOptions{})
				_, err := s.tryPut(c.ask, PutOptions{Stream: 3})
				var r *sched.Refusal
				if !errors.Is(err, c.want) || !errors.As(err, &r) || r.Limit == 0 || r.Asked == 0 || r.Whose == "" {
					t.Fatalf("refused with %v", err)
				}
				s.r.open(s.pair, s.ch)
				wait(t, first, nil)
				nothingInUse(t, s.a)
				if x, err := s.tryPut(c.ask, PutOptions{}); c.later {
					wait(t, x, err)
				} else if !errors.Is(err, c.want) {
					t.Errorf("refused later with %v", err)
				}
				nothingInUse(t, s.a)
			})
		}
	}
}

func f32(n int64) tensor.Desc { return tensor.Desc{DType: tensor.F32, Shape: []int64{n}} }

// What a peer pushes is refused by the receiver's limits with errors that match on both sides; a
// refused offer leaves the receiver waiting and takes no memory.
func TestIncomingLimits(t *testing.T) {
	for _, c := range []struct {
		what string
		l    sched.Limits
		d    tensor.Desc
		want error
	}{
		{"largest", sched.Limits{Largest: 1000}, f32(251), sched.ErrTooLarge},
		{"bytes", sched.Limits{Bytes: 1000}, f32(251), sched.ErrTooManyBytes},
		{"dtype", sched.Limits{DTypes: []tensor.DType{tensor.F32, tensor.U8}}, tensor.Desc{DType: tensor.BF16, Shape: []int64{4}}, sched.ErrDType},
		{"memory", sched.Limits{Memory: 100 << 10}, f32(25601), sched.ErrMemory},
	} {
		t.Run(c.what, func(t *testing.T) {
			p := newPair(t, Options{Limits: Limits{ForPeer: func(name string) (Quota, bool) {
				return Quota{In: c.l}, name == "a"
			}}})
			src := region(t, 1<<20)
			type result struct {
				r   *Received
				err error
			}
			res := make(chan result, 1)
			go func() {
				r, err := p.b.Receive(ctx(t), "x")
				res <- result{r, err}
			}()
			_, err := p.ab.SendTensor(ctx(t), "x", c.d, src.All(), PutOptions{})
			var e *control.Error
			if !errors.Is(err, c.want) || !errors.As(err, &e) || !e.Remote {
				t.Fatalf("refused with %v", err)
			}
			if u := p.b.pool.Stats(); u.InUse != 0 {
				t.Errorf("a refused tensor takes memory: %+v", u)
			}
			nothingInUse(t, p.a, p.b)
			// The receiver goes on waiting, for one that fits.
			x, err := p.ab.SendTensor(ctx(t), "x", f32(250), src.All(), PutOptions{})
			wait(t, x, err)
			r := <-res
			if r.err != nil {
				t.Fatal(r.err)
			}
			if u := p.b.limits.In.Use(); u.Transfers != 0 || u.Memory != landingClasses[0] {
				t.Errorf("with one tensor held: %+v", u)
			}
			r.r.Release()
			nothingInUse(t, p.a, p.b)
		})
	}
}

// A tensor that was received and not released keeps its memory; the next one is refused until then.
func TestMemoryIsHeldUntilRelease(t *testing.T) {
	p := newPair(t, Options{Limits: Limits{Peer: Quota{In: sched.Limits{Memory: landingClasses[0], Transfers: 1}}}})
	src := region(t, 1<<16)
	send := func(name string) (*Received, error) {
		t.Helper()
		c, cancel := context.WithCancel(ctx(t))
		defer cancel()
		res := make(chan *Received, 1)
		go func() {
			r, _ := p.b.Receive(c, name)
			res <- r
		}()
		x, err := p.ab.SendTensor(c, name, f32(1000), src.All(), PutOptions{})
		if err != nil {
			cancel()
			<-res
			return nil, err
		}
		wait(t, x, nil)
		return <-res, nil
	}
	a, err := send("a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := send("b"); !errors.Is(err, sched.ErrMemory) {
		t.Fatalf("refused with %v", err)
	}
	again := *a
	if err := a.Release(); err != nil {
		t.Error(err)
	}
	b, err := send("b")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Received{a, &again} { // that does not give back what b holds
		if err := r.Release(); !errors.Is(err, mem.ErrReleased) {
			t.Errorf("a second release: %v", err)
		}
	}
	if _, err := send("c"); !errors.Is(err, sched.ErrMemory) {
		t.Errorf("after a second release of another tensor: %v", err)
	}
	b.Release()
	nothingInUse(t, p.a, p.b)
}

// More pushes at once than allowed: the second is refused while the first is under way.
func TestIncomingTransfersAtOnce(t *testing.T) {
	r := record("tcp")
	p := newPair(t, Options{Paths: []setup.Driver{r}, Limits: Limits{Peer: Quota{In: sched.Limits{Transfers: 1}}}})
	x, err := p.ab.Notify(ctx(t), nil, PutOptions{})
	wait(t, x, err)
	ch := channelOf(t, p.ab, "tcp")
	src := region(t, 4096)
	for _, name := range []string{"a", "b"} {
		go func() {
			if x, err := p.b.Receive(ctx(t), name); err == nil {
				x.Release()
			}
		}()
	}
	r.close()
	first, err := p.ab.SendTensor(ctx(t), "a", f32(1000), src.All(), PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.ab.SendTensor(ctx(t), "b", f32(1000), src.All(), PutOptions{}); !errors.Is(err, sched.ErrTooMany) {
		t.Fatalf("refused with %v", err)
	}
	r.open(p, ch)
	p.b.loop.Kick(channelOf(t, p.ba, "tcp"))
	wait(t, first, nil)
	nothingInUse(t, p.a, p.b)
	x, err = p.ab.SendTensor(ctx(t), "b", f32(1000), src.All(), PutOptions{})
	wait(t, x, err)
	nothingInUse(t, p.a, p.b)
}

// The sender's own limits refuse before the peer is asked.
func TestOwnTypesAreRefusedFirst(t *testing.T) {
	p := newPair(t, Options{Limits: Limits{Node: Quota{Out: sched.Limits{DTypes: []tensor.DType{tensor.U8},
		Largest: 100}}}})
	src := region(t, 4096)
	var e *control.Error
	if _, err := p.ab.SendTensor(ctx(t), "x", f32(4), src.All(), PutOptions{}); !errors.Is(err, sched.ErrDType) ||
		errors.As(err, &e) {
		t.Errorf("refused with %v", err)
	}
	if _, err := p.ab.SendTensor(ctx(t), "x", tensor.Desc{DType: tensor.U8, Shape: []int64{101}}, src.All(),
		PutOptions{}); !errors.Is(err, sched.ErrTooLarge) || errors.As(err, &e) {
		t.Errorf("refused with %v", err)
	}
	nothingInUse(t, p.a)
}

func TestLimitsAreChecked(t *testing.T) {
	bad := Quota{Out: sched.Limits{Transfers: -1}}
	for _, l := range []Limits{{Node: bad}, {Peer: bad}, {Peer: Quota{In: sched.Limits{Burst: 1}}}} {
		if n, err := Open(ctx(t), Options{Limits: l}); err == nil {
			n.Close()
			t.Errorf("%+v was accepted", l)
		}
	}
	// Limits of a single peer that make no sense: it does not get in.
	b := open(t, Options{Listen: []string{"tcp://127.0.0.1:0"}})
	a := open(t, Options{Limits: Limits{ForPeer: func(string) (Quota, bool) { return bad, true }}})
	if _, err := a.Dial(ctx(t), b.Addrs()[0]); err == nil {
		t.Error("a peer with limits that make no sense was let in")
	}
}

// A rate makes transfers wait: so many bytes cannot have passed any earlier, out or in, however
// they are cut. Nothing is said about how late they may be.
func TestRates(t *testing.T) {
	const rate, burst = 4 << 20, 64 << 10
	for _, how := range []string{"out", "in", "get", "node"} {
		for _, each := range []uint64{8 << 10, 1 << 20} {
			t.Run(how+"/"+map[uint64]string{8 << 10: "small", 1 << 20: "large"}[each], func(t *testing.T) {
				l := sched.Limits{Rate: rate, Burst: burst}
				o := Options{Limits: Limits{ForPeer: func(name string) (q Quota, ok bool) {
					switch {
					case name == "b" && (how == "out" || how == "get"):
						q.Out = l
					case name == "a" && how == "in":
						q.In = l
					}
					return q, true
				}}}
				if how == "node" {
					o.Limits.Node.Out = l
				}
				p := newPair(t, o)
				p.ignore(t)
				const size = 1 << 20
				src, dst := region(t, size), region(t, size)
				fill(src, 3)
				export(t, p.b, dst, "dst", path.Read|path.Write)
				rem := lookup(t, p.ab, "dst")
				begin := time.Now()
				var all []*Transfer
				for off := uint64(0); off < size; off += each {
					span, _ := src.Span(off, each)
					do := p.ab.Put
					if how == "get" {
						do = p.ab.Get
					}
					x, err := do(ctx(t), []path.Copy{rem.At(off, span)}, PutOptions{})
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, x)
				}
				for _, x := range all {
					wait(t, x, nil)
				}
				if how == "in" {
					// What arrives before this side looks is taken, perhaps all of it: then the
					// next byte waits.
					span, _ := src.Span(0, 64)
					x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, span)}, PutOptions{})
					wait(t, x, err)
				}
				if least := time.Duration(float64(size-burst) / rate * 1e9); time.Since(begin) < least {
					t.Errorf("%d bytes took %v, at least %v expected", size, time.Since(begin), least)
				}
				if how == "in" && p.ba.limits.InRates[0].PerSec() != rate {
					t.Error("no rate")
				}
			})
		}
	}
}

// A path by which a peer writes by itself is not opened where a rate has to be kept, and both sides
// say so.
func TestRateNeedsAPathThatCanKeepIt(t *testing.T) {
	p := newPair(t, Options{Limits: Limits{ForPeer: func(name string) (Quota, bool) {
		return Quota{In: sched.Limits{Rate: 1 << 40}}, name == "a"
	}}})
	export(t, p.b, region(t, 4096), "dst", path.Write)
	rem, src := lookup(t, p.ab, "dst"), region(t, 4096)
	x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{Paths: []string{"shm"}})
	if err != nil {
		t.Fatal(err)
	}
	soon(t, x.Done(), "the refusal")
	if !errors.Is(x.Err(), sched.ErrRate) {
		t.Errorf("ended with %v", x.Err())
	}
	x, err = p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{})
	wait(t, x, err)
	if e := x.Explain(); e.Path != "tcp" {
		t.Errorf("took %s", e.Path)
	}
	// The side with the rate does not open it either.
	x, err = p.ba.Notify(ctx(t), nil, PutOptions{Paths: []string{"shm"}})
	if err == nil {
		soon(t, x.Done(), "the refusal")
		err = x.Err()
	}
	if !errors.Is(err, sched.ErrRate) {
		t.Errorf("ended with %v", err)
	}
}

// A peer has pushed a tensor faster than it may, all at once: it is left alone for long then, but
// the fence of its memory does not wait for that.
func TestFenceOfAPeerThatWasTooFast(t *testing.T) {
	const size = 128 << 10
	p := newPair(t, Options{Paths: []setup.Driver{over("tcp")},
		Limits: Limits{Peer: Quota{In: sched.Limits{Rate: 4 << 10}}}})
	c := ctx(t)
	done := make(chan error, 1)
	go func() {
		r, err := p.b.Receive(c, "w")
		if err == nil {
			r.Release()
		}
		done <- err
	}()
	src := region(t, size)
	x, err := p.ab.SendTensor(c, "w", tensor.Desc{DType: tensor.U8, Shape: []int64{size}}, src.All(), PutOptions{})
	wait(t, x, err)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A transfer is canceled on a path that this side does not serve for a while, because its peer was
// too fast. That is no sign that the path has stalled: the transfer ends, and the path stays.
func TestCancelOnAPathThatIsHeld(t *testing.T) {
	p := newPair(t, Options{Paths: []setup.Driver{over("tcp")},
		Limits: Limits{Peer: Quota{In: sched.Limits{Rate: 4 << 10}}}})
	p.a.patience = 20 * time.Millisecond
	export(t, p.a, region(t, 128<<10), "a", path.Write)
	export(t, p.b, region(t, 4096), "b", path.Write)
	there, here := lookup(t, p.ab, "b"), lookup(t, p.ba, "a")
	src := region(t, 128<<10)
	local, _ := src.Span(0, 64)
	x, err := p.ab.Put(ctx(t), []path.Copy{there.At(0, local)}, PutOptions{})
	wait(t, x, err)
	ch := channelOf(t, p.ab, "tcp")
	if _, err = p.ba.Put(ctx(t), []path.Copy{here.At(0, src.All())}, PutOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of serving", func() bool {
		ch.mu.Lock()
		defer ch.unlock()
		return ch.muted
	})
	x, err = p.ab.Put(ctx(t), []path.Copy{there.At(0, local)}, PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	x.Cancel()
	soon(t, x.Done(), "the end of the canceled transfer")
	if err := x.Err(); err != nil && !errors.Is(err, path.ErrCanceled) {
		t.Error(err)
	}
	ch.mu.Lock()
	down := ch.down
	ch.unlock()
	if down != nil {
		t.Errorf("the path is down: %v", down)
	}
}
