package xdp

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/enginetest"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/mem"
)

// Native and generic, with each pool in memory of its own: the first one of a port is used in
// place, the others by copies. And all pools as parts of one region, so that nothing is copied but
// what is for a second receive queue.
//
// Most of the time the kernel gives queues back that were closed, and waiting for that needs no
// processor. So each way has a process of its own: the suite looks for goroutines and descriptors
// that are left, and cannot do that beside another one.
func TestConformance(t *testing.T) {
	ways := []struct {
		name string
		o    Options
		l    netns.LinkSpec
		h    enginetest.Harness
	}{
		{name: "native", o: Options{Attach: AttachNative}, h: enginetest.Harness{Boundaries: []int{60, 1500, 1514}}},
		{name: "generic", o: Options{Attach: AttachGeneric}},
		// Several queues of the interface: each logical queue has a socket on each of them.
		{name: "queues", l: netns.LinkSpec{Queues: 3}},
		// Packets of several chunks.
		{name: "jumbo", l: netns.LinkSpec{MTU: 9000}, h: enginetest.Harness{Boundaries: []int{2048 - 256, 4096 - 256, 2 * (4096 - 256), 4096, 8192}}},
		{name: "divided"},
	}
	if os.Getenv(aloneEnv) == "" {
		var names []string
		for _, c := range ways {
			names = append(names, c.name)
		}
		apart(t, names)
		return
	}
	for _, c := range ways {
		t.Run(c.name, func(t *testing.T) {
			n := hosts(t, c.l)
			h := c.h
			h.MinPacket, h.Open = 14, func(t testing.TB) enginetest.Pair { return pair(t, n, c.o) }
			if c.name == "divided" {
				divided(&h)
			}
			enginetest.Run(t, h)
		})
	}
}

// aloneEnv makes a process one that runs a test by itself.
const aloneEnv = "PENSTOCK_XDP_ALONE"

// apart runs parts of the calling test in a process each, all at once, and looks at them when the
// tests that are not parallel have ended.
func apart(t *testing.T, names []string) {
	var all []*proc.Process
	for _, name := range names {
		self := proc.Self(t, aloneEnv+"=1")
		self.Args[0] = "-test.run=^" + t.Name() + "$/^" + name + "$"
		all = append(all, proc.Start(t, self))
	}
	t.Parallel() // they go on while other tests run here
	for i, p := range all {
		t.Run(names[i], func(t *testing.T) {
			e, err := p.Wait(t.Context())
			switch {
			case err != nil || !e.OK():
				t.Errorf("%v, %v:\n%s", e, err, p.Output())
			case strings.Contains(p.Output(), "--- SKIP: "+t.Name()+" ("):
				testenv.Missing(t, "network namespaces", errors.New(p.Output()))
			case !strings.Contains(p.Output(), "--- PASS: "+t.Name()+" ("):
				t.Errorf("the test did not pass:\n%s", p.Output())
			}
		})
	}
}

// divided has all pools in one region.
func divided(h *enginetest.Harness) {
	var c *divider
	open := h.Open
	h.Open = func(t testing.TB) enginetest.Pair {
		c = newDivider(t, 48<<20)
		return open(t)
	}
	h.Rx = func(s *engine.RxSpec) { s.Pools = c.replace(s.Pools) }
	h.Tx = func(s *engine.TxSpec) { s.Pools = c.replace(s.Pools) }
}

// divider puts pools of its own, in one region, in the place of others.
type divider struct {
	t      testing.TB
	region *mem.Region
	next   int
	pools  map[*mem.Pool]*mem.Pool
}

func newDivider(t testing.TB, size int) *divider {
	t.Helper()
	c := &divider{t: t, pools: map[*mem.Pool]*mem.Pool{}}
	var err error
	if c.region, err = mem.Alloc(mem.Options{Name: "divided", Size: size, Lazy: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the suite has closed the ports
		for _, p := range c.pools {
			if n := p.Stats().InUse; n > 0 && !t.Failed() {
				t.Errorf("%d slots of pool %s are out", n, p.Name())
			}
			if err := p.Close(); err != nil && !t.Failed() {
				t.Error(err)
			}
		}
		if err := c.region.Close(); err != nil {
			t.Error(err)
		}
		if n := c.region.Leases(); n > 0 && !t.Failed() {
			t.Errorf("%d leases are left", n)
		}
	})
	return c
}

func (c *divider) replace(pools []*mem.Pool) []*mem.Pool {
	if len(pools) != 1 || pools[0].SlotSize() != 2048 {
		return pools
	}
	if c.pools[pools[0]] == nil {
		n := pools[0].Slots() * 2048
		if uint64(c.next+n) > c.region.Len() {
			c.t.Fatalf("%d bytes are not enough", c.region.Len())
		}
		p, err := mem.NewPool(mem.PoolOptions{Name: pools[0].Name() + " divided", SlotSize: 2048, Align: 2048,
			Slots: pools[0].Slots(), Region: c.region, Offset: c.next})
		if err != nil {
			c.t.Fatal(err)
		}
		c.next += n
		c.pools[pools[0]] = p
	}
	return []*mem.Pool{c.pools[pools[0]]}
}
