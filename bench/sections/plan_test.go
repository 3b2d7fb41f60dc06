package sections_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/bench/sections"
	"github.com/penstock-io/penstock/config"
)

var update = flag.Bool("update", false, "write the plans that TestPlans compares with")

// Each file says precisely what would run, or everything that is missing for it, and what stands in
// for what a small machine has not.
func TestPlans(t *testing.T) {
	ours, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(ours) == 0 {
		t.Fatal(ours, err)
	}
	theirs, err := filepath.Glob("../../config/testdata/daqiri/*.yaml")
	if err != nil || len(theirs) == 0 {
		t.Fatal(theirs, err)
	}
	for _, name := range append(ours, theirs...) {
		base := strings.TrimSuffix(filepath.Base(name), ".yaml")
		t.Run(base, func(t *testing.T) {
			_, changes, p := load(t, name, sections.Options{Host: machine()})
			var b strings.Builder
			if err := p.Table(&b, changes); err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata/plans", base+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v: go test -update writes it", err)
			}
			if string(want) != b.String() {
				t.Errorf("the plan is\n%s\nexpected\n%s", b.String(), want)
			}
			// Whatever a section asks for is planned or missing: nothing is passed over.
			if n := len(p.Senders) + len(p.Receivers) + len(p.Sockets) + len(p.Missing); n == 0 && p.Latency == nil {
				t.Error("an empty plan")
			}
		})
	}
}

// What cannot run is said with its place, and how to go on.
func TestPlanMissing(t *testing.T) {
	const head = `penstock:
  memory_regions:
  - {name: m, kind: host, num_bufs: 1024, buf_size: 2KiB}
  interfaces:
  - {name: loop, engine: sim, address: "sim://plan?loop", rx: {queues: [{memory_regions: [m]}]}, tx: {queues: [{memory_regions: [m]}]}}
  - {name: udp, engine: socket, socket: {mode: server, local: "udp://127.0.0.1:5001"}, rx: {queues: [{memory_regions: [m]}]}, tx: {queues: [{memory_regions: [m]}]}}
`
	const to = "eth_dst_addr: 02:00:00:00:00:02, ip_src_addr: 10.0.0.1, ip_dst_addr: 10.0.0.2, udp_src_port: 1, " +
		"udp_dst_port: 2}\n"
	for _, x := range []struct{ sections, path, want string }{
		{"", "", "no bench section"},
		{"bench_tx: {interface_name: udp, payload_size: 64, " + to, "bench_tx[0].interface_name", "bench_tx[0] is of Ethernet frames"},
		{"bench_rx: {interface_name: udp}\n", "bench_rx[0].interface_name", "bench_rx[0] is of Ethernet frames"},
		{"bench_tx: {interface_name: loop, payload_size: 64, header_size: 40, " + to, "bench_tx[0].header_size", "take 42 bytes"},
		{"bench_tx: {interface_name: loop, payload_size: 64, gpu_direct: true, " + to, "bench_tx[0].gpu_direct", "the processor makes and checks"},
		{"bench_rx: {interface_name: loop, gpu_direct: true}\n", "bench_rx[0].gpu_direct", "the processor makes and checks"},
		{"bench_rx: [{interface_name: loop}, {interface_name: loop}]\n", "bench_rx[1].queue_id", "has a receiver already"},
		{"bench_tx: {interface_name: loop, payload_size: 64, eth_dst_addr: 02:00:00:00:00:02, ip_src_addr: 10.0.0.1, " +
			"ip_dst_addr: 10.0.0.2, udp_src_port: 1-1000, udp_dst_port: 1-1001}\n",
			"bench_tx[0].udp_src_port", "1001000 pairs"},
		{"socket_bench_server: {server: true, receive: true, message_size: 4096, server_address: 127.0.0.1, " +
			"server_port: 5001}\n", "socket_bench_server.message_size", "udp takes 2048 at most"},
		{"socket_bench_server: {server: true, receive: true, message_size: 64, server_address: 127.0.0.1, " +
			"server_port: 5002}\n", "socket_bench_server", "no interface is the server of 127.0.0.1:5002"},
		{"socket_bench_server: {server: true, send: true, message_size: 64, server_address: 127.0.0.1, server_port: " +
			"5001}\n" +
			"socket_bench_client: {server: false, receive: true, message_size: 64, server_address: 127.0.0.1, " +
			"server_port: 5001}\n", "socket_bench_server.send", "at which port the client receives"},
		{"rdma_bench_server: {server: true, receive: true, message_size: 64, server_address: 127.0.0.1, server_port: " +
			"5001}\n", "rdma_bench_server", "no interface is the server of 127.0.0.1:5001 over roce://"},
		{"bench_reorder_quantize: {input_type: int8, output_type: fp32}\n", "bench_reorder_quantize", "no reorder plan converts"},
		{"bench_latency: {tx_interface_name: loop, rx_interface_name: loop, ip_src_addr: 10.0.0.1}\n", "bench_latency", "ip_src_addr and ip_dst_addr"},
		{"bench_latency: {tx_interface_name: loop, rx_interface_name: loop, ip_src_addr: 10.0.0.1, ip_dst_addr: " +
			"10.0.0.2, payload_size: 4000}\n", "bench_latency.payload_size", "18 to 1984 have"},
		{"bench_latency: {tx_interface_name: loop, rx_interface_name: udp, ip_src_addr: 10.0.0.1, ip_dst_addr: " +
			"10.0.0.2}\n", "bench_latency", "both of engines of Ethernet frames"},
	} {
		text := head + x.sections
		c, said := config.Load("plan.yaml", []byte(text), config.Options{})
		if c == nil {
			t.Fatalf("%s: %v", x.sections, said.Err())
		}
		p := sections.MakePlan(c, sections.Options{})
		found := false
		for _, m := range p.Missing {
			if strings.Contains(m.String(), x.want) && m.Path == x.path {
				found = true
				if x.path != "" && !strings.HasPrefix(m.At, "plan.yaml:") {
					t.Errorf("%s: no place: %v", x.sections, m)
				}
			}
		}
		if !found {
			t.Errorf("%s\nmissing %v\nexpected %q at %s", x.sections, p.Missing, x.want, x.path)
		}
		if _, err := sections.Run(t.Context(), c, p, nil, sections.Options{}); err == nil ||
			!strings.Contains(err.Error(), x.want) {
			t.Errorf("%s runs: %v", x.sections, err)
		}
	}
}

// A host that is known says more: the MTU of an interface, and the network interface of a card that
// the file names by its address on the bus.
func TestFitCard(t *testing.T) {
	text, err := os.ReadFile("testdata/pair.yaml")
	if err != nil {
		t.Fatal(err)
	}
	h := machine()
	h.Interfaces = []config.HostInterface{{Name: "eth7", PCI: "0000:81:00.0", Up: true, MTU: 1500, Node: -1},
		{Name: "eth8", PCI: "0000:81:00.1", Up: true, MTU: 500, Node: -1}}
	var set []config.Setting
	for _, s := range filled("auto", "interfaces[tx_port].address=0000:81:00.1",
		"interfaces[rx_port].address=0000:81:00.0") {
		x, err := config.ParseSetting(s)
		if err != nil {
			t.Fatal(err)
		}
		set = append(set, x)
	}
	c, said := config.Load("pair.yaml", text, config.Options{Set: set})
	if c == nil {
		t.Fatal(said.Err())
	}
	if p := sections.MakePlan(c, sections.Options{Host: h}); len(p.Missing) != 1 ||
		!strings.Contains(p.Missing[0].String(), "MTU 500 of eth8") {
		// the engine verbs takes cards as they are
		t.Errorf("without Fit: %v", p.Missing)
	}
	changes := sections.Fit(c, h)
	if len(changes) != 2 || c.Interfaces[0].Address != "eth8" || c.Interfaces[1].Address != "eth7" ||
		c.Interfaces[1].Engine != "xdp" {
		t.Fatalf("%v, %+v", changes, c.Interfaces)
	}
	p := sections.MakePlan(c, sections.Options{Host: h})
	if len(p.Missing) != 1 || !strings.Contains(p.Missing[0].String(), "MTU 500 of eth8") ||
		!strings.Contains(p.Missing[0].Hint, "bench_tx[0].payload_size=450") {
		t.Errorf("%v", p.Missing)
	}
}
