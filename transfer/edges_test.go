package transfer

import (
	"testing"
	"time"

	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer/sched"
)

// The time of a transfer that waits for the rate has come while another one, canceled already, is on its way to the lane: the first
// is posted all the same. Nothing is outstanding that would bring the lane back to it.
func TestCanceledArrivalHidesNoTimer(t *testing.T) {
	p := newPair(t, Options{Paths: []path.Driver{over("tcp")}})
	l, err := newLimits("test", Quota{Out: sched.Limits{Rate: 16 << 10, Burst: 4 << 10}}, p.a.limits)
	if err != nil {
		t.Fatal(err)
	}
	export(t, p.b, region(t, 16<<10), "dst", path.Write)
	rem, src := lookup(t, p.ab, "dst"), region(t, 16<<10)
	put := func(n uint64) *Transfer {
		local, _ := src.Span(0, n)
		x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, local)}, PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	wait(t, put(64), nil)
	ln := laneOf(t, p.ab, "tcp")
	ln.mu.Lock()
	p.ab.limits = l
	ln.unlock()
	wait(t, put(4<<10), nil)
	ln.mu.Lock()
	slow := make(chan *Transfer)
	go func() { slow <- put(16 << 10) }() // it is left to whoever holds the lane
	x := <-slow
	ln.unlock()
	ln.mu.Lock()
	if !x.item.Queued() || ln.inflight > 0 || ln.timer == nil || !ln.timer.Stop() {
		ln.unlock()
		t.Skip("the machine was too slow for the transfer to wait")
	}
	gone := put(64)
	gone.canceled.Store(true)
	ln.payTill = time.Time{} // the time has come
	ln.again()               // as the timer does
	ln.unlock()
	soon(t, gone.Done(), "the end of the canceled transfer")
	wait(t, x, nil)
}
