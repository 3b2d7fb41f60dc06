package tcp

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// TestBeyondLoopback: other hosts take a secret, or an explicit word.
func TestBeyondLoopback(t *testing.T) {
	plain := setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)}
	sealed := plain
	sealed.Secret = aSecret()
	for _, a := range []string{"192.0.2.1:80", "[2001:db8::1]:80", "[::ffff:192.0.2.1]:1"} {
		_, err := New(Options{}).Dial(t.Context(), setup.Offer{Addr: a}, plain)
		if !errors.Is(err, path.ErrUnavailable) || !strings.Contains(err.Error(), "Insecure") {
			t.Errorf("dial %s: %v", a, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // the addresses lead nowhere
		for _, c := range []struct {
			o   Options
			cfg setup.Config
		}{{Options{}, sealed}, {Options{Insecure: true}, plain}} {
			if _, err := New(c.o).Dial(ctx, setup.Offer{Addr: a}, c.cfg); !errors.Is(err, context.Canceled) {
				t.Errorf("dial %s, insecure %v: %v", a, c.o.Insecure, err)
			}
		}
	}
	for _, a := range []string{"0.0.0.0:7", "[::]:7", "[::ffff:0.0.0.0]:7"} {
		if _, err := New(Options{Insecure: true}).Dial(t.Context(), setup.Offer{Addr: a}, sealed); !errors.Is(err,
			path.ErrUnavailable) || !strings.Contains(err.Error(), "names no host") {
			t.Errorf("dial %s: %v", a, err)
		}
		if _, err := New(Options{Insecure: true, Addr: a}).Listen(); !errors.Is(err, path.ErrUnavailable) {
			t.Errorf("listen on %s: %v", a, err)
		}
	}
	// An address of this host that is not loopback, if there is one.
	if here := elsewhere(); here != "" {
		l, err := New(Options{Addr: here + ":0"}).Listen()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Accept(t.Context(), newToken(), plain); !errors.Is(err, path.ErrUnavailable) ||
			!strings.Contains(err.Error(), "Insecure") {
			t.Errorf("accept on %s: %v", here, err)
		}
		l.Close()
		// Whom a loopback address reaches from elsewhere is not taken for this machine's.
		if l, err = New(Options{}).Listen(); err != nil {
			t.Fatal(err)
		}
		tok := newToken()
		accepted := make(chan error, 1)
		go func() {
			_, err := l.Accept(t.Context(), tok, plain)
			accepted <- err
		}()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(here)}}
		c, err := d.Dial("tcp", l.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var b [helloSize]byte
		(&hello{version: version, kind: kindHello, window: 16, token: tok, count: 1, frame: maxFrameBytes,
			blocks: 1}).put(b[:])
		c.Write(b[:])
		if st, err := answerTo(t, c); err != nil || st != statusPlain {
			t.Errorf("status %d, %v; expected that encryption is required", st, err)
		}
		if err := <-accepted; !errors.Is(err, path.ErrUnavailable) || !strings.Contains(err.Error(), "Insecure") {
			t.Errorf("accept from %s: %v", here, err)
		}
		l.Close()
	}
	for _, a := range []string{"localhost:0", "127.0.0.1", "nonsense"} {
		if _, err := New(Options{Addr: a}).Listen(); err == nil {
			t.Errorf("listen on %q succeeded", a)
		}
	}
	l, err := New(Options{Addr: "[::1]:0"}).Listen()
	if err != nil {
		testenv.Missing(t, "IPv6 on the loopback interface", err)
	}
	l.Close()
}

// elsewhere is an IPv4 address of this host that is not loopback; "" if there is none.
func elsewhere() string {
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			return n.IP.String()
		}
	}
	return ""
}
