package transfer

import (
	"errors"
	"testing"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/sched"
)

// TestClaimedName checks that a peer with a certificate is who the certificate says, whatever name
// its hello has.
func TestClaimedName(t *testing.T) {
	ca := authority(t)
	asked := make(chan string, 1)
	peers := make(chan *Peer, 1)
	b := open(t, Options{Identity: issue(t, ca, "server"), Listen: []string{loopback}, OnPeer: func(p *Peer) {
		peers <- p
	},
		Limits: Limits{ForPeer: func(name string) (Quota, bool) {
			asked <- name
			return Quota{Out: sched.Limits{}}, true
		}}})
	a := open(t, Options{Identity: issue(t, ca, "guest"), Name: "trainer"})
	if _, err := a.Dial(ctx(t), b.Addrs()[0]); err != nil {
		t.Fatal(err)
	}
	p := <-peers
	if name := <-asked; name != "guest" {
		t.Errorf("the limits are those of %q", name)
	}
	if p.Name() != "guest" || p.String() != `"guest"` {
		t.Errorf("it is called %q, %v", p.Name(), p)
	}
	if s := b.Snapshot(); len(s.Peers) != 1 || s.Peers[0].Name != "guest" {
		t.Errorf("the snapshot has %+v", s.Peers)
	}
}

// TestImpostorSettlesNothing has a node with a certificate of its own claim to be another one: it
// neither ends what was lost with that one nor learns of it.
func TestImpostorSettlesNothing(t *testing.T) {
	ca := authority(t)
	victim := open(t, Options{Identity: issue(t, ca, "victim"), Listen: []string{loopback}})
	impostor := open(t, Options{Identity: issue(t, ca, "impostor")})
	impostor.id = victim.id
	if err := impostor.listen(ctx(t), loopback); err != nil {
		t.Fatal(err)
	}
	a := open(t, Options{Identity: issue(t, ca, "a")})
	v, err := a.Dial(ctx(t), victim.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	v.fail(errors.New("test"))
	if !v.hasLostSessions() {
		t.Fatal("the session is not remembered as lost")
	}
	i, err := a.Dial(ctx(t), impostor.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := i.endLostSessions(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if !v.hasLostSessions() {
		t.Error("another node said that the lost session is ended, and was believed")
	}
}

// TestEndByThief has a node with a certificate of its own name the session of another node: it is
// not ended.
func TestEndByThief(t *testing.T) {
	ca := authority(t)
	b := open(t, Options{Identity: issue(t, ca, "server"), Listen: []string{loopback}})
	a := open(t, Options{Identity: issue(t, ca, "a")})
	p, err := a.Dial(ctx(t), b.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	thief := open(t, Options{Identity: issue(t, ca, "thief")})
	thief.id = a.id
	q, err := thief.Dial(ctx(t), b.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.request(ctx(t), &control.EndSessions{Sessions: [][16]byte{p.id}}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.List(ctx(t), ""); err != nil {
		t.Error(err)
	}
}
