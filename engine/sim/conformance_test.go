package sim

import (
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/enginetest"
)

// joined opens two ports of a network of their own, and checks its accounts when the test ends.
func joined(t testing.TB, join func(*Network) (*Link, error), o Options) enginetest.Pair {
	t.Helper()
	n := network(t, o)
	cable, err := join(n)
	if err != nil {
		t.Fatal(err)
	}
	return enginetest.Pair{A: open(t, n, "a"), B: open(t, n, "b"), SetLink: cable.SetUp}
}

func network(t testing.TB, o Options) *Network {
	t.Helper()
	n, err := NewNetwork(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if l := n.Ledger(); l.Err() != nil {
			t.Errorf("%v\n%v", l.Err(), l)
		}
	})
	return n
}

func open(t testing.TB, n *Network, address string) engine.Port {
	t.Helper()
	p, err := n.OpenPort(t.Context(), engine.PortSpec{Address: address})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func link(n *Network) (*Link, error) { return n.Link("a", "b") }

func bothTimes(t *testing.T, h enginetest.Harness) {
	for _, h.Virtual = range []bool{false, true} {
		t.Run(map[bool]string{false: "real", true: "virtual"}[h.Virtual], func(t *testing.T) { enginetest.Run(t, h) })
	}
}

func TestConformanceLink(t *testing.T) {
	bothTimes(t, enginetest.Harness{Open: func(t testing.TB) enginetest.Pair { return joined(t, link, Options{}) }})
}

func TestConformanceSegment(t *testing.T) {
	bothTimes(t, enginetest.Harness{Open: func(t testing.TB) enginetest.Pair {
		n := network(t, Options{Shared: true})
		return enginetest.Pair{A: open(t, n, "sim://a"), B: open(t, n, "sim://b")}
	}})
}

// TestConformanceHash: as a card that hashes.
func TestConformanceHash(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{Open: func(t testing.TB) enginetest.Pair {
		return joined(t, link, Options{Hash: true})
	}})
}

// In real time only: one check of the suite changes rules in a loop that never blocks, and virtual
// time stands still meanwhile.
func TestConformanceDelayed(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{Open: func(t testing.TB) enginetest.Pair {
		return joined(t, func(n *Network) (*Link, error) {
			l, err := n.Link("a", "b")
			if err == nil {
				err = l.SetFaults(Faults{Rate: 10e9, Delay: 20e3, Jitter: 10e3})
			}
			return l, err
		}, Options{Seed: 3})
	}})
}

func TestConformanceLossy(t *testing.T) {
	bothTimes(t, enginetest.Harness{Lossy: true, Open: func(t testing.TB) enginetest.Pair {
		return joined(t, func(n *Network) (*Link, error) {
			l, err := n.Link("a", "b")
			if err == nil {
				err = l.SetFaults(Faults{Loss: 0.1})
			}
			return l, err
		}, Options{Seed: 4})
	}})
}
