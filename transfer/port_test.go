package transfer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

// forward brings each connection of a listener to what dial connects to, as "ssh -L" does with one
// port. Those beyond most hang.
func forward(t testing.TB, l net.Listener, most int64, dial func() (net.Conn, error)) (came *atomic.Int64) {
	t.Helper()
	came = new(atomic.Int64)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if came.Add(1) > most {
				t.Cleanup(func() { c.Close() })
				continue
			}
			go func() {
				defer c.Close()
				d, err := dial()
				if err != nil {
					return
				}
				defer d.Close()
				go func() {
					io.Copy(d, c)
					d.(*net.TCPConn).CloseWrite()
				}()
				io.Copy(c, d)
			}()
		}
	}()
	return came
}

// forwarded is an address of this machine from which connections go to a node.
func forwarded(t testing.TB, n *Node, most int64) (addr string, came *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.9:0")
	if err != nil {
		t.Fatal(err)
	}
	to := strings.TrimPrefix(n.Addrs()[0], "tcp://")
	return "tcp://" + l.Addr().String(), forward(t, l, most, func() (net.Conn, error) { return net.Dial("tcp", to) })
}

// TestOnePort has all that comes to a node come to the port that it listens on, whichever side asks
// for a path, and looks what else listens: nothing, but for peers that came by no TCP port.
func TestOnePort(t *testing.T) {
	ca := authority(t)
	overTCP := func() []setup.Driver { return []setup.Driver{tcp.New(tcp.Options{})} }
	for _, c := range []struct {
		// by: the peer dials this address, "proxy" for one elsewhere from which connections are
		// brought to the node
		name, listen, by string
		tls              bool
	}{
		{"plain", loopback, "", false},
		{"TLS", loopback, "", true},
		{"IPv6", "tcp://[::1]:0", "", true},
		{"all of IPv4", "tcp://0.0.0.0:0", "127.0.0.5", true},
		{"all", "tcp://:0", "127.0.0.1", true},
		{"all, by IPv6", "tcp://:0", "[::1]", true},
		{"plain proxy", loopback, "proxy", false},
		{"TLS proxy", loopback, "proxy", true},
		{"unix", abstract("port"), "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if l, err := net.Listen("tcp", "[::1]:0"); err == nil {
				l.Close()
			} else if strings.Contains(c.name, "6") {
				testenv.Missing(t, "IPv6 on the loopback interface", err)
			}
			peers := make(chan *Peer, 1)
			bo := Options{Listen: []string{c.listen}, Paths: overTCP(), OnPeer: func(p *Peer) { peers <- p }}
			ao := Options{Paths: overTCP()}
			if c.tls {
				ao.Identity, bo.Identity = issue(t, ca, "a"), issue(t, ca, "b")
				ao.Policy, bo.Policy = identity.Everyone(identity.All), identity.Everyone(identity.All)
			}
			b, a := open(t, bo), open(t, ao)
			addr := b.Addrs()[0]
			var came *atomic.Int64
			switch c.by {
			case "":
			case "proxy":
				addr, came = forwarded(t, b, 100)
			default:
				addr = "tcp://" + c.by + addr[strings.LastIndexByte(addr, ':'):]
			}
			ab, err := a.Dial(ctx(t), addr)
			if err != nil {
				t.Fatal(err)
			}
			ba := <-peers
			at, bt := region(t, 4096), region(t, 4096)
			export(t, a, at, "at", path.Read|path.Write)
			export(t, b, bt, "bt", path.Read|path.Write)
			// The side that listens asks first: the other one cannot be dialed.
			src := region(t, 4096)
			fill(src, 1)
			x, err := ba.Put(ctx(t), []path.Copy{lookup(t, ba, "at").At(0, src.All())}, PutOptions{})
			wait(t, x, err)
			x, err = ab.Put(ctx(t), []path.Copy{lookup(t, ab, "bt").At(0, at.All())}, PutOptions{})
			wait(t, x, err)
			if string(bt.All().Bytes()) != string(src.All().Bytes()) {
				t.Error("other bytes came")
			}
			a.AcceptQueues("q")
			b.AcceptQueues("q")
			for _, p := range []*Peer{ab, ba} {
				q, err := p.OpenQueue(ctx(t), QueueOptions{Name: "q"})
				if err != nil {
					t.Fatal(err)
				}
				other := map[*Peer]*Node{ab: b, ba: a}[p]
				r, err := other.AcceptQueue(ctx(t), "q")
				if err != nil {
					t.Fatal(err)
				}
				q.Close()
				r.Close()
			}
			want := fmt.Sprint([]setup.Place{{Driver: "tcp", ByPort: true}}, []setup.Place(nil))
			if c.name == "unix" {
				want = fmt.Sprint([]setup.Place{{Driver: "tcp"}}, []setup.Place{{Driver: "tcp"}})
			}
			if got := fmt.Sprint(b.accepting.Places(), a.accepting.Places()); got != want {
				t.Errorf("listeners of paths at both nodes: %v, expected %v", got, want)
			}
			if came != nil && came.Load() < 1+3*tcp.DefaultStreams {
				t.Errorf("%d connections came by the proxy", came.Load())
			}
		})
	}
}

// TestNamespacesOnePort has a client and a server in hosts that are not connected: one port of the
// one leads to the one port of the other.
func TestNamespacesOnePort(t *testing.T) {
	n := netns.New(t, netns.Topology{})
	a, b := n.Hosts[0], n.Hosts[1]
	if err := a.Link().Down(); err != nil {
		t.Fatal(err)
	}
	ca := authority(t)
	for _, secure := range []bool{false, true} {
		env := map[string][]string{}
		for _, name := range []string{"client", "server"} {
			if !secure {
				break
			}
			c, err := ca.Credentials(name, identity.IssueOptions{})
			if err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(t.TempDir(), name)
			if err := identity.Save(dir, c); err != nil {
				t.Fatal(err)
			}
			env[name] = []string{identityEnv + "=" + dir}
		}
		server := startInHost(t, b, "server 127.0.0.1 90s", env["server"]...)
		to := strings.TrimPrefix(server.next(t, "listening").Addr, "tcp://")
		l, err := a.Listen(ctx(t), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		forward(t, l, 100, func() (net.Conn, error) { return b.Dial(context.Background(), "tcp", to) })
		client := startInHost(t, a, "client 127.0.0.1 90s tcp://"+l.Addr().String()+" once", env["client"]...)
		if want := path.SecurityHost; secure {
			checkSecurity(t, server, client, path.SecurityEncrypted)
		} else {
			checkSecurity(t, server, client, want) // both ends of each connection are loopback addresses
		}
	}
}

// TestOnePortInTheWay puts a proxy between the nodes that lets the session through and no other
// connection: the errors at both ends say so within seconds.
func TestOnePortInTheWay(t *testing.T) {
	t.Parallel() // it waits for the end of a request
	peers := make(chan *Peer, 1)
	o := Options{Paths: []setup.Driver{tcp.New(tcp.Options{})}}
	b := open(t, Options{Listen: []string{loopback}, Paths: o.Paths, OnPeer: func(p *Peer) { peers <- p }})
	a := open(t, o)
	addr, _ := forwarded(t, b, 1)
	ab, err := a.Dial(ctx(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	ba := <-peers
	start := time.Now()
	errs := make(chan error, 2)
	for _, p := range []*Peer{ab, ba} {
		go func() { errs <- p.Ready(ctx(t), "tcp") }()
	}
	for range 2 {
		err := <-errs
		if text := fmt.Sprint(err); !strings.Contains(text, "tcp: dial "+strings.TrimPrefix(addr, "tcp://")) ||
			!errors.Is(err, path.ErrUnavailable) {
			t.Errorf("%v: expected where nothing answered", err)
		}
	}
	if d := time.Since(start); d > requestTimeout+5*time.Second {
		t.Errorf("it took %v to say so", d)
	}
}

// TestPortRefuses shows what becomes of a foreign connection to the port of a node, by the first
// bytes: nothing is kept of any of them.
func TestPortRefuses(t *testing.T) {
	t.Parallel()
	ca := authority(t)
	data := tcp.New(tcp.Options{}).Preamble()
	var session [4]byte
	binary.BigEndian.PutUint32(session[:], control.Magic)
	for _, secure := range []bool{false, true} {
		for _, c := range []struct {
			name, says string
			answer     string // of the node; "": it closes the connection without one
			atOnce     bool
		}{
			{"nothing", "", "", false},
			{"a part", "PN", "", false},
			{"the web", "GET / HTTP/1.1\r\n\r\n", "this port is for nodes", true},
			{"a path that nobody asked for", string(data[:]), "", true},
			{"a path, and more", string(data[:]) + strings.Repeat("x", 1<<16), "", true},
			{"a part of a session", string(session[:]), map[bool]string{true: "", false: "no complete handshake"}[secure], false},
			{"TLS", "\x16\x03\x01\x00\x05", map[bool]string{true: "", false: "no complete handshake"}[secure], false},
			{"old TLS", "\x80\x2e\x01\x00\x02", "this port is for nodes", true},
		} {
			t.Run(fmt.Sprint(c.name, ", TLS ", secure), func(t *testing.T) {
				t.Parallel()
				o := Options{Listen: []string{loopback}}
				if secure {
					o.Identity = issue(t, ca, "b")
				}
				n := open(t, o)
				conn, err := net.Dial("tcp", strings.TrimPrefix(n.Addrs()[0], "tcp://"))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				io.WriteString(conn, c.says)
				start := time.Now()
				conn.SetDeadline(start.Add(time.Minute))
				answer, err := io.ReadAll(conn)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatal("the connection stays")
				}
				if !strings.Contains(string(answer), c.answer) || c.answer == "" && len(answer) > 64 {
					t.Errorf("it was told %q", answer)
				}
				if d := time.Since(start); c.atOnce && d > handshakeTimeout/2 {
					t.Errorf("it ended after %v", d)
				}
				until(t, "the end", func() bool {
					n.mu.Lock()
					defer n.mu.Unlock()
					return n.handshaking.Len() == 0 && len(n.peers) == 0 && len(n.accepting.Places()) == 0
				})
			})
		}
	}
}

// TestPortToken: a connection with the preamble of a path and a token that no Accept waits for is
// refused, also while paths are expected, and takes the place of none.
func TestPortToken(t *testing.T) {
	p := newPair(t, Options{Paths: []setup.Driver{tcp.New(tcp.Options{})}})
	if err := p.ab.Ready(ctx(t), "tcp"); err != nil {
		t.Fatal(err)
	}
	d := tcp.New(tcp.Options{})
	addr := strings.TrimPrefix(p.b.Addrs()[0], "tcp://")
	_, err := d.Dial(ctx(t), setup.Offer{Addr: addr, Token: setup.Token{1}}, p.ab.pathConfig(0, 0, false))
	if !errors.Is(err, path.ErrProtocol) || !strings.Contains(fmt.Sprint(err), "does not expect this token") {
		t.Errorf("%v", err)
	}
	// A peer that dialed cannot be made to accept, nor to dial where it did not dial, and the other
	// one not to dial at all.
	for _, c := range []struct {
		p *Peer
		q control.OpenPath
	}{
		{p.ab, control.OpenPath{Path: "tcp", Token: setup.Token{1}}},
		{p.ba, control.OpenPath{Path: "tcp"}},
	} {
		if _, err := c.p.request(ctx(t), &c.q); !errors.Is(err, control.BadRequest) {
			t.Errorf("%v", err)
		}
	}
}

// FuzzFirstBytes has a node meet handshaking that begin with any bytes. It goes on, and keeps
// nothing of them.
func FuzzFirstBytes(f *testing.F) {
	data := tcp.New(tcp.Options{}).Preamble()
	f.Add(data[:])
	f.Add(append(data[:], make([]byte, 60)...))
	f.Add([]byte("PNCT\x01\x01\x00\x00"))
	f.Add([]byte("\x16\x03\x01\x02\x00\x01"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte{})
	n := open(f, Options{Listen: []string{loopback}, Paths: []setup.Driver{tcp.New(tcp.Options{})}})
	a := open(f, Options{Paths: []setup.Driver{tcp.New(tcp.Options{})}})
	p, err := a.Dial(ctx(f), n.Addrs()[0])
	if err == nil {
		err = p.Ready(ctx(f), "tcp") // there is a listener of the path
	}
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := net.Dial("tcp", strings.TrimPrefix(n.Addrs()[0], "tcp://"))
		if err != nil {
			return // the kernel is out of ports
		}
		defer c.Close()
		c.Write(b)
		c.(*net.TCPConn).CloseWrite()
		c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%q: the connection stays", b)
		}
		if p.Err() != nil {
			t.Fatal(p.Err())
		}
	})
}
