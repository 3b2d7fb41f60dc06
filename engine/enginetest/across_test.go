package enginetest_test

import (
	"context"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/afpacket"
	"github.com/penstock-io/penstock/engine/enginetest"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/engine/xdp"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
)

// The same programs over every engine deliver the same packets: the simulator is the measure of the
// others.
func TestAcross(t *testing.T) {
	opened := func(t testing.TB, e engine.Engine, s engine.PortSpec) engine.Port {
		t.Helper()
		p, err := e.OpenPort(context.Background(), s)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}
	simulated := enginetest.Harness{Open: func(t testing.TB) enginetest.Pair {
		n, err := sim.NewNetwork(sim.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		if _, err := n.Link("a", "b"); err != nil {
			t.Fatal(err)
		}
		return enginetest.Pair{A: opened(t, n, engine.PortSpec{Address: "a"}),
			B: opened(t, n, engine.PortSpec{Address: "b"})}
	}}
	udp := enginetest.Harness{Buffered: 4096, Open: func(t testing.TB) enginetest.Pair {
		spec := engine.PortSpec{Address: "udp://127.0.0.1:0", Options: socket.UDPOptions{ReceiveBuffer: 4 << 20}}
		a, b := opened(t, socket.New(), spec).(*socket.UDPPort), opened(t, socket.New(), spec).(*socket.UDPPort)
		ids := map[engine.Port]uint32{}
		for from, to := range map[*socket.UDPPort]*socket.UDPPort{a: b, b: a} {
			id, err := from.Peer(to.LocalAddr())
			if err != nil {
				t.Fatal(err)
			}
			ids[from] = id
		}
		return enginetest.Pair{A: a, B: b, Conn: func(from engine.Port) uint32 { return ids[from] }}
	}}
	var veth *netns.Net
	frames := func(e engine.Engine) enginetest.Harness {
		return enginetest.Harness{MinPacket: 14, Buffered: 4096, Noise: true, Open: func(t testing.TB) enginetest.Pair {
			var ports [2]engine.Port
			for i, h := range veth.Hosts {
				if err := h.Do(func() error {
					ports[i] = opened(t, e, engine.PortSpec{Address: h.Link().Name})
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			return enginetest.Pair{A: ports[0], B: ports[1]}
		}}
	}
	rounds := 40
	if testenv.Race || testenv.Invariants {
		rounds = 15
	}
	across := func(t *testing.T, h enginetest.Harness) {
		for seed := range uint64(testenv.Rounds(4)) {
			enginetest.Same(t, enginetest.NewProgram(100+seed, rounds), simulated, h)
		}
	}
	t.Run("udp", func(t *testing.T) { across(t, udp) })
	t.Run("frames", func(t *testing.T) {
		veth = netns.New(t, netns.Topology{Neighbours: true})
		across(t, frames(afpacket.New()))
	})
	t.Run("xdp", func(t *testing.T) {
		veth = netns.New(t, netns.Topology{Neighbours: true})
		across(t, frames(xdp.New()))
	})
}
