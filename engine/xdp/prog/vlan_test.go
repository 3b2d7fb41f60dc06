package prog

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/packet/flow"
)

// TestTakenTags: the notes say that the device takes VLAN tags out, but only where a rule asks for
// them.
func TestTakenTags(t *testing.T) {
	c := lay(t, netns.LinkSpec{})
	told := func() bool {
		return slices.ContainsFunc(c.p.Info().Notes, func(n string) bool {
			return strings.Contains(n, "ethtool -K eth0 rxvlan off")
		})
	}
	c.load(Spec{Queues: 1, Slots: 1}, Native)
	var takes bool
	c.do(1, func() error { takes = strips("eth0"); return nil })
	for _, vlan := range []bool{false, true, false} {
		rule := "udp -> drop"
		if vlan {
			rule = "vlan 5 -> drop"
		}
		if err := c.p.Apply(parseRules(t, rule), flow.Isolation{}); err != nil {
			t.Fatal(err)
		}
		if told() != (vlan && takes) {
			t.Errorf("rule %q on a device that takes tags out, %t: told %t", rule, takes, told())
		}
	}
	if !takes {
		t.Log("the device does not take tags out")
	}
	// A tag that is in the frame is seen.
	if err := c.p.Apply(parseRules(t, "vlan 5 udp -> drop", "vlan untagged -> kernel"),
		flow.Isolation{Unmatched: flow.Deliver}); err != nil {
		t.Fatal(err)
	}
	f := udp(9, 40)
	c.send(slices.Concat(f[:12], []byte{0x81, 0, 0x60, 5}, f[12:]))
	c.send(f)
	if n := c.await(2); n.Rules[0].Packets != 1 || n.Rules[1].Packets != 1 {
		t.Errorf("%+v", n)
	}
}
