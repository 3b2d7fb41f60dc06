package transfer

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// blocks is a list of many small blocks whose order at both ends differs.
func blocks(rem *Remote, r *mem.Region, n int, size uint64) (out []path.Copy) {
	for i := range n {
		out = append(out, rem.At(uint64(i)*size, mem.Span{Region: r, Off: uint64(n-1-i) * size, Len: size}))
	}
	return out
}

// A list is prepared once and posted many times over each path: new bytes come each time, each post
// is a transfer of its own, and what is not allowed is refused.
func TestPrepared(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Options{Paths: []setup.Driver{over(name)}})
			const n, size = 64, 512
			src, dst := region(t, n*size), region(t, n*size)
			x := export(t, p.b, dst, "dst", path.Read|path.Write)
			rem := lookup(t, p.ab, "dst")
			list := blocks(rem, src, n, size)
			put, err := p.ab.Prepare(path.Put, list, PutOptions{Msg: []byte("posted"), Tag: 3})
			if err != nil {
				t.Fatal(err)
			}
			clear(list) // it was copied
			ids := map[any]bool{}
			for round := range 5 {
				for i := range src.All().Bytes() {
					src.All().Bytes()[i] = byte(i/size + round)
				}
				tr, err := put.Post(context.Background())
				wait(t, tr, err)
				for i := range n {
					if !bytes.Equal(dst.All().Bytes()[i*size:][:size], src.All().Bytes()[(n-1-i)*size:][:size]) {
						t.Fatalf("round %d: block %d is another one", round, i)
					}
				}
				if e := tr.Explain(); e.Path != name || e.Blocks != n || e.Bytes != n*size || e.Moved != n*size ||
					ids[tr.ID()] {
					t.Errorf("round %d: %v", round, e)
				}
				addsUp(t, tr)
				ids[tr.ID()] = true
			}
			get, err := p.ab.Prepare(path.Get, blocks(rem, src, n, size), PutOptions{Digest: true})
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				clear(src.All().Bytes())
				tr, err := get.Post(ctx(t))
				wait(t, tr, err)
				if src.All().Bytes()[0] != dst.All().Bytes()[(n-1)*size] {
					t.Error("the get brought other bytes")
				}
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := put.Post(ended); !errors.Is(err, path.ErrCanceled) {
				t.Errorf("with a context that has ended: %v", err)
			}
			for what, c := range map[string]func() error{
				"a notification": func() error { _, err := p.ab.Prepare(path.Notify, nil, PutOptions{}); return err },
				"a stream": func() error {
					_, err := p.ab.Prepare(path.Put, blocks(rem, src, 1, 8), PutOptions{Stream: 1})
					return err
				},
				"out of bounds": func() error {
					_, err := p.ab.Prepare(path.Put, []path.Copy{rem.At(n*size, mem.Span{Region: src, Len: 1})},
						PutOptions{})
					return err
				},
			} {
				if c() == nil {
					t.Errorf("%s was prepared", what)
				}
			}
			if err := x.Revoke(ctx(t)); err != nil {
				t.Fatal(err)
			}
			until(t, "the revocation", func() bool {
				_, err := put.Post(ctx(t))
				return errors.Is(err, path.ErrRevoked)
			})
			for _, r := range []*Prepared{put, get} {
				if err := errors.Join(r.Close(), r.Close()); err != nil {
					t.Error(err)
				}
			}
			if _, err := put.Post(ctx(t)); !errors.Is(err, ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		})
	}
}

// A list whose post is under way is not posted again; Close waits for the end of that post, and
// then nothing holds the memory.
func TestPreparedUnderWay(t *testing.T) {
	var shut atomic.Bool
	d := over("tcp")
	d.poll = func(p path.Path, events []path.Event) int {
		if shut.Load() {
			return 0
		}
		return p.Poll(events)
	}
	p := newPair(t, Options{Paths: []setup.Driver{d}})
	src := region(t, 4096)
	export(t, p.b, region(t, 4096), "dst", path.Write)
	list := []path.Copy{lookup(t, p.ab, "dst").At(0, src.All())}
	if err := p.ab.PutWait(ctx(t), list, PutOptions{}); err != nil {
		t.Fatal(err)
	}
	before := src.Leases() // of the registration that the node keeps for the next put
	r, err := p.ab.Prepare(path.Put, list, PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := r.Post(context.Background())
	wait(t, first, err)
	shut.Store(true)
	if first, err = r.Post(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Post(context.Background()); !errors.Is(err, mem.ErrInUse) {
		t.Errorf("posted twice: %v", err)
	}
	closed := make(chan error, 1)
	go func() {
		err := r.Close()
		if !first.ended() {
			t.Error("Close returns while the post is under way")
		}
		closed <- err
	}()
	until(t, "Close", func() bool { // it holds the mutex while it waits
		if r.mu.TryLock() {
			r.mu.Unlock()
			return len(closed) > 0
		}
		return true
	})
	if src.Leases() == before {
		t.Error("nothing holds the memory of a post under way")
	}
	shut.Store(false)
	p.a.loop.Kick(channelOf(t, p.ab, "tcp"))
	wait(t, first, nil)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if n := src.Leases(); n != before || p.a.regs.Stats().InUse != 0 {
		t.Errorf("%d leases of %d before, %d registrations in use", n, before, p.a.regs.Stats().InUse)
	}
}

// The Transfer of a post serves the next one only where nothing is left that could still touch it.
func TestPreparedIsIdle(t *testing.T) {
	p := newPair(t, Options{})
	p.ignore(t)
	src := region(t, 4096)
	export(t, p.b, region(t, 4096), "dst", path.Read|path.Write)
	list := []path.Copy{lookup(t, p.ab, "dst").At(0, src.All())}
	post := func(r *Prepared, c context.Context) *Transfer {
		t.Helper()
		x, err := r.Post(c)
		wait(t, x, err)
		return x
	}
	plain, err := p.ab.Prepare(path.Put, list, PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	digest, err := p.ab.Prepare(path.Put, list, PutOptions{Digest: true})
	if err != nil {
		t.Fatal(err)
	}
	defer digest.Close()
	bare := context.Background()
	if a, b := post(plain, bare), post(plain, bare); a != b {
		t.Error("a post that left nothing behind is not used again")
	}
	if a, b := post(digest, bare), post(digest, bare); a == b {
		t.Error("the transfer of a digester is used again")
	}
	x := post(plain, bare)
	x.stopCtx = func() bool { return true } // as of a context that could end, where the put was not done at once
	if post(plain, bare) == x {
		t.Error("a transfer is used again that its context may cancel")
	}
	x = post(plain, bare)
	if x.because.Store(&context.Canceled); post(plain, bare) == x {
		t.Error("a transfer that was canceled is used again")
	}
	x = post(plain, bare)
	if x.tries = 1; post(plain, bare) == x {
		t.Error("a transfer that changed its path is used again")
	}
}

// A prepared put that the caller finishes takes nothing from the heap.
func TestPreparedAllocations(t *testing.T) {
	p := newPair(t, Options{})
	src := region(t, 64<<10)
	export(t, p.b, region(t, 64<<10), "dst", path.Write)
	r, err := p.ab.Prepare(path.Put, blocks(lookup(t, p.ab, "dst"), src, 16, 4096), PutOptions{Paths: []string{"shm"}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	post := func() {
		x, err := r.Post(context.Background())
		if err == nil {
			err = x.Wait(context.Background())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	post()
	<-p.heard
	release := hold(t, p.b) // what the receiver allocates is not counted: its ring takes them all
	n := testing.AllocsPerRun(100, post)
	release()
	p.ignore(t)
	if n > 0 && !testenv.Race && !invariants.Enabled { // those allocate for themselves
		t.Errorf("%v allocations for each post, expected none", n)
	}
}

// BenchmarkPrepared is a list of 1,024 blocks of 4 KiB over shared memory: checked each time, and
// prepared once.
func BenchmarkPrepared(b *testing.B) {
	const n, size = 1024, 4096
	p := newPair(b, Options{})
	p.ignore(b)
	src := region(b, n*size)
	export(b, p.b, region(b, n*size), "dst", path.Write)
	list := blocks(lookup(b, p.ab, "dst"), src, n, size)
	o := PutOptions{Paths: []string{"shm"}}
	run := func(name string, post func() error) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(n * size)
			for b.Loop() {
				if err := post(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("put", func() error { return p.ab.PutWait(context.Background(), list, o) })
	r, err := p.ab.Prepare(path.Put, list, o)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	run("prepared", func() error {
		t, err := r.Post(context.Background())
		if err == nil {
			err = t.Wait(context.Background())
		}
		return err
	})
}
