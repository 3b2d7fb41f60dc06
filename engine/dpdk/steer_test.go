//go:build dpdk && invariants

package dpdk

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/cdpdk"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

func rule(t *testing.T, text string) flow.Change {
	t.Helper()
	r, err := flow.ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return flow.Add(r)
}

// steerOver opens a port over net_ring with two queues and rules, and sends a packet to each of the
// UDP ports. It returns what arrives: queue, flow.
func steerOver(t *testing.T, isolated bool, rules []string, ports ...uint16) (p *Port, got []string, err error) {
	t.Helper()
	into, from := pool(t), pool(t)
	p = openPort(t, engine.PortSpec{Address: fmt.Sprintf("dpdk://net_ring%d", names.Add(1)), RxQueues: 2, TxQueues: 1,
		Isolated: isolated}, Options{})
	var rxs []engine.RxQueue
	for range 2 {
		q, err := p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{into}})
		if err != nil {
			t.Fatal(err)
		}
		rxs = append(rxs, q)
	}
	out, err := p.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{from}})
	if err != nil {
		t.Fatal(err)
	}
	var changes []flow.Change
	for _, r := range rules {
		changes = append(changes, rule(t, r))
	}
	if _, err := p.Rules().Apply(changes...); err != nil {
		return p, nil, err
	}
	b := burst.New(32)
	if n, err := out.Alloc(b, len(ports), 100); err != nil || n != len(ports) {
		t.Fatal(n, err)
	}
	for i, port := range ports {
		f := packet.UDPFrame{Src: netip.MustParseAddrPort("192.0.2.1:9"),
			Dst: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.2"), port)}
		if _, err := f.Fill(b.Bytes(i, 0), 100-f.HeaderLen()); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Send(b); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		for _, q := range rxs {
			if _, err := q.TryRecv(b); err != nil {
				t.Fatal(err)
			}
			for i := range b.Len() {
				port := packet.UDP(b.Bytes(i, 0)[34:]).DstPort()
				got = append(got, fmt.Sprintf("%d to queue %d as %d", port, q.ID(), b.Flow(i)))
			}
			b.Release()
		}
	}
	return p, got, nil
}

// TestMarks: software does not look at a packet that the device has marked; rules that the device
// does not take are software's; what the device drops is counted.
func TestMarks(t *testing.T) {
	defer cdpdk.Refuse(-1, 0)
	one := []string{"name one udp dst 7 ip dst 192.0.2.2 -> queue 1"}

	cdpdk.Record(cdpdk.NoAction, 0)
	// the device says of both that they are of rule 1, and that this is the queue
	p, got, err := steerOver(t, false, one, 7, 8)
	if want := []string{"7 to queue 0 as 1", "8 to queue 0 as 1"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("marked: %q, %v, expected %q", got, err, want)
	}
	if n := p.Rules().(*Rules).Stats(); n.Rules[0].Packets != 2 || cdpdk.Recorded().Rules != 1 ||
		!strings.Contains(notes(p), "carries out 1 rules") {
		t.Errorf("%+v, %d rules in the device, %s", n, cdpdk.Recorded().Rules, notes(p))
	}
	if _, err := p.Rules().Apply(flow.Delete(1), rule(t, "name two udp dst 8 ip dst 192.0.2.2 -> drop")); err != nil ||
		cdpdk.Recorded().Rules != 1 {
		t.Error(err, cdpdk.Recorded().Rules)
	}
	var s engine.PortStats
	if p.Stats(&s); s.Drops[engine.DropRule] != 7 || p.Rules().(*Rules).Stats().Rules[0].Packets != 7 {
		t.Errorf("the device has dropped 7 packets: %+v, %+v", s, p.Rules().(*Rules).Stats())
	}
	if _, err := p.Rules().Apply(flow.Delete(2)); err != nil || cdpdk.Recorded().Rules != 0 {
		t.Error(err, cdpdk.Recorded().Rules)
	}
	if p.Stats(&s); s.Drops[engine.DropRule] != 7 {
		t.Errorf("%+v", s)
	}
	p.Close()

	cdpdk.Record(cdpdk.NoMarks, 0)
	p, got, err = steerOver(t, false, one, 7, 8)
	if want := []string{"8 to queue 0 as 0", "7 to queue 1 as 1"}; err != nil || !slices.Equal(got, want) ||
		!strings.Contains(notes(p), `software classifies: rule "one": rte_flow_validate`) {
		t.Errorf("without marks: %q, %v, expected %q\n%s", got, err, want, notes(p))
	}
	p.Close()

	cdpdk.Record(cdpdk.NoQueues, 0)
	p, got, err = steerOver(t, false, one, 7, 8)
	if want := []string{"8 to queue 0 as 0", "7 to queue 1 as 1"}; err != nil || !slices.Equal(got, want) ||
		!strings.Contains(notes(p), `in software only: rule "one": `) || !strings.Contains(notes(p), "no such action") {
		t.Errorf("without queues: %q, %v, expected %q\n%s", got, err, want, notes(p))
	}
	p.Close()

	// A port that the device isolates needs it for each rule.
	p, _, err = steerOver(t, true, one)
	if !errors.As(err, new(flow.Problems)) || !strings.Contains(err.Error(), "no such action") ||
		len(p.Rules().List()) != 0 || cdpdk.Recorded().Rules != 0 {
		t.Errorf("isolated: %v, %v", err, p.Rules().List())
	}
	if err := p.Rules().(engine.RuleChecker).Check(rule(t, one[0])); !errors.As(err, new(flow.Problems)) ||
		!strings.Contains(err.Error(), "no such action") {
		t.Errorf("a check of what the device refuses: %v", err)
	}
	p.Close()
	cdpdk.Record(cdpdk.NoAction, 0)
	p, got, err = steerOver(t, true, one, 7)
	if err := p.Rules().(engine.RuleChecker).Check(rule(t, "name other udp dst 8 -> queue 0")); err != nil ||
		len(p.Rules().List()) != 1 {
		t.Errorf("a check of what the device can do: %v, %v", err, p.Rules().List())
	}
	if want := []string{"7 to queue 0 as 1"}; err != nil || !slices.Equal(got, want) || cdpdk.Recorded().Rules != 2 {
		// with a tag and without
		t.Errorf("isolated: %q, %v, %d rules in the device", got, err, cdpdk.Recorded().Rules)
	}
	p.Close()
	if cdpdk.Recorded().Rules != 0 {
		t.Errorf("%d rules stayed", cdpdk.Recorded().Rules)
	}

	// A driver that does not isolate: software drops what no rule accepts.
	cdpdk.Refuse(-1, 0)
	p, got, err = steerOver(t, true, one, 7, 8)
	if want := []string{"7 to queue 1 as 1"}; err != nil || !slices.Equal(got, want) ||
		!strings.Contains(notes(p), "does not isolate") {
		t.Errorf("isolated by software: %q, %v\n%s", got, err, notes(p))
	}
	if p.Stats(&s); s.Kernel != 1 {
		t.Errorf("%+v", s)
	}
}

// TestTunnel: the device takes the outer headers off, and software does not look for more.
func TestTunnel(t *testing.T) {
	into, from := pool(t), pool(t)
	p := recorded(t, 0, 1, Options{})
	rx := addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{into}})
	tx := addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{from}})
	if _, err := p.Rules().Apply(rule(t,
		"name tunnel udp dst 4789 ip dst 192.0.2.2 -> vxlan-decap, queue 0")); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(notes(p), "carries out 1 rules") {
		t.Error(notes(p))
	}
	b := burst.New(1)
	if n, err := tx.Alloc(b, 1, 50+100); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	outer := packet.UDPFrame{Src: netip.MustParseAddrPort("192.0.2.1:9"),
		Dst: netip.MustParseAddrPort("192.0.2.2:4789")}
	inner := packet.UDPFrame{Src: netip.MustParseAddrPort("198.51.100.1:1"),
		Dst: netip.MustParseAddrPort("198.51.100.2:2")}
	frame := b.Bytes(0, 0)
	copy(frame[42:], []byte{8, 0, 0, 0, 0, 0, 1, 0})
	if _, err := inner.Fill(frame[50:], 58); err != nil {
		t.Fatal(err)
	}
	if _, err := outer.Fill(frame, 108); err != nil {
		t.Fatal(err)
	}
	want := bytes.Clone(frame[50:])
	if err := tx.Send(b); err != nil {
		t.Fatal(err)
	}
	receive(t, rx, 1, func(b *burst.Burst, i, _ int) {
		if got := b.Bytes(i, 0); !bytes.Equal(got, want) || b.Flow(i) != 1 {
			t.Errorf("%x of flow %d arrived, expected %x", got, b.Flow(i), want)
		}
	})
}
