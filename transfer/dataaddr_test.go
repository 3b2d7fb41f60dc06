package transfer

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

// elsewhere is a driver whose offers name an address of the peer's choice.
type elsewhere struct {
	setup.ListenDriver
	addr string
}

func (d elsewhere) Listen() (setup.Listener, error) {
	l, err := d.ListenDriver.Listen()
	return elsewhereListener{l, d.addr}, err
}

type elsewhereListener struct {
	setup.Listener
	addr string
}

func (l elsewhereListener) Addr() string { return l.addr }

// TestOfferOfAnotherAddress: a server cannot send its client to any address by its offer of a data
// connection; the client may allow addresses.
func TestOfferOfAnotherAddress(t *testing.T) {
	victim, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer victim.Close()
	came := func(limit time.Time) bool {
		victim.(*net.TCPListener).SetDeadline(limit)
		c, err := victim.Accept()
		if err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			return false
		}
		c.Close()
		return true
	}
	at := "tcp://127.0.0.1:0"
	server := func(addr, listen string) *Node {
		return open(t, Options{Listen: []string{listen},
			Paths: []setup.Driver{elsewhere{tcp.New(tcp.Options{}), addr}}})
	}
	dial := func(n *Node, o Options) (*Peer, error) {
		o.Paths = []setup.Driver{tcp.New(tcp.Options{})}
		p, err := open(t, o).Dial(ctx(t), n.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		return p, p.Ready(ctx(t), "tcp")
	}
	for _, addr := range []string{victim.Addr().String(), "localhost:1", "@penstock", "[::ffff:127.0.0.2]:1"} {
		if _, err := dial(server(addr, at), Options{}); !errors.Is(err, control.NotPermitted) {
			t.Errorf("%s: %v", addr, err)
		}
		unix := "unix://" + filepath.Join(t.TempDir(), "s")
		if _, err := dial(server("192.0.2.1:1", unix), Options{}); !errors.Is(err, control.NotPermitted) {
			t.Errorf("by a unix socket: %v", err)
		}
	}
	if came(time.Now().Add(100 * time.Millisecond)) {
		// one that waits is accepted at once; a deadline that is over accepts none
		t.Error("the client connected where the server sent it")
	}
	allowed := Options{DataAddrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"),
		netip.MustParsePrefix("127.0.0.2/32")}}
	c, cancel := context.WithCancel(ctx(t))
	go func() { // the victim is no node: the path does not come
		if !came(time.Now().Add(30 * time.Second)) {
			t.Error("the client does not connect to an address that it allows")
		}
		cancel()
	}()
	if _, err := dial(server(victim.Addr().String(), at), allowed); err == nil || errors.Is(err, control.NotPermitted) {
		t.Errorf("to an address that is allowed: %v", err)
	}
	<-c.Done()
	// What drivers do without a word of the peer's is allowed: a loopback address for a unix
	// socket, another port of the session's address.
	own, err := dial(open(t, Options{Listen: []string{"unix://" + filepath.Join(t.TempDir(), "s")},
		Paths: []setup.Driver{tcp.New(tcp.Options{})}}), Options{})
	if err != nil {
		t.Errorf("%v: %v", own, err)
	}
}
