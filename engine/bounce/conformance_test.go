package bounce_test

import (
	"runtime"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/bounce"
	"github.com/penstock-io/penstock/engine/enginetest"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/engine/socket"
)

// staged is a harness with a bounce.Port before its ports, and device memory at all queues. The CPU
// sees that memory, so that the suite can look at every byte; it copies all the same.
func staged(t testing.TB, h enginetest.Harness, o bounce.Options) enginetest.Harness {
	c := newCard(t, true)
	open := h.Open
	h.Memory = c.memory()
	h.Open = func(t testing.TB) enginetest.Pair {
		p := open(t)
		if conn := p.Conn; conn != nil {
			p.Conn = func(from engine.Port) uint32 { return conn(from.(*bounce.Port).Port) }
		}
		p.A, p.B = bounce.New(p.A, o), bounce.New(p.B, o)
		if set := p.SetLink; set != nil {
			p.SetLink = func(up bool) { // what was sent before meets the link as it was
				for _, x := range []engine.Port{p.A, p.B} {
					var s engine.PortStats
					for x.Stats(&s); s.Tx.Queued > 0; x.Stats(&s) {
						runtime.Gosched()
					}
				}
				set(up)
			}
		}
		return p
	}
	return h
}

func simHarness() enginetest.Harness {
	return enginetest.Harness{Open: func(t testing.TB) enginetest.Pair {
		n, err := sim.NewNetwork(sim.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		l, err := n.Link("a", "b")
		if err != nil {
			t.Fatal(err)
		}
		var p enginetest.Pair
		if p.A, err = n.OpenPort(t.Context(), engine.PortSpec{Address: "a"}); err != nil {
			t.Fatal(err)
		}
		if p.B, err = n.OpenPort(t.Context(), engine.PortSpec{Address: "b"}); err != nil {
			t.Fatal(err)
		}
		p.SetLink = l.SetUp
		return p
	}}
}

func TestConformanceSim(t *testing.T) {
	enginetest.Run(t, staged(t, simHarness(), bounce.Options{}))
}

// One small burst at a time: every way of waiting for a pending burst is taken.
func TestConformanceNarrow(t *testing.T) {
	enginetest.Run(t, staged(t, simHarness(), bounce.Options{Bursts: 1, Packets: 3}))
}

// TestConformanceStream: over an engine whose packets are pieces of a stream, and which sends
// chains.
func TestConformanceStream(t *testing.T) {
	open := func(t testing.TB, address string) *socket.TCPPort {
		p, err := socket.New().OpenPort(t.Context(), engine.PortSpec{Address: address})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p.(*socket.TCPPort)
	}
	enginetest.Run(t, staged(t, enginetest.Harness{Open: func(t testing.TB) enginetest.Pair {
		server := open(t, "tcp://127.0.0.1:0?listen=1")
		client := open(t, "tcp://"+server.LocalAddr().String())
		if err := server.WaitConnected(t.Context()); err != nil {
			t.Fatal(err)
		}
		// The server receives: its queues stay open when the client closes.
		conns := map[engine.Port]uint32{server: server.Find(client.LocalAddr())}
		return enginetest.Pair{A: client, B: server, Conn: func(from engine.Port) uint32 { return conns[from] }}
	}}, bounce.Options{}))
}
