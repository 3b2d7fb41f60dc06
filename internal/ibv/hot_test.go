package ibv

import (
	"slices"
	"testing"

	"github.com/penstock-io/penstock/internal/dl"
	"pgregory.net/rapid"
)

// TestHotPath: posting and polling allocate nothing, and a chain is one call of the library however
// long it is.
func TestHotPath(t *testing.T) {
	w := fakeWorld(t, "")
	const depth = 64
	a, b := w.pair(t, options{qp: QPSpec{SendWRs: depth, RecvWRs: depth}})
	wc := make([]WC, depth)
	round := func() {
		a.send.Reset()
		b.recv.Reset()
		for i := range uint64(depth) {
			flags := SendFlags(0)
			if i == depth-1 {
				flags = Signaled
			}
			b.recv.Recv(i, b.mr.SGE(i*64, 64))
			a.send.Send(i, flags, a.mr.SGE(i*64, 32), a.mr.SGE(i*64, 32))
		}
		n, err := b.qp.PostRecv(b.recv)
		m, err2 := a.qp.PostSend(a.send)
		if n != depth || m != depth || err != nil || err2 != nil {
			t.Fatal(n, m, err, err2)
		}
		sent, err := a.cq.Poll(wc)
		if sent != 1 || err != nil || wc[0].ID() != depth-1 || wc[0].Status() != Success {
			t.Fatal(sent, err)
		}
		got, err := b.cq.Poll(wc)
		if got != depth || err != nil || wc[depth-1].ID() != depth-1 || wc[depth-1].Len() != 64 {
			t.Fatal(got, err)
		}
	}
	round()
	before := map[string]int{}
	names := []string{"ibv_post_send", "ibv_post_recv", "ibv_poll_cq", "send_requests"}
	for _, n := range names {
		before[n] = w.count(t, n)
	}
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations for %d messages", n, depth)
	}
	const rounds = 101 // AllocsPerRun has one more
	for i, want := range []int{rounds, rounds, 2 * rounds, depth * rounds} {
		if got := w.count(t, names[i]) - before[names[i]]; got != want {
			t.Errorf("%s: %d, expected %d", names[i], got, want)
		}
	}
	// All other builders.
	key, at := b.mr.RKey(), b.mr.Addr()
	if n := testing.AllocsPerRun(100, func() {
		a.send.Reset()
		a.send.Write(1, 0, at, key, a.mr.SGE(0, 8))
		a.send.WriteImm(1, 0, 1, at, key, a.mr.SGE(0, 8))
		a.send.Read(1, 0, at, key, a.mr.SGE(0, 8))
		a.send.SendImm(1, 0, 1)
		a.send.FetchAdd(1, 0, at, key, 1, a.mr.SGE(0, 8))
		a.send.CmpSwap(1, 0, at, key, 1, 2, a.mr.SGE(0, 8))
		if a.send.Len() != 6 {
			t.Fatal(a.send.Len())
		}
		if n, err := a.cq.Poll(wc); n != 0 || err != nil {
			t.Fatal(n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations of builders and an empty poll", n)
	}
	a.send.Reset()
}

// TestEventsAllocateNothing: an owner that sleeps pays for its wake-ups with nothing of the heap
// either.
func TestEventsAllocateNothing(t *testing.T) {
	w := fakeWorld(t, "")
	a, b := w.pair(t, options{event: true})
	wc := make([]WC, 4)
	if n := testing.AllocsPerRun(100, func() {
		if err := a.cq.Arm(false); err != nil {
			t.Fatal(err)
		}
		a.send.Reset()
		a.send.Write(1, Signaled, b.mr.Addr(), b.mr.RKey(), a.mr.SGE(0, 8))
		if n, err := a.qp.PostSend(a.send); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if cq, ok, err := a.channel.Next(); cq != a.cq || !ok || err != nil {
			t.Fatal(ok, err)
		}
		if _, ok, err := a.channel.Next(); ok || err != nil {
			t.Fatal(ok, err)
		}
		if n, err := a.cq.Poll(wc); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		a.cq.Ack()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestChainLimits: builders say when a chain is full, and leave it as it was.
func TestChainLimits(t *testing.T) {
	c := must(NewSendChain(2, 3))(t)
	if c.Cap() != 2 || c.Len() != 0 {
		t.Errorf("%d of %d", c.Len(), c.Cap())
	}
	if _, ok := c.Send(1, 0, SGE{}, SGE{}, SGE{}, SGE{}); ok || c.Len() != 0 {
		t.Error("four SGEs in three")
	}
	if i, ok := c.Send(1, 0, SGE{}, SGE{}); !ok || i != 0 {
		t.Error("two SGEs")
	}
	if _, ok := c.Write(2, 0, 0, 0, SGE{}, SGE{}); ok {
		t.Error("four SGEs in all")
	}
	if i, ok := c.Send(2, 0, SGE{}); !ok || i != 1 {
		t.Error("the third SGE")
	}
	if _, ok := c.Send(3, 0); ok || c.Len() != 2 {
		t.Error("a third request")
	}
	if w0, w1 := &c.wrs[0], &c.wrs[1]; w0.next != c.base+sendWRSize || w1.next != 0 || w1.sges != c.sgeAt+2*sgeSize ||
		w0.numSGE != 2 {
		t.Errorf("the list: %+v %+v", w0, w1)
	}
	c.Reset()
	if i, ok := c.FetchAdd(1, 0, 0, 0, 1, SGE{}); !ok || i != 0 || c.wrs[0].next != 0 {
		t.Error("after a reset")
	}
	c.Close()
	c.Close()
	if _, ok := c.Send(1, 0); ok || c.Cap() != 0 {
		t.Error("a closed chain")
	}
	r := must(NewRecvChain(1, 1))(t)
	if _, ok := r.Recv(1, SGE{}, SGE{}); ok {
		t.Error("two SGEs in one")
	}
	if i, ok := r.Recv(1, SGE{}); !ok || i != 0 {
		t.Error("one")
	}
	if _, ok := r.Recv(2); ok {
		t.Error("two receives in one")
	}
	r.Close()
	r.Close()
	if _, ok := r.Recv(1); ok {
		t.Error("a closed chain")
	}
}

// TestPrograms: random programs of writes, reads and atomics in chains of any length, half of which
// do not fit the queue. What is in both memories afterwards is what a model of the program has, and
// every request that asked for it has its completion, in order.
func TestPrograms(t *testing.T) {
	const size = 1 << 12
	w := fakeWorld(t, "")
	a, b := w.pair(t, options{qp: QPSpec{SendWRs: 16, SendSGEs: 3, Inline: 64}, size: size})
	c := must(NewSendChain(40, 120))(t)
	defer c.Close()
	inline := memory(t, 40*64) // for as many requests
	rapid.Check(t, func(t *rapid.T) {
		fill(a.buf, rapid.Byte().Draw(t, "seed of a"))
		fill(b.buf, rapid.Byte().Draw(t, "seed of b"))
		local, remote := slices.Clone(a.buf), slices.Clone(b.buf)
		var want []uint64
		c.Reset()
		n := rapid.IntRange(1, 40).Draw(t, "requests")
		for i := range n {
			id := rapid.Uint64().Draw(t, "id")
			flags := SendFlags(0)
			if i%8 == 7 || i == n-1 || rapid.Bool().Draw(t, "signaled") { // of 16 slots, some always come back
				flags = Signaled
				want = append(want, id)
			}
			ok := false
			switch op := rapid.IntRange(0, 4).Draw(t, "operation"); op {
			case 0, 1: // in up to three pieces
				var sges []SGE
				var pieces [][]byte
				total := 0
				for range rapid.IntRange(0, 3).Draw(t, "pieces") {
					from := rapid.IntRange(0, size-1).Draw(t, "from")
					k := rapid.IntRange(0, min(500, size-from)).Draw(t, "bytes")
					sges = append(sges, a.mr.SGE(uint64(from), uint32(k)))
					pieces = append(pieces, local[from:from+k])
					total += k
				}
				to := rapid.IntRange(0, size-total).Draw(t, "to")
				if op == 0 {
					_, ok = c.Write(id, flags, b.mr.Addr()+uint64(to), b.mr.RKey(), sges...)
				} else {
					_, ok = c.Read(id, flags, b.mr.Addr()+uint64(to), b.mr.RKey(), sges...)
				}
				for _, p := range pieces {
					if op == 0 {
						copy(remote[to:], p)
					} else {
						copy(p, remote[to:])
					}
					to += len(p)
				}
			case 2:
				data := rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "inline")
				to := rapid.IntRange(0, size-64).Draw(t, "to")
				sge := SGE{Addr: uint64(dl.Address(inline)) + uint64(64*i), Length: uint32(copy(inline[64*i:], data))}
				_, ok = c.Write(id, flags|Inline, b.mr.Addr()+uint64(to), b.mr.RKey(), sge)
				copy(remote[to:], data)
			default:
				at, old := 8*rapid.IntRange(0, size/8-1).Draw(t, "word"), 8*rapid.IntRange(0, size/8-1).Draw(t, "old")
				v, x := &words(remote[at : at+8])[0], rapid.Uint64().Draw(t, "operand")
				was := *v
				if op == 3 {
					_, ok = c.FetchAdd(id, flags, b.mr.Addr()+uint64(at), b.mr.RKey(), x, a.mr.SGE(uint64(old), 8))
					*v += x
				} else {
					compare := x
					if rapid.Bool().Draw(t, "right") {
						compare = was
					}
					_, ok = c.CmpSwap(id, flags, b.mr.Addr()+uint64(at), b.mr.RKey(), compare, x,
						a.mr.SGE(uint64(old), 8))
					if was == compare {
						*v = x
					}
				}
				words(local[old : old+8])[0] = was
			}
			if !ok {
				t.Fatalf("request %d does not fit", i)
			}
		}
		var got []uint64
		wc := make([]WC, 4)
		for posted := 0; posted < n; {
			k, err := a.qp.PostSend(c)
			if posted += k; posted < n && err == nil {
				t.Fatalf("%d of %d without an error", posted, n)
			}
			for {
				k, err := a.cq.Poll(wc)
				if err != nil {
					t.Fatal(err)
				}
				for i := range wc[:k] {
					if err := wc[i].Err(); err != nil {
						t.Fatal(err)
					}
					got = append(got, wc[i].ID())
				}
				if k == 0 {
					break
				}
			}
			if k == 0 {
				t.Fatalf("no progress after %d of %d", posted, n)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("completions %v, expected %v", got, want)
		}
		if !slices.Equal(a.buf, local) || !slices.Equal(b.buf, remote) {
			t.Fatal("the memory differs from the model's")
		}
	})
}
