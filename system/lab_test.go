package system

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/packet/burst"
)

// openIn opens a configuration in a host of the lab.
func openIn(t *testing.T, h *netns.Host, text string) (s *System) {
	t.Helper()
	return openWith(t, h, Options{Logger: silent}, text)
}

func openWith(t *testing.T, h *netns.Host, o Options, text string) (s *System) {
	t.Helper()
	if err := h.Do(func() (err error) {
		s, err = Open(t.Context(), mustLoad(t, text), o)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Flows change while packets go on, on real interfaces: packets of a flow that stays are neither
// lost nor doubled, and its counts go on; another flow comes, moves to another queue, and goes. A
// set that the engine cannot do changes nothing.
func TestReloadOnInterfaces(t *testing.T) {
	for _, name := range []string{"afpacket", "xdp"} {
		t.Run(name, func(t *testing.T) {
			n := netns.New(t, netns.Topology{Neighbours: true})
			text := func(flows string) string {
				return fmt.Sprintf(`penstock:
  memory_regions: [{name: m, kind: host, num_bufs: 4096, buf_size: 2KiB}]
  interfaces:
    - name: in
      engine: %s
      address: eth0
      rx:
        flow_isolation: true
        queues: [{memory_regions: [m]}, {memory_regions: [m]}]
        flows: [%s]
`, name, flows)
			}
			const keep = "{name: keep, id: 7, match: {udp_dst: 7}, actions: [{type: queue, id: 0}]}"
			in := openIn(t, n.Hosts[1], text(keep))
			out := openIn(t, n.Hosts[0], fmt.Sprintf(`penstock:
  memory_regions: [{name: m, kind: host, num_bufs: 1024, buf_size: 2KiB}]
  interfaces: [{name: out, engine: %s, address: eth0, tx: {queues: [{memory_regions: [m]}]}}]
`, name))
			x := startTraffic(t, txOf(t, out, "out", 0), rxOf(t, in, "in", 0), 7, 7, false)
			tx := txOf(t, out, "out", 0)
			other := burst.New(8)
			for k, step := range []struct {
				flows, want string
				queue       bool // whether port 9 comes to queue 1
			}{
				{keep + ", {name: new, id: 9, match: {udp_dst: 9}, actions: [{type: queue, id: 1}]}", "in: added new; 1 unchanged", true},
				{"{name: first, id: 3, match: {udp_dst: 9}, actions: [{type: drop}]}, " + keep +
					", {name: new, id: 9, match: {udp_dst: 9-10}, actions: [{type: queue, id: 1}]}",
					"in: added first; changed new; 1 unchanged", false},
				{keep + ", {name: first, id: 3, match: {udp_dst: 9}, actions: [{type: queue, id: 1}]}",
					"in: changed first; removed new; moved keep; 0 unchanged", true},
				{keep, "in: removed first; 1 unchanged", false},
			} {
				c, err := in.Reload(mustLoad(t, text(step.flows)))
				if err != nil || c.String() != step.want {
					t.Fatalf("%v %v, expected %s", c, err, step.want)
				}
				sendFrames(t, tx, udpFrame(t, 9, uint32(k)))
				if step.queue {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					err := rxOf(t, in, "in", 1).Recv(ctx, other)
					cancel()
					if err != nil || other.Len() != 1 || numberOf(other.Bytes(0, 0)) != uint32(k) {
						t.Fatalf("step %d: %v, %d packets", k, err, other.Len())
					}
					other.Release()
				}
				if strings.Contains(step.flows, "drop") { // it has met these flows, and not the next ones
					until(t, "the packet that is dropped", func() bool {
						return slices.ContainsFunc(in.Snapshot().Interfaces[0].Rules, func(r RuleSnapshot) bool {
							return r.Rule.Name == "first" && r.Packets == 1
						})
					})
				}
				x.pass()
			}
			if name == "xdp" { // its program changes no packets; the refusal leaves everything as it is
				before := in.Port("in").Rules().List()
				if c, err := in.Reload(mustLoad(t,
					text("{name: pop, match: {vlan: 5}, actions: [{type: vlan_pop}, {type: queue, id: 1}]}"))); err == nil {
					t.Error(c)
				}
				if after := in.Port("in").Rules().List(); len(after) != 1 || !after[0].Equal(&before[0]) {
					t.Errorf("%v", after)
				}
			}
			sent := x.finish()
			until(t, "the count of the flow", func() bool {
				r := in.Snapshot().Interfaces[0].Rules
				return len(r) == 1 && r[0].Packets == uint64(sent)
			})
		})
	}
}

// Interfaces of the engine xdp that forward to each other get one memory, whatever their regions:
// nothing is copied.
func TestSharedMemory(t *testing.T) {
	// host 1 forwards from eth0 to eth1, whose other ends host 0 has
	n := netns.New(t, netns.Topology{Rails: 2, Neighbours: true})
	s := openIn(t, n.Hosts[1], `penstock:
  memory_regions:
    - {name: received, kind: host, num_bufs: 1024, buf_size: 2KiB}
    - {name: sent, kind: host, num_bufs: 512, buf_size: 2KiB}
    - {name: small, kind: host, num_bufs: 512, buf_size: 1KiB}
  interfaces:
    - {name: in, engine: xdp, address: eth0, rx: {flow_isolation: true, queues: [{memory_regions: [received]}], flows: [{match: {udp_dst: 7}, actions: [{type: queue, id: 0}]}]}, tx: {queues: [{memory_regions: [small]}]}}
    - {name: out, engine: xdp, address: eth1, tx: {queues: [{memory_regions: [sent]}]}}
  applications: [{kind: forward, interface: in, to: out}]
`)
	plan := s.Plan()
	if plan.Interfaces[0].Memory != "xdp-in" || plan.Interfaces[1].Memory != "xdp-in" ||
		plan.Regions[0].Area != "xdp-in" || plan.Regions[1].Area != "xdp-in" || plan.Regions[2].Area != "" ||
		s.Region("received").Region() != s.Region("sent").Region() || len(plan.Notes) != 1 ||
		plan.Notes[0].Path != "memory_regions[2].buf_size" {
		t.Errorf("%s", plan.Text())
	}
	o := openIn(t, n.Hosts[0], `penstock:
  memory_regions: [{name: m, kind: host, num_bufs: 1024, buf_size: 2KiB}]
  interfaces:
    - {name: a, engine: xdp, address: eth0, tx: {queues: [{memory_regions: [m]}]}}
    - {name: b, engine: xdp, address: eth1, rx: {flow_isolation: true, queues: [{memory_regions: [m]}], flows: [{match: {udp_dst: 7}, actions: [{type: queue, id: 0}]}]}}
`)
	if o.Plan().Interfaces[1].Memory != "xdp-a" { // they share a region
		t.Errorf("%s", o.Plan().Text())
	}
	const rounds, each = 50, 8
	b := burst.New(each)
	for r := range rounds {
		for k := range each {
			sendFrames(t, txOf(t, o, "a", 0), udpFrame(t, 7, uint32(r*each+k)))
		}
		for got := 0; got < each; {
			if err := rxOf(t, o, "b", 0).Recv(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			for i := range b.Len() {
				if k := numberOf(b.Bytes(i, 0)); k != uint32(r*each+got) {
					t.Fatalf("packet %d, expected %d", k, r*each+got)
				}
				got++
			}
			b.Release()
		}
	}
	snap := s.Snapshot()
	if rx, tx := snap.Interfaces[0].Rx[0].Stats, snap.Interfaces[1].Tx[0].Stats; rx.Copied != 0 || tx.Copied != 0 ||
		tx.Forwarded != rounds*each {
		t.Errorf("%+v\n%+v", rx, tx)
	}
	// What a transmit queue of the same memory allocates is not copied either.
	if n, err := txOf(t, s, "out", 0).Alloc(b, 1, 64); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	copy(b.Bytes(0, 0), udpFrame(t, 8, 0))
	if err := txOf(t, s, "out", 0).Send(b); err != nil {
		t.Fatal(err)
	}
	if err := txOf(t, s, "out", 0).Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	var tx engine.TxStats
	txOf(t, s, "out", 0).Stats(&tx)
	if tx.Copied != 0 || tx.Packets != rounds*each+1 {
		t.Errorf("%+v", tx)
	}
}

// VLAN tags that the card takes out of frames before rules look for them are a note of the plan, of
// the status, and of the log at its usual level: at the beginning, and when a reload brings such
// rules.
func TestNotesOfPorts(t *testing.T) {
	n := netns.New(t, netns.Topology{})
	text := func(match string) string {
		return `penstock:
  memory_regions: [{name: m, kind: host, num_bufs: 1024, buf_size: 2KiB}]
  interfaces:
    - name: in
      engine: xdp
      address: eth0
      rx:
        flow_isolation: true
        queues: [{memory_regions: [m]}]
        flows: [{name: f, match: {` + match + `}, actions: [{type: queue, id: 0}]}]
`
	}
	const want = "rules look at VLAN tags, but the device takes them out of frames"
	said := func(notes []string) bool {
		return slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, want) })
	}
	for _, tagged := range []bool{true, false} {
		var logged bytes.Buffer
		match := map[bool]string{true: "vlan: 5", false: "udp_dst: 5"}
		s := openWith(t, n.Hosts[0], Options{Logger: slog.New(slog.NewTextHandler(&logged,
			&slog.HandlerOptions{Level: slog.LevelWarn}))}, text(match[tagged]))
		planned := len(s.Plan().Notes) == 1 && strings.Contains(s.Plan().Notes[0].Message, want) &&
			s.Plan().Notes[0].Path == "interfaces[0].rx.flows"
		if planned != tagged || said(s.Snapshot().Interfaces[0].Notes) != tagged ||
			strings.Contains(logged.String(), want) != tagged {
			t.Errorf("tagged %v: %v, %q\n%s", tagged, s.Plan().Notes, s.Snapshot().Interfaces[0].Notes, &logged)
		}
		for _, note := range s.plan.engines[0].Capabilities().Notes { // they are in the documentation of the engine
			if slices.Contains(s.Snapshot().Interfaces[0].Notes, note) {
				t.Errorf("what is so with each port of the engine is a note of this one: %s", note)
			}
		}
		if _, err := s.Reload(mustLoad(t, text(match[!tagged]))); err != nil {
			t.Fatal(err)
		}
		if said(s.Snapshot().Interfaces[0].Notes) == tagged || strings.Count(logged.String(), want) != 1 {
			t.Errorf("tagged %v, reloaded: %q\n%s", tagged, s.Snapshot().Interfaces[0].Notes, &logged)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
