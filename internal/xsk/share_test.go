package xsk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/sys"
)

// newUmem makes a umem of n chunks of 4096.
func newUmem(t testing.TB, n int) *Umem {
	t.Helper()
	u, err := NewUmem(UmemConfig{Memory: pages(t, n*4096, 0), ChunkSize: 4096})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestJumbo sends packets of up to the longest that veth takes as chains of chunks.
func TestJumbo(t *testing.T) {
	for _, v := range []struct {
		chunk   int
		generic bool
	}{{2048, false}, {4096, false}, {4096, true}} {
		chunk := v.chunk
		t.Run(fmt.Sprintf("%+v", v), func(t *testing.T) {
			e := veth(t, netns.LinkSpec{MTU: 9000})
			var s [2]*Socket
			for i := range 2 {
				u, err := NewUmem(UmemConfig{Memory: pages(t, 1024*chunk, 0), ChunkSize: chunk})
				if err != nil {
					t.Fatal(err)
				}
				s[i] = e.socket(t, i, e.queue(t, i, u, QueueConfig{NeedWakeup: true, MultiBuffer: true, FillSize: 512,
					CompletionSize: 256}), SocketConfig{RxSize: 256, TxSize: 256})
			}
			put(t, e.program(t, 1, -1, true, v.generic), 0, s[1])
			f := &flow{t: t, from: s[0], to: s[1], count: 2000, window: 16, size: func(i int) int {
				return 32 + i*4463%8982
			},
				free: chunks(s[0].queue.umem, 0, 512), spare: chunks(s[1].queue.umem, 0, 512)}
			f.run()
			if f.chains == 0 {
				t.Error("no packet came in several chunks")
			}
		})
	}
}

// TestChainTooLong: a packet may have MaxChain chunks; one more is refused, counted, and harms no
// other packet.
func TestChainTooLong(t *testing.T) {
	e := veth(t, netns.LinkSpec{MTU: 9000})
	c := QueueConfig{NeedWakeup: true, MultiBuffer: true, FillSize: 64, Mode: Copy}
	from := e.socket(t, 0, e.queue(t, 0, newUmem(t, 64), c), SocketConfig{TxSize: 64})
	u := newUmem(t, 64)
	to := e.socket(t, 1, e.queue(t, 1, u, c), SocketConfig{RxSize: 64})
	put(t, e.program(t, 1, -1, true, false), 0, to)
	to.queue.fill.Put(chunks(u, 0, 64))
	next := uint64(0)
	chain := func(n, size int) []Desc {
		var d []Desc
		for k := range n {
			d = append(d, Desc{Addr: next % 64 * 4096, Len: uint32(size), Options: More})
			if next++; k == n-1 {
				d[k].Options = 0
			}
		}
		return d
	}
	for _, d := range [][]Desc{chain(MaxChain, 100), chain(MaxChain+1, 100), chain(1, 60)} {
		if from.tx.Put(d) != len(d) {
			t.Fatal("no room")
		}
		for deadline := ctx(t); from.tx.Pending() > 0; waitABit() {
			from.WakeTx()
			if deadline.Err() != nil {
				t.Fatal("it is not taken")
			}
		}
	}
	var st Statistics
	if err := from.Statistics(&st); err != nil || st.TxInvalidDescs == 0 || st.TxInvalidDescs > MaxChain+1 {
		t.Errorf("%+v, %v", st, err)
	}
	var sizes []int
	for deadline := ctx(t); len(sizes) < 2; waitABit() {
		size := 0
		for _, d := range to.rx.Peek(64) {
			if size += int(d.Len); d.Options&More == 0 {
				sizes, size = append(sizes, size), 0
			}
		}
		to.rx.Release(64)
		if deadline.Err() != nil {
			t.Fatalf("packets of %v bytes came", sizes)
		}
	}
	if !slices.Equal(sizes, []int{100 * MaxChain, 60}) {
		t.Errorf("packets of %v bytes came", sizes)
	}
}

// TestSharedQueue: eight sockets of one queue, which come and go, get what the program gives each.
func TestSharedQueue(t *testing.T) {
	e := veth(t, netns.LinkSpec{})
	from := e.socket(t, 0, e.queue(t, 0, newUmem(t, 256), QueueConfig{NeedWakeup: true}), SocketConfig{TxSize: 64})
	u := newUmem(t, 512)
	q := e.queue(t, 1, u, QueueConfig{NeedWakeup: true, FillSize: 256})
	m := e.program(t, 1, 21, false, false) // by the last byte of the number
	var s []*Socket
	for i := range 8 {
		s = append(s, e.socket(t, 1, q, SocketConfig{RxSize: 64, TxSize: 64 * (i % 2)}))
		put(t, m, i, s[i])
	}
	if u.registered.Load() != 1 {
		t.Errorf("%d registrations of the memory: expected one", u.registered.Load())
	}
	f := &flow{t: t, from: from, to: s[0], more: s[1:], count: 4000, window: 32, size: fixed(64),
		free: chunks(from.queue.umem, 0, 128), spare: chunks(u, 0, 128)}
	f.seen = func(i, r int) {
		if i%8 != r {
			t.Errorf("packet %d came to socket %d", i, r)
		}
	}
	f.run()

	// The first socket goes, and with it a few others; those that are left receive as before.
	for _, i := range []int{0, 3, 7} {
		if err := s[i].Close(); err != nil {
			t.Error(err)
		}
	}
	left := []*Socket{s[1], s[2], s[4], s[5], s[6]}
	for i := range 8 {
		put(t, m, i, left[i%len(left)])
	}
	f = &flow{t: t, from: from, to: left[0], more: left[1:], count: 1000, window: 32, size: fixed(64), free: f.free,
		spare: f.spare, filled: f.filled}
	f.seen = func(i, r int) {
		if i%8%len(left) != r {
			t.Errorf("packet %d came to socket %d of those left", i, r)
		}
	}
	f.run()

	// The queue is given up before its sockets: it stays theirs.
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	e.do(t, 1, func() error {
		if _, err := q.OpenSocket(SocketConfig{RxSize: 64}); !errors.Is(err, ErrClosed) {
			t.Errorf("a socket on a closed queue: %v", err)
		}
		return nil
	})
	f = &flow{t: t, from: from, to: left[0], more: left[1:], count: 1000, window: 32, size: fixed(64), free: f.free,
		spare: f.spare, filled: f.filled}
	f.run()
	for _, x := range left {
		if u.Queues() != 1 {
			t.Errorf("%d queues are open: expected one until its last socket is closed", u.Queues())
		}
		x.Close()
	}
	if u.Queues() != 0 || u.registered.Load() != 0 {
		t.Errorf("%d queues, %d registrations are left", u.Queues(), u.registered.Load())
	}
	if q.Fill().Put([]uint64{0}) != 0 {
		t.Error("the fill ring of a queue that is gone took something")
	}
}

// TestFirstSocketClosed shows why a Queue has a carrier: the kernel keeps a socket bound as long as
// one of its rings is mapped, so a first socket that carries the fill ring is not gone when it is
// closed.
func TestFirstSocketClosed(t *testing.T) {
	e := veth(t, netns.LinkSpec{})
	b := pages(t, 64*4096, 0)
	busy := func() (is bool) {
		e.do(t, 0, func() error {
			u, err := NewUmem(UmemConfig{Memory: pages(t, 4096, 0)})
			if err != nil {
				return err
			}
			once, cancel := context.WithCancel(t.Context())
			cancel()
			q, err := u.OpenQueue(once, QueueConfig{Interface: e.index[0], FillSize: 1, CompletionSize: 1})
			if err == nil {
				return q.Close()
			}
			if is = errors.Is(err, ErrBusy); !is {
				return err
			}
			return nil
		})
		return is
	}
	e.do(t, 0, func() error {
		fd, err := sys.XDPSocket()
		if err != nil {
			return err
		}
		if err := errors.Join(sys.XDPUmem(fd, b, 4096, 0, 0), sys.SetXDPRing(fd, sys.XDPRingRx, 64),
			sys.SetXDPRing(fd, sys.XDPRingCompletion, 64)); err != nil {
			return err
		}
		_, _, fill, _, err := sys.XDPOffsets(fd)
		if err != nil {
			return err
		}
		ring, err := mapRing(fd, sys.XDPRingFill, 64, 8, fill)
		if err != nil {
			return err
		}
		if err := errors.Join(sys.BindXDP(fd, e.index[0], 0, sys.XDPCopy, -1), sys.Close(fd)); err != nil {
			return err
		}
		// The descriptor is gone; the queue is not free, and will not be.
		for range 100 {
			if !busy() {
				t.Error("the queue is free although a ring of its socket is mapped")
				break
			}
			waitABit()
		}
		return sys.Munmap(ring)
	})
	deadline := ctx(t)
	for busy() {
		if deadline.Err() != nil {
			t.Fatal("the queue is never free although nothing is mapped")
		}
		waitABit()
	}
}

// TestQueues: four queues of an interface share a registration of the memory, and each has its own
// rings.
func TestQueues(t *testing.T) {
	e := veth(t, netns.LinkSpec{Queues: 4})
	u := [2]*Umem{newUmem(t, 1024), newUmem(t, 1024)}
	m := e.program(t, 1, -1, false, false)
	var rx, tx []*Socket
	for i := range 4 {
		c := QueueConfig{Queue: i, NeedWakeup: true, FillSize: 128}
		tx = append(tx, e.socket(t, 0, e.queue(t, 0, u[0], c), SocketConfig{TxSize: 64, RxSize: 64}))
		rx = append(rx, e.socket(t, 1, e.queue(t, 1, u[1], c), SocketConfig{RxSize: 64}))
		put(t, m, 8*i, rx[i])
	}
	for i := range u {
		if n := u[i].registered.Load(); n != 1 {
			t.Errorf("%d registrations of the memory for four queues of an interface: expected one", n)
		}
	}
	for i := range 4 {
		// What is sent on queue i of a veth comes to queue i of the peer, or to queue 0, as the
		// kernel likes: all are looked at.
		others := slices.Concat(rx[i+1:], rx[:i])
		for _, s := range rx {
			s.queue.Fill().Put(chunks(u[1], 256*s.queue.cfg.Queue, 8)) // some for each
		}
		f := &flow{t: t, from: tx[i], to: rx[i], more: others, count: 500, window: 4, size: fixed(100),
			free: chunks(u[0], 256*i, 32), each: true}
		f.run()
	}
	// Closing the queue that registered the memory leaves the others as they are.
	tx[0].Close()
	tx[0].queue.Close()
	if u[0].registered.Load() != 0 || u[0].Queues() != 3 {
		t.Errorf("%d registrations by open queues, %d queues", u[0].registered.Load(), u[0].Queues())
	}
	f := &flow{t: t, from: tx[1], to: rx[1], more: []*Socket{rx[0], rx[2], rx[3]}, count: 500, window: 4,
		size: fixed(100), free: chunks(u[0], 256, 32), each: true}
	f.run()
	again := e.queue(t, 0, u[0], QueueConfig{Queue: 0, NeedWakeup: true, FillSize: 128})
	if u[0].Queues() != 4 {
		t.Errorf("%d queues", u[0].Queues())
	}
	again.Close()
}
