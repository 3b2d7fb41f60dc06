package sim

import (
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/flow"
)

// To stop all traffic of a port, and to let it flow again, is a rule of high priority that comes
// and goes.
func TestDropAllTraffic(t *testing.T) {
	n := network(t, Options{})
	if _, err := n.Link("a", "b"); err != nil {
		t.Fatal(err)
	}
	a, b := newEnd(t, n, "a", 64), newEnd(t, n, "b", 64)
	a.send(t, udp(1, 2, 1, 1, "before"))
	all := flow.Rule{Name: "stop", Priority: 1 << 20, Actions: []flow.Action{{Kind: flow.Drop}}}
	wall, err := b.port.Rules().Apply(flow.Add(all))
	if err != nil {
		t.Fatal(err)
	}
	a.send(t, udp(1, 2, 1, 1, "during"), udp(1, 2, 7, 8, "during"))
	if _, err := b.port.Rules().Apply(flow.Delete(wall.IDs[0])); err != nil {
		t.Fatal(err)
	}
	a.send(t, udp(1, 2, 1, 1, "after"))
	equal(t, "packets", b.payloads(t), []string{"before", "after"})
	equal(t, "dropped by the rule", stats(b.port).Drops[engine.DropRule], uint64(2))
	balanced(t, n)
}
