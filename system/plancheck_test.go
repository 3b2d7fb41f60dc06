package system

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
)

// poor is an engine that can do little, and does not say so beforehand but by its Capabilities.
type poor struct {
	engine.Engine
	can engine.Capabilities
}

func (poor) Name() string                        { return "afpacket" }
func (poor) Available() error                    { return nil }
func (p poor) Capabilities() engine.Capabilities { return p.can }

// What an engine lacks by its Capabilities is missing in the plan, at the value that asks for it.
func TestPlanOfPoorEngine(t *testing.T) {
	const text = `penstock:
  memory_regions:
    - {name: a, kind: host, num_bufs: 256, buf_size: 2KiB}
    - {name: b, kind: host, num_bufs: 256, buf_size: 2KiB}
  interfaces:
    - name: p
      engine: afpacket
      address: lo
      rx:
        timestamps: true
        queues: [{memory_regions: [a, b]}, {memory_regions: [a]}]
      tx:
        accurate_send: true
        queues: [{memory_regions: [a], rate: 1Gbps}, {id: 7, memory_regions: [a]}]
`
	all := engine.Capabilities{Frames: true, RxQueues: 8, TxQueues: 8, Split: true, Timestamps: true, Pacing: true,
		SendAt: true, Memory: []mem.Kind{mem.Host}}
	for _, c := range []struct {
		change     func(*engine.Capabilities)
		path, want string // "": nothing is missing
	}{
		{func(*engine.Capabilities) {}, "", ""},
		{func(c *engine.Capabilities) {
			c.RxQueues = 1
		}, "interfaces[0].rx.queues[1]", `interface "p": the engine afpacket: 2 receive queues, and the port has 1`},
		{func(c *engine.Capabilities) { c.TxQueues = 4 }, "interfaces[0].tx.queues[1].id", "the engine afpacket: the port has no transmit queue 7"},
		{func(c *engine.Capabilities) { c.Split = false }, "interfaces[0].rx.queues[0].memory_regions", "does not split headers from payload"},
		{func(c *engine.Capabilities) { c.Timestamps = false }, "interfaces[0].rx.timestamps", "takes no receive times"},
		{func(c *engine.Capabilities) { c.Pacing = false }, "interfaces[0].tx.queues[0].rate", "limits no rates"},
		{func(c *engine.Capabilities) { c.SendAt = false }, "interfaces[0].tx.accurate_send", "does not send at given times"},
	} {
		can := all
		c.change(&can)
		table, err := engine.NewTable(poor{can: can})
		if err != nil {
			t.Fatal(err)
		}
		p, err := MakePlan(mustLoad(t, text), Options{Engines: table})
		if err != nil {
			t.Fatal(err)
		}
		found := c.path == "" && len(p.Missing) == 0
		for _, d := range p.Missing {
			found = found || c.path != "" && d.Path == c.path && strings.Contains(d.Message, c.want) && d.At.Line > 8
		}
		if !found {
			t.Errorf("%s: %s: %v", c.path, c.want, p.Missing)
		}
	}
}

// What an engine refuses is said at the value without which it does not, and the error of Open
// matches the engine's.
func TestPlanBlames(t *testing.T) {
	for _, c := range []struct {
		iface, path string
		want        error
	}{
		{`{name: p, engine: sim, address: "sim://p?loop", mtu: 65100, rx: {queues: [{memory_regions: [a]}]}}`, "interfaces[0].mtu", engine.ErrInvalid},
		{`{name: p, engine: socket, address: "udp://127.0.0.1:0?interface=absent0", rx: {queues: [{memory_regions: [a]}]}}`, "interfaces[0].address", engine.ErrNotFound},
		{`{name: p, engine: sim, address: "sim://p?loop", rx: {queues: [{memory_regions: [a]}]}}, {name: q, engine: sim, address: "sim://p?loop", rx: {queues: [{memory_regions: [a]}]}}`, "interfaces[1].address", engine.ErrInUse},
	} {
		cfg := mustLoad(t, "penstock:\n  memory_regions: [{name: a, kind: host, num_bufs: 256, buf_size: 2KiB}]\n  "+
			"interfaces: ["+c.iface+"]\n")
		s, err := Open(t.Context(), cfg, Options{Engines: noted(t, &diary{})})
		if s != nil {
			s.Close()
		}
		missing, ok := errors.AsType[*MissingError](err)
		if !ok || !errors.Is(err, ErrMissing) || !errors.Is(err, c.want) || len(missing.Missing) != 1 ||
			missing.Missing[0].Path != c.path {
			t.Errorf("%s: %v", c.path, err)
		}
	}
}

// A flow that an engine cannot carry out has the words of the file, and names an engine that can.
func TestPlanNamesTheEngineThatCan(t *testing.T) {
	if err := drivers.Get("afpacket").New().Available(); err != nil {
		testenv.Missing(t, "CAP_NET_RAW", err)
	}
	const text = `penstock:
  memory_regions: [{name: a, kind: host, num_bufs: 256, buf_size: 2KiB}]
  interfaces:
    - name: p
      engine: xdp
      address: lo
      rx:
        queues: [{memory_regions: [a]}]
        flows: [{name: f, match: {vlan: 5}, actions: [{type: vlan_pop}, {type: queue, id: 0}]}]
`
	p, err := MakePlan(mustLoad(t, text), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range p.Missing {
		if d.Path == "interfaces[0].rx.flows[0].actions[0]" {
			if !strings.Contains(d.Message, "cannot do vlan_pop") || d.Hint != "engine: afpacket carries it out" {
				t.Error(&d)
			}
			return
		}
	}
	t.Error(p.Missing)
}
