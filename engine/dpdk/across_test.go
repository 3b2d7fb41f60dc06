//go:build dpdk && !asan

package dpdk

import (
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/afpacket"
	"github.com/penstock-io/penstock/engine/enginetest"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/engine/xdp"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
)

// TestAcross: the same programs over drivers of DPDK deliver the same packets as over packet
// sockets, AF_XDP and UDP.
func TestAcross(t *testing.T) {
	opened := func(t testing.TB, e engine.Engine, s engine.PortSpec) engine.Port {
		t.Helper()
		p, err := e.OpenPort(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}
	frames := func(e engine.Engine) enginetest.Harness {
		return enginetest.Harness{MinPacket: 14, Buffered: 4096, Noise: true, Open: func(t testing.TB) enginetest.Pair {
			var ports [2]engine.Port
			for i, h := range netns.New(t, netns.Topology{Neighbours: true}).Hosts {
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
	driver := func(name, args string) enginetest.Harness {
		return enginetest.Harness{MinPacket: 14, Buffered: 8192, Noise: true, Open: func(t testing.TB) enginetest.Pair {
			return veth(t, name, args, Options{}, 0)
		}}
	}
	rounds := 40
	if testenv.Race || testenv.Invariants {
		rounds = 15
	}
	for i, theirs := range []enginetest.Harness{udp, frames(afpacket.New()), frames(xdp.New())} {
		for k, ours := range []enginetest.Harness{driver("net_af_xdp", ""),
			driver("net_af_packet", ",framesz=1920,framecnt=256,blocksz=61440")} {
			t.Run([]string{"udp", "afpacket", "xdp"}[i]+"/"+[]string{"net_af_xdp", "net_af_packet"}[k],
				func(t *testing.T) {
					enginetest.Same(t, enginetest.NewProgram(uint64(100+2*i+k), rounds), theirs, ours)
				})
		}
	}
}
