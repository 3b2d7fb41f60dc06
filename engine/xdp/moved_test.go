package xdp

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// The interface is moved to another network namespace under load: for the port it is gone, its
// queues say so, and when the port is closed nothing of it is left on the interface where that is
// now.
func TestMoved(t *testing.T) {
	n := netns.New(t, netns.Topology{Hosts: 2, Rails: 1, Neighbours: true})
	a, b := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[1], engine.PortSpec{})
	mine, pool := newPool(t, 2048, 512), newPool(t, 2048, 512)
	tx, q := addTx(t, a, engine.TxSpec{Depth: 128, Pools: []*mem.Pool{mine}}),
		addRx(t, b, engine.RxSpec{Depth: 64, Pools: []*mem.Pool{pool}})
	stop := make(chan struct{})
	sent := flood(t, tx, stop)
	x := burst.New(64)
	until(t, "some packets", func() bool {
		k, err := q.TryRecv(x)
		if err != nil {
			t.Fatal(err)
		}
		x.Release()
		return k > 0
	})
	there := n.Hosts[0].Command("sleep", "60")
	if err := n.Hosts[0].Start(there); err != nil {
		t.Fatal(err)
	}
	defer func() { there.Process.Kill(); there.Wait() }()
	ip(t, n.Hosts[1], "link", "set", "eth0", "netns", fmt.Sprint(there.Process.Pid), "name", "moved0")
	until(t, "the queue to say so", func() bool {
		_, err := q.TryRecv(x)
		x.Release()
		if err != nil && !errors.Is(err, ErrRemoved) {
			t.Fatal(err)
		}
		return err != nil
	})
	close(stop)
	given := sent()
	if err := b.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if k := pool.Stats().InUse; k != 0 {
		t.Errorf("%d slots are out", k)
	}
	left := func() (mode string) {
		t.Helper()
		if err := n.Hosts[0].Do(func() error {
			d, err := ethtool.Open("moved0")
			if err != nil {
				return err
			}
			defer d.Close()
			l, err := d.Link()
			mode = l.XDPMode
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return mode
	}
	if mode := left(); mode != "" {
		t.Errorf("a program in %s mode is left on the interface", mode)
	}
	if err := tx.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	var s engine.TxStats
	if tx.Stats(&s); s.Packets+s.Drops.Total() != uint64(given) {
		t.Errorf("%d packets were given: %+v", given, s)
	}
	// It is as good as new there.
	ip(t, n.Hosts[0], "link", "set", "moved0", "up")
	c := open(t, n.Hosts[0], engine.PortSpec{Address: "moved0"})
	until(t, "the cable", func() bool { return a.Info().Up && c.Info().Up })
	back := addRx(t, c, engine.RxSpec{Depth: 64, Pools: []*mem.Pool{pool}})
	f := udp(t, 7, 100, 1)
	send(t, tx, f)
	if got := receive(t, back, 1, nil); !bytes.Equal(got[0], f) {
		t.Errorf("% x came as % x", f, got[0])
	}
}

// The interface is deleted and made again under its name, before the port is closed: that one stays
// gone, and a new one is had at once.
func TestMadeAgain(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	old := open(t, n.Hosts[0], engine.PortSpec{})
	pool := newPool(t, 2048, 256)
	q := addRx(t, old, engine.RxSpec{Depth: 64, Pools: []*mem.Pool{pool}})
	ip(t, n.Hosts[0], "link", "del", "eth0")
	ip(t, n.Hosts[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
	ip(t, n.Hosts[0], "link", "set", "eth0", "up")
	ip(t, n.Hosts[0], "link", "set", "eth1", "up")
	until(t, "the port to know", func() bool { return old.link.Gone() })
	x := burst.New(4)
	if _, err := q.TryRecv(x); !errors.Is(err, ErrRemoved) || !strings.Contains(err.Error(), "open the port again") {
		t.Errorf("the old port: %v", err)
	}
	if old.Info().Up {
		t.Error("the old port is up")
	}
	next, peer := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[0], engine.PortSpec{Address: "eth1"})
	rx := addRx(t, next, engine.RxSpec{Depth: 64, Pools: []*mem.Pool{newPool(t, 2048, 256)}})
	tx := addTx(t, peer, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 2048, 64)}})
	until(t, "the cable", func() bool { return next.Info().Up && peer.Info().Up })
	f := udp(t, 7, 100, 1)
	send(t, tx, f)
	receive(t, rx, 1, nil)
	if err := old.Close(); err != nil {
		t.Error(err)
	}
	send(t, tx, f) // the old one has taken nothing of the new one with it
	receive(t, rx, 1, nil)
}

// Packets with segments that have no bytes, at any place, arrive as the others, or are dropped for
// a reason.
func TestEmptySegments(t *testing.T) {
	n := hosts(t, netns.LinkSpec{MTU: 4000})
	a, b := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[1], engine.PortSpec{})
	pool := newPool(t, 2048, 256)
	tx, q := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{pool}}),
		addRx(t, b, engine.RxSpec{Pools: []*mem.Pool{newPool(t, 2048, 1024)}})
	src := burst.PoolSource(pool)
	for _, lens := range [][]int{{100, 0}, {0, 100}, {60, 0, 100}, {0, 0, 200, 0}, {1500, 0, 1500}} {
		total := 0
		for _, k := range lens {
			total += k
		}
		f := udp(t, 7, total, 1)
		x := burst.NewSegmented(1, 8)
		if _, err := tx.Alloc(x, 1, 0); err != nil {
			t.Fatal(err)
		}
		left := f
		x.Release()
		if k, err := tx.out.Free(), error(nil); k == 0 || err != nil {
			t.Fatal(k, err)
		}
		for i, k := range lens {
			h, err := pool.Get()
			if err != nil {
				t.Fatal(err)
			}
			s := burst.Segment{Handle: h.Handle(), Off: pool.Offset(h.Handle()), Len: uint32(k), Cap: 2048}
			if i == 0 {
				x.Builder().Add(src, s)
			} else {
				x.Builder().AddSegment(src, s)
			}
			left = left[copy(x.Bytes(0, i), left):]
		}
		if k, err := tx.Forward(x); k != 1 || err != nil {
			t.Fatalf("%v: %d, %v", lens, k, err)
		}
		if err := tx.Send(x); err != nil {
			t.Fatal(err)
		}
		if err := tx.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, q, 1, nil); !bytes.Equal(got[0], f) {
			t.Errorf("%v came as %d bytes: % x", lens, len(got[0]), got[0][:60])
		}
	}
	var s engine.TxStats
	if tx.Stats(&s); s.Packets != 5 || s.Drops.Total() != 0 || pool.Stats().InUse != 0 {
		t.Errorf("%+v, %d slots are out", s, pool.Stats().InUse)
	}
}
