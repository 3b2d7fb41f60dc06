package cm

import (
	"bytes"
	"errors"
	"net/netip"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
)

// TestGuestConnections has Soft-RoCE and the kernel's connection manager; both ends are in this
// process.
func TestGuestConnections(t *testing.T) {
	if guest.ID() == 0 { // the guest takes the host's programs; the ledger is the host's too
		peers.Need(t, "rping")
	}
	if guest.Enter(t, guest.Spec{Profile: guest.Rdma}) {
		return
	}
	w := guestWorld(t)
	connections(t, w, map[string]string{"IPv4": w.host, "IPv6": device6(t).String()})
	t.Run("RpingServer", func(t *testing.T) { rpingServer(t, w) })
	t.Run("RpingClient", func(t *testing.T) { rpingClient(t, w) })
}

// connections is what is asked of the stand-in and of the kernel alike.
func connections(t *testing.T, w world, addresses map[string]string) {
	for name, addr := range addresses {
		t.Run(name, func(t *testing.T) { connection(t, w, addr) })
	}
	for name, f := range map[string]func(*testing.T, world){
		"Rejected": rejected, "Refused": refused, "NoDevice": noDevice, "States": states, "Closing": closing,
		"Unreliable": unreliable, "Datagrams": datagrams,
	} {
		t.Run(name, func(t *testing.T) { f(t, w) })
	}
}

// connection makes one, moves bytes in all ways over it, and ends it.
func connection(t *testing.T, w world, addr string) {
	l := w.l
	sc, cc := channel(t, l), channel(t, l)
	lis, at := listener(t, sc, addr)

	id := newID(t, cc)
	if name, port := id.Device(); name != "" || port != 0 || id.Remote().IsValid() {
		t.Errorf("a new ID has device %q, port %d, peer %s", name, port, id.Remote())
	}
	must(t, id.SetACKTimeout(18))
	resolve(t, cc, id, netip.AddrPort{}, at)
	if id.Remote() != at || id.Local().Addr() != at.Addr() {
		t.Errorf("from %s to %s, want %s", id.Local(), id.Remote(), at)
	}
	client := newSide(t, w, id)
	hello := bytes.Repeat([]byte("hello."), 9)
	must(t, id.Connect(Params{PrivateData: hello, ResponderResources: 3, InitiatorDepth: 2, RetryCount: 7,
		RNRRetryCount: 7, QPN: client.qp.Num()}))

	ask := want(t, sc, ConnectRequest)
	p := ask.Params
	if ask.Listener != lis || ask.ID == nil || ask.ID == lis || ask.ID.Remote() != id.Local() || ask.ID.Local() != at {
		t.Errorf("request %+v from %s to %s", ask, ask.ID.Remote(), ask.ID.Local())
	}
	// What the peer may start, this side must serve: the two numbers change places.
	if len(p.PrivateData) != MaxConnectData || !bytes.Equal(p.PrivateData, append(hello, 0, 0)) ||
		p.QPN != client.qp.Num() || p.ResponderResources != 2 ||
		p.InitiatorDepth != 3 || p.RetryCount != 7 || p.RNRRetryCount != 7 || p.SRQ {
		t.Errorf("asked for with %+v", p)
	}
	server := newSide(t, w, ask.ID)
	must(t, ask.ID.ReadyQP(server.qp, access, p.ResponderResources, 1, Pauses{}))
	must(t, ask.ID.Accept(Params{PrivateData: []byte("welcome"), ResponderResources: p.ResponderResources,
		InitiatorDepth: 1, RNRRetryCount: 7, QPN: server.qp.Num()}))

	resp := want(t, cc, ConnectResponse)
	if resp.ID != id || len(resp.Params.PrivateData) != MaxAcceptData ||
		!bytes.HasPrefix(resp.Params.PrivateData, []byte("welcome\x00")) ||
		resp.Params.QPN != server.qp.Num() || resp.Params.ResponderResources != 1 || resp.Params.InitiatorDepth != 2 {
		t.Errorf("accepted with %+v", resp.Params)
	}
	must(t, id.ReadyQP(client.qp, access, Agreed, Agreed, Pauses{}))
	must(t, id.Establish())
	if ev := want(t, sc, Established); ev.ID != ask.ID || ev.Err != nil {
		t.Errorf("established: %+v", ev)
	}

	for _, s := range []*side{client, server} {
		a, err := s.qp.Query()
		must(t, err)
		other := map[*side]*side{client: server, server: client}[s]
		if a.State != ibv.QPReadyToSend || a.RemoteQPN != other.qp.Num() || a.RetryCount != 7 || a.Access != access {
			t.Errorf("queue pair %+v", a)
		}
		if s == client && (a.MaxDestRdAtomic != 1 || a.MaxRdAtomic != 2 || a.Timeout != 18) || s == server &&
			(a.MaxDestRdAtomic != 2 || a.MaxRdAtomic != 1) {
			t.Errorf("reads at once: %d here, %d there, timeout %d", a.MaxDestRdAtomic, a.MaxRdAtomic, a.Timeout)
		}
	}
	traffic(t, client, server)
	traffic(t, server, client)

	must(t, id.Disconnect())
	if ev := want(t, sc, Disconnected); ev.ID != ask.ID {
		t.Error("another ID was disconnected")
	}
	must(t, ask.ID.Disconnect())
	if ev := want(t, cc, Disconnected); ev.ID != id {
		t.Error("another ID was disconnected")
	}
	must(t, client.qp.Err())
	must(t, server.qp.Err())
	for _, x := range []*ID{id, ask.ID, lis} {
		must(t, x.Close())
		must(t, x.Close())
		if err := x.Disconnect(); !errors.Is(err, ErrClosed) {
			t.Errorf("a closed ID: %v", err)
		}
	}
	if name, _ := id.Device(); name != "" || id.Local().IsValid() {
		t.Error("a closed ID has a device")
	}
}

// traffic sends, writes and reads from a to b.
func traffic(t *testing.T, a, b *side) {
	t.Helper()
	const n = 16 << 10
	for i := range n {
		a.mem[i], b.mem[n+i] = byte(i*7), byte(i*11)
	}
	remote := uint64(dl.Address(b.mem))
	a.post(t, func(c *ibv.SendChain) {
		c.Write(1, 0, remote, b.mr.RKey(), a.mr.SGE(0, n))
		c.Read(2, ibv.Signaled, remote+n, b.mr.RKey(), a.mr.SGE(2*n, n))
		c.Send(3, ibv.Signaled, a.mr.SGE(0, 1000))
	})
	for _, id := range []uint64{2, 3} {
		if wc := a.complete(t); wc.ID() != id {
			t.Errorf("completion of %d, want %d", wc.ID(), id)
		}
	}
	if got := b.received(t); !bytes.Equal(got, a.mem[:1000]) {
		t.Errorf("a message of %d bytes arrived as another of %d", 1000, len(got))
	}
	if !bytes.Equal(b.mem[:n], a.mem[:n]) || !bytes.Equal(a.mem[2*n:3*n], b.mem[n:2*n]) {
		t.Error("written or read bytes are others")
	}
}

// rejected has a peer that says no, with its reason; the listener goes on.
func rejected(t *testing.T, w world) {
	l := w.l
	sc, cc := channel(t, l), channel(t, l)
	_, at := listener(t, sc, w.host)
	for _, why := range [][]byte{nil, bytes.Repeat([]byte("no"), MaxRejectData/2)} {
		id := newID(t, cc)
		resolve(t, cc, id, netip.AddrPort{}, at)
		s := newSide(t, w, id)
		must(t, id.Connect(Params{QPN: s.qp.Num()}))
		ask := want(t, sc, ConnectRequest)
		must(t, ask.ID.Reject(why))
		must(t, ask.ID.Close())
		ev := want(t, cc, Rejected)
		var e *Error
		if !errors.Is(ev.Err, ErrRejected) || !errors.As(ev.Err, &e) || e.Reason != 28 ||
			len(ev.Params.PrivateData) != MaxRejectData ||
			!bytes.HasPrefix(ev.Params.PrivateData, why) {
			t.Errorf("rejected with %q: %v, status %d, %q", why, ev.Err, ev.Status, ev.Params.PrivateData)
		}
		must(t, id.Close())
	}
	// A request whose ID is closed without an answer is rejected as well.
	id := newID(t, cc)
	resolve(t, cc, id, netip.AddrPort{}, at)
	s := newSide(t, w, id)
	must(t, id.Connect(Params{QPN: s.qp.Num()}))
	must(t, want(t, sc, ConnectRequest).ID.Close())
	if ev := want(t, cc, Rejected); !errors.Is(ev.Err, ErrRejected) {
		t.Error(ev.Err)
	}
}

// refused connects to a port at which no ID listens any more, and to one whose listener goes while
// requests wait for it.
func refused(t *testing.T, w world) {
	l := w.l
	sc, cc := channel(t, l), channel(t, l)
	lis, at := listener(t, sc, w.host)
	connect := func() {
		id := newID(t, cc)
		resolve(t, cc, id, netip.AddrPort{}, at)
		s := newSide(t, w, id)
		must(t, id.Connect(Params{QPN: s.qp.Num()}))
	}
	for range 3 {
		connect()
	}
	must(t, lis.Close())
	for range 3 {
		if ev := want(t, cc, Rejected); !errors.Is(ev.Err, ErrRejected) && !errors.Is(ev.Err, ErrRefused) {
			t.Errorf("a request to a listener that was closed: %v", ev.Err)
		}
	}
	if ev, ok, err := sc.Next(); ok || err != nil {
		t.Errorf("event %+v (%v) of a listener that is closed", ev, err)
	}
	connect()
	if ev := want(t, cc, Rejected); !errors.Is(ev.Err, ErrRefused) || ev.Status != 8 {
		t.Errorf("no listener: %v, status %d", ev.Err, ev.Status)
	}
}

// noDevice asks for addresses that no RDMA device leads to.
func noDevice(t *testing.T, w world) {
	l := w.l
	c := channel(t, l)
	id := newID(t, c)
	if err := id.Bind(netip.MustParseAddrPort("198.51.100.1:1")); !errors.Is(err, ErrAddress) {
		t.Errorf("bound to an address that no interface has: %v", err)
	}
	if err := id.Bind(netip.AddrPort{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("bound to nothing: %v", err)
	}
	// No route leads there.
	err := id.ResolveAddress(netip.AddrPort{}, netip.MustParseAddrPort("198.51.100.1:1"), patience)
	if err == nil {
		err = want(t, c, AddressError).Err
	}
	if !errors.Is(err, ErrAddress) {
		t.Errorf("resolved an address without a route: %v", err)
	}
	if err := newID(t, c).ResolveAddress(netip.AddrPortFrom(netip.MustParseAddr(w.host), 0),
		netip.MustParseAddrPort("[fd00:8::1]:1"), patience); !errors.Is(err, ErrInvalid) {
		t.Errorf("from IPv4 to IPv6: %v", err)
	}
	if err := newID(t, c).ResolveAddress(netip.AddrPort{}, netip.AddrPortFrom(netip.MustParseAddr(w.host), 1),
		0); !errors.Is(err, ErrInvalid) {
		t.Errorf("no time to resolve: %v", err)
	}
	if err := id.ResolveRoute(-1); !errors.Is(err, ErrInvalid) {
		t.Errorf("no time to resolve: %v", err)
	}
}

// states does things too early, and uses what is closed.
func states(t *testing.T, w world) {
	l := w.l
	c := channel(t, l)
	id := newID(t, c)
	_, at := listener(t, c, w.host)
	// Without a device the library would look at one all the same, and end the process; with one
	// the kernel says no.
	for _, device := range []bool{false, true} {
		if device {
			must(t, id.ResolveAddress(netip.AddrPort{}, at, patience))
			want(t, c, AddressResolved)
		}
		for name, err := range map[string]error{
			"connect":   id.Connect(Params{QPN: 1}),
			"accept":    id.Accept(Params{QPN: 1}),
			"reject":    id.Reject(nil),
			"establish": id.Establish(),
		} {
			var e *Error
			if !errors.As(err, &e) || (e.Errno != 0) != device || !errors.Is(err, ErrState) {
				t.Errorf("%s, device %v: %v", name, device, err)
			}
		}
		if !device {
			for _, err := range []error{id.ResolveRoute(patience), id.Disconnect(), id.move(nil, ibv.QPInit, 0, nil)} {
				if !errors.Is(err, ErrState) {
					t.Error(err)
				}
			}
		}
	}
	id = newID(t, c)
	if err := id.Bind(at); err == nil {
		t.Error("two IDs have one port")
	}
	// A queue pair that is not in Reset.
	id = newID(t, c)
	resolve(t, c, id, netip.AddrPort{}, at)
	s := newSide(t, w, id)
	if err := id.ReadyQP(s.qp, access, Agreed, Agreed, Pauses{}); err == nil {
		t.Error("a queue pair became ready without a connection")
	}
	must(t, s.qp.Err())
	if err := id.InitQP(s.qp, access); !errors.Is(err, ibv.ErrState) {
		t.Errorf("a queue pair went from error to init: %v", err)
	}
	must(t, c.Close())
	must(t, c.Close())
	if _, err := c.NewID(); !errors.Is(err, ErrClosed) {
		t.Errorf("an ID of a closed channel: %v", err)
	}
	if _, _, err := c.Next(); !errors.Is(err, ErrClosed) {
		t.Errorf("an event of a closed channel: %v", err)
	}
	if err := id.Disconnect(); !errors.Is(err, ErrClosed) {
		t.Errorf("an ID of a closed channel: %v", err)
	}
}

// closing closes IDs and channels while events for them come, from several goroutines.
func closing(t *testing.T, w world) {
	l := w.l
	sc := channel(t, l)
	_, at := listener(t, sc, w.host)
	shared := channel(t, l)
	first := newID(t, shared)
	resolve(t, shared, first, netip.AddrPort{}, at)
	s := newSide(t, w, first)
	for round := range 5 {
		cc := channel(t, l)
		var ids []*ID
		for range 4 {
			id := newID(t, cc)
			must(t, id.ResolveAddress(netip.AddrPort{}, at, patience))
			ids = append(ids, id)
		}
		connecting := newID(t, shared)
		resolve(t, shared, connecting, netip.AddrPort{}, at)
		must(t, connecting.Connect(Params{QPN: s.qp.Num()}))
		var wg sync.WaitGroup
		for _, id := range ids {
			wg.Go(func() {
				if err := id.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		for range 2 {
			wg.Go(func() {
				for {
					_, ok, err := cc.Next()
					if err != nil && !errors.Is(err, ErrClosed) {
						t.Error(err)
					}
					if !ok {
						return
					}
				}
			})
		}
		if round%2 == 0 {
			wg.Wait() // in the other rounds the channel is closed meanwhile
		}
		must(t, cc.Close())
		wg.Wait()
		must(t, connecting.Close())
	}
	// Requests of IDs that are gone come all the same; the listener rejects them.
	must(t, sc.Close())
}
