package xdp

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// Packets that libxdp sends come to our AF_XDP, and those that ours sends come to libxdp, with
// every byte as it was made.
func TestLibxdp(t *testing.T) {
	testenv.Once(t)
	needRef(t)
	for _, size := range []int{64, 1400, 8900} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			c, link, chunk := refConfig{iface: "eth0", size: size}, netns.LinkSpec{MTU: 1500}, 2048
			if size > 1500 {
				c.multiBuffer, link.MTU, chunk = true, 9000, 4096
			}
			n := netns.New(t, netns.Topology{Neighbours: true, Link: link})
			for _, h := range n.Hosts { // no host says anything by itself
				if err := h.Sysctl("net.ipv6.conf.eth0.disable_ipv6", "1"); err != nil {
					t.Fatal(err)
				}
			}
			far, err := startRef(n.Hosts[0].Start, c)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := far.close(); err != nil {
					t.Error(err)
				}
			}()
			p := open(t, n.Hosts[1], engine.PortSpec{RxQueues: 1, TxQueues: 1})
			rx := engine.NewRx(addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{newPool(t, chunk, 2048)}, Depth: 1024}),
				engine.Batching{})
			tx := addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{newPool(t, chunk, 2048)}, Depth: 1024})
			const packets = 200 // fewer than wait in any ring
			b := burst.NewSegmented(32, 32*4)
			frame := make([]byte, size)
			for round := range uint64(3) {
				first := round * packets
				if r, err := far.do(t.Context(), refSend, first, packets); err != nil || r.packets != packets {
					t.Fatalf("%+v, %v", r, err)
				}
				for next := first; next < first+packets; {
					if err := rx.Recv(t.Context(), b); err != nil {
						t.Fatal(err)
					}
					for i := range b.Len() {
						frame = frame[:cap(frame)]
						if seq, err := checkFrame(frame[:b.CopyTo(frame, i)], size); err != nil || seq != next ||
							b.PacketLen(i) != size {
							t.Fatalf("packet %d: %d, %d bytes, %v", next, seq, b.PacketLen(i), err)
						}
						next++
					}
					b.Release()
				}
				for sent := uint64(0); sent < packets; {
					k, err := tx.Alloc(b, int(min(32, packets-sent)), size)
					if k == 0 && !errors.Is(err, engine.ErrFull) && !errors.Is(err, engine.ErrNoBuffers) {
						t.Fatal(err)
					}
					for i := range k {
						makeFrame(frame, uint32(sent))
						stampFrame(frame, first+sent)
						rest := frame
						for s := range b.Segments(i) {
							rest = rest[copy(b.Bytes(i, s), rest):]
						}
						sent++
					}
					if err := tx.Send(b); err != nil {
						t.Fatal(err)
					}
				}
				if err := tx.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				r, err := far.do(t.Context(), refReceive, first, packets)
				if want := (refResult{packets: packets, checked: packets * uint64(size)}); err != nil || r != want {
					t.Fatalf("%+v, %v", r, err)
				}
			}
			// One that was not expected is seen.
			if _, err := tx.Alloc(b, 1, size); err != nil {
				t.Fatal(err)
			}
			makeFrame(frame, 7)
			frame[size-1] ^= 1
			rest := frame
			for s := range b.Segments(0) {
				rest = rest[copy(b.Bytes(0, s), rest):]
			}
			if err := tx.Send(b); err != nil {
				t.Fatal(err)
			}
			if r, err := far.do(t.Context(), refReceive, 7, 1); err != nil || r.bad != 1 || r.checked != 0 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// Errors quote the system's words for what it refuses.
func TestLibxdpRefusals(t *testing.T) {
	testenv.Once(t)
	needRef(t)
	n := netns.New(t, netns.Topology{Neighbours: true, Each: func(_, host int, s *netns.LinkSpec) { s.MTU = 9000 }})
	for want, c := range map[string]refConfig{
		"there is no interface nosuch":   {iface: "nosuch", size: 64},
		"attach the XDP program to eth0": {iface: "eth0", size: 64}, // the MTU takes several chunks
	} {
		if p, err := startRef(n.Hosts[0].Start, c); p != nil || !errors.Is(err, errRefused) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
