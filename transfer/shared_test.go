package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/shm"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

// sharesAre waits until the figures of a node's shares are as expected: some change a moment after
// a call has returned.
func sharesAre(t testing.TB, n *Node, entries, references, idle int, bytes uint64) {
	t.Helper()
	var s ShareStats
	for end := ctx(t); end.Err() == nil; time.Sleep(time.Millisecond) {
		s = n.Shares()
		if s.Entries == entries && s.References == references && s.Idle == idle && s.Bytes == bytes {
			return
		}
	}
	t.Fatalf("%+v, expected %d entries, %d references, %d idle, %d bytes", s, entries, references, idle, bytes)
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

// readers share a name n times at once.
func readers(t testing.TB, p *Peer, name string, n int, o ShareOptions) []*Shared {
	t.Helper()
	out := make([]*Shared, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			out[i], errs[i] = p.Share(ctx(t), name, o)
		}()
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestShare(t *testing.T) {
	for _, name := range paths {
		for _, digest := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", name, digest), func(t *testing.T) {
				p := newPair(t, Options{})
				src := region(t, 1<<20)
				fill(src, 31)
				d := tensor.Desc{DType: tensor.F32, Shape: []int64{1000, 250}}
				if _, err := p.b.Publish("w", d, src.All()); err != nil {
					t.Fatal(err)
				}
				all := readers(t, p.ab, "w", 50, ShareOptions{Copy: true, Digest: digest, Paths: []string{name}})
				want := src.All().Bytes()[:1_000_000]
				for _, s := range all {
					if x, ok := s.Tensor(); !ok || !x.Desc.Equal(d) || !bytes.Equal(s.Bytes(), want) ||
						&s.Bytes()[0] != &all[0].Bytes()[0] {
						t.Fatalf("reader has %d other bytes, or as another tensor: %v", len(s.Bytes()), ok)
					}
				}
				s := all[0]
				if e := s.Explain(); s.Borrowed() || s.Stale() || s.e.remote.Name != "w" || e.Path != name ||
					(e.Digest != [32]byte{}) != digest {
					t.Errorf("%v", e)
				}
				// One get served all.
				sharesAre(t, p.a, 1, 50, 0, 1_000_000)
				if s := p.a.Shares(); s.Reads != 1 || s.Joined != 49 || s.Failed != 0 {
					t.Errorf("%+v", s)
				}
				if in := <-p.heard; in.Kind != path.Get || in.Bytes != 1_000_000 || len(p.heard) != 0 {
					t.Errorf("the peer heard %+v and %d more", in, len(p.heard))
				}
				inPool(t, p.a, 1<<20)
				for i, s := range all {
					sharesAre(t, p.a, 1, 50-i, 0, 1_000_000)
					s.Release()
					s.Release() // does nothing
				}
				sharesAre(t, p.a, 0, 0, 0, 0)
				inPool(t, p.a, 0)
			})
		}
	}
}

func TestShareBorrows(t *testing.T) {
	p := newPair(t, Options{})
	src := region(t, 1<<20)
	fill(src, 32)
	x := export(t, p.b, src, "w", path.Read)
	all := readers(t, p.ab, "w", 10, ShareOptions{})
	for _, s := range all {
		if !s.Borrowed() || !bytes.Equal(s.Bytes(), src.All().Bytes()) || s.Explain().Proof != path.ProofMemory {
			t.Fatal("not borrowed")
		}
		if _, ok := s.Tensor(); ok {
			t.Error("a tensor that was never declared")
		}
	}
	sharesAre(t, p.a, 1, 10, 0, 0)
	inPool(t, p.a, 0)
	src.All().Bytes()[5] ^= 1
	if all[3].Bytes()[5] != src.All().Bytes()[5] {
		t.Error("borrowed bytes are not the peer's")
	}
	for _, s := range all[1:] {
		s.Release()
	}
	// The export is not revoked to the end before the view is released; the holder can see that.
	revoked := make(chan error, 1)
	go func() { revoked <- x.Revoke(ctx(t)) }()
	for end := ctx(t); !all[0].Stale(); time.Sleep(time.Millisecond) {
		if end.Err() != nil {
			t.Fatal("the holder cannot see that the export is gone")
		}
	}
	select {
	case err := <-revoked:
		t.Errorf("revoked under a borrowed view: %v", err)
	default:
	}
	all[0].Release()
	if err := <-revoked; err != nil {
		t.Error(err)
	}
	sharesAre(t, p.a, 0, 0, 0, 0)

	// A part of a region cannot be borrowed: it is copied.
	part, _ := src.Span(4096, 4096)
	if _, err := p.b.Export(part, ExportOptions{Name: "part"}); err != nil {
		t.Fatal(err)
	}
	s, err := p.ab.Share(ctx(t), "part", ShareOptions{})
	if err != nil || s.Borrowed() || !bytes.Equal(s.Bytes(), part.Bytes()) {
		t.Fatalf("%v, borrowed %v", err, s.Borrowed())
	}
	s.Release()
}

// Where the path that could lend cannot be set up, the bytes are copied by another.
func TestShareWithoutLender(t *testing.T) {
	broken := &fakeDriver{ListenDriver: shm.Driver{}, name: "shm", dial: func(context.Context) error {
		return errors.New("no such luck")
	}}
	p := newPair(t, Options{Paths: []setup.Driver{broken, tcp.New(tcp.Options{})}})
	src := region(t, 4096)
	fill(src, 39)
	export(t, p.b, src, "w", path.Read)
	s, err := p.ab.Share(ctx(t), "w", ShareOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Borrowed() || s.Explain().Path != "tcp" || !bytes.Equal(s.Bytes(), src.All().Bytes()) {
		t.Errorf("borrowed %v\n%v", s.Borrowed(), s.Explain())
	}
	s.Release()
	sharesAre(t, p.a, 0, 0, 0, 0)
}

func TestShareRefusals(t *testing.T) {
	p := newPair(t, Options{Budget: 1 << 20})
	r := region(t, 2<<20)
	export(t, p.b, r, "wo", path.Write)
	export(t, p.b, r, "large", path.Read)
	for name, want := range map[string]error{"wo": path.ErrRights, "nothing": control.NotFound,
		"large": mem.ErrBudget} {
		if _, err := p.ab.Share(ctx(t), name, ShareOptions{Copy: true}); !errors.Is(err, want) {
			t.Errorf("%s: %v, expected %v", name, err, want)
		}
	}
	sharesAre(t, p.a, 0, 0, 0, 0)
	p.ba.Close()
	<-p.ab.Gone()
	if _, err := p.ab.Share(ctx(t), "large", ShareOptions{}); !errors.Is(err, ErrPeerLost) {
		t.Error(err)
	}
}

// sharing starts k readers of "w" whose read does not get anywhere, and gives back how to let it go
// on.
func sharing(t *testing.T, k int, o ShareOptions) (p *pair, x *Export, cancels []context.CancelFunc,
	results []chan error, got []chan *Shared, free func()) {
	d, open := jammed()
	t.Cleanup(open)
	p = newPair(t, Options{Paths: []setup.Driver{d}})
	p.ignore(t)
	free = func() {
		open()
		x, err := p.ab.Notify(ctx(t), nil, PutOptions{}) // has the lane look at its queue
		wait(t, x, err)
	}
	src := region(t, 4096)
	fill(src, 33)
	x = export(t, p.b, src, "w", path.Read)
	for i := range k {
		c, cancel := context.WithCancel(ctx(t))
		res, s := make(chan error, 1), make(chan *Shared, 1)
		cancels, results, got = append(cancels, cancel), append(results, res), append(got, s)
		go func() {
			x, err := p.ab.Share(c, "w", o)
			res <- err
			s <- x
		}()
		sharesAre(t, p.a, 1, i+1, 0, 0)
	}
	return p, x, cancels, results, got, free
}

// One caller that gives up does not disturb the others; when all have, the read ends.
func TestShareCancel(t *testing.T) {
	p, _, cancels, results, got, free := sharing(t, 3, ShareOptions{})
	cancels[0]()
	if err := <-results[0]; !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
	sharesAre(t, p.a, 1, 2, 0, 0)
	free()
	for i := 1; i < 3; i++ {
		if err := <-results[i]; err != nil {
			t.Errorf("reader %d: %v", i, err)
		}
		(<-got[i]).Release()
	}
	sharesAre(t, p.a, 0, 0, 0, 0)
	inPool(t, p.a, 0)

	p, _, cancels, results, _, _ = sharing(t, 2, ShareOptions{})
	for i := range cancels {
		cancels[i]()
		if err := <-results[i]; !errors.Is(err, context.Canceled) {
			t.Errorf("reader %d: %v", i, err)
		}
	}
	sharesAre(t, p.a, 0, 0, 0, 0)
	inPool(t, p.a, 0) // not before the canceled get has ended
	if s := p.a.Shares(); s.Reads != 1 {
		t.Errorf("%+v", s)
	}
}

// A failed read fails each call that waits for it, once; the next call tries again.
func TestShareFails(t *testing.T) {
	p, x, _, results, _, free := sharing(t, 3, ShareOptions{})
	if err := x.Revoke(ctx(t)); err != nil {
		t.Fatal(err)
	}
	free()
	for i, c := range results {
		if err := <-c; !errors.Is(err, control.NotFound) { // after the read failed they looked again
			t.Errorf("reader %d: %v", i, err)
		}
	}
	sharesAre(t, p.a, 0, 0, 0, 0)
	inPool(t, p.a, 0)
	if s := p.a.Shares(); s.Reads != 1 || s.Failed != 1 {
		t.Errorf("%+v", s)
	}
	r := region(t, 4096)
	fill(r, 34)
	export(t, p.b, r, "w", path.Read)
	s, err := p.ab.Share(ctx(t), "w", ShareOptions{})
	if err != nil || !bytes.Equal(s.Bytes(), r.All().Bytes()) {
		t.Fatal(err)
	}
	s.Release()
}

// Readers that wait when the peer is lost get an error; held bytes stay valid.
func TestSharePeerLost(t *testing.T) {
	p, _, _, results, _, _ := sharing(t, 2, ShareOptions{})
	p.ba.Close()
	for i, c := range results {
		if err := <-c; !errors.Is(err, ErrPeerLost) {
			t.Errorf("reader %d: %v", i, err)
		}
	}
	sharesAre(t, p.a, 0, 0, 0, 0)
	inPool(t, p.a, 0)

	for _, o := range []ShareOptions{{}, {Copy: true, Keep: time.Hour}} {
		p = newPair(t, Options{})
		src := region(t, 4096)
		fill(src, 35)
		export(t, p.b, src, "w", path.Read)
		all := readers(t, p.ab, "w", 2, o)
		all[0].Release()
		p.ba.Close()
		<-p.ab.Gone()
		if s := all[1]; !s.Stale() || !bytes.Equal(s.Bytes(), src.All().Bytes()) {
			t.Errorf("%+v: held bytes changed when the peer was lost, or are not stale", o)
		}
		all[1].Release()
		sharesAre(t, p.a, 0, 0, 0, 0)
		inPool(t, p.a, 0)
	}
}

// Share does not give out what was revoked or exported anew, and holders of the old bytes keep
// them.
func TestShareFresh(t *testing.T) {
	p := newPair(t, Options{})
	p.ignore(t)
	o := ShareOptions{Copy: true, Keep: time.Hour}
	r1, r2 := region(t, 4096), region(t, 4096)
	fill(r1, 36)
	fill(r2, 37)
	x := export(t, p.b, r1, "w", path.Read)
	old, err := p.ab.Share(ctx(t), "w", o)
	if err != nil {
		t.Fatal(err)
	}
	idle, err := p.ab.Share(ctx(t), "w", ShareOptions{Digest: true, Keep: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	idle.Release()
	sharesAre(t, p.a, 2, 1, 1, 8192)
	if err := x.Revoke(ctx(t)); err != nil {
		t.Fatal(err)
	}
	export(t, p.b, r2, "w", path.Read)
	now, err := p.ab.Share(ctx(t), "w", o)
	if err != nil {
		t.Fatal(err)
	}
	if !old.Stale() || now.Stale() || !bytes.Equal(old.Bytes(), r1.All().Bytes()) ||
		!bytes.Equal(now.Bytes(), r2.All().Bytes()) {
		t.Error("the wrong bytes")
	}
	sharesAre(t, p.a, 1, 2, 0, 8192) // the idle one went with its export
	old.Release()
	sharesAre(t, p.a, 1, 1, 0, 4096)
	now.Release()
	sharesAre(t, p.a, 1, 0, 1, 4096)
	again, err := p.ab.Share(ctx(t), "w", o)
	if err != nil {
		t.Fatal(err)
	}
	if s := p.a.Shares(); s.Reads != 3 {
		t.Errorf("what was kept was read again: %+v", s)
	}
	again.Release()
	inPool(t, p.a, 64<<10)
}

// What is kept goes when its time is up, and at once when its memory is needed.
func TestShareKeeps(t *testing.T) {
	p := newPair(t, Options{Budget: 256 << 10}) // four blocks of the smallest class
	p.ignore(t)
	var all []*mem.Region
	for i := range 6 {
		r := region(t, 4096)
		fill(r, uint64(i))
		all = append(all, r)
		export(t, p.b, r, fmt.Sprintf("w%d", i), path.Read)
	}
	share := func(i int, keep time.Duration) *Shared {
		s, err := p.ab.Share(ctx(t), fmt.Sprintf("w%d", i), ShareOptions{Copy: true, Keep: keep})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(s.Bytes(), all[i].All().Bytes()) {
			t.Fatalf("w%d has other bytes", i)
		}
		return s
	}
	share(0, time.Millisecond).Release()
	sharesAre(t, p.a, 0, 0, 0, 0) // soon
	for i := range 4 {
		share(i, time.Hour).Release()
	}
	sharesAre(t, p.a, 4, 0, 4, 4*4096)
	share(0, time.Hour).Release() // now it is the one that was used last
	held := share(4, 0)           // instead of w1
	sharesAre(t, p.a, 4, 1, 3, 4*4096)
	if s := p.a.Shares(); s.Evicted != 1 || s.Reads != 6 {
		t.Errorf("%+v", s)
	}
	share(0, 0).Release()
	if s := p.a.Shares(); s.Reads != 6 {
		t.Errorf("w0 was given up: %+v", s)
	}
	// A pushed tensor takes their place too, and what is held stays.
	got := receive(ctx(t), p.a, "pushed")
	x, err := p.ba.SendTensor(ctx(t), "pushed", tensor.Desc{DType: tensor.U8, Shape: []int64{4096}}, all[5].All(),
		PutOptions{})
	wait(t, x, err)
	a := arrived(t, got)
	if a.err != nil {
		t.Fatal(a.err)
	}
	sharesAre(t, p.a, 3, 1, 2, 3*4096)
	if !bytes.Equal(held.Bytes(), all[4].All().Bytes()) {
		t.Error("bytes that are held changed")
	}
	a.r.Release()
	held.Release()
	sharesAre(t, p.a, 2, 0, 2, 2*4096)
}

// Writers of shared bytes are found in builds that check.
func TestShareFindsWriters(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithoutInvariants, "needs -tags invariants")
	p := newPair(t, Options{})
	export(t, p.b, region(t, 4096), "w", path.Read)
	s, err := p.ab.Share(ctx(t), "w", ShareOptions{Copy: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Bytes()[7]++
	defer func() {
		if recover() == nil {
			t.Error("nobody noticed")
		}
		s.Bytes()[7]--
		s.e.free()
	}()
	s.Release()
}

// Peers that read one export share it: no copy of it is made, nothing of it is registered, however
// many there are.
func TestServingSharesOneRegion(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t, 6, nil)
			src := region(t, 2<<20)
			fill(src, 38)
			export(t, c.a, src, "w", path.Read)
			leases := src.Leases()
			var wg sync.WaitGroup
			for i, p := range c.back {
				dst := region(t, 2<<20)
				r, err := p.Lookup(ctx(t), "w")
				if err != nil {
					t.Fatal(err)
				}
				x, err := p.Get(ctx(t), []path.Copy{r.At(0, dst.All())}, PutOptions{Paths: []string{name}})
				if err != nil {
					t.Fatal(err)
				}
				wg.Add(1)
				go func() {
					defer wg.Done()
					wait(t, x, nil)
					if !bytes.Equal(dst.All().Bytes(), src.All().Bytes()) {
						t.Errorf("peer %d has other bytes", i)
					}
				}()
			}
			wg.Wait()
			if n := src.Leases(); n != leases {
				t.Errorf("%d leases on the export's region, %d before anybody read it", n, leases)
			}
			if s := c.a.pool.Stats(); s.InUse != 0 || s.Allocs != 0 || s.Reserved != 0 {
				t.Errorf("memory was taken to serve: %+v", s)
			}
			if s := c.a.regs.Stats(); s.Misses != 0 || s.Count != 0 {
				t.Errorf("memory was registered to serve: %+v", s)
			}
			if all := c.a.exports.All(); len(all) != 1 {
				t.Errorf("%d exports", len(all))
			}
		})
	}
}

// What one peer revokes, or leaves when it is lost, is its own: what is shared of other exports and
// of other peers stays.
func TestSharesOfOthersStay(t *testing.T) {
	p := newPair(t, Options{})
	other := open(t, Options{Name: "other", Listen: []string{"tcp://127.0.0.1:0"}})
	op, err := p.a.Dial(ctx(t), other.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	export(t, other, region(t, 4096), "w", path.Read)
	export(t, p.b, region(t, 4096), "w", path.Read)
	gone := export(t, p.b, region(t, 4096), "v", path.Read)
	keep := ShareOptions{Copy: true, Keep: time.Hour}
	for _, x := range []*Shared{readers(t, op, "w", 1, keep)[0], readers(t, p.ab, "w", 1, keep)[0],
		readers(t, p.ab, "v", 1, keep)[0]} {
		x.Release()
	}
	sharesAre(t, p.a, 3, 0, 3, 3*4096)
	if err := gone.Revoke(ctx(t)); err != nil {
		t.Fatal(err)
	}
	sharesAre(t, p.a, 2, 0, 2, 2*4096)
	p.ba.Close()
	<-p.ab.Gone()
	sharesAre(t, p.a, 1, 0, 1, 4096)
	readers(t, op, "w", 1, keep)[0].Release()
	if s := p.a.Shares(); s.Reads != 3 || s.Joined != 1 {
		t.Errorf("%+v: expected that the other peer's bytes are read once", s)
	}
}
