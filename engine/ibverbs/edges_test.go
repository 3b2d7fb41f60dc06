package ibverbs

import (
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/flow"
	"github.com/penstock-io/penstock/mem"
)

// Queues that share a pool which is as large as both are deep together both have their receives.
func TestSharedPool(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	slots := []*mem.Pool{pool(t, 2048, 32)}
	first, second := e.rx(engine.RxSpec{ID: 0, Pools: slots}), e.rx(engine.RxSpec{ID: 1, Pools: slots})
	if first.posted != 16 || second.posted != 16 {
		t.Fatalf("%d and %d receives are posted, expected 16 each", first.posted, second.posted)
	}
	e.apply(flow.Add(rule(t, "udp dst 7 -> queue 1")))
	for range 40 {
		f, g := udp(t, 5, 20), udp(t, 7, 20)
		e.send(f, g)
		e.wants(first, f).Release()
		e.wants(second, g).Release()
	}
	e.wants(first) // who looks posts again for all
	if first.posted != 16 || second.posted != 16 {
		t.Errorf("%d and %d receives are posted, expected 16 each", first.posted, second.posted)
	}
}
