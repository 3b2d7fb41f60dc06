package transfer

import (
	"errors"
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/sched"
)

// TestLimitsAreOfThePeer dials twice with one certificate: the two sessions share the limits of the
// peer.
func TestLimitsAreOfThePeer(t *testing.T) {
	ca := authority(t)
	var asked []string
	met := make(chan *Peer, 8)
	b := open(t, Options{Identity: issue(t, ca, "b"), Listen: []string{loopback}, OnPeer: func(p *Peer) {
		met <- p
	}, Limits: Limits{
		ForPeer: func(name string) (Quota, bool) {
			asked = append(asked, name)
			return Quota{Out: sched.Limits{Transfers: 1}}, true
		}}})
	var far []*Peer
	for range 2 {
		a := open(t, Options{Name: "anything", Identity: issue(t, ca, "a")})
		p, err := a.Dial(ctx(t), b.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		export(t, a, region(t, 4096), "x", path.Write)
		_ = p
		far = append(far, <-met)
	}
	if len(asked) != 1 || asked[0] != "a" {
		t.Errorf("the quota was asked for %q: expected once, by the name of the certificate", asked)
	}
	first, err := far[0].limits.Out.Admit(10, tensor.Invalid)
	if err != nil {
		t.Fatal(err)
	}
	src := region(t, 4096)
	if _, err := far[1].Put(ctx(t), []path.Copy{lookup(t, far[1], "x").At(0, src.All())}, PutOptions{}); !errors.Is(err,
		sched.ErrTooMany) {
		t.Errorf("by another session of the same peer: %v", err)
	}
	first.Release()
	x, err := far[1].Put(ctx(t), []path.Copy{lookup(t, far[1], "x").At(0, src.All())}, PutOptions{})
	wait(t, x, err)
}

// TestLimitsAreForgotten checks that what is remembered of peers that are gone does not grow
// without end, and that what is in use is kept.
func TestLimitsAreForgotten(t *testing.T) {
	n := open(t, Options{})
	peer := func(i int) *Peer {
		return &Peer{node: n, peerUser: peerUser{info: control.Identity{Node: [16]byte{byte(i), byte(i >> 8)},
			Name: fmt.Sprint(i)}}}
	}
	kept, err := n.limitsFor(peer(0))
	if err != nil {
		t.Fatal(err)
	}
	grant, err := kept.Out.Admit(1, tensor.Invalid)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 * maxPrincipals {
		if _, err := n.limitsFor(peer(i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(n.limitsOf) > maxPrincipals {
		t.Errorf("the limits of %d peers are remembered", len(n.limitsOf))
	}
	if again, _ := n.limitsFor(peer(0)); again != kept {
		t.Error("limits in use were forgotten")
	}
	grant.Release()
}
