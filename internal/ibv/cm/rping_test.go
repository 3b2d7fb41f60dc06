package cm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/ibv"
)

// rping is the example of librdmacm's authors: the client says where its bytes are, the server
// reads them and says so, the client says where it wants them, the server writes them there and
// says so. Messages are 16 bytes, of which only the client's mean something: address, key and
// length of a buffer. So it shows that this package connects to others in both roles.
const (
	pings    = 5
	pingSize = 4096
)

// rping starts the tool in one of its roles, bounded by time.
func rping(t *testing.T, role string, at netip.AddrPort) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "rping", role, "-a", at.Addr().String(), "-p", strconv.Itoa(int(at.Port())), "-C",
		strconv.Itoa(pings),
		"-S", strconv.Itoa(pingSize), "-V", "-v")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	return cmd, &out
}

// ended waits for the tool, which prints each ping that came back right.
func ended(t *testing.T, cmd *exec.Cmd, out *bytes.Buffer, prefix string) {
	t.Helper()
	err := cmd.Wait()
	if n := strings.Count(out.String(), prefix+"rdma-ping-"); err != nil || n != pings {
		t.Errorf("%q: %v, %d pings, want %d\n%s", cmd.Args, err, n, pings, out)
	}
}

// rpingServer connects to the tool's server.
func rpingServer(t *testing.T, w world) {
	l := w.l
	c := channel(t, l)
	at := netip.AddrPortFrom(netip.MustParseAddr(w.host), 7174)
	cmd, out := rping(t, "-s", at)
	var id *ID
	var s *side
	for connected := false; !connected; {
		id = newID(t, c)
		resolve(t, c, id, netip.AddrPort{}, at)
		s = newSide(t, w, id)
		must(t, id.Connect(Params{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7,
			QPN: s.qp.Num()}))
		switch ev := next(t, c); {
		case ev.Type == ConnectResponse:
			connected = true
		case errors.Is(ev.Err, ErrRefused):
			must(t, id.Close())
			time.Sleep(50 * time.Millisecond) // no event says when a program listens
		default:
			t.Fatalf("event %q: %v", ev.Type, ev.Err)
		}
	}
	must(t, id.ReadyQP(s.qp, access, Agreed, Agreed, Pauses{}))
	must(t, id.Establish())
	const from, to = 0, 2 * pingSize
	tell := func(offset uint64) {
		const message = 4 * pingSize
		binary.BigEndian.PutUint64(s.mem[message:], uint64(dl.Address(s.mem))+offset)
		binary.BigEndian.PutUint32(s.mem[message+8:], s.mr.RKey())
		binary.BigEndian.PutUint32(s.mem[message+12:], pingSize)
		s.post(t, func(c *ibv.SendChain) { c.Send(9, 0, s.mr.SGE(message, 16)) })
		if got := s.received(t); len(got) != 16 {
			t.Fatalf("an answer of %d bytes", len(got))
		}
	}
	for i := range pings {
		ping := s.mem[from : from+pingSize]
		copy(ping, "rdma-ping-"+strconv.Itoa(i)+": ")
		for j := 13; j < pingSize; j++ {
			ping[j] = byte('A' + (i+j)%26)
		}
		ping[pingSize-1] = 0
		clear(s.mem[to : to+pingSize])
		tell(from)
		tell(to)
		if !bytes.Equal(s.mem[to:to+pingSize], ping) {
			t.Errorf("ping %d came back as %.40q", i, s.mem[to:])
		}
	}
	must(t, id.Disconnect())
	want(t, c, Disconnected)
	ended(t, cmd, out, "server ping data: ")
}

// rpingClient has the tool's client connect to a server here.
func rpingClient(t *testing.T, w world) {
	l := w.l
	c := channel(t, l)
	_, at := listener(t, c, w.host)
	cmd, out := rping(t, "-c", at)
	ask := want(t, c, ConnectRequest)
	id := ask.ID
	s := newSide(t, w, id)
	must(t, id.ReadyQP(s.qp, access, ask.Params.ResponderResources, ask.Params.InitiatorDepth, Pauses{}))
	must(t, id.Accept(Params{ResponderResources: ask.Params.ResponderResources,
		InitiatorDepth: ask.Params.InitiatorDepth, RNRRetryCount: 7, QPN: s.qp.Num()}))
	want(t, c, Established)
	// Where the client's message says that its bytes are, the server moves them, and says so.
	move := func(request func(c *ibv.SendChain, raddr uint64, rkey uint32, sge ibv.SGE)) {
		m := s.received(t)
		if len(m) != 16 || binary.BigEndian.Uint32(m[12:]) != pingSize {
			t.Fatalf("a message of %d bytes: % x", len(m), m)
		}
		s.post(t, func(c *ibv.SendChain) {
			request(c, binary.BigEndian.Uint64(m), binary.BigEndian.Uint32(m[8:]), s.mr.SGE(0, pingSize))
		})
		s.complete(t)
		s.post(t, func(c *ibv.SendChain) { c.Send(9, 0, s.mr.SGE(0, 16)) })
	}
	for i := range pings {
		clear(s.mem[:pingSize])
		move(func(c *ibv.SendChain, raddr uint64, rkey uint32, sge ibv.SGE) {
			c.Read(1, ibv.Signaled, raddr, rkey, sge)
		})
		if want := "rdma-ping-" + strconv.Itoa(i) + ": "; !bytes.HasPrefix(s.mem, []byte(want)) {
			t.Errorf("read %.40q, want %q at its begin", s.mem, want)
		}
		move(func(c *ibv.SendChain, raddr uint64, rkey uint32, sge ibv.SGE) {
			c.Write(1, ibv.Signaled, raddr, rkey, sge)
		})
	}
	want(t, c, Disconnected)
	must(t, id.Disconnect())
	ended(t, cmd, out, "ping data: ")
}
