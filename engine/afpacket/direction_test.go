package afpacket

import (
	"bytes"
	"errors"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/filter"
	"github.com/penstock-io/penstock/packet/pcap"
)

// A port receives what the host sends as its direction says, with a flag; and a program of package
// filter takes tagged frames in both directions, which it would otherwise not see as such.
func TestDirection(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	pool := newPool(t, 2048, 512)
	there := addTx(t, open(t, n.Hosts[0], "eth0", Options{}), engine.TxSpec{Pools: []*mem.Pool{pool}})
	here := addTx(t, open(t, n.Hosts[1], "eth0", Options{}), engine.TxSpec{Pools: []*mem.Pool{pool}})
	f, err := filter.Compile("udp port 7 or vlan 9", pcap.Ethernet)
	if err != nil {
		t.Fatal(err)
	}
	type sent struct {
		frame []byte
		out   bool
	}
	// Frames to 8 do not match, but for that of VLAN 9. That of VLAN 10 comes in without its tag,
	// which makes it one for the reader to look at.
	all := []sent{{udp(t, 7, 100, 0), false}, {udp(t, 8, 100, 0), false}, {udp(t, 7, 101, 0), true},
		{udp(t, 8, 100, 10), false}, {udp(t, 8, 102, 0), true}, {udp(t, 8, 103, 9), true}, {udp(t, 7, 104, 0), false}}
	for _, c := range []struct {
		direction Direction
		want      []int
	}{{DirectionIn, []int{0, 3, 6}}, {DirectionOut, []int{2, 5}}, {DirectionBoth, []int{0, 2, 3, 5, 6}}} {
		p := open(t, n.Hosts[1], "eth0", Options{Direction: c.direction, Filter: f.Kernel()})
		rx := addRx(t, p, engine.RxSpec{})
		for _, s := range all {
			if s.out {
				send(t, here, s.frame)
			} else {
				send(t, there, s.frame)
			}
		}
		k := 0
		receive(t, rx, len(c.want), func(b *burst.Burst, i int) {
			s := all[c.want[k]]
			if !bytes.Equal(b.Bytes(i, 0), s.frame) || b.Flags(i)&burst.Outgoing != 0 != s.out ||
				b.WireLen(i) != len(s.frame) {
				t.Errorf("direction %d, packet %d: %d bytes, flags %b", c.direction, k, b.PacketLen(i), b.Flags(i))
			}
			k++
		})
		_, err := p.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}})
		if (err == nil) != (c.direction == DirectionIn) || err != nil && !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("direction %d, a transmit queue: %v", c.direction, err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
