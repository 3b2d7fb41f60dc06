//go:build dpdk && !race && !asan

package dpdk

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/cdpdk"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/flow"
)

var update = flag.Bool("update", false, "rewrite the table of drivers")

// driversPage has the table of what each driver can do.
const driversPage = "../../docs/dpdk-drivers.md"

// capability is a row of the table: what a started port says of itself, or what its driver answers.
type capability struct {
	name string
	of   func(p *Port, c *engine.Capabilities) string
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// side is who does something: the device if it does, else other.
func side(device bool, other string) string {
	if device {
		return "device"
	}
	return other
}

var capabilities = []capability{
	{"receive queues", func(_ *Port, c *engine.Capabilities) string { return fmt.Sprint(c.RxQueues) }},
	{"transmit queues", func(_ *Port, c *engine.Capabilities) string { return fmt.Sprint(c.TxQueues) }},
	{"longest frame, bytes", func(_ *Port, c *engine.Capabilities) string { return fmt.Sprint(c.MaxPacket) }},
	{"frames of several mbufs", func(p *Port, _ *engine.Capabilities) string {
		switch rx := p.info.RxOffloads&cdpdk.RxScatter != 0; {
		case rx && p.chains:
			return "yes"
		case rx:
			return "receives"
		case p.chains:
			return "sends"
		}
		return "no"
	}},
	{"receives into pools", func(p *Port, c *engine.Capabilities) string {
		if c.MemoryUse == engine.UseCopied {
			return "copies"
		}
		return yes(p.inPlace)
	}},
	{"sends from pools", func(p *Port, _ *engine.Capabilities) string {
		if p.reads {
			return "yes"
		}
		return "copies"
	}},
	{"checksums to send", func(_ *Port, c *engine.Capabilities) string { return c.TxChecksum }},
	{"segmentation", func(_ *Port, c *engine.Capabilities) string { return c.TxSegmentation }},
	{"RSS, as the driver says", func(p *Port, _ *engine.Capabilities) string { return yes(p.info.RSSTypes != 0) }},
	{"hash of a packet", func(_ *Port, c *engine.Capabilities) string { return yes(c.Hash) }},
	{"rules (`rte_flow_validate`)", func(p *Port, _ *engine.Capabilities) string {
		r, err := flow.ParseRule("udp dst 5001 ip dst 192.0.2.2 -> queue 0")
		if err != nil {
			return err.Error()
		}
		r.ID = 1
		switch c, _ := p.plan([]flow.Rule{r}, p.rx.Live()); {
		case c[0].Whole != nil:
			return "device"
		case c[0].Steer != nil:
			return "steers"
		}
		return "software"
	}},
	{"buffer split", func(p *Port, _ *engine.Capabilities) string { return side(p.info.Split > 1, "software") }},
	{"receive times", func(_ *Port, c *engine.Capabilities) string { return side(c.HardwareTime, "software") }},
	{"sending at a time", func(_ *Port, c *engine.Capabilities) string { return c.SendAtIn }},
	{"rate", func(p *Port, _ *engine.Capabilities) string { return side(p.dev.LimitRate(0, 1000) == nil, "software") }},
	{"MTU", func(p *Port, _ *engine.Capabilities) string { return yes(p.dev.SetMTU(1400) == nil) }},
	{"promiscuous", func(p *Port, _ *engine.Capabilities) string { return yes(p.dev.Promiscuous(true) == nil) }},
	{"receive queues that come while it runs", func(p *Port, _ *engine.Capabilities) string {
		return yes(p.info.DevCapa&cdpdk.SetupWhileRunning != 0)
	}},
}

// TestTableOfDrivers opens a port over each virtual driver, and compares what it can do with the
// table of the page.
func TestTableOfDrivers(t *testing.T) {
	pair := netns.New(t, netns.Topology{})
	dir := t.TempDir()
	from := filepath.Join(dir, "from.pcap")
	if err := os.WriteFile(from,
		[]byte("\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00\x01\x00\x00\x00"),
		0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "vhost")
	drivers := []struct {
		name, args string
		host       *netns.Host
	}{
		{name: "net_null"},
		{name: "net_ring"},
		{name: "net_pcap", args: ",rx_pcap=" + from + ",tx_pcap=" + filepath.Join(dir, "to.pcap")},
		{name: "net_tap", args: ",iface=tap7", host: pair.Hosts[0]},
		{name: "net_af_packet", args: ",qpairs=2,framesz=1920,framecnt=256,blocksz=61440,iface=" + pair.Hosts[0].Link().Name, host: pair.Hosts[0]},
		{name: "net_af_xdp", args: ",iface=" + pair.Hosts[1].Link().Name, host: pair.Hosts[1]},
		{name: "net_memif", args: ",role=server,socket-abstract=no,socket=" + filepath.Join(dir, "memif")},
		{name: "net_vhost", args: ",queues=2,iface=" + socket},
		{name: "net_virtio_user", args: ",queues=2,path=" + socket},
	}
	table := [][]string{{""}, {"---"}}
	for _, c := range capabilities {
		table = append(table, []string{c.name})
	}
	for _, d := range drivers {
		var p *Port
		into, from := pool(t), pool(t)
		open := func() error {
			p = openPort(t, engine.PortSpec{Address: fmt.Sprintf("dpdk://%s%d%s", d.name, names.Add(1), d.args),
				RxQueues: 1, TxQueues: 1}, Options{})
			_, err := p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{into}})
			if err == nil {
				_, err = p.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{from}})
			}
			return err
		}
		do := func(f func() error) error { return f() }
		if d.host != nil {
			do = d.host.Do
		}
		if err := do(open); err != nil {
			t.Errorf("%s: %v", d.name, err)
			continue
		}
		can := p.Capabilities()
		t.Logf("%s: %+v %q", d.name, p.info, can.Notes)
		table[0], table[1] = append(table[0], "`"+d.name+"`"), append(table[1], "---")
		for i, c := range capabilities {
			if err := do(func() error { table[i+2] = append(table[i+2], c.of(p, &can)); return nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	var text strings.Builder
	for _, row := range table {
		fmt.Fprintf(&text, "| %s |\n", strings.Join(row, " | "))
	}
	page, err := os.ReadFile(driversPage)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(page), "\n\n|  | `net_null`")
	_, tail, end := strings.Cut(rest, "\n\n")
	if !ok || !end {
		t.Fatalf("%s has no table", driversPage)
	}
	now := head + "\n\n" + text.String() + "\n" + tail
	switch {
	case now == string(page):
	case *update:
		if err := os.WriteFile(driversPage, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not what the drivers of %s do; rewrite it with -update:\n%s", driversPage, cdpdk.Version(),
			text.String())
	}
}
