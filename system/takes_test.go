package system

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
)

// TestTakesDefaultRoute: an engine that takes packets from the kernel refuses the interface that
// carries the default route, or what stands below it, in the plan and in Open, unless the file
// leaves to the kernel what no flow matches, or says that it is meant. An engine that copies does
// not mind.
func TestTakesDefaultRoute(t *testing.T) {
	n := netns.New(t, netns.Topology{Rails: 3, Neighbours: true})
	h := n.Hosts[1]
	ipIn(t, h, "link", "add", "br0", "type", "bridge")
	ipIn(t, h, "link", "set", "eth2", "master", "br0")
	ipIn(t, h, "link", "set", "br0", "up")
	ipIn(t, h, "route", "add", "default", "dev", "eth0")
	ipIn(t, h, "-6", "route", "add", "default", "dev", "br0")
	for _, c := range []struct {
		engine, address, rx string
		refused             string // by the name of the interface with the route; "": not
	}{
		{"xdp", "eth0", "", "eth0"},
		{"xdp", "eth0", "take_over: false, ", "eth0"},
		{"xdp", "eth2", "", "br0"},
		{"xdp", "eth1", "", ""},
		{"xdp", "eth0", "flow_isolation: true, ", ""},
		{"xdp", "eth0", "take_over: true, ", ""},
		{"afpacket", "eth0", "", ""},
	} {
		name := fmt.Sprintf("%s on %s with {%s}", c.engine, c.address, c.rx)
		text := fmt.Sprintf(`penstock:
  memory_regions: [{name: m, kind: host, num_bufs: 256, buf_size: 2KiB}]
  interfaces:
    - {name: in, engine: %s, address: %s, rx: {%squeues: [{memory_regions: [m]}]}}
`, c.engine, c.address, c.rx)
		var p *Plan
		var s *System
		var opened error
		if err := h.Do(func() (err error) {
			if p, err = MakePlan(mustLoad(t, text), Options{}); err != nil {
				return err
			}
			s, opened = Open(t.Context(), mustLoad(t, text), Options{Logger: silent})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if opened == nil {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		at := slices.IndexFunc(p.Missing, func(d config.Diagnostic) bool { return d.Path == "interfaces[0].address" })
		switch {
		case c.refused == "" && (len(p.Missing) > 0 || opened != nil):
			t.Errorf("%s: %v, Open: %v", name, p.Missing, opened)
		case c.refused == "":
		case at < 0 || !strings.Contains(p.Missing[at].Message, c.refused+" carries the default route") ||
			!strings.Contains(p.Missing[at].Expected, "flow_isolation") ||
			!strings.Contains(p.Missing[at].Hint, "take_over: true"):
			t.Errorf("%s: %v", name, p.Missing)
		case !errors.Is(opened, engine.ErrInUse):
			t.Errorf("%s: Open: %v, want %v", name, opened, engine.ErrInUse)
		}
	}
}
