package xdp_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers/xdp"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens the queues of our AF_XDP on eth0 of a host, with memory that the kernel uses in place.
func open(t *testing.T, h *netns.Host, chunk int) (*engine.Rx, engine.TxQueue) {
	t.Helper()
	var pools []*mem.Pool
	for range 2 {
		p, err := mem.NewPool(mem.PoolOptions{Name: "test", SlotSize: chunk, Align: chunk, Slots: 2048})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if n := p.Stats().InUse; n > 0 {
				t.Errorf("%d slots are not back", n)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
		pools = append(pools, p)
	}
	var port engine.Port
	if err := h.Do(func() (err error) {
		port, err = drivers.Get("xdp").New().OpenPort(t.Context(),
			engine.PortSpec{Address: "eth0", RxQueues: 1, TxQueues: 1})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := port.Close(); err != nil {
			t.Error(err)
		}
	})
	rx, err := port.AddRxQueue(engine.RxSpec{Pools: pools[:1], Depth: 1024})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := port.AddTxQueue(engine.TxSpec{Pools: pools[1:], Depth: 1024})
	if err != nil {
		t.Fatal(err)
	}
	return engine.NewRx(rx, engine.Batching{}), tx
}

// Packets that libxdp sends come to our AF_XDP, and those that ours sends come to libxdp, with
// every byte as it was made.
func TestLibxdp(t *testing.T) {
	testenv.Once(t)
	xdp.Need(t)
	for _, size := range []int{64, 1400, 8900} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			c, link, chunk := xdp.Config{Interface: "eth0", Size: size}, netns.LinkSpec{MTU: 1500}, 2048
			if size > 1500 {
				c.MultiBuffer, link.MTU, chunk = true, 9000, 4096
			}
			n := netns.New(t, netns.Topology{Neighbours: true, Link: link})
			for _, h := range n.Hosts { // no host says anything by itself
				if err := h.Sysctl("net.ipv6.conf.eth0.disable_ipv6", "1"); err != nil {
					t.Fatal(err)
				}
			}
			far, err := xdp.Start(n.Hosts[0].Start, c)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := far.Close(); err != nil {
					t.Error(err)
				}
			}()
			rx, tx := open(t, n.Hosts[1], chunk)
			const packets = 200 // fewer than wait in any ring
			b := burst.NewSegmented(32, 32*4)
			frame := make([]byte, size)
			for round := range uint64(3) {
				first := round * packets
				if r, err := far.Do(t.Context(), xdp.Send, first, packets); err != nil || r.Packets != packets {
					t.Fatalf("%+v, %v", r, err)
				}
				for next := first; next < first+packets; {
					if err := rx.Recv(t.Context(), b); err != nil {
						t.Fatal(err)
					}
					for i := range b.Len() {
						frame = frame[:cap(frame)]
						if seq, err := xdp.CheckFrame(frame[:b.CopyTo(frame, i)], size); err != nil || seq != next ||
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
						xdp.MakeFrame(frame, uint32(sent))
						xdp.Stamp(frame, first+sent)
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
				r, err := far.Do(t.Context(), xdp.Receive, first, packets)
				if want := (xdp.Result{Packets: packets, Checked: packets * uint64(size)}); err != nil || r != want {
					t.Fatalf("%+v, %v", r, err)
				}
			}
			// One that was not expected is seen.
			if _, err := tx.Alloc(b, 1, size); err != nil {
				t.Fatal(err)
			}
			xdp.MakeFrame(frame, 7)
			frame[size-1] ^= 1
			rest := frame
			for s := range b.Segments(0) {
				rest = rest[copy(b.Bytes(0, s), rest):]
			}
			if err := tx.Send(b); err != nil {
				t.Fatal(err)
			}
			if r, err := far.Do(t.Context(), xdp.Receive, 7, 1); err != nil || r.Bad != 1 || r.Checked != 0 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// Errors quote the system's words for what it refuses.
func TestRefusals(t *testing.T) {
	testenv.Once(t)
	xdp.Need(t)
	n := netns.New(t, netns.Topology{Neighbours: true, Each: func(_, host int, s *netns.LinkSpec) { s.MTU = 9000 }})
	for want, c := range map[string]xdp.Config{
		"there is no interface nosuch":   {Interface: "nosuch", Size: 64},
		"attach the XDP program to eth0": {Interface: "eth0", Size: 64}, // the MTU takes several chunks
	} {
		if p, err := xdp.Start(n.Hosts[0].Start, c); p != nil || !errors.Is(err, xdp.ErrRefused) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
