package rdmadev

import (
	"errors"
	"math/rand/v2"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibvmem"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// poster is a device that takes the first receives of a chain, as many as it has room for.
type poster struct{ room int }

var errFull = errors.New("no room")

func (p *poster) PostRecv(c *ibv.RecvChain) (int, error) {
	n := min(c.Len(), p.room)
	if p.room -= n; n < c.Len() {
		return n, errFull
	}
	return n, nil
}

func pool(t *testing.T, size, n int) *mem.Pool {
	t.Helper()
	p, err := mem.NewPool(mem.PoolOptions{Name: t.Name(), SlotSize: size, Slots: n})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s := p.Stats(); s.InUse != 0 && !t.Failed() {
			t.Errorf("%d slots are out", s.InUse)
		}
		p.Close()
	})
	return p
}

func receives(t *testing.T, n int, places []Place, pools ...*mem.Pool) *Receives {
	t.Helper()
	var all []Pool
	for _, p := range pools {
		all = append(all, Pool{p, &ibvmem.Registration{}})
	}
	r, err := NewReceives(n, all, places)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// Post fills the room that there is with the slots that there are, and says when they were too few;
// what the device does not take stays here.
func TestPost(t *testing.T) {
	head, body := pool(t, 64, 200), pool(t, 2048, 100)
	r := receives(t, 150, []Place{{Pool: 0, Size: 42, Role: burst.Header}, {Pool: 1, Size: 2048, Role: burst.Payload}},
		head, body)
	d := &poster{room: 70}
	if err := r.Post(d); !errors.Is(err, errFull) || r.Posted() != 70 {
		t.Fatalf("%v, %d posted", err, r.Posted())
	}
	d.room = 1000
	if err := r.Post(d); err != nil || r.Posted() != 100 || !r.Short() {
		t.Fatalf("%v, %d posted, short %v: expected the 100 that there are payload slots for", err, r.Posted(),
			r.Short())
	}
	if n := body.Stats().InUse; n != 100 {
		t.Errorf("%d payload slots are out", n)
	}
	for range 10 {
		r.Came()
	}
	r.Free(r.order[0])
	if err := r.Post(d); err != nil || r.Posted() != 91 {
		t.Errorf("%v, %d posted", err, r.Posted())
	}
}

// Packets of any length lie where the device has put them, unused slots go back, and whatever does
// not fit changes nothing.
func TestDeliver(t *testing.T) {
	p := pool(t, 100, 64)
	places := []Place{{Size: 100}, {Size: 100}, {Size: 100}}
	r := receives(t, 8, places, p)
	d, b, rnd := &poster{room: 1 << 30}, burst.NewSegmented(5, 9), rand.New(rand.NewPCG(1, 2))
	var l Layout
	got, full := 0, 0
	for range 2000 {
		if err := r.Post(d); err != nil {
			t.Fatal(err)
		}
		id := r.order[r.chain.Len()-1]
		n := rnd.IntN(301)
		r.Came()
		r.Lay(&l, uint32(n))
		if l.Header = uint32(rnd.IntN(2) * 40); l.Header > 0 && n < 40 {
			l.Header = 0
		}
		if l.Header > 0 {
			l.Off[0], l.Len[0] = 40, l.Len[0]-40
		}
		before, segments := b.Len(), b.SegmentCount()
		switch i := r.Deliver(b, id, &l); {
		case i == NoRoom:
			if b.Len() != before || b.SegmentCount() != segments || before == 0 {
				t.Fatalf("no room, and the burst has %d packets of %d segments, %d and %d before", b.Len(),
					b.SegmentCount(), before, segments)
			}
			r.Free(id)
			b.Release()
			full++
		case i != before || b.PacketLen(i) != n:
			t.Fatalf("packet %d of %d bytes, expected %d of %d", i, b.PacketLen(i), before, n)
		default:
			got++
			if l.Header > 0 && (b.Role(i, 0) != burst.Header || b.Role(i, 1) != burst.Payload ||
				b.Segment(i, 1).Off != b.Segment(i, 0).Off+40) {
				t.Fatalf("a header of %v at %d, and behind it %v at %d", b.Role(i, 0), b.Segment(i, 0).Off,
					b.Role(i, 1), b.Segment(i, 1).Off)
			}
		}
	}
	b.Release()
	if got == 0 || full == 0 {
		t.Errorf("%d packets, %d times no room", got, full)
	}
}

// A packet that an empty burst does not hold is dropped, and its slots go back.
func TestDropped(t *testing.T) {
	p := pool(t, 100, 8)
	r := receives(t, 2, []Place{{Size: 100}, {Size: 100}}, p)
	if err := r.Post(&poster{room: 2}); err != nil {
		t.Fatal(err)
	}
	r.Came()
	var l Layout
	r.Lay(&l, 150)
	if i := r.Deliver(burst.NewSegmented(1, 1), r.order[0], &l); i != Dropped {
		t.Errorf("the answer is %d", i)
	}
	if err := r.Post(&poster{room: 2}); err != nil || r.Posted() != 2 {
		t.Errorf("%v, %d posted", err, r.Posted())
	}
}
