package transfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/shm"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

// The tests of this file run against two other processes, each in a host of its own. Their
// addresses are loopback addresses that are routed over the cable, because nodes accept no others
// yet.

// hostPatience is how long a step may take before it counts as a hang.
const hostPatience = 90 * time.Second

// hostEvent is a line that a process in a host prints.
type hostEvent struct {
	What     string // listening, put, get, heard, moving, lost
	Addr     string
	Bytes    int
	Sum      string // of the bytes
	Path     string
	Same     bool // the peer seems to be in the same host
	Err      string
	Known    bool   // Err is one of the errors that stand for a lost peer
	Security string // of the path
}

// hostSizes are moved one after the other. Each has a place of its own in the server's memory,
// which has hostRoom bytes: the server may look at one when the next is already there.
var hostSizes = []int{1, 4096, 100_001, 16<<20 + 3}

const hostRoom = 32 << 20

// hostPlace is the offset of the bytes of a put of this size.
func hostPlace(size int) (at int) {
	for _, s := range hostSizes[:slices.Index(hostSizes, size)] {
		at += s
	}
	return at
}

// What a process in a host finds in its environment: the directory of its identity, and whether it
// may do without one. With either, its data connections are on all interfaces.
const (
	identityEnv = "PENSTOCK_TEST_IDENTITY"
	insecureEnv = "PENSTOCK_TEST_INSECURE"
)

// runInHost is a process in a host:
//
//	server IP DEADAFTER                listens on IP, exports memory, tells what it hears and when it loses a peer
//	client IP DEADAFTER ADDR once      puts and gets each size, and waits for the end of its input
//	client IP DEADAFTER ADDR mover     puts and gets each size, then puts until that fails
func runInHost(role string) error {
	f := strings.Split(role, " ")
	dead, err := time.ParseDuration(f[2])
	if err != nil {
		return err
	}
	events := make(chan hostEvent, 1024)
	printed := make(chan error, 1)
	go func() {
		e := json.NewEncoder(os.Stdout)
		var err error
		for ev := range events {
			err = errors.Join(err, e.Encode(ev))
		}
		printed <- err
	}()
	// their loopback addresses lead from one host to the other
	o := Options{Name: f[0], Policy: identity.Everyone(identity.All), Anonymous: identity.All, AllowUID: path.AnyUser(),
		HeartbeatEvery: dead / 10, DeadAfter: dead,
		Paths: []setup.Driver{shm.Driver{}, tcp.New(tcp.Options{Addr: f[1] + ":0", CongestionControl: "system"})}}
	if dir := os.Getenv(identityEnv); dir != "" {
		o.Paths = nil
		if o.Identity, err = identity.Open(dir, identity.Options{}); err != nil {
			return err
		}
	} else if os.Getenv(insecureEnv) != "" {
		o.Paths, o.Insecure = nil, true
	}
	if f[0] == "server" {
		err = hostServer(o, f[1], events)
	} else {
		err = hostClient(o, f[3], f[4] == "mover", events)
	}
	close(events)
	return errors.Join(err, <-printed)
}

func hostServer(o Options, ip string, events chan<- hostEvent) error {
	r, err := mem.Alloc(mem.Options{Name: "server", Size: hostRoom})
	if err != nil {
		return err
	}
	o.Listen = []string{"tcp://" + ip + ":0"}
	o.OnPeer = func(p *Peer) {
		go func() {
			<-p.Gone()
			events <- hostEvent{What: "lost", Err: fmt.Sprint(p.Err()), Known: errors.Is(p.Err(), ErrPeerLost)}
		}()
	}
	o.OnTransfer = func(i Incoming) {
		if size := int(i.Bytes); i.Kind == path.Put && slices.Contains(hostSizes, size) {
			at := hostPlace(size)
			events <- hostEvent{What: "heard", Bytes: size, Path: i.Path, Sum: sumOf(r.All().Bytes()[at : at+size])}
		}
	}
	n, err := Open(context.Background(), o)
	if err != nil {
		return err
	}
	if _, err := n.Export(r.All(), ExportOptions{Name: "memory", Rights: path.Read | path.Write}); err != nil {
		return err
	}
	events <- hostEvent{What: "listening", Addr: n.Addrs()[0]}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	os.Exit(0) // with peers and events under way: the test has seen all it wants
	return nil
}

func hostClient(o Options, addr string, mover bool, events chan<- hostEvent) error {
	c, cancel := context.WithTimeout(context.Background(), 2*hostPatience)
	defer cancel()
	n, err := Open(c, o)
	if err != nil {
		return err
	}
	defer n.Close()
	p, err := n.Dial(c, addr)
	if err != nil {
		return err
	}
	rem, err := p.Lookup(c, "memory")
	if err != nil {
		return err
	}
	for i, size := range hostSizes {
		at := uint64(hostPlace(size))
		src, err := mem.Alloc(mem.Options{Name: "source", Size: size})
		if err != nil {
			return err
		}
		defer src.Close()
		back, err := mem.Alloc(mem.Options{Name: "back", Size: size})
		if err != nil {
			return err
		}
		defer back.Close()
		fill(src, uint64(i+1))
		out, err := src.Span(0, uint64(size))
		if err != nil {
			return err
		}
		in, err := back.Span(0, uint64(size))
		if err != nil {
			return err
		}
		for _, op := range []struct {
			what string
			do   func() (*Transfer, error)
			got  []byte
		}{
			{"put", func() (*Transfer, error) { return p.Put(c, []path.Copy{rem.At(at, out)}, PutOptions{}) }, out.Bytes()},
			{"get", func() (*Transfer, error) { return p.Get(c, []path.Copy{rem.At(at, in)}, PutOptions{}) }, in.Bytes()},
		} {
			t, err := op.do()
			if err != nil {
				return err
			}
			if err := t.Wait(c); err != nil {
				return err
			}
			events <- hostEvent{What: op.what, Bytes: size, Sum: sumOf(op.got), Path: t.Explain().Path,
				Same: p.SameHost(), Security: t.Explain().Security.String()}
		}
		if !bytes.Equal(in.Bytes(), out.Bytes()) {
			return fmt.Errorf("get of %d bytes: they differ from what was put", size)
		}
		for k := 0; mover && i == len(hostSizes)-1; k++ {
			t, err := p.Put(c, []path.Copy{rem.At(at, out)}, PutOptions{})
			if err == nil {
				err = t.Wait(c)
			}
			if err != nil {
				known := errors.Is(err, ErrPeerLost) || errors.Is(err, path.ErrDown)
				events <- hostEvent{What: "lost", Err: err.Error(), Known: known}
				return nil
			}
			if k == 3 {
				events <- hostEvent{What: "moving"}
			}
		}
	}
	// The server does not lose its peer before the test has read all events.
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func sumOf(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// hostProcess is a process in a host, and what it prints.
type hostProcess struct {
	name   string
	events chan hostEvent // closed when it has ended
}

func startInHost(t *testing.T, h *netns.Host, role string, env ...string) *hostProcess {
	t.Helper()
	cmd := h.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), childEnv+"="+hostRole+role), env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(cmd); err != nil {
		t.Fatal(err)
	}
	p := &hostProcess{h.Name, make(chan hostEvent, 4096)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d := json.NewDecoder(out)
		for {
			var ev hostEvent
			if d.Decode(&ev) != nil {
				break
			}
			p.events <- ev
		}
		close(p.events)
		cmd.Wait()
	}()
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill() // the error says that it has ended
		for range p.events {
		}
		<-ended
	})
	return p
}

// next waits for the next event of a kind; others are skipped.
func (p *hostProcess) next(t *testing.T, what string) hostEvent {
	t.Helper()
	limit := time.After(hostPatience)
	for {
		select {
		case ev, ok := <-p.events:
			if !ok {
				t.Fatalf("the process in %s ended before %q", p.name, what)
			}
			if ev.What == what {
				return ev
			}
			if ev.What == "lost" {
				t.Fatalf("the process in %s: expected %q, and it lost its peer: %s", p.name, what, ev.Err)
			}
		case <-limit:
			t.Fatalf("the process in %s: no %q in %v", p.name, what, hostPatience)
		}
	}
}

// sent is how many bytes left a host over its cable.
func sent(t *testing.T, h *netns.Host) (n int) {
	t.Helper()
	err := h.Do(func() error {
		b, err := os.ReadFile("/sys/class/net/" + h.Link().Name + "/statistics/tx_bytes")
		if err != nil {
			return err
		}
		n, err = strconv.Atoi(strings.TrimSpace(string(b)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// checkMoves follows a client's puts and gets at both ends.
func checkMoves(t *testing.T, server, client *hostProcess) {
	t.Helper()
	for i, size := range hostSizes {
		want := make([]byte, size)
		r := region(t, size)
		fill(r, uint64(i+1))
		copy(want, r.All().Bytes())
		heard := server.next(t, "heard")
		for heard.Bytes != size { // of a client that was there before
			heard = server.next(t, "heard")
		}
		for _, ev := range []hostEvent{client.next(t, "put"), heard, client.next(t, "get")} {
			if ev.Bytes != size || ev.Sum != sumOf(want) || ev.Path != "tcp" || ev.Same {
				t.Errorf("%s of %d bytes: expected these bytes over tcp between two hosts: %+v", ev.What, size, ev)
			}
		}
	}
}

// Two processes in two hosts, on one veth pair with large packets.
func TestNamespacesPutAndGet(t *testing.T) {
	n := netns.New(t, netns.Topology{Localnet: true, Link: netns.LinkSpec{MTU: 9000, Queues: 2}})
	a, b := n.Hosts[0], n.Hosts[1]
	server := startInHost(t, b, "server "+b.Link().Local.String()+" 90s")
	beforeA, beforeB := sent(t, a), sent(t, b)
	client := startInHost(t, a, "client "+a.Link().Local.String()+" 90s "+server.next(t, "listening").Addr+" once")
	checkMoves(t, server, client)
	total := 0
	for _, size := range hostSizes {
		total += size
	}
	if put, get := sent(t, a)-beforeA, sent(t, b)-beforeB; put < total || get < total {
		t.Errorf("%d and %d bytes went over the cable, expected at least %d each way", put, get, total)
	}
}

// The cable is cut while bytes move: the transfer ends with an error at the one end, and the peer
// is lost at the other. When the cable is whole again, a new process moves bytes to the same
// server.
func TestNamespacesCutCable(t *testing.T) {
	n := netns.New(t, netns.Topology{Localnet: true, Bridge: true, Link: netns.LinkSpec{MTU: 9000}})
	a, b := n.Hosts[0], n.Hosts[1]
	server := startInHost(t, b, "server "+b.Link().Local.String()+" 4s")
	addr := server.next(t, "listening").Addr
	client := startInHost(t, a, "client "+a.Link().Local.String()+" 4s "+addr+" mover")
	checkMoves(t, server, client)
	client.next(t, "moving")
	if err := a.Link().Down(); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*hostProcess{client, server} {
		if ev := p.lost(t); !ev.Known {
			t.Errorf("in %s: %s: expected the error of a lost peer or path", p.name, ev.Err)
		}
	}
	if err := a.Link().Up(); err != nil {
		t.Fatal(err)
	}
	checkMoves(t, server, startInHost(t, a, "client "+a.Link().Local.String()+" 4s "+addr+" once"))
}

// Two processes in two hosts, at addresses that are no loopback addresses: with identities
// everything is encrypted, without them nothing goes unless it was permitted.
func TestNamespacesSecurity(t *testing.T) {
	n := netns.New(t, netns.Topology{})
	a, b := n.Hosts[0], n.Hosts[1]
	ca := authority(t)
	env := map[string]string{}
	for _, name := range []string{"client", "server"} {
		c, err := ca.Credentials(name, identity.IssueOptions{})
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), name)
		if err := identity.Save(dir, c); err != nil {
			t.Fatal(err)
		}
		env[name] = identityEnv + "=" + dir
	}
	for _, ip := range []string{b.Link().IPv4.String(), "[" + b.Link().IPv6.String() + "]"} {
		server := startInHost(t, b, "server "+ip+" 90s", env["server"])
		addr := strings.Replace(server.next(t, "listening").Addr, "//", "//server@", 1)
		client := startInHost(t, a, "client "+ip+" 90s "+addr+" once", env["client"])
		checkSecurity(t, server, client, path.SecurityEncrypted)
	}
	// By link-local addresses, which take the interface beside them.
	for h, ip := range map[*netns.Host]string{a: "fe80::a/64", b: "fe80::b/64"} {
		if err := h.Run(h.Command("ip", "addr", "add", ip, "dev", h.Link().Name, "nodad")); err != nil {
			t.Fatal(err)
		}
	}
	server := startInHost(t, b, "server [fe80::b%"+b.Link().Name+"] 90s", env["server"])
	addr := strings.Replace(server.next(t, "listening").Addr, "%"+b.Link().Name, "%"+a.Link().Name, 1)
	checkSecurity(t, server, startInHost(t, a, "client - 90s "+addr+" once", env["client"]), path.SecurityEncrypted)
	ip := b.Link().IPv4.String()
	server = startInHost(t, b, "server "+ip+" 90s", insecureEnv+"=1")
	client := startInHost(t, a, "client "+ip+" 90s "+server.next(t, "listening").Addr+" once", insecureEnv+"=1")
	checkSecurity(t, server, client, path.SecurityNone)
}

// checkSecurity follows a client's puts and gets, and looks how they were protected.
func checkSecurity(t *testing.T, server, client *hostProcess, want path.Security) {
	t.Helper()
	for i, size := range hostSizes {
		r := region(t, size)
		fill(r, uint64(i+1))
		sum := sumOf(r.All().Bytes()[:size])
		for _, ev := range []hostEvent{client.next(t, "put"), server.next(t, "heard"), client.next(t, "get")} {
			if ev.Bytes != size || ev.Sum != sum || ev.Path != "tcp" || ev.What != "heard" &&
				ev.Security != want.String() {
				t.Errorf("%s of %d bytes, expected them over tcp with security %v: %+v", ev.What, size, want, ev)
			}
		}
	}
}

// lost waits until the process has lost its peer.
func (p *hostProcess) lost(t *testing.T) hostEvent {
	t.Helper()
	limit := time.After(hostPatience)
	for {
		select {
		case ev, ok := <-p.events:
			if !ok {
				t.Fatalf("the process in %s ended without the loss of its peer", p.name)
			}
			if ev.What == "lost" {
				return ev
			}
		case <-limit:
			t.Fatalf("the process in %s did not lose its peer over a cut cable in %v", p.name, hostPatience)
		}
	}
}
