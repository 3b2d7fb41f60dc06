package cm

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
)

// patience is how long a guest on a busy machine may take for anything; what is waited for comes,
// so that it is no measure.
const patience = 90 * time.Second

// must ends the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// channel is a channel that ends with the test.
func channel(t *testing.T, l *Library) *Channel {
	t.Helper()
	c, err := l.Open()
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

func newID(t *testing.T, c *Channel) *ID {
	t.Helper()
	id, err := c.NewID()
	must(t, err)
	return id
}

// next waits for the next event of a channel.
func next(t testing.TB, c *Channel) Event {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		ev, ok, err := c.Next()
		must(t, err)
		if ok {
			return ev
		}
		if _, err := sys.PollIn(1000, c.FD()); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatal("no event came")
		}
	}
}

// want waits for an event of that type, which must be the next one.
func want(t testing.TB, c *Channel, typ EventType) Event {
	t.Helper()
	ev := next(t, c)
	if ev.Type != typ {
		t.Fatalf("event %q (%v), want %q", ev.Type, ev.Err, typ)
	}
	return ev
}

// side is what one end of a connection has: a device, memory that the peer may read and write, a
// queue pair.
type side struct {
	ctx  *ibv.Context
	pd   *ibv.PD
	cq   *ibv.CQ
	mr   *ibv.MR
	qp   *ibv.QP
	mem  []byte
	send *ibv.SendChain
	recv *ibv.RecvChain
}

const (
	access = ibv.LocalWrite | ibv.RemoteWrite | ibv.RemoteRead
	room   = 64 << 10
)

// newSide opens the device that an ID is bound to, and makes a queue pair in Init with 4 receives
// of 1 KiB posted at the end of the memory.
func newSide(t *testing.T, w world, id *ID) *side {
	t.Helper()
	name, port := id.Device()
	if name != w.device || port != 1 {
		t.Fatalf("the ID is on device %q, port %d", name, port)
	}
	devices, err := w.v.Devices()
	must(t, err)
	s := &side{}
	s.ctx, err = devices[0].Open()
	must(t, err)
	t.Cleanup(func() { must(t, s.ctx.Close()) })
	s.pd, err = s.ctx.AllocPD()
	must(t, err)
	t.Cleanup(func() { must(t, s.pd.Close()) })
	s.cq, err = s.ctx.CreateCQ(ibv.CQSpec{Entries: 64})
	must(t, err)
	t.Cleanup(func() { must(t, s.cq.Close()) })
	s.mem, err = dl.Alloc(room)
	must(t, err)
	t.Cleanup(func() { dl.Free(s.mem) })
	s.mr, err = s.pd.RegMR(ibv.MRSpec{Addr: dl.Address(s.mem), Length: room, Access: access})
	must(t, err)
	t.Cleanup(func() { must(t, s.mr.Close()) })
	s.qp, err = s.pd.CreateQP(ibv.QPSpec{Type: ibv.QPType(id.service.qpType()), SendCQ: s.cq, RecvCQ: s.cq, SendWRs: 16,
		RecvWRs: 16, SendSGEs: 1, RecvSGEs: 1})
	must(t, err)
	t.Cleanup(func() { must(t, s.qp.Close()) })
	s.send, err = ibv.NewSendChain(8, 8)
	must(t, err)
	t.Cleanup(s.send.Close)
	s.recv, err = ibv.NewRecvChain(8, 8)
	must(t, err)
	t.Cleanup(s.recv.Close)
	must(t, id.InitQP(s.qp, access))
	for i := range 4 {
		s.postRecv(t, i)
	}
	return s
}

// slot is where receive i goes.
func slot(i int) uint64 { return room - uint64(4-i)*1024 }

func (s *side) postRecv(t testing.TB, i int) {
	t.Helper()
	s.recv.Reset()
	s.recv.Recv(uint64(i), s.mr.SGE(slot(i), 1024))
	_, err := s.qp.PostRecv(s.recv)
	must(t, err)
}

// post posts what build adds to the chain.
func (s *side) post(t testing.TB, build func(c *ibv.SendChain)) {
	t.Helper()
	s.send.Reset()
	build(s.send)
	n, err := s.qp.PostSend(s.send)
	if err != nil || n != s.send.Len() || n == 0 {
		t.Fatalf("posted %d of %d: %v", n, s.send.Len(), err)
	}
}

// complete waits for one completion, which must be a success.
func (s *side) complete(t testing.TB) ibv.WC {
	t.Helper()
	deadline := time.Now().Add(patience)
	var wc [1]ibv.WC
	for {
		n, err := s.cq.Poll(wc[:])
		must(t, err)
		if n == 1 {
			must(t, wc[0].Err())
			return wc[0]
		}
		if time.Now().After(deadline) {
			t.Fatal("no completion came")
		}
	}
}

// received waits for a message and returns it; its receive is posted again.
func (s *side) received(t testing.TB) []byte {
	t.Helper()
	wc := s.complete(t)
	if wc.Opcode()&ibv.OpRecv == 0 {
		t.Fatalf("completion of %s, want that of a receive", wc.Opcode())
	}
	i := int(wc.ID())
	b := append([]byte(nil), s.mem[slot(i):slot(i)+uint64(wc.Len())]...)
	s.postRecv(t, i)
	return b
}

// resolve leads an ID to the step before Connect.
func resolve(t testing.TB, c *Channel, id *ID, from, to netip.AddrPort) {
	t.Helper()
	must(t, id.ResolveAddress(from, to, patience))
	want(t, c, AddressResolved)
	must(t, id.ResolveRoute(patience))
	want(t, c, RouteResolved)
}

// listener is a listening ID on any port of an address, and that address.
func listener(t *testing.T, c *Channel, addr string) (*ID, netip.AddrPort) {
	t.Helper()
	id := newID(t, c)
	must(t, id.Bind(netip.AddrPortFrom(netip.MustParseAddr(addr), 0)))
	must(t, id.Listen(8))
	if a := id.Local(); a.Addr().String() != addr || a.Port() == 0 {
		t.Fatalf("bound to %s", a)
	}
	return id, id.Local()
}

// world is where connections are made: on the stand-in, or on Soft-RoCE in a guest.
type world struct {
	l            *Library
	v            *ibv.Library
	host, device string
}

// guestWorld is the device of a guest.
func guestWorld(t *testing.T) world {
	t.Helper()
	l, err := Load(Options{})
	must(t, err)
	v, err := ibv.Load(ibv.Options{})
	must(t, err)
	return world{l, v, "10.8.0.1", "rxe0"}
}

// run runs a program of the guest.
func run(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
}

// device6 gives the guest's device an IPv6 address, and waits until the device has it as a GID.
func device6(t testing.TB) netip.Addr {
	t.Helper()
	a := netip.MustParseAddr("fd00:8::1")
	run(t, "ip", "-6", "addr", "replace", a.String()+"/64", "dev", "roce0")
	b := a.As16()
	gid := ""
	for i := 0; i < 16; i += 2 {
		gid += fmt.Sprintf(":%04x", binary.BigEndian.Uint16(b[i:]))
	}
	deadline := time.Now().Add(patience)
	for {
		for i := range 32 {
			have, err := os.ReadFile(fmt.Sprintf("/sys/class/infiniband/rxe0/ports/1/gids/%d", i))
			if err == nil && ":"+string(have) == gid+"\n" {
				return a
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("the device did not get the address")
		}
		time.Sleep(5 * time.Millisecond) // the kernel sends no event
	}
}
