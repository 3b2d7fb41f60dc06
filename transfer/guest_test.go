package transfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

// Guest 1 receives, guest 2 sends.
const guestAddr = "tcp://127.9.0.1:7070"

// guestPatience is how long a step between two guests may take before it counts as a hang.
const guestPatience = 90 * time.Second

func sh(t *testing.T, line string) {
	t.Helper()
	if out, err := exec.Command("/bin/sh", "-ec", line).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

func meet(t *testing.T) *guest.Meeting {
	t.Helper()
	m, err := guest.Meet(long(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// barrier waits for the other guest.
func barrier(t *testing.T, m *guest.Meeting, name string) {
	t.Helper()
	m.SetDeadline(time.Now().Add(guestPatience))
	if err := m.Barrier(name); err != nil {
		t.Fatal(err)
	}
}

func guestOptions() Options {
	return Options{
		Name: fmt.Sprintf("guest%d", guest.ID()), Budget: 64 << 20, // a guest has less than the default
		AllowUID: path.AnyUser(), // their loopback addresses lead from one machine to the other
		Paths: []setup.Driver{tcp.New(tcp.Options{Addr: guest.LoopbackAddrs[guest.ID()] + ":0",
			CongestionControl: "cubic"})},
	}
}

// received is what the receiver reports about a put.
type received struct {
	Bytes uint64
	Sum   [sha256.Size]byte
}

// TestGuestNetwork moves bytes between two machines over a cable that loses, delays, reorders,
// repeats and damages packets, and that is cut at last.
func TestGuestNetwork(t *testing.T) {
	if guest.Enter(t, guest.Spec{Profile: guest.Net, Guests: 2, Timeout: 5 * time.Minute}) {
		return
	}
	m := meet(t)
	for _, c := range []struct{ name, netem string }{
		{"Good", ""},
		{"Loss", "loss 2%"},
		{"Delay", "delay 20ms 5ms"},
		{"Reorder", "delay 10ms reorder 25% 50%"},
		{"RepeatDamage", "duplicate 2% corrupt 1%"},
	} {
		t.Run(c.name, func(t *testing.T) {
			barrier(t, m, c.name)
			if c.netem != "" {
				sh(t, "tc qdisc add dev link0 root netem limit 10000 "+c.netem)
				defer sh(t, "tc qdisc del dev link0 root")
			}
			o := guestOptions()
			o.DeadAfter = guestPatience // the subject is the bytes; a slow machine must not look like a dead one
			if guest.ID() == 1 {
				receiveAll(t, m, o)
			} else {
				sendAll(t, m, o)
			}
		})
	}
	t.Run("RoundTrips", func(t *testing.T) {
		sh(t, fmt.Sprintf("tc qdisc add dev link0 root netem limit 10000 delay %dms", roundTripDelay.Milliseconds()))
		defer func() { // what waited for its time is lost with the queue, and is sent again while both live
			sh(t, "tc qdisc del dev link0 root")
			barrier(t, m, "no delay")
		}()
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("secure=%v", secure), func(t *testing.T) {
				o := guestOptions()
				o.DeadAfter = guestPatience
				var id *identity.Identity
				if secure {
					id = guestIdentity(t, m)
				}
				if guest.ID() == 1 {
					countServer(t, m, o, id)
				} else {
					countClient(t, m, o, id)
				}
			})
		}
	})
	// The cut comes in the middle of transfers. Nothing tells either side but silence: all
	// transfers must end with an error, and a new peer must work when the cable is whole again.
	t.Run("CutCable", func(t *testing.T) {
		o := guestOptions()
		o.HeartbeatEvery, o.DeadAfter = 500*time.Millisecond, 5*time.Second
		if guest.ID() == 1 {
			cutReceiver(t, m, o)
		} else {
			cutSender(t, m, o)
		}
	})
}

var guestSizes = []int{1, 4096, 100_000, 1<<20 + 1}

func receiveAll(t *testing.T, m *guest.Meeting, o Options) {
	dst := region(t, guestSizes[len(guestSizes)-1])
	heard := make(chan Incoming, len(guestSizes)*2)
	o.Listen = []string{guestAddr}
	o.OnTransfer = func(i Incoming) { heard <- i }
	n := open(t, o)
	export(t, n, dst, "dst", path.Read|path.Write)
	barrier(t, m, "listening")
	for _, size := range guestSizes {
		select {
		case in := <-heard:
			m.Send(received{in.Bytes, sha256.Sum256(dst.All().Bytes()[:size])})
		case <-time.After(guestPatience):
			t.Fatalf("%d bytes did not come", size)
		}
		<-heard // the get
	}
	barrier(t, m, "done")
}

func sendAll(t *testing.T, m *guest.Meeting, o Options) {
	n := open(t, o)
	barrier(t, m, "listening")
	p, err := n.Dial(long(t), guestAddr)
	if err != nil {
		t.Fatal(err)
	}
	if p.SameHost() {
		t.Error("the other guest is taken for this machine")
	}
	rem, err := p.Lookup(long(t), "dst")
	if err != nil {
		t.Fatal(err)
	}
	for i, size := range guestSizes {
		src, back := region(t, size), region(t, size)
		fill(src, uint64(i+1))
		want := src.All().Bytes()[:size]
		local, _ := src.Span(0, uint64(size))
		x, err := p.Put(long(t), []path.Copy{rem.At(0, local)}, PutOptions{})
		waitLong(t, x, err)
		var got received
		m.SetDeadline(time.Now().Add(guestPatience))
		if err := m.Recv(&got); err != nil {
			t.Fatal(err)
		}
		if got.Bytes != uint64(size) || got.Sum != sha256.Sum256(want) {
			t.Errorf("put of %d bytes: the receiver has %d, same bytes: %v", size, got.Bytes,
				got.Sum == sha256.Sum256(want))
		}
		local, _ = back.Span(0, uint64(size))
		x, err = p.Get(long(t), []path.Copy{rem.At(0, local)}, PutOptions{})
		waitLong(t, x, err)
		if !bytes.Equal(back.All().Bytes()[:size], want) {
			t.Errorf("get of %d bytes: bytes differ", size)
		}
	}
	barrier(t, m, "done")
}

func long(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(context.Background(), guestPatience)
	t.Cleanup(cancel)
	return c
}

func waitLong(t *testing.T, x *Transfer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Wait(long(t)); err != nil {
		t.Fatalf("%v\n%v", err, x.Explain())
	}
}

const cutSize = 1 << 20

func cutReceiver(t *testing.T, m *guest.Meeting, o Options) {
	dst := region(t, cutSize)
	peers, heard := make(chan *Peer, 2), make(chan Incoming, 1000)
	o.Listen = []string{guestAddr}
	o.OnPeer = func(p *Peer) { peers <- p }
	o.OnTransfer = func(i Incoming) {
		select {
		case heard <- i:
		default:
		}
	}
	n := open(t, o)
	export(t, n, dst, "dst", path.Read|path.Write)
	barrier(t, m, "listening")
	p := <-peers
	for range 3 {
		<-heard // transfers are under way
	}
	sh(t, "ip link set link0 down")
	soonLong(t, p.Gone(), "the receiver's finding that its peer is gone")
	t.Logf("the peer is gone: %v", p.Err())
	// The sender should find out by silence alone, at about the same time; nothing of the other
	// guest can be seen from here.
	time.Sleep(2 * time.Second)
	sh(t, "ip link set link0 up")
	soonPeer(t, peers)
	m = meet(t)
	barrier(t, m, "again")
}

func cutSender(t *testing.T, m *guest.Meeting, o Options) {
	n := open(t, o)
	barrier(t, m, "listening")
	sh(t, "tc qdisc add dev link0 root tbf rate 40mbit burst 64kb latency 400ms") // so that transfers take their time
	p, err := n.Dial(long(t), guestAddr)
	if err != nil {
		t.Fatal(err)
	}
	rem, err := p.Lookup(long(t), "dst")
	if err != nil {
		t.Fatal(err)
	}
	src := region(t, cutSize)
	fill(src, 9)
	put := func() (*Transfer, error) {
		return p.Put(long(t), []path.Copy{rem.At(0, src.All())}, PutOptions{})
	}
	// Four at a time, until the peer is lost.
	var all []*Transfer
	ends := make(chan *Transfer, 1000)
	begin := func() bool {
		x, err := put()
		if err == nil {
			all = append(all, x)
			x.OnDone(func(x *Transfer) { ends <- x })
		}
		return err == nil
	}
	for range 4 {
		begin()
	}
	good, bad := 0, 0
	for good+bad < len(all) {
		select {
		case x := <-ends:
			if x.Err() == nil {
				good++
				begin()
				continue
			}
			bad++
			if !errors.Is(x.Err(), ErrPeerLost) && !errors.Is(x.Err(), path.ErrDown) {
				t.Errorf("a transfer ended with %v", x.Err())
			}
		case <-time.After(guestPatience):
			t.Fatalf("%d of %d transfers never ended", len(all)-good-bad, len(all))
		}
	}
	soonLong(t, p.Gone(), "the sender's finding that its peer is gone")
	t.Logf("%d transfers ended well, %d with errors; the peer is gone: %v", good, bad, p.Err())
	if good < 3 || bad == 0 {
		t.Errorf("%d transfers ended well, %d with errors", good, bad)
	}
	if _, err := put(); err == nil {
		t.Error("a put to a lost peer was accepted")
	}
	// The receiver's guest sets its link up again at some time.
	deadline := time.Now().Add(guestPatience)
	for {
		// A short attempt: the kernel sends a segment that was lost again after longer and longer
		// times.
		c, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		p, err = n.Dial(c, guestAddr)
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the peer cannot be reached again: %v", err)
		}
		time.Sleep(100 * time.Millisecond) // nothing tells that a cable is whole
	}
	if rem, err = p.Lookup(long(t), "dst"); err != nil {
		t.Fatal(err)
	}
	fill(src, 10)
	x, err := put()
	waitLong(t, x, err)
	back := region(t, cutSize)
	x, err = p.Get(long(t), []path.Copy{rem.At(0, back.All())}, PutOptions{})
	waitLong(t, x, err)
	if !bytes.Equal(back.All().Bytes(), src.All().Bytes()) {
		t.Error("bytes differ after the cable was mended")
	}
	m = meet(t)
	barrier(t, m, "again")
}

func soonLong(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(guestPatience):
		t.Fatalf("%s did not happen", what)
	}
}

func soonPeer(t *testing.T, peers <-chan *Peer) {
	t.Helper()
	select {
	case <-peers:
	case <-time.After(guestPatience):
		t.Fatal("the peer did not come back")
	}
}

// roundTrips is the delay of each direction in TestGuestNetwork/RoundTrips: long against the work
// of an emulated machine.
const roundTripDelay = 120 * time.Millisecond

// guestIdentity makes an authority on the first guest, and gives the second a certificate of it.
func guestIdentity(t *testing.T, m *guest.Meeting) *identity.Identity {
	t.Helper()
	m.SetDeadline(time.Now().Add(guestPatience))
	dir := filepath.Join(t.TempDir(), "identity")
	if guest.ID() == 1 {
		ca, _, err := identity.Setup(dir, "guest1", 0)
		if err != nil {
			t.Fatal(err)
		}
		bundle, _, err := ca.Export("guest2", identity.IssueOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Send(bundle); err != nil {
			t.Fatal(err)
		}
	} else {
		var bundle []byte
		if err := m.Recv(&bundle); err != nil {
			t.Fatal(err)
		}
		if _, err := identity.Import(dir, bundle); err != nil {
			t.Fatal(err)
		}
	}
	id, err := identity.Open(dir, identity.Options{Rules: everyone(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(id.Close)
	return id
}

// countSize is a few pieces: each takes a round trip.
const countSize = 6 * 4096

// countServer serves a name, once in the clear and once over TLS, to a guest that counts round
// trips.
func countServer(t *testing.T, m *guest.Meeting, o Options, id *identity.Identity) {
	src := region(t, countSize)
	fill(src, 3)
	o.Listen, o.Identity = []string{guestAddr}, id
	n := open(t, o)
	if _, err := n.Export(src.All(), ExportOptions{Name: "x", Tag: [16]byte{1}}); err != nil {
		t.Fatal(err)
	}
	barrier(t, m, "serving")
	barrier(t, m, "counted")
	barrier(t, m, "closed")
}

// countClient cuts the control connection and says how many round trips later there is a session,
// and the first bytes.
func countClient(t *testing.T, m *guest.Meeting, o Options, id *identity.Identity) {
	o.Identity = id
	n := open(t, o)
	barrier(t, m, "serving")
	dst, want := region(t, countSize), region(t, countSize)
	fill(want, 3)
	trips := func(d time.Duration) string {
		return fmt.Sprintf("%.2f round trips", float64(d)/float64(2*roundTripDelay))
	}
	for i := range 2 {
		begin := time.Now()
		p, err := n.Dial(long(t), guestAddr)
		if err != nil {
			t.Fatal(err)
		}
		connected := time.Since(begin)
		r, err := p.Lookup(long(t), "x")
		if err != nil {
			t.Fatal(err)
		}
		x, err := p.Get(long(t), []path.Copy{r.At(0, dst.All())}, PutOptions{})
		waitLong(t, x, err)
		t.Logf("session %d: after %s, the first bytes %s later", i+1, trips(connected),
			trips(time.Since(begin)-connected))
		if !bytes.Equal(dst.All().Bytes(), want.All().Bytes()) {
			t.Error("bytes differ")
		}
		clear(dst.All().Bytes())
		p.conn.Close()
		soonLong(t, p.Gone(), "the loss of the session")
	}
	barrier(t, m, "counted")
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	barrier(t, m, "closed")
}
