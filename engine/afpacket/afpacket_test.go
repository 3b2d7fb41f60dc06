package afpacket

import (
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/enginetest"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hosts makes two hosts on a veth pair that do not ask for each other.
func hosts(t testing.TB, l netns.LinkSpec) *netns.Net {
	t.Helper()
	return netns.New(t, netns.Topology{Link: l, Neighbours: true})
}

// noIPv6 takes everything but IPv6, which a kernel speaks by itself: EtherType 0x86dd is refused.
var noIPv6 = []FilterInstruction{{Op: 0x28, K: 12}, {Op: 0x15, JF: 1, K: 0x86dd}, {Op: 0x06}, {Op: 0x06, K: 0xffffffff}}

// open opens a port in a host.
func open(t testing.TB, h *netns.Host, device string, o Options) *Port {
	t.Helper()
	var p engine.Port
	if err := h.Do(func() (err error) {
		p, err = New().OpenPort(t.Context(), engine.PortSpec{Name: h.Name + " " + device, Address: device, Options: o})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p.(*Port)
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
	pa, pb := open(t, a, a.Link().Name, o), open(t, b, b.Link().Name, o)
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

func TestConformance(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	const frames = 256
	base := enginetest.Harness{
		Open:      func(t testing.TB) enginetest.Pair { return pair(t, n, Options{Frames: frames, Filter: noIPv6}) },
		MinPacket: 14, Boundaries: []int{60, 1500, 1514}, Buffered: 2 * frames,
		Rx: func(s *engine.RxSpec) { s.Depth = min(s.Depth, frames) },
	}
	t.Run("copy", func(t *testing.T) { enginetest.Run(t, base) })
	t.Run("borrow", func(t *testing.T) {
		h := base
		h.OwnRx = true
		enginetest.Run(t, h)
	})
	t.Run("blocks", func(t *testing.T) {
		h := base
		h.OwnRx, h.Buffered = true, 4096
		h.Open = func(t testing.TB) enginetest.Pair { return pair(t, n, Options{Blocks: 2 << 20, Filter: noIPv6}) }
		enginetest.Run(t, h)
	})
}
