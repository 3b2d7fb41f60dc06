package transfer

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/bounce"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

// TestDeviceMemoryElsewhere: everything that moves bytes either works with memory of devices or
// says why not, and what does work.
func TestDeviceMemoryElsewhere(t *testing.T) {
	const size = 1 << 20
	p := newStagedPair(t, size, Options{})
	desc := tensor.Desc{DType: tensor.U8, Shape: []int64{size}}
	r, b := p.db.region(size)
	if _, err := p.b.Export(r.All(), ExportOptions{Name: "w", Rights: path.Read | path.Write,
		Tensor: &desc}); err != nil {
		t.Fatal(err)
	}
	fillBytes(b, 21)
	src := p.local.Local

	t.Run("borrow", func(t *testing.T) {
		if _, err := p.ab.Borrow(ctx(t), lookup(t, p.ab, "w"), 0, 1); !errors.Is(err, path.ErrUnreachable) ||
			!strings.Contains(err.Error(), "use Get") {
			t.Errorf("%v", err)
		}
	})
	t.Run("tensor", func(t *testing.T) {
		got := make(chan *Received, 1)
		go func() {
			x, err := p.b.Receive(ctx(t), "pushed")
			if err != nil {
				t.Error(err)
			}
			got <- x
		}()
		x, err := p.ab.SendTensor(ctx(t), "pushed", desc, src, PutOptions{Digest: true})
		wait(t, x, err)
		if x := <-got; x != nil {
			if !bytes.Equal(x.Span.Bytes(), p.src) || x.Digest == ([32]byte{}) {
				t.Error("other bytes were received")
			}
			x.Release()
		}
	})
	t.Run("stream", func(t *testing.T) {
		var last *Transfer
		for range 5 {
			x, err := p.ab.Put(ctx(t), []path.Copy{p.local}, PutOptions{Stream: 7})
			if err != nil {
				t.Fatal(err)
			}
			last = x
		}
		wait(t, last, nil)
	})
	t.Run("queue", func(t *testing.T) {
		for _, name := range paths {
			p.b.AcceptQueues("q " + name)
			q, err := p.ab.OpenQueue(ctx(t), QueueOptions{Path: name, Name: "q " + name})
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			if other, err := p.b.AcceptQueue(ctx(t), "q "+name); err != nil {
				t.Fatal(err)
			} else {
				defer other.Close()
			}
			if _, err := q.Post([]path.Op{{Kind: path.Put, Copies: []path.Copy{p.local}}}); !errors.Is(err,
				path.ErrUnreachable) || !strings.Contains(err.Error(), "Peer.Put") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	idleStaging(t, p.a)
	idleStaging(t, p.b)
}

// TestDirectDevice: a path that says that it reaches memory of a device is given it as it is; when
// it goes down, and no other does, the rest is staged.
func TestDirectDevice(t *testing.T) {
	const size = 3 << 20
	d := newFakeDevice(t, "card of a")
	direct := over("direct")
	var shadow *mem.Region // where the card's bytes really are
	var posts, limit atomic.Int64
	limit.Store(1 << 40)
	direct.reaches = func(r *mem.Region) error { return nil }
	direct.post = func(p path.Path, ops []path.Op) (int, error) {
		if posts.Add(1) > limit.Load() {
			p.Close()
		}
		out := make([]path.Op, len(ops))
		for i, op := range ops {
			op.Copies = append([]path.Copy(nil), op.Copies...)
			for k := range op.Copies {
				if l := &op.Copies[k].Local; l.Bytes() == nil {
					l.Region = shadow
				}
			}
			out[i] = op
		}
		return p.Post(out)
	}
	p := newPair(t, Options{Paths: []setup.Driver{tcp.New(tcp.Options{}), direct}, Staging: bounce.Least})
	p.ignore(t)
	shadow = region(t, size)
	fill(shadow, 4)
	src := d.regionOf(shadow.All().Bytes()[:size])
	dst := region(t, size)
	export(t, p.b, dst, "dst", path.Read|path.Write)
	to := lookup(t, p.ab, "dst").At(0, src.All())
	x, err := p.ab.Put(ctx(t), []path.Copy{to}, PutOptions{})
	wait(t, x, err)
	if e := x.Explain(); e.Path != "direct" || e.Staged != 0 || d.moves.Load() != 0 ||
		!bytes.Equal(dst.All().Bytes(), shadow.All().Bytes()) {
		t.Errorf("%d copies: %v", d.moves.Load(), e)
	}
	clear(dst.All().Bytes())
	limit.Store(posts.Load())
	x, err = p.ab.Put(ctx(t), []path.Copy{to}, PutOptions{Digest: true})
	wait(t, x, err)
	e := x.Explain()
	if len(e.Failovers) == 0 || e.Failovers[0].From != "direct" ||
		!bytes.Equal(dst.All().Bytes(), shadow.All().Bytes()) {
		t.Errorf("%v", e)
	}
	addsUp(t, x)
	idleStaging(t, p.a)
}

// TestDirectMissing: a path that says, again and again, that it reaches memory of a device, and
// then refuses it, does not get it twice from one transfer: the bytes are staged, over that path
// too.
func TestDirectMissing(t *testing.T) {
	const size = 9 << 20
	d := newFakeDevice(t, "card of a")
	direct := over("direct")
	direct.reaches = func(*mem.Region) error { return nil }
	var refused atomic.Int64
	direct.post = func(p path.Path, ops []path.Op) (int, error) {
		n, err := p.Post(ops) // TCP, which reaches no such memory
		if errors.Is(err, path.ErrUnreachable) {
			refused.Add(1)
		}
		return n, err
	}
	p := newPair(t, Options{Paths: []setup.Driver{direct}})
	p.ignore(t)
	src, b := d.region(size)
	fillBytes(b, 6)
	dst := region(t, size)
	export(t, p.b, dst, "dst", path.Read|path.Write)
	x, err := p.ab.Put(ctx(t), []path.Copy{lookup(t, p.ab, "dst").At(0, src.All())}, PutOptions{Digest: true})
	wait(t, x, err)
	if e := x.Explain(); refused.Load() != 1 || e.Path != "direct" || e.Local.Bytes != size || len(e.Failovers) != 0 ||
		!bytes.Equal(dst.All().Bytes()[:size], b) {
		t.Errorf("refused %d times: %v", refused.Load(), e)
	}
	addsUp(t, x)
	idleStaging(t, p.a)
}

// BenchmarkStaged puts 64 MiB into host memory and into memory of a device at either side, whose
// card is a goroutine that copies: what staging costs beside the direct path.
func BenchmarkStaged(b *testing.B) {
	const size = 64 << 20
	for _, name := range paths {
		for _, where := range []string{"host", "remote", "local", "both"} {
			b.Run(name+"/"+where, func(b *testing.B) {
				var da, db *fakeDevice
				if where == "local" || where == "both" {
					da = newFakeDevice(b, "card of a")
					da.plain = true
				}
				if where == "remote" || where == "both" {
					db = newFakeDevice(b, "card of b")
					db.plain = true
				}
				p := newPair(b, Options{})
				p.ignore(b)
				src, _ := anyMemory(b, da, size)
				dst, _ := anyMemory(b, db, size)
				export(b, p.b, dst, "dst", path.Write)
				to := lookup(b, p.ab, "dst").At(0, src.All())
				put := func() {
					x, err := p.ab.Put(b.Context(), []path.Copy{to}, PutOptions{Paths: []string{name}})
					if err != nil {
						b.Fatal(err)
					}
					if err := x.Wait(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
				put()
				b.SetBytes(size)
				b.ReportAllocs()
				for b.Loop() {
					put()
				}
			})
		}
	}
}
