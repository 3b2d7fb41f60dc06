package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

// pair is two nodes of this process that are connected: a dialed b.
type pair struct {
	a, b   *Node
	ab, ba *Peer
	heard  chan Incoming // by b
}

func newPair(t testing.TB, o Options) *pair {
	t.Helper()
	p := &pair{heard: make(chan Incoming, 4096)}
	peers := make(chan *Peer, 1)
	ob := o
	ob.Name, ob.Listen = "b", []string{"tcp://127.0.0.1:0"}
	ob.OnPeer = func(x *Peer) {
		select {
		case peers <- x:
		default: // of a later dial
		}
	}
	ob.OnTransfer = func(i Incoming) { p.heard <- i }
	p.b = open(t, ob)
	o.Name = "a"
	p.a = open(t, o)
	var err error
	if p.ab, err = p.a.Dial(ctx(t), p.b.Addrs()[0]); err != nil {
		t.Fatal(err)
	}
	select {
	case p.ba = <-peers:
	case <-ctx(t).Done():
		t.Fatal("the accepting node did not tell of its peer")
	}
	return p
}

// ignore drops what b receives, until the test ends.
func (p *pair) ignore(t testing.TB) {
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go func() {
		for {
			select {
			case <-p.heard:
			case <-stop:
				return
			}
		}
	}()
}

// open opens a node; peers without a certificate may do everything there, unless the options say
// what they may.
func open(t testing.TB, o Options) *Node {
	t.Helper()
	if o.Anonymous == 0 {
		o.Anonymous = identity.All
	}
	n, err := Open(ctx(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// ctx ends long after anything that works would have.
func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return c
}

func region(t testing.TB, size int) *mem.Region {
	t.Helper()
	r, err := mem.Alloc(mem.Options{Name: t.Name(), Size: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func fill(r *mem.Region, seed uint64) {
	b := r.All().Bytes()
	x := rand.New(rand.NewPCG(seed, seed))
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], x.Uint64())
	}
}

func export(t testing.TB, n *Node, r *mem.Region, name string, rights path.Rights) *Export {
	t.Helper()
	x, err := n.Export(r.All(), ExportOptions{Name: name, Rights: rights})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func lookup(t testing.TB, p *Peer, name string) *Remote {
	t.Helper()
	r, err := p.Lookup(ctx(t), name)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wait(t testing.TB, x *Transfer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Wait(ctx(t)); err != nil {
		t.Fatalf("%v\n%v", err, x.Explain())
	}
}

var paths = []string{"shm", "tcp"}

func TestPutAndGet(t *testing.T) {
	for _, name := range paths {
		for _, size := range []int{0, 1, 4096, 1 << 20, 2*PieceSize + 12345} {
			t.Run(fmt.Sprintf("%s/%d", name, size), func(t *testing.T) {
				p := newPair(t, Options{})
				src, dst, back := region(t, size+64), region(t, size+64), region(t, size+64)
				fill(src, 7)
				export(t, p.b, dst, "dst", path.Read|path.Write)
				rem := lookup(t, p.ab, "dst")
				local, _ := src.Span(1, uint64(size))
				x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(3, local)},
					PutOptions{Paths: []string{name}, Msg: []byte("hi")})
				wait(t, x, err)
				if !bytes.Equal(dst.All().Bytes()[3:3+size], src.All().Bytes()[1:1+size]) {
					t.Fatal("the bytes did not arrive")
				}
				if x.Progress() != 1 || x.Explain().Path != name || x.Explain().Moved != uint64(size) {
					t.Errorf("progress %v, %v", x.Progress(), x.Explain())
				}
				in := <-p.heard
				if in.ID != x.ID() || in.Bytes != uint64(size) || in.Kind != path.Put || string(in.Msg) != "hi" ||
					in.Path != name || in.Peer != p.ba {
					t.Errorf("the receiver heard %+v", in)
				}
				back1, _ := back.Span(9, uint64(size))
				x, err = p.ab.Get(ctx(t), []path.Copy{rem.At(3, back1)}, PutOptions{Paths: []string{name}})
				wait(t, x, err)
				if !bytes.Equal(back.All().Bytes()[9:9+size], src.All().Bytes()[1:1+size]) {
					t.Fatal("the bytes did not come back")
				}
				if in := <-p.heard; in.ID != x.ID() || in.Kind != path.Get {
					t.Errorf("the receiver heard %+v", in)
				}
				e := x.Explain().Times
				if sum := e.Parse + e.Register + e.Open + e.Queue + e.Transfer + e.Complete; sum != e.Total {
					t.Errorf("the parts add up to %v, the total is %v", sum, e.Total)
				}
			})
		}
	}
}

func TestNotify(t *testing.T) {
	p := newPair(t, Options{})
	for i := range 100 {
		x, err := p.ab.Notify(ctx(t), []byte{byte(i)}, PutOptions{Paths: []string{paths[i%2]}})
		wait(t, x, err)
	}
	got := map[byte]bool{}
	for range 100 {
		in := <-p.heard
		if in.Kind != path.Notify || len(in.Msg) != 1 || got[in.Msg[0]] {
			t.Fatalf("heard %+v", in)
		}
		got[in.Msg[0]] = true
	}
}

func TestRefusals(t *testing.T) {
	p := newPair(t, Options{})
	dst, src := region(t, 4096), region(t, 8192)
	export(t, p.b, dst, "ro", path.Read)
	rw := export(t, p.b, region(t, 4096), "rw", path.Read|path.Write)
	ro := lookup(t, p.ab, "ro")
	rem := lookup(t, p.ab, "rw")
	put := func(c path.Copy) error { _, err := p.ab.Put(ctx(t), []path.Copy{c}, PutOptions{}); return err }
	if err := put(ro.At(0, src.All())); !errors.Is(err, path.ErrRights) {
		t.Errorf("write to a read-only export: %v", err)
	}
	if err := put(rem.At(1, mem.Span{Region: src, Len: 4096})); !errors.Is(err, path.ErrBounds) {
		t.Errorf("beyond the end: %v", err)
	}
	if err := put(rem.At(1<<64-1, mem.Span{Region: src, Len: 2})); !errors.Is(err, path.ErrBounds) {
		t.Errorf("overflow: %v", err)
	}
	if err := put(rem.At(0, mem.Span{Region: src, Off: 8000, Len: 4096})); !errors.Is(err, mem.ErrBounds) {
		t.Errorf("local bounds: %v", err)
	}
	if err := put(path.Copy{Local: mem.Span{Region: src, Len: 1}, Key: path.Key{Index: 1, Secret: 2}}); !errors.Is(err,
		path.ErrKey) {
		t.Errorf("unknown export: %v", err)
	}
	if _, err := p.ab.Notify(ctx(t), make([]byte, MaxNotify+1), PutOptions{}); !errors.Is(err, path.ErrTooLarge) {
		t.Errorf("large message: %v", err)
	}
	if _, err := p.ab.Lookup(ctx(t), "nothing"); !errors.Is(err, control.NotFound) {
		t.Errorf("lookup of nothing: %v", err)
	}
	if err := rw.Revoke(ctx(t)); err != nil {
		t.Fatal(err)
	}
	for _, name := range paths { // the peer may know of the revocation already: then it refuses by itself
		p.ab.Import(rem.Desc)
		x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, mem.Span{Region: src, Len: 1})},
			PutOptions{Paths: []string{name}})
		if err == nil {
			err = x.Wait(ctx(t))
		}
		if !errors.Is(err, path.ErrRevoked) && !errors.Is(err, path.ErrKey) {
			t.Errorf("%s: revoked export: %v", name, err)
		}
	}
	for _, bad := range []string{"tcp://10.0.0.1:1", "tcp://example.org:80", "udp://127.0.0.1:1", "127.0.0.1:1",
		"unix://"} {
		if _, err := p.a.Dial(ctx(t), bad); err == nil {
			t.Errorf("dialed %s", bad)
		}
	}
}

func TestSubSpanGoesOverTCP(t *testing.T) {
	p := newPair(t, Options{})
	dst, src := region(t, 8192), region(t, 4096)
	fill(src, 1)
	s, _ := dst.Span(4096, 100)
	if _, err := p.b.Export(s, ExportOptions{Name: "part", Rights: path.Write}); err != nil {
		t.Fatal(err)
	}
	x, err := p.ab.Put(ctx(t), []path.Copy{lookup(t, p.ab, "part").At(0, mem.Span{Region: src, Len: 100})},
		PutOptions{})
	wait(t, x, err)
	if e := x.Explain(); e.Path != "tcp" || e.Proof != path.ProofCRC32C {
		t.Errorf("a part of a region went %v", e)
	}
	if !bytes.Equal(s.Bytes(), src.All().Bytes()[:100]) {
		t.Error("the bytes did not arrive")
	}
}

// The blocks of a slab go over shared memory where their owner permits that.
func TestWholeRegion(t *testing.T) {
	p := newPair(t, Options{})
	dst, src := region(t, 4*4096), region(t, 4096)
	fill(src, 1)
	s, _ := dst.Span(2*4096, 4096)
	if _, err := p.b.Export(s, ExportOptions{Name: "block", Rights: path.Read | path.Write,
		WholeRegion: true}); err != nil {
		t.Fatal(err)
	}
	x, err := p.ab.Put(ctx(t), []path.Copy{lookup(t, p.ab, "block").At(0, src.All())}, PutOptions{})
	wait(t, x, err)
	if e := x.Explain(); e.Path != "shm" {
		t.Errorf("a block of a slab went %v", e)
	}
	if !bytes.Equal(s.Bytes(), src.All().Bytes()) || dst.All().Bytes()[4096] != 0 || dst.All().Bytes()[3*4096] != 0 {
		t.Error("the bytes are not where they belong")
	}
	odd, _ := dst.Span(1, 4096)
	if _, err := p.b.Export(odd, ExportOptions{WholeRegion: true}); err == nil ||
		!strings.Contains(err.Error(), "page") {
		t.Errorf("a span that begins within a page: %v", err)
	}
}

func TestTensors(t *testing.T) {
	p := newPair(t, Options{Budget: 64 << 20})
	d := tensor.Desc{DType: tensor.F32, Shape: []int64{100, 33}}
	size, _ := d.Bytes()
	src, dst := region(t, int(size)), region(t, int(size))
	fill(src, 3)
	span, _ := src.Span(0, uint64(size))
	for i := range 5 {
		if _, err := p.b.Publish(fmt.Sprintf("layer.%d", i), d, span); err != nil {
			t.Fatal(err)
		}
	}
	list, err := p.ab.List(ctx(t), "layer.")
	if err != nil || len(list) != 5 || list[4].Name != "layer.4" || !list[0].Tensor.Equal(d) {
		t.Fatalf("list: %v, %v", list, err)
	}
	got, x, err := p.ab.GetTensor(ctx(t), "layer.2", dst.All())
	wait(t, x, err)
	if !got.Equal(d) || !bytes.Equal(dst.All().Bytes()[:size], span.Bytes()) {
		t.Error("the tensor did not arrive")
	}
	type result struct {
		r   *Received
		err error
	}
	done := make(chan result, 1)
	go func() {
		r, err := p.b.Receive(ctx(t), "kv")
		done <- result{r, err}
	}()
	x, err = p.ab.SendTensor(ctx(t), "kv", d, span, PutOptions{})
	wait(t, x, err)
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	if !bytes.Equal(r.r.Tensor().Bytes(), span.Bytes()) || r.r.ID != x.ID() || r.r.From != p.ba {
		t.Errorf("received %+v", r.r)
	}
	r.r.Release()
	huge := tensor.Desc{DType: tensor.U8, Shape: []int64{65 << 20}}
	if _, err := p.ab.SendTensor(ctx(t), "kv", huge, region(t, 65<<20).All(), PutOptions{}); !errors.Is(err,
		control.OverBudget) {
		t.Errorf("a tensor beyond the budget: %v", err)
	}
}

func TestCancel(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Options{})
			size := 4 * PieceSize
			src, dst := region(t, size), region(t, size)
			fill(src, 5)
			export(t, p.b, dst, "dst", path.Write)
			rem := lookup(t, p.ab, "dst")
			for try := 0; ; try++ { // on a busy machine the transfer may be faster than this goroutine
				c, cancel := context.WithCancel(ctx(t))
				calls := make(chan error, 4)
				x, err := p.ab.Put(c, []path.Copy{rem.At(0, src.All())}, PutOptions{Paths: []string{name}})
				if err != nil {
					t.Fatal(err)
				}
				x.OnDone(func(t *Transfer) { calls <- t.Err() })
				for x.Progress() == 0 && x.Err() == nil {
					runtime.Gosched()
				}
				cancel()
				<-x.Done()
				err = <-calls
				if errors.Is(err, path.ErrCanceled) {
					break
				}
				if err != nil || try == 20 {
					t.Fatalf("ended with %v after %v", err, x.Progress())
				}
			}
			before := bytes.Clone(dst.All().Bytes())
			// The path goes on working, and nothing is written late.
			y, err := p.ab.Notify(ctx(t), nil, PutOptions{Paths: []string{name}})
			wait(t, y, err)
			if !bytes.Equal(before, dst.All().Bytes()) {
				t.Error("bytes were written after the end")
			}
		})
	}
}

func TestPeerLostEndsTransfers(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Options{})
			size := 8 * PieceSize
			src, dst := region(t, size), region(t, size)
			export(t, p.b, dst, "dst", path.Write)
			rem := lookup(t, p.ab, "dst")
			var all []*Transfer
			for range 20 {
				x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{Paths: []string{name}})
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, x)
			}
			p.b.Close()
			for _, x := range all {
				if err := x.Wait(ctx(t)); err != nil && !errors.Is(err, path.ErrDown) && !errors.Is(err, ErrPeerLost) &&
					!errors.Is(err, control.Shutdown) && !errors.Is(err, path.ErrUnavailable) {
					t.Errorf("ended with %v", err)
				}
			}
			<-p.ab.Gone()
			if _, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{}); !errors.Is(err,
				ErrPeerLost) {
				t.Errorf("put to a lost peer: %v", err)
			}
		})
	}
}

func TestQueue(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Options{})
			src, dst := region(t, 1<<20), region(t, 1<<20)
			fill(src, 9)
			x := export(t, p.b, dst, "dst", path.Write)
			rem := lookup(t, p.ab, "dst")
			p.b.AcceptQueues("")
			qa, err := p.ab.OpenQueue(ctx(t), QueueOptions{Path: name})
			if err != nil {
				t.Fatal(err)
			}
			qb, err := p.b.AcceptQueue(ctx(t), "")
			if err != nil {
				t.Fatal(err)
			}
			stop := make(chan struct{})
			go func() { // the other side's owner
				defer close(stop)
				ev := make([]path.Event, 8)
				for {
					n, err := qb.Wait(ctx(t), ev, 0)
					if err != nil {
						t.Error(err)
						return
					}
					for _, e := range ev[:n] {
						if e.Kind == path.EventDown {
							qb.Close()
							return
						}
					}
				}
			}()
			ev := make([]path.Event, 8)
			op := []path.Op{{Kind: path.Put, Token: 5, Copies: []path.Copy{rem.At(0, src.All())}}}
			do := func() error {
				if n, err := qa.Post(op); n != 1 {
					return err
				}
				n, err := qa.Wait(ctx(t), ev, 0)
				if err != nil {
					return err
				}
				if n != 1 || ev[0].Token != 5 || ev[0].Kind != path.EventDone {
					t.Fatalf("events %+v", ev[:n])
				}
				return ev[0].Err
			}
			if err := do(); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(src.All().Bytes(), dst.All().Bytes()) {
				t.Error("the bytes did not arrive")
			}
			// A revocation fences queues too; their owners poll on both sides.
			done := make(chan error, 1)
			go func() { done <- x.Revoke(ctx(t)) }()
			for fenced := false; !fenced; {
				qa.Poll(ev)
				select {
				case err := <-done:
					if err != nil {
						t.Fatal(err)
					}
					fenced = true
				default:
				}
			}
			if err := do(); !errors.Is(err, path.ErrRevoked) && !errors.Is(err, path.ErrKey) {
				t.Errorf("put to a revoked export: %v", err)
			}
			qa.Close()
			<-stop
		})
	}
}
