package afpacket

import (
	"testing"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/internal/testenv/netns"
	"github.com/penstock-io/penstock/mem"
)

// edge is a port at which frames arrive, and a queue that sends them.
type edge struct {
	t    *testing.T
	p    *Port
	tx   engine.TxQueue
	pool *mem.Pool
}

func newEdge(t *testing.T, o Options) *edge {
	n := hosts(t, netns.LinkSpec{})
	o.Filter = noIPv6
	e := &edge{t: t, p: open(t, n.Hosts[1], "eth0", o), pool: newPool(t, 2048, 1024)}
	e.tx = addTx(t, open(t, n.Hosts[0], "eth0", Options{Filter: noIPv6}), engine.TxSpec{Pools: []*mem.Pool{e.pool}})
	return e
}

func (e *edge) rx(spec engine.RxSpec) *rxQueue { return addRx(e.t, e.p, spec).(*rxQueue) }

// frames is how many frames lie in the first ring and were not looked at.
func (e *edge) frames() (n int) {
	t := e.p.taps[0]
	for i := range t.ring.Frames() {
		if t.ring.Status(i)&sys.FrameReady != 0 && t.out[i].Load() == home {
			n++
		}
	}
	return n
}

// arrive sends frames, and waits until they are in the first ring.
func (e *edge) arrive(frames ...[]byte) {
	e.t.Helper()
	before := e.frames()
	send(e.t, e.tx, frames...)
	until(e.t, "the frames", func() bool { return e.frames() == before+len(frames) })
}

// A ring of which the application has all frames gives none of them twice while they are released.
func TestReleasedWhileRead(t *testing.T) {
	e := newEdge(t, Options{Frames: 16})
	q := e.rx(engine.RxSpec{Depth: 4})
	x := e.p.taps[0]
	n := int(x.ring.Frames())
	b, none := burst.New(n), burst.New(n)
	for range n {
		e.arrive(udp(t, 1, 50, 0))
	}
	back, done := make(chan []burst.Handle), make(chan struct{})
	defer close(back)
	go func() {
		for hs := range back {
			x.Reclaim(hs)
			done <- struct{}{}
		}
	}()
	handles := make([]burst.Handle, 0, n)
	for trial := range 30000 {
		if k, err := q.TryRecv(b); k != n || err != nil {
			t.Fatalf("trial %d: %d frames of %d, %v", trial, k, n, err)
		}
		handles = handles[:0]
		for i := range n {
			handles = append(handles, b.Part(i, 0).Handle)
		}
		b.Forget()
		back <- handles
		for over := false; !over; {
			select {
			case <-done:
				over = true
			default:
			}
			if k, _ := q.TryRecv(none); k > 0 {
				<-done
				t.Fatalf("trial %d: %d frames came twice", trial, k)
			}
		}
		for i := range uint32(n) { // as the kernel does that fills them again
			from, _ := x.ring.Room(i)
			x.bytes[from-64] = sys.FrameReady
		}
	}
	for i := range uint32(n) {
		x.ring.Return(i)
	}
}
