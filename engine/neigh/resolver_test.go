package neigh_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/neigh"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
)

// Two resolvers on a bad link in virtual time: they find each other as long as one question in
// three gets through, and give up on time where no host has the address.
func TestResolversOnBadLink(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) { badLink(t, seed) })
	}
}

func badLink(t *testing.T, seed uint64) {
	n, err := sim.NewNetwork(sim.Options{Seed: seed + 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	cable, err := n.Link("a", "b")
	if err != nil {
		t.Fatal(err)
	}
	if err := cable.SetFaults(sim.Faults{Loss: 0.2, Delay: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	addrs := [2][]netip.Addr{{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}}
	macs := [2]packet.MAC{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}}
	var rs [2]*neigh.Resolver
	for i, name := range []string{"a", "b"} {
		pool, err := mem.NewPool(mem.PoolOptions{Name: name, SlotSize: 2048, Slots: 128})
		if err != nil {
			t.Fatal(err)
		}
		p, err := n.OpenPort(ctx, engine.PortSpec{Address: name})
		if err != nil {
			t.Fatal(err)
		}
		q, err := p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}})
		if err != nil {
			t.Fatal(err)
		}
		tx, err := p.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := errors.Join(p.Close(), pool.Close()); err != nil {
				t.Error(err)
			}
		}()
		if rs[i], err = neigh.NewResolver(neigh.MachineOptions{MAC: macs[i], Addrs: addrs[i], Answer: true}, q,
			tx); err != nil {
			t.Fatal(err)
		}
		go func() { done <- rs[i].Run(ctx) }()
	}
	for i, r := range rs {
		for _, a := range addrs[1-i] {
			for tries := 0; ; tries++ {
				// with all three questions lost it says so, and asks again when the failure is old
				mac, err := r.Resolve(ctx, a)
				if err == nil && mac == macs[1-i] {
					break
				}
				if !errors.Is(err, neigh.ErrNoAnswer) || tries == 20 {
					t.Fatalf("seed %d: %v is at %v, %v", seed, a, mac, err)
				}
				<-time.After(4 * time.Second)
			}
		}
	}
	start := time.Now()
	if _, err := rs[0].Resolve(ctx, netip.MustParseAddr("192.0.2.99")); !errors.Is(err, neigh.ErrNoAnswer) ||
		time.Since(start) != 3*time.Second {
		t.Errorf("nobody: %v after %v", err, time.Since(start))
	}
	short, stop := context.WithTimeout(ctx, 10*time.Millisecond)
	defer stop()
	if _, err := rs[0].Resolve(short, netip.MustParseAddr("2001:db8::99")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a deadline: %v", err)
	}
	if mac, err := rs[0].Resolve(ctx, netip.MustParseAddr("239.1.2.3")); err != nil ||
		mac != (packet.MAC{1, 0, 0x5e, 1, 2, 3}) {
		t.Errorf("a group is at %v, %v", mac, err)
	}
	cancel()
	for range rs {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}
