package account

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

// An account of a lost peer takes no transfer any more, and is not done with the last one before
// its event is out.
func TestAccountOfALostPeer(t *testing.T) {
	lost := errors.New("lost")
	for range 5000 {
		n := New(nil, errors.New("closed"), lost)
		events := n.Bus.Subscribe(t.Context(), 4)
		p := n.Peer(nil)
		p.Up("peer", 1, "", "")
		var x, late Transfer
		op := Op{Kind: path.Put, Bytes: 7}
		if !p.Begun(&x, nil, op) {
			t.Fatal("no transfer begins")
		}
		p.Down(lost)
		if p.Begun(&late, nil, op) {
			t.Fatal("a transfer begins with a lost peer")
		}
		go p.Ended(&x, op, "", 0, path.ErrCanceled)
		n.Await()
		n.Bus.Close()
		var last observe.Event
		for e := range events.C() {
			last = e
		}
		if last.Kind != observe.EventTransferEnded {
			t.Fatalf("the last event is %v, expected the end of the transfer", last.Kind)
		}
	}
}

// Each cause of failures has a name, which docs/observability.md has, and the one of an error is
// found.
func TestReasons(t *testing.T) {
	closed, lost := errors.New("closed"), errors.New("lost")
	n := New(nil, closed, lost)
	doc, err := os.ReadFile("../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	for i := range numReasons {
		if !strings.Contains(string(doc), "`"+n.reasonName(i)+"`") {
			t.Errorf("docs/observability.md does not name %s", n.reasonName(i))
		}
	}
	for i, r := range n.reasons {
		if got := n.reasonOf(r.err); n.reasonName(got) != r.name {
			t.Errorf("%v is %q, expected %q", r.err, n.reasonName(got), r.name)
		}
		if n.reasonName(i) != r.name {
			t.Errorf("reason %d is %q, expected %q", i, n.reasonName(i), r.name)
		}
	}
	if len(n.reasons)+2 != numReasons {
		t.Errorf("%d causes are named, expected %d", len(n.reasons)+2, numReasons)
	}
	if got := n.reasonName(n.reasonOf(errors.New("x"))); got != "other" {
		t.Errorf("an unknown error is %q", got)
	}
}
