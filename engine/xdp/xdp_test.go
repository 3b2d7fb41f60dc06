package xdp

import (
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/enginetest"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/packet/flow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hosts makes two hosts on a veth pair that do not ask for each other.
func hosts(t testing.TB, l netns.LinkSpec) *netns.Net {
	t.Helper()
	return netns.New(t, netns.Topology{Link: l, Neighbours: true})
}

// open opens a port in a host. What the kernel says by itself over IPv6 is left to the kernel.
func open(t testing.TB, h *netns.Host, s engine.PortSpec) *Port {
	t.Helper()
	var p engine.Port
	if s.Address == "" {
		s.Address = "eth0"
	}
	s.Name = h.Name + " " + s.Address
	if err := h.Do(func() (err error) {
		p, err = New().OpenPort(t.Context(), s)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	if _, err := p.Rules().Apply(rule(t, "prio 1000 eth type 0x86dd -> kernel")); err != nil {
		t.Fatal(err)
	}
	return p.(*Port)
}

func rule(t testing.TB, text string) flow.Change {
	t.Helper()
	r, err := flow.ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return flow.Add(r)
}

// until waits for a condition.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

// pair opens ports at both ends of the cable of n.
func pair(t testing.TB, n *netns.Net, o Options) enginetest.Pair {
	a, b := n.Hosts[0], n.Hosts[1]
	pa, pb := open(t, a, engine.PortSpec{Options: o}), open(t, b, engine.PortSpec{Options: o})
	return enginetest.Pair{A: pa, B: pb, SetLink: func(up bool) {
		change := a.Link().Down
		if up {
			change = a.Link().Up
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		until(t, "both ports to notice the link", func() bool { return pa.Info().Up == up && pb.Info().Up == up })
	}}
}
