package job

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// crowd is a node that is connected to several others.
type crowd struct {
	a     *transfer.Node
	nodes []*transfer.Node
	peers []*transfer.Peer // of a
	back  []*transfer.Peer // a, as each of the others sees it
	heard []chan transfer.Incoming
}

// newCrowd opens nodes named w0, w1 and so on; options may change what each is opened with.
func newCrowd(t testing.TB, n int, change func(i int, o *transfer.Options)) *crowd {
	t.Helper()
	c := &crowd{}
	back := make([]chan *transfer.Peer, n)
	for i := range n {
		heard := make(chan transfer.Incoming, 1024)
		back[i] = make(chan *transfer.Peer, 1)
		o := transfer.Options{Name: fmt.Sprintf("w%d", i), Listen: []string{"tcp://127.0.0.1:0"},
			OnPeer: func(p *transfer.Peer) {
				back[i] <- p
			},
			OnTransfer: func(x transfer.Incoming) {
				select {
				case heard <- x:
				default:
				}
			}}
		if change != nil {
			change(i, &o)
		}
		c.nodes, c.heard = append(c.nodes, open(t, o)), append(c.heard, heard)
	}
	o := transfer.Options{Name: "a"}
	if change != nil {
		change(-1, &o)
	}
	c.a = open(t, o)
	for i := range n {
		p, err := c.a.Dial(ctx(t), c.nodes[i].Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		c.peers, c.back = append(c.peers, p), append(c.back, <-back[i])
	}
	return c
}

// room exports memory of each under the name given.
func (c *crowd) room(t testing.TB, name string, size int) (all []*mem.Region) {
	for _, n := range c.nodes {
		r := region(t, size)
		export(t, n, r, name, path.Read|path.Write)
		all = append(all, r)
	}
	return all
}

func (c *crowd) named(name string, local mem.Span) (targets []Target) {
	for _, p := range c.peers {
		targets = append(targets, Target{Peer: p, Name: name, Local: local})
	}
	return targets
}

func TestPutAll(t *testing.T) {
	for _, name := range paths {
		for _, atOnce := range []int{0, 1, 5} {
			t.Run(fmt.Sprintf("%s/%d", name, atOnce), func(t *testing.T) {
				c := newCrowd(t, 5, nil)
				dst := c.room(t, "weights", 1<<20)
				src := region(t, 1<<20)
				fill(src, 21)
				targets := c.named("weights", src.All())
				targets[1] = Target{Peer: c.peers[1],
					Copies: []path.Copy{lookup(t, c.peers[1], "weights").At(0, src.All())}}
				f, err := PutAll(ctx(t), targets, FanoutOptions{AtOnce: atOnce,
					Put: transfer.PutOptions{Paths: []string{name}, Msg: []byte("new"), Digest: atOnce == 0}})
				if err != nil {
					t.Fatal(err)
				}
				if err := f.Wait(ctx(t)); err != nil || f.Progress() != 1 || f.Bytes() != 5<<20 || len(f.Legs()) != 5 {
					t.Fatalf("%v, progress %v, %d bytes, %d legs", err, f.Progress(), f.Bytes(), len(f.Legs()))
				}
				for i, l := range f.Legs() {
					if !bytes.Equal(dst[i].All().Bytes(), src.All().Bytes()) {
						t.Errorf("target %d has other bytes", i)
					}
					if e := l.Explain(); l.Err() != nil || l.Progress() != 1 || l.Peer() != c.peers[i] ||
						l.Bytes() != 1<<20 || e.Path != name || e.Peer != fmt.Sprintf("%q", fmt.Sprintf("w%d", i)) {
						t.Errorf("target %d: %v\n%v", i, l.Err(), e)
					}
					if in := <-c.heard[i]; in.ID != l.Transfer().ID() || string(in.Msg) != "new" ||
						len(c.heard[i]) != 0 {
						t.Errorf("target %d heard %+v and %d more", i, in, len(c.heard[i]))
					}
					if l.Cancel() {
						t.Errorf("target %d could be canceled", i)
					}
				}
				// One registration of the source serves all.
				if s := c.a.Snapshot().Memory; s.RegisterMisses != 1 || s.Registered != 1<<20 {
					t.Errorf("registrations: %+v", s)
				}
				unleased(t, src)
			})
		}
	}
}

func TestPutAllRefusals(t *testing.T) {
	c := newCrowd(t, 1, nil)
	c.room(t, "weights", 4096)
	src := region(t, 4096)
	rem := lookup(t, c.peers[0], "weights")
	good := Target{Peer: c.peers[0], Name: "weights", Local: src.All()}
	for name, x := range map[string]Target{
		"no peer":      {Name: "weights", Local: src.All()},
		"nothing":      {Peer: c.peers[0]},
		"both":         {Peer: c.peers[0], Name: "weights", Copies: []path.Copy{rem.At(0, src.All())}},
		"no memory":    {Peer: c.peers[0], Name: "weights"},
		"out of range": {Peer: c.peers[0], Copies: []path.Copy{rem.At(1, src.All())}},
		"foreign":      {Peer: c.peers[0], Copies: []path.Copy{{Local: src.All(), Key: path.Key{Index: 3}}}},
	} {
		if _, err := PutAll(ctx(t), []Target{good, x}, FanoutOptions{}); err == nil ||
			!strings.Contains(err.Error(), "target 1:") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := PutAll(ctx(t), []Target{good}, FanoutOptions{AtOnce: -1}); err == nil {
		t.Error("AtOnce of -1 was accepted")
	}
	f, err := PutAll(ctx(t), nil, FanoutOptions{})
	if err != nil || f.Wait(ctx(t)) != nil || f.Progress() != 1 {
		t.Errorf("no targets: %v", err)
	}
	unleased(t, src)
}

// A fan-out from a node that was closed fails as any call does then.
func TestPutAllClosed(t *testing.T) {
	c := newCrowd(t, 1, nil)
	c.room(t, "x", 4096)
	targets := c.named("x", region(t, 4096).All())
	if err := c.a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := PutAll(ctx(t), targets, FanoutOptions{}); !errors.Is(err, transfer.ErrClosed) {
		t.Errorf("%v; expected ErrClosed", err)
	}
}

// What goes wrong at one target is that target's error, which names it.
func TestPutAllPartly(t *testing.T) {
	c := newCrowd(t, 5, nil)
	dst := c.room(t, "weights", 4096)
	src := region(t, 8192)
	fill(src, 22)
	local, _ := src.Span(0, 4096)
	targets := c.named("weights", local)
	targets[0].Name = "nothing"
	targets[2].Local = src.All() // too large for its export
	c.nodes[3].Close()
	<-c.peers[3].Gone()
	c.peers[4].Close() // by this side: the others go on
	f, err := PutAll(ctx(t), targets, FanoutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	err = f.Wait(ctx(t))
	for i, want := range []error{control.NotFound, nil, path.ErrBounds, transfer.ErrPeerLost, transfer.ErrClosed} {
		if got := f.Legs()[i].Err(); want == nil && got != nil || !errors.Is(got, want) {
			t.Errorf("target %d: %v, expected %v", i, got, want)
		}
		if want != nil && (!errors.Is(err, want) || !strings.Contains(err.Error(), fmt.Sprintf(`put to "w%d": `, i))) {
			t.Errorf("%v does not tell of target %d", err, i)
		}
	}
	if strings.Contains(err.Error(), "w1") || !bytes.Equal(dst[1].All().Bytes(), local.Bytes()) {
		t.Errorf("target 1 failed: %v", err)
	}
	if e := f.Legs()[0].Explain(); !errors.Is(e.Err, control.NotFound) || e.Bytes != 4096 {
		t.Errorf("%v", e)
	}
	unleased(t, src)

	// All the same with StopOnError, but that the rest is not tried.
	src = region(t, 8192)
	local, _ = src.Span(0, 4096)
	targets[0].Local, targets[1].Local = local, local
	if f, err = PutAll(ctx(t), targets[:2], FanoutOptions{AtOnce: 1, StopOnError: true}); err != nil {
		t.Fatal(err)
	}
	if err := f.Wait(ctx(t)); !errors.Is(err, control.NotFound) || !errors.Is(f.Legs()[1].Err(), path.ErrCanceled) ||
		f.Legs()[1].Transfer() != nil {
		t.Errorf("%v", err)
	}
	unleased(t, src)
}

// jammed is a driver that takes nothing but fences for as long as the test wants.
func jammed() (*fakeDriver, func()) {
	d := over("jammed")
	free := make(chan struct{})
	d.post = func(p path.Path, ops []path.Op) (int, error) {
		if ops[0].Kind == path.Fence {
			return p.Post(ops)
		}
		select {
		case <-free:
			return p.Post(ops)
		default:
			return 0, path.ErrFull
		}
	}
	return d, sync.OnceFunc(func() { close(free) })
}

// A target that does not move holds the others up for a moment only, even with one at once.
func TestPutAllPastStall(t *testing.T) {
	d, free := jammed()
	defer free()
	c := newCrowd(t, 3, func(i int, o *transfer.Options) {
		if i == 0 {
			o.Paths = []setup.Driver{d}
		} else if i < 0 {
			o.Paths = []setup.Driver{d, over("tcp")}
		}
	})
	c.room(t, "weights", 4096)
	src := region(t, 4096)
	f, err := PutAll(ctx(t), c.named("weights", src.All()), FanoutOptions{AtOnce: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range f.Legs()[1:] {
		select {
		case <-l.Done():
			if l.Err() != nil {
				t.Error(l.Err())
			}
		case <-ctx(t).Done():
			t.Fatal("held up")
		}
	}
	slow := f.Legs()[0]
	select {
	case <-slow.Done():
		t.Errorf("the one that stalls ended: %v", slow.Err())
	default:
	}
	if f.Progress() < 0.6 || f.Progress() > 0.7 {
		t.Errorf("progress %v", f.Progress())
	}
	if !slow.Cancel() {
		t.Error("it cannot be canceled")
	}
	if err := f.Wait(ctx(t)); !errors.Is(err, path.ErrCanceled) || !strings.Contains(err.Error(), `"w0"`) ||
		strings.Contains(err.Error(), "w1") {
		t.Error(err)
	}
	unleased(t, src)
}

func TestPutAllCanceled(t *testing.T) {
	why := errors.New("the next step begins")
	for how, cause := range map[string]error{"Cancel": context.Canceled, "context": context.Canceled, "cause": why} {
		t.Run(how, func(t *testing.T) {
			d, free := jammed()
			defer free()
			c := newCrowd(t, 4, func(i int, o *transfer.Options) { o.Paths = []setup.Driver{d} })
			c.room(t, "weights", 4096)
			src := region(t, 4096)
			x, stop := context.WithCancelCause(ctx(t))
			defer stop(nil)
			f, err := PutAll(x, c.named("weights", src.All()), FanoutOptions{AtOnce: 2})
			if err != nil {
				t.Fatal(err)
			}
			if !f.Legs()[3].Cancel() { // its turn has not come
				t.Error("a leg that waits cannot be canceled")
			}
			<-f.Legs()[3].Done()
			switch how {
			case "Cancel":
				f.Cancel()
			case "context":
				stop(nil)
			default:
				stop(cause)
			}
			err = f.Wait(ctx(t))
			for i, l := range f.Legs() {
				if i < 3 && !errors.Is(l.Err(), cause) || !errors.Is(l.Err(), path.ErrCanceled) {
					t.Errorf("target %d: %v", i, l.Err())
				}
			}
			if err == nil || strings.Count(err.Error(), "put to") != 4 {
				t.Error(err)
			}
			unleased(t, src)
		})
	}
}

// Whatever is done to the legs of a fan-out while it runs: each ends once, as its own fate says,
// and nothing stays behind.
func TestPutAllModel(t *testing.T) {
	c := newCrowd(t, 4, nil)
	dst := c.room(t, "weights", 256<<10)
	rapid.Check(t, func(rt *rapid.T) {
		src, err := mem.Alloc(mem.Options{Size: 256 << 10})
		if err != nil {
			rt.Fatal(err)
		}
		fill(src, rapid.Uint64().Draw(rt, "seed"))
		n := rapid.IntRange(0, 12).Draw(rt, "targets")
		stop := rapid.Bool().Draw(rt, "stop on error")
		var targets []Target
		missing := map[int]bool{}
		for i := range n {
			x := Target{Peer: c.peers[i%4], Name: "weights", Local: src.All()}
			if rapid.IntRange(0, 9).Draw(rt, "fate") == 0 {
				x.Name, missing[i] = "nothing", true
			}
			targets = append(targets, x)
		}
		f, err := PutAll(context.Background(), targets,
			FanoutOptions{AtOnce: rapid.IntRange(1, 6).Draw(rt, "at once"), StopOnError: stop})
		if err != nil {
			rt.Fatal(err)
		}
		canceled := map[int]bool{}
		if n > 0 {
			for range rapid.IntRange(0, 3).Draw(rt, "cancels") {
				i := rapid.IntRange(0, n-1).Draw(rt, "which")
				if f.Legs()[i].Cancel() {
					canceled[i] = true
				}
			}
		}
		if rapid.IntRange(0, 9).Draw(rt, "cancel all") == 0 {
			f.Cancel()
			for i := range n {
				canceled[i] = true
			}
		}
		err = f.Wait(context.Background())
		failed := 0
		for i, l := range f.Legs() {
			switch e := l.Err(); {
			case e == nil:
				if missing[i] {
					rt.Errorf("target %d succeeded without an export", i)
				}
			case errors.Is(e, path.ErrCanceled):
				failed++
				if !canceled[i] && !stop {
					rt.Errorf("target %d says that it was canceled", i)
				}
			case missing[i] && errors.Is(e, control.NotFound):
				failed++
			default:
				rt.Errorf("target %d: %v", i, e)
			}
		}
		if (err != nil) != (failed > 0) || failed == 0 && f.Progress() != 1 {
			rt.Errorf("%v with %d failed legs, progress %v", err, failed, f.Progress())
		}
		if failed == 0 && n >= 4 && !bytes.Equal(dst[n%4].All().Bytes(), src.All().Bytes()) {
			rt.Error("other bytes arrived")
		}
		src.Close()
		<-src.Unmapped()
	})
	// All registrations are given back; the count of the last one may come after its lease.
	for x := ctx(t); c.a.Snapshot().Memory.Registrations != 0; runtime.Gosched() {
		if x.Err() != nil {
			t.Fatalf("registrations: %+v", c.a.Snapshot().Memory)
		}
	}
}

// BenchmarkFanout puts 16 MiB to eight peers: one put after the other, and with some at once.
func BenchmarkFanout(b *testing.B) {
	const size = 16 << 20
	for _, name := range paths {
		c := newCrowd(b, 8, nil)
		c.room(b, "weights", size)
		src := region(b, size)
		fill(src, 1)
		var targets []Target
		for _, p := range c.peers {
			targets = append(targets, Target{Peer: p, Copies: []path.Copy{lookup(b, p, "weights").At(0, src.All())}})
		}
		only := transfer.PutOptions{Paths: []string{name}}
		b.Run(name+"/one after the other", func(b *testing.B) {
			b.SetBytes(8 * size)
			b.ReportAllocs()
			for b.Loop() {
				for _, t := range targets {
					x, err := t.Peer.Put(b.Context(), t.Copies, only)
					wait(b, x, err)
				}
			}
		})
		for _, k := range []int{1, 2, 3, 4, 8} {
			b.Run(fmt.Sprintf("%s/%d at once", name, k), func(b *testing.B) {
				b.SetBytes(8 * size)
				b.ReportAllocs()
				for b.Loop() {
					f, err := PutAll(b.Context(), targets, FanoutOptions{Put: only, AtOnce: k})
					if err == nil {
						err = f.Wait(b.Context())
					}
					if err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
