package transfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// recorder is a driver that notes what it gets, and holds its events back while it is shut.
type recorder struct {
	*fakeDriver
	mu   sync.Mutex
	shut bool
	seen []posted
}

// posted is an operation that a path accepted.
type posted struct {
	number uint64 // of the transfer
	kind   path.OpKind
	bytes  uint64
}

func record(name string) *recorder {
	r := &recorder{fakeDriver: over(name)}
	r.post = func(p path.Path, ops []path.Op) (int, error) {
		n, err := p.Post(ops)
		r.mu.Lock()
		for _, op := range ops[:n] {
			if op.Kind != path.Fence {
				r.seen = append(r.seen, posted{op.Imm, op.Kind, op.Bytes()})
			}
		}
		r.mu.Unlock()
		return n, err
	}
	r.poll = func(p path.Path, events []path.Event) int {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.shut {
			return 0
		}
		return p.Poll(events)
	}
	return r
}

func (r *recorder) close() {
	r.mu.Lock()
	r.shut, r.seen = true, nil
	r.mu.Unlock()
}

func (r *recorder) open(p *pair, ch *channel) {
	r.mu.Lock()
	r.shut = false
	r.mu.Unlock()
	p.a.loop.Kick(ch)
}

func (r *recorder) all() []posted {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]posted(nil), r.seen...)
}

// until waits for a condition that nothing announces.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	c := ctx(t)
	for !ok() {
		if c.Err() != nil {
			t.Fatalf("%s: did not come", what)
		}
		runtime.Gosched()
	}
}

// shared is a pair over a recorded path with an export, whose channel is set up.
type shared struct {
	*pair
	r   *recorder
	t   testing.TB
	rem *Remote
	src path.Copy
	ch  *channel
}

func newShared(t testing.TB, size int, o Options) *shared {
	r := record("tcp")
	o.Paths = []setup.Driver{r}
	p := newPair(t, o)
	p.ignore(t)
	export(t, p.b, region(t, size), "dst", path.Write)
	rem := lookup(t, p.ab, "dst")
	s := &shared{pair: p, r: r, t: t, rem: rem, src: rem.At(0, region(t, size).All())}
	wait(t, s.put(64, PutOptions{}), nil)
	s.ch = channelOf(t, p.ab, "tcp")
	return s
}

func (s *shared) put(n uint64, o PutOptions) *Transfer {
	s.t.Helper()
	x, err := s.tryPut(n, o)
	if err != nil {
		s.t.Fatal(err)
	}
	return x
}

func (s *shared) tryPut(n uint64, o PutOptions) (*Transfer, error) {
	c := s.src
	c.Local.Len = n
	return s.ab.Put(ctx(s.t), []path.Copy{c}, o)
}

// A small transfer is handed over although a large one was begun before that has more outstanding
// than it may: nothing that is outstanding ends in this test before all small ones are posted.
func TestSmallOnesDoNotWaitForALargeOne(t *testing.T) {
	s := newShared(t, 8*PieceSize, Options{})
	s.r.close()
	large := s.put(8*PieceSize, PutOptions{})
	var small []*Transfer
	for range 100 {
		small = append(small, s.put(64, PutOptions{}))
	}
	count := func() (n int, bytes uint64) {
		for _, x := range s.r.all() {
			if x.number == large.id.Number() {
				bytes += x.bytes
			} else {
				n++
			}
		}
		return n, bytes
	}
	until(t, "the small transfers", func() bool { n, _ := count(); return n == len(small) })
	if _, bytes := count(); bytes > 2*PieceSize {
		t.Errorf("%d bytes of the large transfer are outstanding at once", bytes)
	}
	s.r.open(s.pair, s.ch)
	for _, x := range append(small, large) {
		wait(t, x, nil)
		addsUp(t, x)
	}
	if e := large.Explain(); e.Pieces < 8 || e.Moved != 8*PieceSize {
		t.Errorf("%d pieces, %d bytes moved", e.Pieces, e.Moved)
	}
}

// A large transfer alone is cut into the largest pieces that there are.
func TestAloneInWholePieces(t *testing.T) {
	s := newShared(t, 4*PieceSize, Options{})
	s.r.close()
	x := s.put(4*PieceSize, PutOptions{})
	s.r.open(s.pair, s.ch)
	wait(t, x, nil)
	for i, op := range s.r.all() {
		if i < 4 && op.bytes != PieceSize {
			t.Errorf("operation %d has %d bytes", i, op.bytes)
		}
	}
	if e := x.Explain(); e.Pieces != 4 {
		t.Errorf("%d pieces", e.Pieces)
	}
}

// Large transfers that were begun one after the other take turns, by bytes: until the first of them
// has ended none is far ahead. By priority each gets its share.
func TestLargeOnesTakeTurns(t *testing.T) {
	for _, c := range []struct {
		priorities []Priority
		sizes      []uint64 // pieces of 1 MiB
	}{
		{[]Priority{PriorityNormal, PriorityNormal, PriorityNormal}, []uint64{32, 24, 16}},
		{[]Priority{PriorityLow, PriorityNormal, PriorityHigh}, []uint64{32, 32, 32}},
	} {
		t.Run(fmt.Sprint(c.priorities), func(t *testing.T) {
			s := newShared(t, 3*PieceSize, Options{})
			s.r.close()
			first := s.put(2*PieceSize, PutOptions{}) // fills what may be outstanding
			until(t, "the first", func() bool { return len(s.r.all()) == 2 })
			var all []*Transfer
			index := map[uint64]int{}
			for i, n := range c.sizes {
				x := s.put(n<<20, PutOptions{Priority: c.priorities[i]})
				index[x.id.Number()] = i
				all = append(all, x)
			}
			s.r.open(s.pair, s.ch)
			for _, x := range append(all, first) {
				wait(t, x, nil)
			}
			var got [3]float64
			for _, op := range s.r.all() {
				i, ok := index[op.number]
				if !ok {
					continue
				}
				if op.bytes > ShareSize {
					t.Fatalf("a piece of %d bytes while others wait", op.bytes)
				}
				got[i] += float64(op.bytes)
				if uint64(got[i]) == c.sizes[i]<<20 {
					break // from here on it does not compete
				}
				const q = ShareSize + 512
				for a, x := range got {
					for b, y := range got {
						v, w := float64(priorityWeights[c.priorities[a]]), float64(priorityWeights[c.priorities[b]])
						bound := q/v + q/w
						if v == w {
							bound = 3 * q / v
						}
						// What one makes good that could not go on for a while comes on top, and
						// what one is charged for its operations.
						if bound += 4*q/w + 64*512/v; x/v-y/w > bound {
							t.Fatalf("transfers %d and %d got %.0f and %.0f bytes by weights %v and %v", a, b, x, y, v,
								w)
						}
					}
				}
			}
			s.idle()
		})
	}
}

// idle checks that nothing of a channel is left.
func (s *shared) idle() {
	s.t.Helper()
	l := s.ch
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inflight != 0 || l.bulk != 0 || l.bulkLen != 0 || l.queue.Len() != 0 || len(l.free) != len(l.slots) {
		s.t.Errorf("%d in flight, %d bulk of %d bytes, %d queued, %d of %d slots free", l.inflight, l.bulk, l.bulkLen,
			l.queue.Len(), len(l.free), len(l.slots))
	}
	for i := range l.light {
		if l.light[i].Active() {
			s.t.Errorf("the queue refers to flow %d", i)
		}
	}
}

// The window is full and bytes come back from the path again and again; every byte of every
// transfer is posted once in the end.
func TestNothingIsLostInAFullWindow(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Options{Window: 3})
			const size = 2 << 20
			src, dst := region(t, size), region(t, size)
			fill(src, 5)
			export(t, p.b, dst, "dst", path.Write)
			rem := lookup(t, p.ab, "dst")
			rng := rand.New(rand.NewPCG(4, 4))
			var all []*Transfer
			for off := uint64(0); off < size; {
				n := min(uint64(1+rng.IntN(900<<10)), size-off)
				if rng.IntN(2) == 0 {
					n = min(n, 5000)
				}
				// In blocks of odd sizes.
				var copies []path.Copy
				for at := off; at < off+n; {
					k := min(uint64(1+rng.IntN(60000)), off+n-at)
					l, _ := src.Span(at, k)
					copies = append(copies, rem.At(at, l))
					at += k
				}
				x, err := p.ab.Put(ctx(t), copies,
					PutOptions{Paths: []string{name}, Priority: Priority(rng.IntN(3)), Stream: uint32(rng.IntN(3))})
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, x)
				off += n
			}
			for _, x := range all {
				wait(t, x, nil)
				<-p.heard
			}
			if string(src.All().Bytes()[:size]) != string(dst.All().Bytes()[:size]) {
				t.Error("the bytes are not those that were put")
			}
		})
	}
}

// Transfers of a stream take effect in the order in which they were begun, whatever their sizes and
// paths; those of other streams, and those without, do not wait for them.
func TestStreamsKeepTheirOrder(t *testing.T) {
	p := newPair(t, Options{})
	const size = 4 << 20
	export(t, p.b, region(t, size), "dst", path.Read|path.Write)
	rem, src := lookup(t, p.ab, "dst"), region(t, size)
	for _, name := range paths { // both are set up
		x, err := p.ab.Notify(ctx(t), nil, PutOptions{Paths: []string{name}})
		wait(t, x, err)
		<-p.heard
	}
	rng := rand.New(rand.NewPCG(8, 9))
	const streams, each = 5, 60
	var all [streams][]*Transfer
	for i := range each {
		for k := range all {
			span := src.All()
			span.Len = uint64(rng.IntN(8192))
			if rng.IntN(6) == 0 {
				span.Len = uint64(rng.IntN(size))
			}
			o := PutOptions{Stream: uint32(k + 1), Paths: paths[rng.IntN(2):][:1],
				Msg: binary.BigEndian.AppendUint32([]byte{byte(k)}, uint32(i))}
			do := p.ab.Put
			if rng.IntN(4) == 0 {
				do = p.ab.Get
			}
			x, err := do(ctx(t), []path.Copy{rem.At(0, span)}, o)
			if err != nil {
				t.Fatal(err)
			}
			all[k] = append(all[k], x)
		}
	}
	for k := range all {
		for i := each - 1; i >= 0; i-- {
			wait(t, all[k][i], nil)
			for _, before := range all[k][:i] { // they have ended already
				select {
				case <-before.Done():
				default:
					t.Fatalf("transfer %d of stream %d has ended before one that was begun earlier", i, k+1)
				}
			}
		}
	}
	for range streams * each {
		<-p.heard
	}
	until(t, "the last transfer to leave its stream, which it does after it is done", func() bool {
		p.ab.streams.mu.Lock()
		defer p.ab.streams.mu.Unlock()
		return len(p.ab.streams.active) == 0
	})
}

// One of a stream that fails, or is canceled while it waits, does not hold up those behind it.
func TestStreamGoesOnAfterAFailure(t *testing.T) {
	s := newShared(t, 1<<20, Options{})
	s.r.close()
	o := PutOptions{Stream: 7}
	first, second, third := s.put(64, o), s.put(64, o), s.put(64, o)
	other := s.put(64, PutOptions{Stream: 8})
	until(t, "the other stream", func() bool { return len(s.r.all()) == 2 })
	if !second.Cancel() {
		t.Error("a waiting transfer cannot be canceled")
	}
	soon(t, second.Done(), "the end of a canceled transfer, before that of the one it waited for")
	if !errors.Is(second.Err(), path.ErrCanceled) || second.Cancel() {
		t.Errorf("ended with %v", second.Err())
	}
	addsUp(t, second)
	first.Cancel()
	s.r.open(s.pair, s.ch)
	soon(t, first.Done(), "the first")
	wait(t, third, nil)
	wait(t, other, nil)
	s.idle()
	nothingInUse(t, s.a)
}

// A large transfer that is queued and none of whose bytes is on its way ends at once when it is
// canceled.
func TestCancelWhileQueued(t *testing.T) {
	s := newShared(t, 2*PieceSize, Options{})
	s.r.close()
	first := s.put(2*PieceSize, PutOptions{})
	until(t, "the first", func() bool { return len(s.r.all()) >= 2 })
	second := s.put(2*PieceSize, PutOptions{})
	second.Cancel()
	soon(t, second.Done(), "the end of what was not begun")
	if !errors.Is(second.Err(), path.ErrCanceled) {
		t.Errorf("ended with %v", second.Err())
	}
	s.r.open(s.pair, s.ch)
	wait(t, first, nil)
	s.idle()
}

// The peer is lost while transfers wait for their stream, for room, and for the path: each ends
// once, with that error.
func TestPeerLostWhileQueued(t *testing.T) {
	s := newShared(t, 2*PieceSize, Options{})
	s.r.close()
	var all []*Transfer
	for range 3 {
		all = append(all, s.put(2*PieceSize, PutOptions{}))
	}
	for i := range 3000 {
		all = append(all, s.put(64, PutOptions{Stream: uint32(1 + i%2)}))
	}
	for range 500 {
		all = append(all, s.put(64, PutOptions{}))
	}
	s.r.open(s.pair, s.ch)
	s.ab.goodbye(0, "enough")
	ok := 0
	for _, x := range all {
		soon(t, x.Done(), "the end of a transfer")
		if x.Err() == nil {
			ok++
		} else if !errors.Is(x.Err(), ErrPeerLost) && !errors.Is(x.Err(), path.ErrDown) {
			t.Fatalf("ended with %v", x.Err())
		}
	}
	if ok == len(all) {
		t.Error("all succeeded: nothing was queued")
	}
	nothingInUse(t, s.a)
	if u := s.ab.limits.Out.Use(); u.Transfers != 0 || u.Bytes != 0 {
		t.Errorf("the peer's account has %+v", u)
	}
}

func TestPriorityIsChecked(t *testing.T) {
	s := newShared(t, 4096, Options{})
	if _, err := s.tryPut(64, PutOptions{Priority: priorities}); err == nil {
		t.Error("an unknown priority was accepted")
	}
	for p, want := range map[Priority]string{PriorityNormal: "normal", PriorityHigh: "high", PriorityLow: "low",
		77: "unknown"} {
		if p.String() != want {
			t.Errorf("%q, expected %q", p, want)
		}
	}
}

// TestBulkIsSaid checks that the channel tells the path which operations are parts of a large
// transfer: their size does not show it.
func TestBulkIsSaid(t *testing.T) {
	d := over("tcp")
	var bulk, light, wrong atomic.Int64
	d.post = func(p path.Path, ops []path.Op) (int, error) {
		for _, o := range ops {
			switch {
			case o.Kind == path.Notify || o.Bytes() == 100:
				light.Add(1)
				if o.Bulk {
					wrong.Add(1)
				}
			default:
				bulk.Add(1)
				if !o.Bulk {
					wrong.Add(1)
				}
			}
		}
		return p.Post(ops)
	}
	p := newPair(t, Options{Paths: []setup.Driver{d}})
	p.ignore(t)
	r := region(t, 8<<20)
	export(t, p.b, r, "x", path.Read|path.Write)
	rem := lookup(t, p.ab, "x")
	src := region(t, 8<<20)
	for _, n := range []uint64{100, 8 << 20} {
		s, err := src.Span(0, n)
		if err != nil {
			t.Fatal(err)
		}
		x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, s)}, PutOptions{})
		wait(t, x, err)
		x, err = p.ab.Get(ctx(t), []path.Copy{rem.At(0, s)}, PutOptions{})
		wait(t, x, err)
	}
	if bulk.Load() == 0 || light.Load() == 0 || wrong.Load() != 0 {
		t.Errorf("%d parts of large transfers, %d others, %d said wrongly", bulk.Load(), light.Load(), wrong.Load())
	}
}
