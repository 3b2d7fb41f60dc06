package config_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

func load(t *testing.T, text string) (*config.Config, config.Diagnostics) {
	t.Helper()
	return config.Load("f.yaml", []byte(text), config.Options{})
}

func mustLoad(t *testing.T, text string) *config.Config {
	t.Helper()
	c, d := load(t, text)
	if c == nil {
		t.Fatalf("%s\n%s", text, d.Text([]byte(text)))
	}
	return c
}

// with is a file of DAQIRI's whose match, rx and more are to be filled in.
func with(rx, match, region string) string {
	return fmt.Sprintf(`daqiri:
  cfg:
    version: 1
    stream_type: raw
    master_core: 0
    memory_regions:
    - {name: m, kind: host, affinity: 0, num_bufs: 8192, buf_size: 2048%s}
    interfaces:
    - name: p
      address: eth0
      rx:
        %s
        queues: [{name: q, id: 0, cpu_core: 1, batch_size: 64, memory_regions: [m]}]
        flows: [{name: f, id: 5, action: {type: queue, id: 0}, match: {%s}}]
`, region, rx, match)
}

// What DAQIRI's parsers get wrong, one by one.
func TestMistakesOfDAQIRIsParser(t *testing.T) {
	t.Run("a range of ports is not any port", func(t *testing.T) {
		for _, text := range []string{`"1000-1010"`, "1000-1010", `"1000 - 1010"`} {
			c := mustLoad(t, with("", "udp_src: "+text, ""))
			rules, err := c.Interfaces[0].Rx.Rules()
			if err != nil || rules[0].Match.SrcPort != flow.Some(flow.Range{Lo: 1000, Hi: 1010}) ||
				rules[0].Match.Proto != flow.Some(packet.ProtoUDP) {
				t.Errorf("%s: %v %v", text, rules, err)
			}
		}
	})
	t.Run("a port that is no number is not any port", func(t *testing.T) {
		if c, _ := load(t, with("", "udp_src: ssh", "")); c != nil {
			t.Errorf("loaded as %+v", c.Interfaces[0].Rx.Flows[0].Match)
		}
	})
	t.Run("0 is any port there and port 0 here", func(t *testing.T) {
		text := with("", "udp_src: 0, udp_dst: 5", "")
		if c := mustLoad(t, text); c.Interfaces[0].Rx.Flows[0].Match.UDPSrc.Set {
			t.Error("0 is port 0 in a file of DAQIRI's")
		}
		ours, _, err := config.Migrate("f", []byte(text))
		if err != nil || strings.Contains(string(ours), "udp_src") {
			t.Errorf("%v\n%s", err, ours)
		}
		c := mustLoad(t, strings.Replace(string(ours), "udp_dst: 5", "udp_dst: 0", 1))
		if got := c.Interfaces[0].Rx.Flows[0].Match.UDPDst; got != flow.Some(flow.One(0)) {
			t.Errorf("0 is %v in a file of ours", got)
		}
	})
	t.Run("hardware_timestamps is read", func(t *testing.T) {
		c := mustLoad(t, with("hardware_timestamps: true", "udp_src: 1", ""))
		if !c.Interfaces[0].Rx.HardwareTimestamps || !c.Interfaces[0].RxSpec(0).HardwareTime {
			t.Error("it is not")
		}
	})
	t.Run("an unknown access keeps the others", func(t *testing.T) {
		c, d := load(t, with("", "udp_src: 1", ", access: [local, rdma_wirte]"))
		if c != nil || !strings.Contains(d.Text(nil), "did you mean rdma_write?") {
			t.Error(d.Text(nil))
		}
		if c := mustLoad(t, with("", "udp_src: 1", ", access: [rdma_write]")); len(c.Regions[0].Access) != 1 ||
			c.Regions[0].Access[0] != "rdma_write" {
			t.Error(c.Regions[0].Access)
		}
	})
	t.Run("a misspelled key is not a default", func(t *testing.T) {
		c, d := load(t, with("flow_isolaton: true", "udp_src: 1", ""))
		if c != nil || !strings.Contains(d.Text(nil), "did you mean flow_isolation?") {
			t.Error(d.Text(nil))
		}
	})
	t.Run("a mistake in rx is not an rx without queues", func(t *testing.T) {
		_, d := load(t, with("dynamic_flow_capacity: [1]", "udp_src: 1", ""))
		if len(d.Only(config.Error)) != 1 || d[0].Path != "interfaces[0].rx.dynamic_flow_capacity" ||
			d[0].At != (config.Pos{Line: 12, Column: 32}) {
			t.Error(d.Text(nil))
		}
	})
	t.Run("keys that nothing follows from say so", func(t *testing.T) {
		_, d := load(t, `
version: 1
stream_type: socket
master_core: 0
rx_meta_buffers: 5
memory_regions: [{name: m, kind: host, affinity: 0, num_bufs: 4096, buf_size: 64}]
interfaces:
- name: s
  address: 10.0.0.1
  socket_config: {mode: server, local_addr: "udp://10.0.0.1:5", min_ipg_ns: 7, max_burst_interval_ms: 8}
  tx: {queues: [{name: t, id: 0, cpu_core: 1, batch_size: 1, timeout_us: 9, memory_regions: [m]}]}
`)
		var keys []string
		for _, x := range d {
			if x.Code == config.CodeNoEffect {
				keys = append(keys, x.Path[strings.LastIndexByte(x.Path, '.')+1:])
			}
		}
		if got := strings.Join(keys, " "); got != "rx_meta_buffers min_ipg_ns max_burst_interval_ms timeout_us" {
			t.Error(got, d.Text(nil))
		}
	})
	t.Run("version is looked at", func(t *testing.T) {
		if c, _ := load(t, strings.Replace(with("", "", ""), "version: 1", "version: 3", 1)); c != nil {
			t.Error("version 3 loads")
		}
	})
	t.Run("a name that is nowhere is not the first device", func(t *testing.T) {
		_, d := load(t, with("", "", "")+"bench_rx: {interface_name: port}\n")
		if d.Err() == nil || !strings.Contains(d.Err().Error(), `no interface "port"`) {
			t.Error(d.Err())
		}
	})
}

// What a file says arrives in the specs of engines, pools and rules.
func TestSpecs(t *testing.T) {
	text, err := os.ReadFile("testdata/good/ours_full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c := mustLoad(t, string(text))
	p := &c.Interfaces[0]
	if s := p.PortSpec(); s.Name != "port" || s.Address != "eth0" || s.MTU != 1500 || !s.Isolated {
		t.Errorf("%+v", s)
	}
	if s := p.RxSpec(0); s.Name != "split" || s.ID.Number() != 0 || s.SplitAt != 64 || s.Depth != 2048 ||
		!s.Timestamps || !s.HardwareTime {
		t.Errorf("%+v", s)
	}
	if s := p.RxSpec(1); s.ID.Number() != 4 || s.Depth != 1024 {
		t.Errorf("%+v", s)
	}
	if s := p.TxSpec(0); s.Name != "out" || s.Headroom != 64 || s.Depth != 512 || s.Rate != 2_500_000_000 ||
		!s.SendAt || !s.SourceMAC {
		t.Errorf("%+v", s)
	}
	if o := c.Regions[0].PoolOptions(); o.Name != "rx" || o.SlotSize != 2048 || o.Slots != 8192 || o.Align != 2048 ||
		o.Memory.Kind != mem.Huge || o.Memory.PageSize != 2<<20 ||
		!o.Memory.AllowFallback || o.Memory.NUMANode.Number() != 0 {
		t.Errorf("%+v", o)
	}
	if b := c.Regions[0].Bytes(); b != 16<<20 {
		t.Errorf("%v", b)
	}
	rules, err := p.Rx.Rules()
	if err != nil || len(rules) != 8 {
		t.Fatal(len(rules), err)
	}
	want := flow.Rule{Mark: flow.Some(uint32(7)), Name: "samples", Priority: 10,
		Match: flow.Match{SrcPort: flow.Some(flow.Range{Lo: 4000, Hi: 4100}), DstPort: flow.Some(flow.One(4096)),
			Proto: flow.Some(packet.ProtoUDP), Src: netip.MustParsePrefix("10.0.0.0/8"),
			Dst: netip.MustParsePrefix("10.1.2.3/32"), Length: flow.Some(flow.Range{Lo: 100, Hi: 9000}),
			EthDst: flow.Some(packet.MAC{2, 0, 0, 0, 0, 1}), VLAN: flow.Some(flow.VLAN(5))},
		Actions: []flow.Action{{Kind: flow.PopVLAN}, flow.Queue(0)}}
	if !rules[0].Equal(&want) {
		t.Errorf("%+v", rules[0])
	}
	if !rules[1].Actions[0].Kind.Terminal() || len(rules[1].Actions[0].Queues) != 2 ||
		rules[1].Match.Proto != flow.Some(packet.ProtoTCP) {
		t.Errorf("%+v", rules[1])
	}
	flex := flow.Match{Proto: flow.Some(packet.ProtoUDP), DstPort: flow.Some(flow.One(4096)),
		Flex: []flow.Flex{{Offset: 8, Value: 0x10, Mask: 0xff}}}
	if !rules[2].Match.Equal(&flex) {
		t.Errorf("%+v", rules[2])
	}
	if _, err := flow.Compile(rules); err != nil {
		t.Error(err)
	}
	tx := p.Tx.Rules()
	if tun := tx[0].Actions[0].Tunnel; tun.Type != flow.VXLAN || tun.VNI != 77 || tun.TTL != 64 ||
		tun.DstPort != 4789 || tun.Protocol != 0 {
		t.Errorf("%+v", tun)
	}
	if tag := tx[1].Actions[0].Tag; tag != (flow.Tag{ID: 100, PCP: 3, DEI: true, TPID: 0x88a8}) {
		t.Errorf("%+v", tag)
	}
	if a := c.Interfaces[3].PortSpec().Address; a != "udp://[fd00::1]:5000?remote=[fd00::2]:5000" {
		t.Error(a)
	}
	if x := p.Sections["xdp"]; x["busy_poll"] != "50us" || x["ring"] != "4096" || x["chains"] != "false" {
		t.Errorf("%+v", x)
	}
}

func TestEnginesByAddress(t *testing.T) {
	for _, c := range []struct {
		file string
		want config.Engine
		addr string
	}{
		{"penstock: {interfaces: [{name: a, address: eth0}]}", "xdp", "eth0"},
		{"penstock: {engine: afpacket, interfaces: [{name: a, address: eth0}]}", "afpacket", "eth0"},
		{"penstock: {interfaces: [{name: a, engine: sim, address: a}]}", "sim", "sim://a"},
		{"penstock: {interfaces: [{name: a, engine: sim, address: loopback}]}", "sim", "sim://a?loop"},
		{"penstock: {interfaces: [{name: a, address: 'sim://b?loop'}]}", "sim", "sim://b?loop"},
		{"penstock: {interfaces: [{name: a, address: 'udp://:5'}]}", "socket", "udp://:5"},
		{"penstock: {interfaces: [{name: a, socket: {mode: server, local: 'tcp://:5'}}]}", "socket", "tcp://:5?listen=1"},
		{"penstock: {interfaces: [{name: a, socket: {mode: client, remote: 'tcp://10.0.0.1:5'}}]}", "socket", "tcp://10.0.0.1:5"},
		{"penstock: {interfaces: [{name: a, socket: {mode: client, local: 'tcp://10.0.0.2:6', remote: 'tcp://10.0.0.1:5'}}]}", "socket", "tcp://10.0.0.1:5?local=10.0.0.2:6"},
		{"penstock: {interfaces: [{name: a, socket: {mode: client, remote: 'udp://10.0.0.1:5'}}]}", "socket", "udp://:0?remote=10.0.0.1:5"},
		{"penstock: {interfaces: [{name: a, socket: {mode: client, local: 'roce://10.0.0.1'}}]}", "rdma", "roce://10.0.0.1"},
		{"penstock: {interfaces: [{name: a, socket: {mode: client, local: 'roce://10.0.0.1', remote: 'rdma://10.0.0.2:7'}}]}", "rdma", "roce://10.0.0.2:7?local=10.0.0.1"},
		{"penstock: {interfaces: [{name: a, socket: {mode: client, remote: 'roce://[fd00::2]:7'}}]}", "rdma", "roce://[fd00::2]:7"},
		{"penstock: {interfaces: [{name: a, socket: {mode: server, local: 'roce://10.0.0.1:7'}}]}", "rdma", "roce://10.0.0.1:7?listen=1"},
		{"penstock: {interfaces: [{name: a, address: 'roce://10.0.0.1:7?listen=1&device=rxe0'}]}", "rdma", "roce://10.0.0.1:7?listen=1&device=rxe0"},
		{"penstock: {interfaces: [{name: a, address: '0000:01:00.0'}]}", "verbs", "0000:01:00.0"},
		{"{version: 1, stream_type: raw, loopback: sw, interfaces: [{name: a, address: loopback}]}", "sim", "sim://a?loop"},
		{"{version: 1, stream_type: raw, loopback: hw, interfaces: [{name: a, address: mlx5_0}]}", "verbs", "mlx5_0"},
		{"{version: 1, stream_type: raw, engine: dpdk, interfaces: [{name: a, address: eth0}]}", "dpdk", "eth0"},
		{"{version: 1, stream_type: raw, engine: ibverbs, interfaces: [{name: a, address: eth0}]}", "verbs", "eth0"},
		{"{version: 1, stream_type: raw, engine: gpunetio, interfaces: [{name: a, address: eth0}]}", "gpunetio", "eth0"},
		{"{version: 1, stream_type: socket, engine: ibverbs, interfaces: [{name: a, address: 10.0.0.1, socket_config: {mode: client, local_addr: 'rdma://10.0.0.1'}}]}", "rdma", "roce://10.0.0.1"},
		{"{version: 1, stream_type: socket, engine: efa, interfaces: [{name: a, address: 10.0.0.1, efa_config: {mode: client}}]}", "efa", "10.0.0.1"},
		{"{version: 1, stream_type: pcie, interfaces: [{name: a, address: '0000:01:00.0'}]}", "pcie", "0000:01:00.0"},
	} {
		cfg := mustLoad(t, c.file)
		if p := cfg.Interfaces[0]; p.Engine != c.want || p.Address != c.addr {
			t.Errorf("%s: %s %s", c.file, p.Engine, p.Address)
		}
		_, d := load(t, c.file)
		missing := false
		for _, x := range d {
			missing = missing || x.Code == config.CodeNotBuilt
		}
		if missing == c.want.Built() {
			t.Errorf("%s: said to be missing: %v", c.file, missing)
		}
	}
}

// Queues of RDMA connections that name no memory get the region whose name says that it is meant;
// DAQIRI's files have it so.
func TestRegionsByName(t *testing.T) {
	for _, c := range []struct{ regions, rx, tx string }{
		{"DATA_RX_GPU_SERVER DATA_TX_GPU_SERVER DATA_TX_GPU_CLIENT DATA_RX_GPU_CLIENT", "DATA_RX_GPU_SERVER", "DATA_TX_GPU_SERVER"},
		{"my-rx my-tx", "my-rx", "my-tx"},
		{"one", "one", "one"},
		{"a b", "", ""},
		{"rx.1 rx.2 tx", "", "tx"},
		{"matrix extra", "", ""},
		{"rx_server rx_client tx", "rx_server", "tx"},
	} {
		var regions []string
		for _, n := range strings.Fields(c.regions) {
			regions = append(regions, fmt.Sprintf("{name: %q, kind: host, num_bufs: 1024, buf_size: 100}", n))
		}
		text := "penstock: {memory_regions: [" + strings.Join(regions, ", ") +
			"], interfaces: [{name: a, socket: {mode: server, local: 'roce://10.0.0.1:7'}, rx: {queues: [{}]}, tx: {queues: [{}]}}]}"
		cfg, d := load(t, text)
		if cfg == nil {
			t.Fatal(d.Text(nil))
		}
		p := cfg.Interfaces[0]
		if rx, tx := strings.Join(p.Rx.Queues[0].Regions, " "), strings.Join(p.Tx.Queues[0].Regions, " "); rx != c.rx ||
			tx != c.tx {
			t.Errorf("of %s: %q and %q, expected %q and %q", c.regions, rx, tx, c.rx, c.tx)
		}
		needs := 0
		for _, x := range cfg.Needs() {
			if strings.Contains(x.Message, "do not say which is meant") {
				needs++
			}
		}
		want := 0
		for _, n := range []string{c.rx, c.tx} {
			if n == "" {
				want++
			}
		}
		if needs != want {
			t.Errorf("of %s: %d queues need a region: %s", c.regions, needs, d.Text(nil))
		}
	}
}

// A Config that a program wrote is completed and checked as well.
func TestCheckOfAProgramsConfig(t *testing.T) {
	c := &config.Config{Version: 1, MasterCore: -1, Regions: []config.Region{{Name: "m", Kind: "host", NUMA: -1,
		NumBufs: 512, BufSize: 2048, Align: 64, PageSize: 2 << 20, Owned: true}},
		Interfaces: []config.Interface{{Name: "p", Address: "eth0", Rx: &config.Rx{Queues: []config.RxQueue{{ID: 0,
			CPUCore: -1, BatchSize: 64, PollMode: "indirect", Regions: []string{"m"}}}}}}}
	if d := c.Check(nil); len(d) != 0 {
		t.Error(d.Text(nil))
	}
	if p := c.Interfaces[0]; p.Engine != "xdp" || p.Rx.Queues[0].Depth != 512 || p.Rx.Queues[0].Name != "p-rx0" {
		t.Errorf("%+v", p)
	}
	c.Interfaces[0].Rx.Queues[0].Regions[0] = "n"
	d := c.Check(nil)
	if d.Err() == nil || !errors.Is(d.Err(), config.ErrInvalid) ||
		d.Only(config.Error)[0].Path != "interfaces[0].rx.queues[0].memory_regions[0]" {
		t.Error(d.Text(nil))
	}
	again := mustLoad(t, string(mustLoad(t,
		"penstock: {memory_regions: [{name: a, kind: host, num_bufs: 1, buf_size: 1}]}").YAML()))
	if again.Regions[0].Name != "a" || again.Source("memory_regions[0].name").Origin != config.FromFile ||
		again.Source("memory_regions[0].align").Origin != config.FromDefault {
		t.Errorf("%+v", again)
	}
}

func TestPositions(t *testing.T) {
	text := "penstock:\n  logging: {file: \"übermäßig\", levl: info}\r\n  x-tab: \"a\tb\"\n"
	_, d := load(t, text)
	if len(d) != 1 || d[0].At != (config.Pos{Line: 2, Column: 32}) || d[0].Width != 4 {
		t.Fatalf("%+v", d)
	}
	want := "f.yaml:2:32: error: unknown key \"levl\" in logging\n  2 |   logging: {file: \"übermäßig\", levl: " +
		"info}\n    |                                ^~~~\n    = did you mean level?\n"
	if got := d.Text([]byte(text)); got != want {
		t.Errorf("got\n%s\nexpected\n%s", got, want)
	}
}

// A program's own kinds of applications are words like ours, and only where it says so.
func TestKindsOfAProgram(t *testing.T) {
	text := []byte(`penstock:
  memory_regions: [{name: m, kind: host, num_bufs: 4096, buf_size: 2KiB}]
  interfaces: [{name: p, engine: sim, address: "sim://p", rx: {queues: [{memory_regions: [m]}]}, tx: {queues: [{memory_regions: [m]}]}}]
  applications: [{kind: tee, interface: p, to: p}]
`)
	cfg, problems := config.Load("f", text, config.Options{Kinds: []string{"tap", "tee"}})
	if cfg == nil || len(problems) > 0 || cfg.Applications[0].Kind != "tee" || cfg.Applications[0].To != "p" {
		t.Error(problems.Text(text))
	}
	if cfg, problems := config.Load("f", text, config.Options{}); cfg != nil ||
		!strings.Contains(problems.Text(text), "4:25") {
		t.Error(problems.Text(text))
	}
	text = bytes.ReplaceAll(text, []byte("to: p"), []byte("to: q"))
	if cfg, problems := config.Load("f", text, config.Options{Kinds: []string{"tee"}}); cfg != nil ||
		!strings.Contains(problems.Text(text), "there is no interface") {
		t.Error(problems.Text(text))
	}
}
