package transfer

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer/control"
)

// TestDataFollowsControl looks where a node listens for data connections: on the addresses by which peers came, whatever would be
// permitted.
func TestDataFollowsControl(t *testing.T) {
	ca := authority(t)
	for _, c := range []struct {
		listen string
		o      Options // of the node
		by     []string
	}{
		{loopback, Options{}, []string{"127.0.0.1"}},
		{loopback, Options{Insecure: true}, []string{"127.0.0.1"}},
		{loopback, Options{Identity: issue(t, ca, "a")}, []string{"127.0.0.1"}},
		{"tcp://127.0.0.5:0", Options{Insecure: true}, []string{"127.0.0.5"}},
		{"tcp://[::1]:0", Options{Identity: issue(t, ca, "b")}, []string{"::1"}},
		{"tcp://0.0.0.0:0", Options{Insecure: true}, []string{"127.0.0.1", "127.0.0.9"}},
		{abstract("place"), Options{Insecure: true}, []string{""}},
	} {
		t.Run(c.listen, func(t *testing.T) {
			c.o.Listen = []string{c.listen}
			b := open(t, c.o)
			if _, err := b.Export(region(t, 4096).All(), ExportOptions{Name: "x", Rights: path.Read | path.Write}); err != nil {
				t.Fatal(err)
			}
			a := open(t, Options{Insecure: true, Identity: c.o.Identity})
			for _, by := range c.by {
				p, err := a.Dial(ctx(t), strings.Replace(b.Addrs()[0], "0.0.0.0", by, 1))
				if err != nil {
					t.Fatal(err)
				}
				x, err := p.Put(ctx(t), []path.Copy{lookup(t, p, "x").At(0, region(t, 4096).All())}, PutOptions{Paths: []string{"tcp"}})
				wait(t, x, err)
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			if len(b.accepting) != len(c.by) {
				t.Errorf("the node listens at %v", b.accepting)
			}
			for _, by := range c.by {
				at := place{driver: "tcp"}
				if by != "" {
					at.host = netip.MustParseAddr(by)
				} else {
					by = "127.0.0.1"
				}
				if a := b.accepting[at]; a == nil || netip.MustParseAddrPort(a.l.Addr()).Addr().String() != by {
					t.Errorf("for peers that came by %q the node listens at %v", by, b.accepting)
				}
			}
		})
	}
}

// TestPlacesAreBounded: a peer that reaches a node by many addresses does not take descriptors with each, and leaves room for those
// of peers that come by the usual ones.
func TestPlacesAreBounded(t *testing.T) {
	b := open(t, Options{Listen: []string{"tcp://0.0.0.0:0"}, Insecure: true})
	if !strings.HasPrefix(b.Addrs()[0], "tcp://0.0.0.0:") {
		t.Errorf("0.0.0.0 is %s", b.Addrs()[0])
	}
	a := open(t, Options{})
	_, port, _ := strings.Cut(strings.TrimPrefix(b.Addrs()[0], "tcp://"), ":")
	for _, by := range []string{"127.0.1.1", "127.0.1.2", "127.0.1.3", "127.0.1.4", "127.0.1.5", "127.0.0.1"} {
		p, err := a.Dial(ctx(t), fmt.Sprintf("tcp://%s:%s", by, port))
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.request(ctx(t), &control.OpenPath{Path: "tcp"})
		if full := by == "127.0.1.5"; (err != nil) != full || full && control.AsError(err).Code != control.Busy {
			t.Errorf("by %s: %v", by, err)
		}
		p.Close()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	other := func(i int) place { return place{"tcp", netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})} }
	for i := range maxPlaces - len(b.accepting) {
		if b.full(other(i)) {
			t.Errorf("no room for %v", other(i))
		}
		b.accepting[other(i)] = new(acceptor)
	}
	if !b.full(other(maxPlaces)) {
		t.Errorf("room for more than %d", maxPlaces)
	}
}
