package socket

import (
	"context"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/enginetest"
)

func openTCPPort(t testing.TB, address string, o TCPOptions) *TCPPort {
	t.Helper()
	return openPort(t, address, o).(*TCPPort)
}

// within is a context that ends only when something hangs.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// tcpPair opens a server and a client, which are connected. id is the server's for the client.
func tcpPair(t testing.TB, at string, server, client TCPOptions) (s, c *TCPPort, id uint32) {
	t.Helper()
	s = openTCPPort(t, "tcp://"+at+"?listen=1", server)
	c = openTCPPort(t, "tcp://"+s.LocalAddr().String(), client)
	if err := s.WaitConnected(within(t)); err != nil {
		t.Fatal(err)
	}
	return s, c, s.Find(c.LocalAddr())
}

func TestTCPConformance(t *testing.T) {
	for _, c := range []struct {
		name, at string
		o        TCPOptions
	}{
		{"IPv4", "127.0.0.1:0", TCPOptions{}},
		{"IPv6Small", "[::1]:0", TCPOptions{SendBuffer: 4096, ReceiveBuffer: 4096, Batch: 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			enginetest.Run(t, enginetest.Harness{
				Open: func(t testing.TB) enginetest.Pair {
					s, client, id := tcpPair(t, c.at, c.o, c.o)
					return enginetest.Pair{A: client, B: s, Conn: func(from engine.Port) uint32 {
						if from == engine.Port(s) {
							return id
						}
						return 0
					}}
				},
				Boundaries: []int{2048, 4096},
			})
		})
	}
}
