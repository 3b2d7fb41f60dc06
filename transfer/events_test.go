package transfer

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

// next reads one event.
func next(t *testing.T, s *observe.Subscription) observe.Event {
	t.Helper()
	select {
	case e, ok := <-s.C():
		if !ok {
			t.Fatal("the subscription has ended")
		}
		return e
	case <-ctx(t).Done():
		t.Fatal("no event")
	}
	panic("unreachable")
}

// eventsUntil reads events to the first of a kind and returns them all.
func eventsUntil(t *testing.T, s *observe.Subscription, k observe.EventKind) []observe.Event {
	t.Helper()
	var all []observe.Event
	for {
		e := next(t, s)
		all = append(all, e)
		if e.Kind == k {
			return all
		}
	}
}

func TestEvents(t *testing.T) {
	b := open(t, Options{Name: "b", Listen: []string{"tcp://127.0.0.1:0"}})
	heard := b.Events(ctx(t), 100)
	a := open(t, Options{Name: "a"})
	mine := a.Events(ctx(t), 100)
	x := export(t, b, region(t, 4096), "x", path.Write)
	p, err := a.Dial(ctx(t), b.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	src := region(t, 4096)
	put, err := p.Put(ctx(t), []path.Copy{lookup(t, p, "x").At(0, src.All())}, PutOptions{Paths: []string{"tcp"}})
	wait(t, put, err)
	bad, err := p.Put(ctx(t), []path.Copy{lookup(t, p, "x").At(0, src.All())},
		PutOptions{Paths: []string{"no such path"}})
	if err != nil {
		t.Fatal(err)
	}
	<-bad.Done()
	p.Lookup(ctx(t), "nothing")
	if err := x.Revoke(ctx(t)); err != nil {
		t.Fatal(err)
	}
	p.Close()

	got := eventsUntil(t, mine, observe.EventPeerDown)
	var kinds []observe.EventKind
	for _, e := range got {
		kinds = append(kinds, e.Kind)
		if e.Time.IsZero() || e.Peer != "b" || e.PeerID != 1 || e.Missed != 0 {
			t.Errorf("%+v", e)
		}
	}
	want := []observe.EventKind{observe.EventPeerUp, observe.EventTransferBegun, observe.EventPathUp,
		observe.EventTransferEnded, observe.EventTransferBegun, observe.EventTransferEnded, observe.EventPathDown,
		observe.EventPeerDown}
	if !slices.Equal(kinds, want) {
		t.Fatalf("events %v, expected %v", kinds, want)
	}
	if e := got[0]; e.Address != b.Addrs()[0] || e.Security != "same host" {
		t.Errorf("%+v", e)
	}
	if e := got[2]; e.Path != "tcp" || e.PathID == 0 || got[6].PathID != e.PathID || got[6].Path != "tcp" {
		t.Errorf("%+v, %+v", e, got[6])
	}
	if e := got[1]; e.Transfer != put.ID() || e.Operation != "put" || e.Bytes != 4096 {
		t.Errorf("%+v", e)
	}
	if e := got[3]; e.Transfer != put.ID() || e.Bytes != 4096 || e.Path != "tcp" || e.Reason != "" {
		t.Errorf("%+v", e)
	}
	if e := got[5]; e.Transfer != bad.ID() || e.Bytes != 0 || e.Reason != bad.Err().Error() {
		t.Errorf("%+v", e)
	}
	if !strings.Contains(got[7].Reason, "closed by this side") {
		t.Errorf("%+v", got[7])
	}

	var also []string
	for _, e := range eventsUntil(t, heard, observe.EventPeerDown) {
		also = append(also, strings.TrimSpace(fmt.Sprint(e.Kind, " ", e.Name, e.Operation)))
	}
	if want := []string{"export_added x", "peer_up", "path_up", "refused lookup", "export_revoked x", "path_down",
		"peer_down"}; !slices.Equal(also, want) {
		t.Errorf("the other side's events: %q, expected %q", also, want)
	}
}

// A connection that is no peer is an event of the node.
func TestEventOfARejectedConnection(t *testing.T) {
	b := open(t, Options{Name: "b", Listen: []string{"tcp://127.0.0.1:0"}})
	s := b.Events(ctx(t), 10)
	c, err := net.Dial("tcp", strings.TrimPrefix(b.Addrs()[0], "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	if e := next(t, s); e.Kind != observe.EventRefused || e.Operation != "connection" ||
		e.Address != "tcp://"+c.LocalAddr().String() || e.Reason == "" {
		t.Errorf("%+v", e)
	}
	if n := b.Snapshot().Node; n.Rejected != 1 || n.PeersTotal != 0 {
		t.Errorf("%+v", n)
	}
}

// A subscriber that does not read delays no transfer and learns how much it missed, by kind; one
// beside it gets everything.
func TestSlowSubscriber(t *testing.T) {
	const count = 50
	p := newPair(t, Options{})
	p.ignore(t)
	put := func() {
		x, err := p.ab.Notify(ctx(t), []byte("x"), PutOptions{Paths: []string{"tcp"}})
		wait(t, x, err)
	}
	put() // the path is up
	slow, quick := p.a.Events(ctx(t), 3), p.a.Events(ctx(t), 3*count)
	for range count {
		put()
	}
	for i := range 2 * count {
		if e := next(t, quick); e.Kind != []observe.EventKind{observe.EventTransferBegun,
			observe.EventTransferEnded}[i%2] || e.Missed != 0 {
			t.Fatalf("event %d: %+v", i, e)
		}
	}
	if m := slow.Missed(); m[observe.EventTransferBegun] != count-2 || m[observe.EventTransferEnded] != count-1 ||
		len(m) != 2 {
		t.Errorf("missed %v", m)
	}
	if m := p.a.Snapshot().Node.EventsMissed; m["transfer_begun"] != count-2 || m["transfer_ended"] != count-1 ||
		len(m) != 2 {
		t.Errorf("the node counts %v", m)
	}
	for range 3 {
		if e := next(t, slow); e.Missed != 0 {
			t.Errorf("%+v", e)
		}
	}
	put()
	if e := next(t, slow); e.Missed != 2*count-3 {
		t.Errorf("the first event after the gap: %+v", e)
	}
	if e := next(t, slow); e.Missed != 0 {
		t.Errorf("%+v", e)
	}
	if len(quick.Missed()) != 0 {
		t.Errorf("the quick one missed %v", quick.Missed())
	}
}

func TestSubscriptionsEnd(t *testing.T) {
	n, err := Open(ctx(t), Options{Name: "n"})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	c, cancel := context.WithCancel(t.Context())
	byContext, byClose, byNode := n.Events(c, 0), n.Events(t.Context(), 1<<30), n.Events(t.Context(), 5)
	x := export(t, n, region(t, 4096), "x", path.Read)
	cancel()
	byClose.Close()
	byClose.Close()
	for _, s := range []*observe.Subscription{byContext, byClose} {
		if e := next(t, s); e.Kind != observe.EventExportAdded { // what was there can still be read
			t.Errorf("%+v", e)
		}
		select {
		case _, ok := <-s.C():
			if ok {
				t.Error("another event")
			}
		case <-ctx(t).Done():
			t.Fatal("the subscription goes on")
		}
	}
	x.Revoke(ctx(t))
	n.Close()
	var kinds []observe.EventKind
	for e := range byNode.C() {
		kinds = append(kinds, e.Kind)
	}
	if want := []observe.EventKind{observe.EventExportAdded, observe.EventExportRevoked}; !slices.Equal(kinds, want) {
		t.Errorf("events %v, expected %v", kinds, want)
	}
	if _, ok := <-n.Events(t.Context(), 1).C(); ok {
		t.Error("a closed node has events")
	}
	if n.account.Bus.On() {
		t.Error("somebody still listens")
	}
}

// OnEvent is called in order, one at a time, and may close the node.
func TestOnEvent(t *testing.T) {
	var mu sync.Mutex
	var kinds []observe.EventKind
	var running atomic.Int32
	ended := make(chan error, 1)
	var n *Node
	opened := make(chan struct{})
	n, err := Open(ctx(t), Options{Name: "n", OnEvent: func(e observe.Event) {
		if running.Add(1) != 1 {
			t.Error("two calls at once")
		}
		defer running.Add(-1)
		<-opened
		mu.Lock()
		kinds = append(kinds, e.Kind)
		mu.Unlock()
		if e.Kind == observe.EventExportRevoked {
			ended <- n.Close()
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	close(opened)
	for range 3 {
		export(t, n, region(t, 4096), "", path.Read)
	}
	if err := export(t, n, region(t, 4096), "x", path.Read).Revoke(ctx(t)); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-ctx(t).Done():
		t.Fatal("Close hangs in a callback")
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []observe.EventKind{observe.EventExportAdded, observe.EventExportAdded, observe.EventExportAdded,
		observe.EventExportAdded, observe.EventExportRevoked}; !slices.Equal(kinds, want) {
		t.Errorf("events %v, expected %v", kinds, want)
	}
}

// Many transfers, subscribers and snapshots at once: for each transfer its begin comes before its
// end, and nothing is lost that was not counted.
func TestEventsUnderLoad(t *testing.T) {
	const workers, each = 6, 60
	p := newPair(t, Options{})
	p.ignore(t)
	s := p.a.Events(t.Context(), 64)
	type tally struct{ events, missed uint64 }
	result := make(chan tally, 1)
	go func() {
		var r tally
		begun := map[observe.ID]bool{}
		gap := false
		for e := range s.C() {
			r.events++
			r.missed += e.Missed
			gap = gap || e.Missed > 0
			switch e.Kind {
			case observe.EventTransferBegun:
				if begun[e.Transfer] {
					t.Errorf("%v begun twice", e.Transfer)
				}
				begun[e.Transfer] = true
			case observe.EventTransferEnded:
				if !begun[e.Transfer] && !gap {
					t.Errorf("%v ended before it began", e.Transfer)
				}
			}
		}
		result <- r
	}()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range each {
				x, err := p.ab.Notify(ctx(t), []byte("x"), PutOptions{Paths: paths[i%2:][:1]})
				if err == nil {
					err = x.Wait(ctx(t))
				}
				if err != nil {
					t.Error(err)
				}
				if i%10 == 0 {
					p.a.Snapshot()
					p.a.Events(t.Context(), 1).Close()
				}
			}
		})
	}
	wg.Wait()
	var missed uint64
	for _, n := range s.Missed() {
		missed += n
	}
	s.Close()
	r := <-result
	// Two events of each transfer and two paths that came up; what was missed last was seen by no
	// later event.
	if want := uint64(2*workers*each + 2); r.events+missed != want || r.missed > missed {
		t.Errorf("%d events and %d missed (%d told), expected %d in all", r.events, missed, r.missed, want)
	}
}

// Close ends every transfer, and the event of each end comes before the events end: also of
// transfers that end beside it, by a path that cannot be set up any more or by their context.
func TestEventsOfTheEnd(t *testing.T) {
	for i := range 40 {
		p := newPair(t, Options{})
		export(t, p.b, region(t, 4096), "x", path.Write)
		copies := []path.Copy{lookup(t, p.ab, "x").At(0, region(t, 4096).All())}
		events := p.a.Events(t.Context(), 1<<12)
		c, cancel := context.WithCancel(t.Context())
		var puts []*Transfer
		for k := range 16 {
			x, err := p.ab.Put(c, copies, PutOptions{Paths: []string{paths[k%2]}, Stream: uint32(k % 3)})
			if err != nil {
				t.Fatal(err)
			}
			puts = append(puts, x)
		}
		if i%2 == 0 {
			go cancel()
		}
		if err := p.a.Close(); err != nil {
			t.Error(err)
		}
		open := map[observe.ID]bool{}
		for e := range events.C() {
			switch e.Kind {
			case observe.EventTransferBegun:
				open[e.Transfer] = true
			case observe.EventTransferEnded:
				delete(open, e.Transfer)
			}
		}
		if len(open) > 0 || len(events.Missed()) > 0 {
			t.Fatalf("round %d: no event says how %d of %d transfers ended", i, len(open), len(puts))
		}
		for _, x := range puts {
			soon(t, x.Done(), "the end of a transfer")
		}
		cancel()
	}
}
