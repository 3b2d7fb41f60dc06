package enginetest_test

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/afpacket"
	"github.com/penstock-io/penstock/engine/xdp"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/checksum"
)

// TestPartial: the kernel of a host leaves the checksums of what it sends over veth to the device,
// which computes none. What an engine receives and sends back arrives all the same, from any engine
// over any other, also from queues with header and payload apart, and a checksum stage passes it.
func TestPartial(t *testing.T) {
	n := netns.New(t, netns.Topology{Neighbours: true})
	engines := map[string]engine.Engine{"afpacket": afpacket.New(), "xdp": xdp.New()}
	for name, e := range engines {
		for _, pools := range []int{0, 1, 2} {
			if pools == 0 && name != "afpacket" { // xdp has no memory without a pool
				continue
			}
			for _, v6 := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d pools/v6=%t", name, pools, v6), func(t *testing.T) {
					echoPartial(t, n, e, pools, v6)
				})
			}
		}
	}
}

func echoPartial(t *testing.T, n *netns.Net, e engine.Engine, pools int, v6 bool) {
	const count = 100
	var port engine.Port
	if err := n.Hosts[1].Do(func() (err error) {
		port, err = e.OpenPort(t.Context(), engine.PortSpec{Address: "eth0"})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	pool, err := mem.NewPool(mem.PoolOptions{Name: "partial", SlotSize: 2048, Slots: 1024})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	rx, err := port.AddRxQueue(engine.RxSpec{Pools: slices.Repeat([]*mem.Pool{pool}, pools)})
	if err != nil {
		t.Fatal(err)
	}
	defer rx.Close()
	tx, err := port.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Close()
	from, err := checksum.New(rx, engine.StageSpec{Queue: "partial", Port: port.Capabilities()})
	if err != nil {
		t.Fatal(err)
	}
	local, to := net.IP(n.Hosts[0].Link().IPv4.AsSlice()), net.IP(n.Hosts[1].Link().IPv4.AsSlice())
	if v6 {
		local, to = n.Hosts[0].Link().IPv6.AsSlice(), n.Hosts[1].Link().IPv6.AsSlice()
	}
	host, err := n.Hosts[0].ListenPacket(t.Context(), "udp", net.JoinHostPort(local.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if err := host.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b, answer := burst.NewSegmented(64, 256), make([]byte, 2048)
	marked := 0
	for i := range count {
		want := bytes.Repeat([]byte{byte(i)}, i+1)
		if _, err := host.WriteTo(want, &net.UDPAddr{IP: to, Port: 5000}); err != nil {
			t.Fatal(err)
		}
		for back, end := false, time.Now().Add(30*time.Second); !back; {
			if time.Now().After(end) {
				var s engine.RxStats
				from.Stats(&s)
				t.Fatalf("datagram %d did not pass the stage: %+v", i, s)
			}
			if _, err := from.TryRecv(b); err != nil {
				t.Fatal(err)
			}
			for k := range b.Len() {
				if turned := turnAround(b.Bytes(k, 0)); turned {
					back = true
					if b.Flags(k)&burst.ChecksumPartial != 0 {
						marked++
					}
				}
			}
			if _, err := tx.Forward(b); err != nil {
				t.Fatal(err)
			}
			if err := tx.Send(b); err != nil {
				t.Fatal(err)
			}
		}
		if size, _, err := host.ReadFrom(answer); err != nil || !bytes.Equal(answer[:size], want) {
			t.Fatalf("datagram %d of %d: %v", i, count, err)
		}
	}
	if marked != count {
		t.Errorf("%d of %d datagrams were marked as without a checksum", marked, count)
	}
}

// turnAround makes a datagram to port 5000 one to its sender, and leaves its checksum.
func turnAround(f []byte) bool {
	var l packet.Layers
	if packet.Parse(f, &l); l.L4 == 0 && len(f) > packet.EthernetLen+packet.IPv4Len { // headers alone
		l.L3, l.IPVersion = packet.EthernetLen, f[packet.EthernetLen]>>4
		if l.L4 = l.L3 + packet.IPv4Len; l.IPVersion == 6 {
			l.L4 = l.L3 + packet.IPv6Len
		}
	}
	if len(f) < int(l.L4)+packet.UDPLen || l.L4 == 0 || packet.UDP(f[l.L4:]).DstPort() != 5000 {
		return false
	}
	at, size := int(l.L3)+12, 4
	if l.IPVersion == 6 {
		at, size = int(l.L3)+8, 16
	}
	for _, s := range []struct{ at, size int }{{0, 6}, {at, size}, {int(l.L4), 2}} {
		for i := s.at; i < s.at+s.size; i++ {
			f[i], f[i+s.size] = f[i+s.size], f[i]
		}
	}
	return true
}
