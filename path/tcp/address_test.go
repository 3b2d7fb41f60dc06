package tcp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/path"
)

// TestBeyondLoopback: other hosts take a secret, or an explicit word.
func TestBeyondLoopback(t *testing.T) {
	plain := path.Config{Exports: new(path.Exports)}
	sealed := plain
	sealed.Secret = aSecret()
	for _, a := range []string{"192.0.2.1:80", "[2001:db8::1]:80", "[::ffff:192.0.2.1]:1"} {
		_, err := New(Options{}).Dial(t.Context(), path.Offer{Addr: a}, plain)
		if !errors.Is(err, path.ErrUnavailable) || !strings.Contains(err.Error(), "Insecure") {
			t.Errorf("dial %s: %v", a, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // the addresses lead nowhere
		for _, c := range []struct {
			o   Options
			cfg path.Config
		}{{Options{}, sealed}, {Options{Insecure: true}, plain}} {
			if _, err := New(c.o).Dial(ctx, path.Offer{Addr: a}, c.cfg); !errors.Is(err, context.Canceled) {
				t.Errorf("dial %s, insecure %v: %v", a, c.o.Insecure, err)
			}
		}
	}
	for _, a := range []string{"0.0.0.0:7", "[::]:7"} {
		if _, err := New(Options{Insecure: true}).Dial(t.Context(), path.Offer{Addr: a}, sealed); !errors.Is(err, path.ErrUnavailable) || !strings.Contains(err.Error(), "Advertise") {
			t.Errorf("dial %s: %v", a, err)
		}
	}
	for _, a := range []string{"0.0.0.0:0", "[::]:0"} {
		d := New(Options{Addr: a})
		l, err := d.Listen()
		if err != nil {
			t.Errorf("listen on %s: %v", a, err)
			continue
		}
		addr, err := Advertise(l.Addr(), &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5})
		if err != nil {
			t.Fatal(err)
		}
		for _, cfg := range []path.Config{plain, sealed} {
			tok := newToken()
			accepted := make(chan path.Path, 1)
			go func() {
				p, err := l.Accept(t.Context(), tok, cfg)
				if err != nil {
					t.Error(err)
				}
				accepted <- p
			}()
			p, err := New(Options{}).Dial(t.Context(), path.Offer{Addr: addr, Token: tok}, cfg)
			if err != nil {
				t.Fatal(err)
			}
			p.Close()
			if p := <-accepted; p != nil {
				p.Close()
			}
		}
		l.Close()
	}
	// An address of this host that is not loopback, if there is one.
	if here := elsewhere(); here != "" {
		l, err := New(Options{Addr: here + ":0"}).Listen()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Accept(t.Context(), newToken(), plain); !errors.Is(err, path.ErrUnavailable) || !strings.Contains(err.Error(), "Insecure") {
			t.Errorf("accept on %s: %v", here, err)
		}
		l.Close()
		// On all interfaces it depends on where the dialer comes from.
		if l, err = New(Options{Addr: "0.0.0.0:0"}).Listen(); err != nil {
			t.Fatal(err)
		}
		tok := newToken()
		accepted := make(chan error, 1)
		go func() {
			_, err := l.Accept(t.Context(), tok, plain)
			accepted <- err
		}()
		_, port, _ := net.SplitHostPort(l.Addr())
		_, err = New(Options{Insecure: true}).Dial(t.Context(), path.Offer{Addr: here + ":" + port, Token: tok}, plain)
		if !errors.Is(err, path.ErrProtocol) || !strings.Contains(err.Error(), "requires encryption") {
			t.Errorf("dial of a listener that does not permit it: %v", err)
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
		t.Skipf("no IPv6 loopback here: %v", err)
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

func TestAdvertise(t *testing.T) {
	at := func(s string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s)) }
	for _, c := range []struct {
		addr    string
		control net.Addr
		want    string // "": an error
	}{
		{"192.0.2.1:80", at("192.0.2.9:1"), "192.0.2.1:80"},
		{"127.0.0.1:80", nil, "127.0.0.1:80"},
		{"0.0.0.0:80", at("192.0.2.9:1"), "192.0.2.9:80"},
		{"[::]:80", at("192.0.2.9:1"), "192.0.2.9:80"},
		{"[::]:80", at("[::ffff:192.0.2.9]:1"), "192.0.2.9:80"},
		{"[::]:80", at("[2001:db8::1]:1"), "[2001:db8::1]:80"},
		{"0.0.0.0:80", at("[2001:db8::1]:1"), ""},
		{"0.0.0.0:80", at("[::1]:1"), ""},
		{"0.0.0.0:80", at("0.0.0.0:1"), ""},
		{"0.0.0.0:80", &net.TCPAddr{}, ""},
		{"0.0.0.0:80", &net.UnixAddr{Name: "/x", Net: "unix"}, "127.0.0.1:80"},
		{"nonsense", at("192.0.2.9:1"), ""},
	} {
		got, err := Advertise(c.addr, c.control)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("Advertise(%s, %v) = %q, %v; expected %q", c.addr, c.control, got, err, c.want)
		}
	}
}
