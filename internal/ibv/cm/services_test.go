package cm

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"github.com/penstock-io/penstock/internal/ibv"
)

// bound is an ID for a service at any port of the host, and where that is.
func bound(t *testing.T, w world, c *Channel, s Service) (*ID, netip.AddrPort) {
	t.Helper()
	id, err := c.NewIDAt(s, netip.AddrPortFrom(netip.MustParseAddr(w.host), 0))
	must(t, err)
	if a := id.Local(); a.Addr().String() != w.host || a.Port() == 0 {
		t.Fatalf("%s: bound to %s", s, a)
	}
	return id, id.Local()
}

// unreliable makes a connection of UC, over which bytes go both ways; a port of it is none of RC.
func unreliable(t *testing.T, w world) {
	sc, cc := channel(t, w.l), channel(t, w.l)
	lis, at := bound(t, w, sc, UC)
	must(t, lis.Listen(8))
	id, err := cc.NewIDAt(UC, netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	must(t, err)
	resolve(t, cc, id, netip.AddrPort{}, at)
	client := newSide(t, w, id)
	must(t, id.Connect(Params{PrivateData: []byte("hello"), QPN: client.qp.Num()}))
	ask := want(t, sc, ConnectRequest)
	if p := ask.Params; ask.Listener != lis || p.QPN != client.qp.Num() || len(p.PrivateData) != MaxConnectData ||
		!bytes.HasPrefix(p.PrivateData, []byte("hello\x00")) {
		t.Errorf("asked for with %+v", p)
	}
	server := newSide(t, w, ask.ID)
	must(t, ask.ID.ReadyQP(server.qp, ibv.LocalWrite, Agreed, Agreed, Pauses{}))
	must(t, ask.ID.Accept(Params{QPN: server.qp.Num()}))
	if ev := want(t, cc, ConnectResponse); ev.Params.QPN != server.qp.Num() {
		t.Errorf("accepted with %+v", ev.Params)
	}
	must(t, id.ReadyQP(client.qp, ibv.LocalWrite, Agreed, Agreed, Pauses{}))
	must(t, id.Establish())
	want(t, sc, Established)
	for _, s := range []struct{ from, to *side }{{client, server}, {server, client}} {
		if a, err := s.from.qp.Query(); err != nil || a.State != ibv.QPReadyToSend || a.RemoteQPN != s.to.qp.Num() {
			t.Errorf("queue pair %+v, %v", a, err)
		}
		copy(s.from.mem, "over UC")
		s.from.post(t, func(c *ibv.SendChain) { c.Send(1, ibv.Signaled, s.from.mr.SGE(0, 7)) })
		s.from.complete(t)
		if got := s.to.received(t); string(got) != "over UC" {
			t.Errorf("received %q", got)
		}
	}
	must(t, id.Disconnect())
	if ev := want(t, sc, Disconnected); ev.ID != ask.ID {
		t.Error("another ID was disconnected")
	}
	must(t, ask.ID.Disconnect())
	want(t, cc, Disconnected)

	other := newID(t, cc)
	resolve(t, cc, other, netip.AddrPort{}, at)
	must(t, other.Connect(Params{QPN: client.qp.Num()}))
	if ev := want(t, cc, Rejected); !errors.Is(ev.Err, ErrRefused) {
		t.Errorf("RC at a listener for UC: %v", ev.Err)
	}
	if _, err := cc.NewIDAt(UC, at); err == nil {
		t.Error("two IDs for UC have one port")
	}
	if _, err := cc.NewIDAt(UC, netip.AddrPort{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("an ID for UC at no address: %v", err)
	}
}

// datagrams finds the queue pair of a peer, which learns nothing of ours.
func datagrams(t *testing.T, w world) {
	sc, cc := channel(t, w.l), channel(t, w.l)
	lis, at := bound(t, w, sc, UD)
	must(t, lis.Listen(8))
	find := func() (*ID, *side) {
		id, err := cc.NewIDAt(UD, netip.AddrPortFrom(netip.MustParseAddr(w.host), 0))
		must(t, err)
		resolve(t, cc, id, netip.AddrPort{}, at)
		s := newSide(t, w, id)
		must(t, id.Connect(Params{PrivateData: []byte("hello"), QPN: s.qp.Num()}))
		return id, s
	}
	id, client := find()
	ask := want(t, sc, ConnectRequest)
	if p := ask.Params; ask.Listener != lis || len(p.PrivateData) < MaxDatagramData ||
		!bytes.HasPrefix(p.PrivateData, []byte("hello\x00")) || ask.ID.Remote() != id.Local() {
		t.Errorf("asked for by %s with %+v", ask.ID.Remote(), p)
	}
	server := newSide(t, w, ask.ID)
	for _, s := range []*side{client, server} {
		must(t, s.qp.ReadyToReceive(ibv.RTRAttr{}))
		must(t, s.qp.ReadyToSend(ibv.RTSAttr{}))
	}
	must(t, ask.ID.Accept(Params{PrivateData: []byte("welcome"), QPN: server.qp.Num()}))
	ev := want(t, cc, Established)
	p := ev.Params
	if ev.ID != id || p.QPN != server.qp.Num() || p.QKey != 0x01234567 || len(p.PrivateData) != MaxDatagramData ||
		!bytes.HasPrefix(p.PrivateData, []byte("welcome\x00")) ||
		p.To.DGID.Unmap() != at.Addr() {
		t.Fatalf("accepted with %+v", p)
	}
	ah, err := client.pd.CreateAH(ibv.AHSpec{To: p.To})
	must(t, err)
	defer ah.Close()
	copy(client.mem, "over UD")
	client.post(t, func(c *ibv.SendChain) {
		c.Send(1, ibv.Signaled, client.mr.SGE(0, 7))
		c.To(ah, p.QPN, p.QKey)
	})
	client.complete(t)
	if got := server.received(t); len(got) != ibv.GRHLen+7 || string(got[ibv.GRHLen:]) != "over UD" {
		t.Errorf("received %q", got)
	}
	must(t, id.Disconnect()) // the peer does not learn of it

	find()
	must(t, want(t, sc, ConnectRequest).ID.Reject([]byte("full")))
	if ev := want(t, cc, Unreachable); !errors.Is(ev.Err, ErrRejected) ||
		!bytes.HasPrefix(ev.Params.PrivateData, []byte("full\x00")) {
		t.Errorf("rejected: %v, with %q", ev.Err, ev.Params.PrivateData)
	}
	must(t, lis.Close())
	find()
	if ev := want(t, cc, Unreachable); !errors.Is(ev.Err, ErrRefused) {
		t.Errorf("no listener: %v, status %d", ev.Err, ev.Status)
	}
	if err := ask.ID.Reject(make([]byte, MaxDatagramData+1)); !errors.Is(err, ErrInvalid) {
		t.Errorf("a reason that is too long: %v", err)
	}
	if err := ask.ID.Accept(Params{QPN: 1, PrivateData: make([]byte, MaxDatagramData+1)}); !errors.Is(err, ErrInvalid) {
		t.Errorf("private data that is too long: %v", err)
	}
}
