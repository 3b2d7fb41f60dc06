package rdma

import (
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/enginetest"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
)

// soft is a real kernel's device, which is found by its IP address.
type soft struct{ e *Engine }

func (w soft) pair(t testing.TB, server, client Options) (s, c *Port, id uint32) {
	t.Helper()
	open := func(address string, o Options) *Port {
		p, err := w.e.OpenPort(within(t), engine.PortSpec{Address: address, Options: o})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p.(*Port)
	}
	s = open("roce://10.8.0.1:0?listen=1", server)
	c = open("roce://"+s.LocalAddr().String(), client)
	if err := s.WaitConnected(within(t)); err != nil {
		t.Fatal(err)
	}
	return s, c, s.Find(c.LocalAddr())
}

// TestGuestSoftRoCE goes over rxe0 of a real kernel.
func TestGuestSoftRoCE(t *testing.T) {
	testenv.Once(t)
	if guest.ID() == 0 {
		t.Parallel() // this process waits for another one
	}
	if guest.Enter(t, guest.Spec{Profile: guest.Rdma, Timeout: 8 * time.Minute}) {
		return
	}
	w := soft{New("")}
	t.Run("datagrams", func(t *testing.T) { datagrams(t, w) })
	t.Run("last words", func(t *testing.T) { lastWords(t, w) })
	t.Run("rdma_cm", func(t *testing.T) {
		m := managers{w.e, "10.8.0.1", "10.8.0.1"}
		managed(t, m)
		t.Run("other programs", func(t *testing.T) { otherPrograms(t, m) })
	})
	t.Run("device", func(t *testing.T) {
		s, c, _ := w.pair(t, Options{}, Options{})
		t.Logf("%s, MTU %d", s.GID(), s.Info().MTU)
		if i := s.Info(); s.Device() != "rxe0" || i.Device != "roce0" || !i.Up || !c.Info().Up {
			t.Errorf("device %s, %+v", s.Device(), i)
		}
	})
	for name, o := range map[string]Options{"RC": {}, "UC": {Transport: UC, SendDepth: 20, Inline: -1}} {
		t.Run(name, func(t *testing.T) {
			h := harness("", o)
			h.Patience = 2 * time.Minute
			h.Open = func(t testing.TB) enginetest.Pair {
				s, c, id := w.pair(t, o, o)
				return enginetest.Pair{A: c, B: s, Conn: func(from engine.Port) uint32 {
					if from == engine.Port(s) {
						return id
					}
					return 0
				}}
			}
			if o.Transport == RC {
				enginetest.Run(t, h)
				return
			}
			enginetest.Execute(t, h, enginetest.NewProgram(1, 12))
		})
	}
}
