package pace_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/afpacket"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/engine/xdp"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// Every engine that says it paces does: a rate or a time in a TxSpec is not only accepted. Only
// what cannot be by chance is asserted, which is that nothing leaves too early.
func TestEngines(t *testing.T) {
	self := fmt.Sprintf("127.%d.%d.%d:5002", os.Getpid()>>16&127+1, os.Getpid()>>8&255, os.Getpid()&255)
	for _, c := range []struct {
		name string
		open func(t *testing.T) (engine.Port, error)
	}{
		{"sim", func(t *testing.T) (engine.Port, error) {
			return sim.Default.OpenPort(t.Context(), engine.PortSpec{Address: "sim://pace?loop"})
		}},
		{"socket", func(t *testing.T) (engine.Port, error) {
			return socket.New().OpenPort(t.Context(), engine.PortSpec{Address: "udp://" + self + "?remote=" + self})
		}},
		{"afpacket", func(t *testing.T) (p engine.Port, err error) {
			h := netns.New(t, netns.Topology{}).Hosts[0]
			err = h.Do(func() error {
				p, err = afpacket.New().OpenPort(t.Context(), engine.PortSpec{Address: "eth0"})
				return err
			})
			return p, err
		}},
		{"xdp", func(t *testing.T) (p engine.Port, err error) {
			h := netns.New(t, netns.Topology{}).Hosts[0]
			err = h.Do(func() error {
				p, err = xdp.New().OpenPort(t.Context(), engine.PortSpec{Address: "eth0"})
				return err
			})
			return p, err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := c.open(t)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if can := p.Capabilities(); !can.Pacing || !can.SendAt || can.SendAtIn == "" {
				t.Errorf("%+v", can)
			}
			paces(t, p)
		})
	}
}

func paces(t *testing.T, p engine.Port) {
	pool, err := mem.NewPool(mem.PoolOptions{Name: "pace", SlotSize: 2048, Slots: 128})
	if err != nil {
		t.Fatal(err)
	}
	const rate, bytes = 8e6, 1000 // a packet each millisecond
	tx, err := p.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}, Rate: rate, SendAt: true})
	if err != nil {
		t.Fatal(err)
	}
	b := burst.New(100)
	send := func(n int, at time.Time) {
		t.Helper()
		if _, err := tx.Alloc(b, n, bytes); err != nil {
			t.Fatal(err)
		}
		// payload, where there are no frames
		head := packet.EthernetHeader{Src: p.Info().MAC, Dst: packet.MAC{2, 1}, Type: 0x88b5}
		for i := range n {
			if _, err := head.Fill(b.Bytes(i, 0)); err != nil {
				t.Fatal(err)
			}
			if !at.IsZero() {
				b.SetTime(i, at.UnixNano())
			}
		}
		if err := tx.Send(b); err != nil {
			t.Fatal(err)
		}
		if err := tx.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	send(100, time.Time{})
	// 4 ms and 2048 bytes are the burst.
	if d, least := time.Since(start), (100*bytes-4*bytes-2048)*time.Microsecond; d < least {
		t.Errorf("100 packets left in %v; the rate allows %v", d, least)
	}
	at := time.Now().Add(50 * time.Millisecond)
	send(1, at)
	if now := time.Now(); now.Before(at) {
		t.Errorf("a packet left %v before its time", at.Sub(now))
	}
	var s engine.TxStats
	tx.Stats(&s)
	if s.Packets != 101 || s.TimedPackets != 1 || s.TooEarly != 0 || s.Drops.Total() != 0 {
		t.Errorf("%+v", s)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}
