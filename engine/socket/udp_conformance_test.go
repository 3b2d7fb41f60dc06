package socket

import (
	"context"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/enginetest"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
)

func openPort(t testing.TB, address string, o any) engine.Port {
	t.Helper()
	p, err := New().OpenPort(context.Background(), engine.PortSpec{Address: address, Options: o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func openUDPPort(t testing.TB, address string, o UDPOptions) *UDPPort {
	t.Helper()
	return openPort(t, address, o).(*UDPPort)
}

// pairOf makes two ports know each other.
func pairOf(t testing.TB, a, b *UDPPort) enginetest.Pair {
	ids := map[engine.Port]uint32{}
	for _, k := range [][2]*UDPPort{{a, b}, {b, a}} {
		id, err := k[0].Peer(k[1].LocalAddr())
		if err != nil {
			t.Fatal(err)
		}
		ids[k[0]] = id
	}
	return enginetest.Pair{A: a, B: b, Conn: func(from engine.Port) uint32 { return ids[from] }}
}

func TestUDPConformance(t *testing.T) {
	small := UDPOptions{ReceiveBuffer: 512 << 10}
	for _, c := range []struct {
		name, at string
		o        UDPOptions
		spread   bool
	}{
		{"IPv4", "udp://127.0.0.1:0", small, false},
		{"IPv6Queues", "udp://[::1]:0", UDPOptions{ReceiveBuffer: 512 << 10, Queues: 4, NoGSO: true, Batch: 7}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			enginetest.Run(t, enginetest.Harness{
				Open: func(t testing.TB) enginetest.Pair {
					return pairOf(t, openUDPPort(t, c.at, c.o), openUDPPort(t, c.at, c.o))
				},
				Buffered: 4096, Spread: c.spread, Boundaries: []int{1472, 65507 - 1},
			})
		})
	}
}

func TestUDPConformanceVeth(t *testing.T) {
	n := netns.New(t, netns.Topology{Link: netns.LinkSpec{MTU: 9000}, Neighbours: true})
	enginetest.Run(t, enginetest.Harness{
		Open: func(t testing.TB) enginetest.Pair {
			var ports [2]*UDPPort
			for i, h := range n.Hosts {
				if err := h.Do(func() error {
					p, err := New().OpenPort(context.Background(), engine.PortSpec{
						Address: "udp://" + h.Link().IPv4.String() + ":0?interface=" + h.Link().Name,
						Options: UDPOptions{ReceiveBuffer: 512 << 10}})
					if err != nil {
						return err
					}
					ports[i] = p.(*UDPPort)
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			pair := pairOf(t, ports[0], ports[1])
			pair.SetLink = func(up bool) { setLink(t, n.Hosts[0].Link(), up, ports[:]...) }
			return pair
		},
		Buffered: 4096, Boundaries: []int{8972},
	})
}

// setLink pulls the cable or puts it back, and waits until all ports know.
func setLink(t testing.TB, l *netns.Link, up bool, ports ...*UDPPort) {
	t.Helper()
	do := l.Down
	if up {
		do = l.Up
	}
	if err := do(); err != nil {
		t.Fatal(err)
	}
	for _, p := range ports {
		eventually(t, "the port to know of its link", func() bool { return p.Info().Up == up })
	}
}
