package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/fault"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

// zombies is a bed for writes that come too late: the network holds the middle of an operation's
// bytes. The operation is ended in one way or another, its memory is used for something else, and
// then the network lets go.
type zombies struct {
	t     *testing.T
	d     *fault.ProxyDriver
	p     *pair
	src   *mem.Region // what the operation moves
	other *mem.Region // at b, for another operation
}

const (
	zombieSize = 4 << 20
	zombieAt   = 1 << 20 // bytes after which the network holds
)

// newZombies holds what b receives (fault.Up) or what a does (fault.Down).
func newZombies(t *testing.T, dir fault.Direction) *zombies {
	d, err := fault.NewProxyDriver(tcp.New(tcp.Options{CongestionControl: tcp.CongestionSystem}), fault.Plan{Seed: 1,
		Rules: []fault.Rule{{Kind: fault.Stall, Dir: dir, At: fault.Exactly(zombieAt)}}})
	if err != nil {
		t.Fatal(err)
	}
	z := &zombies{t: t, d: d, p: newPair(t, Options{Paths: []setup.Driver{d}, Budget: 64 << 20})}
	z.p.ignore(t)
	z.src, z.other = region(t, zombieSize), region(t, 4096)
	fill(z.src, 41)
	export(t, z.p.b, z.other, "other", path.Read|path.Write)
	return z
}

// held waits until the network holds.
func (z *zombies) held() {
	z.t.Helper()
	for end := ctx(z.t); z.d.Counts()[fault.Stall] == 0; time.Sleep(time.Millisecond) {
		if end.Err() != nil {
			z.t.Fatal("the network never held anything")
		}
	}
}

// release lets the network go on.
func (z *zombies) release() {
	for _, p := range z.d.Proxies() {
		p.Resume(fault.Both)
	}
}

// over waits for the end of an operation, which may need what the network holds.
func (z *zombies) over(done <-chan struct{}) {
	z.t.Helper()
	select {
	case <-done:
		return
	case <-time.After(50 * time.Millisecond): // it may; nothing depends on it
	}
	z.release()
	select {
	case <-done:
	case <-ctx(z.t).Done():
		z.t.Fatal("the operation does not end")
	}
}

var canary = bytes.Repeat([]byte{0xCA, 0x4A, 0x17, 0x00}, zombieSize/4)

// haunted uses the memory, lets the network go on until everything it held has come, and returns
// where something was written.
func (z *zombies) haunted(b []byte) error {
	z.t.Helper()
	copy(b, canary)
	z.release()
	if z.p.ab.Err() == nil { // what is sent now comes after what was held, unless the path has ended
		r, local := lookup(z.t, z.p.ab, "other"), region(z.t, 4096)
		x, err := z.p.ab.Put(ctx(z.t), []path.Copy{r.At(0, local.All())}, PutOptions{})
		wait(z.t, x, err)
		x, err = z.p.ab.Get(ctx(z.t), []path.Copy{r.At(0, local.All())}, PutOptions{})
		wait(z.t, x, err)
	} else {
		for _, p := range z.d.Proxies() {
			for _, l := range p.Links() {
				select {
				case <-l.Done():
				case <-ctx(z.t).Done():
					z.t.Fatal("a connection is left")
				}
			}
		}
	}
	for i := range b {
		if b[i] != canary[i] {
			return fmt.Errorf("byte %d of %d was written by an operation that had ended", i, len(b))
		}
	}
	return nil
}

func (z *zombies) check(b []byte) {
	z.t.Helper()
	if err := z.haunted(b); err != nil {
		z.t.Error(err)
	}
}

func TestLateWrites(t *testing.T) {
	t.Run("put, revoked by the receiver", func(t *testing.T) {
		z := newZombies(t, fault.Up)
		dst := region(t, zombieSize)
		x := export(t, z.p.b, dst, "dst", path.Write)
		put, err := z.p.ab.Put(ctx(t), []path.Copy{lookup(t, z.p.ab, "dst").At(0, z.src.All())}, PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		z.held()
		revoked := make(chan struct{})
		go func() {
			defer close(revoked)
			if err := x.Revoke(ctx(t)); err != nil {
				t.Error(err)
			}
		}()
		z.over(revoked)
		z.check(dst.All().Bytes())
		if err := put.Wait(ctx(t)); !errors.Is(err, path.ErrRevoked) && !errors.Is(err, path.ErrKey) {
			t.Error(err)
		}
	})
	t.Run("put, canceled by the sender", func(t *testing.T) {
		z := newZombies(t, fault.Up)
		dst := region(t, zombieSize)
		export(t, z.p.b, dst, "dst", path.Read|path.Write)
		put, err := z.p.ab.Put(ctx(t), []path.Copy{lookup(t, z.p.ab, "dst").At(0, z.src.All())},
			PutOptions{Digest: true})
		if err != nil {
			t.Fatal(err)
		}
		z.held()
		put.Cancel()
		z.over(put.Done())
		if err := put.Err(); err != nil && !errors.Is(err, path.ErrCanceled) { // nil if the last byte was faster
			t.Error(err)
		}
		z.check(dst.All().Bytes())
		unleased(t, z.src)
	})
	t.Run("get, canceled", func(t *testing.T) {
		z := newZombies(t, fault.Down)
		export(t, z.p.b, z.src, "src", path.Read)
		dst := region(t, zombieSize)
		get, err := z.p.ab.Get(ctx(t), []path.Copy{lookup(t, z.p.ab, "src").At(0, dst.All())}, PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		z.held()
		get.Cancel()
		z.over(get.Done())
		if err := get.Err(); err != nil && !errors.Is(err, path.ErrCanceled) { // nil if the last byte was faster
			t.Error(err)
		}
		z.check(dst.All().Bytes())
	})
	t.Run("tensor, given up by the receiver", func(t *testing.T) {
		z := newZombies(t, fault.Up)
		c, stop := context.WithCancel(ctx(t))
		got := receive(c, z.p.b, "w")
		x, err := z.p.ab.SendTensor(ctx(t), "w", tensor.Desc{DType: tensor.U8, Shape: []int64{zombieSize}}, z.src.All(),
			PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		z.held()
		stop()
		if a := arrived(t, got); !errors.Is(a.err, context.Canceled) {
			t.Errorf("received %v", a.err)
		}
		free := make(chan struct{})
		go func() {
			defer close(free)
			inPool(t, z.p.b, 0)
		}()
		z.over(free)
		b, err := z.p.b.pool.Alloc(zombieSize) // the same memory
		if err != nil {
			t.Fatal(err)
		}
		defer z.p.b.pool.Free(b)
		z.check(b.Bytes())
		if err := x.Wait(ctx(t)); err == nil {
			t.Error("sent to nobody")
		}
	})
	t.Run("put, the sender is lost", func(t *testing.T) {
		z := newZombies(t, fault.Up)
		dst := region(t, zombieSize)
		export(t, z.p.b, dst, "dst", path.Write)
		put, err := z.p.ab.Put(ctx(t), []path.Copy{lookup(t, z.p.ab, "dst").At(0, z.src.All())}, PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		z.held()
		z.p.ab.conn.Close() // the control connection; the bytes on the data connection are still on their way
		<-z.p.ba.Gone()
		<-z.p.ab.Gone()
		z.check(dst.All().Bytes())
		if err := put.Wait(ctx(t)); !expected(err) {
			t.Error(err)
		}
	})
}

// The bed notices a write that comes too late.
func TestZombieBedNotices(t *testing.T) {
	z := newZombies(t, fault.Up)
	dst := region(t, zombieSize)
	export(t, z.p.b, dst, "dst", path.Write)
	put, err := z.p.ab.Put(ctx(t), []path.Copy{lookup(t, z.p.ab, "dst").At(0, z.src.All())}, PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	z.held()
	// The operation goes on, so what the network holds is written: it did not end before the memory
	// was used again.
	if err := z.haunted(dst.All().Bytes()); err == nil {
		t.Error("the operation overwrote the memory, and nobody noticed")
	}
	// What was written over while the receiver read it may not pass its check.
	if err := put.Wait(ctx(t)); err != nil && !errors.Is(err, path.ErrIntegrity) {
		t.Error(err)
	}
}

// inUse waits until a node's pool has so many bytes out.
func inPool(t testing.TB, n *Node, bytes uint64) {
	t.Helper()
	for end := ctx(t); n.pool.Stats().InUse != bytes; time.Sleep(time.Millisecond) {
		if end.Err() != nil {
			t.Fatalf("%d bytes are in use, expected %d", n.pool.Stats().InUse, bytes)
		}
	}
}
