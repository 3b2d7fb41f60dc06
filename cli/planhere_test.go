package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine/xdp"
	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// hereFile is a configuration with an application and a benchmark on the interface "p", which all
// commands look at.
func hereFile(region, iface string) string {
	return "penstock:\n  memory_regions:\n    - {name: m, kind: host, num_bufs: 8192, buf_size: 2KiB}\n" + region +
		"  interfaces:\n" + iface +
		"  applications: [{kind: count, interface: p}]\nbench_rx: {interface_name: p}\n"
}

// needsAt are the texts of everything in a JSON document that is said to be missing at a line:
// diagnostics of severity needs, and what bench stream says.
func needsAt(v any, line int) (out []string) {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			out = append(out, needsAt(x, line)...)
		}
	case map[string]any:
		here := false
		switch at := v["at"].(type) {
		case string:
			here = strings.Contains(at, fmt.Sprintf(".yaml:%d:", line))
		case map[string]any:
			here = (v["severity"] == "needs" || v["severity"] == "error") && at["line"] == float64(line)
		}
		if here {
			out = append(out, fmt.Sprintln(v["message"], v["text"], v["expected"], v["hint"]))
		}
		for _, x := range v {
			out = append(out, needsAt(x, line)...)
		}
	}
	return out
}

// What Open refuses, every command says beforehand: where in the file, what is expected and how to
// go on.
func TestPlanHere(t *testing.T) {
	var queues strings.Builder
	for i := range 33 {
		fmt.Fprintf(&queues, "          - {id: %d, depth: 64, memory_regions: [m]}\n", i)
	}
	const one = "      rx: {queues: [{memory_regions: [m]}]}\n"
	xdpOn := func(rest string) string { return "    - name: p\n      engine: xdp\n      address: lo\n" + rest }
	for _, c := range []struct {
		name, region, iface string
		at                  int // line
		want                []string
	}{
		{"an interface that is not there", "", "    - name: p\n      engine: afpacket\n      address: absent0\n" + one,
			7,
			[]string{`there is no interface "absent0"`, `see "ip link"`, "there is ", "lo"}},
		{"huge pages that are not there", "    - {name: h, kind: huge, num_bufs: 1048576, buf_size: 2MiB}\n",
			xdpOn("      rx: {queues: [{memory_regions: [h]}]}\n"), 4,
			[]string{"the regions of kind huge ask for 1048576 of the pages of 2MiB", "1048576 free", "echo "}},
		{"a NUMA node that is not there", "    - {name: h, kind: host, numa: 63, num_bufs: 64, buf_size: 2KiB}\n",
			xdpOn("      rx: {queues: [{depth: 64, batch_size: 64, memory_regions: [h]}]}\n"), 4,
			[]string{"this machine has no NUMA node 63", "one of 0", "-1 leaves the choice"}},
		{"a depth beyond the ring", "",
			xdpOn("      rx:\n        queues:\n          - depth: 4096\n            memory_regions: [m]\n"), 10,
			[]string{"depth 4096 is out of range", "1 to 2048 packets", "ring makes the ring larger"}},
		{"frames of afpacket", "",
			"    - name: p\n      engine: afpacket\n      address: lo\n      rx:\n        queues:\n          - " +
				"depth: 8000\n            memory_regions: [m]\n", 10,
			[]string{"depth 8000 is out of range", "1 to 4096 packets", "frames makes the ring larger"}},
		{"an action that the engine has not", "",
			xdpOn("      rx:\n        queues: [{memory_regions: [m]}]\n        flows:\n          - name: tagged\n    " +
				"        match: {udp_dst: 7}\n            actions:\n" +
				"              - type: vlan_pop\n              - {type: queue, id: 0}\n"), 14,
			[]string{`flow "tagged": action 1: XDP program`, "cannot do vlan_pop: it can do queue, drop, kernel"}},
		{"one interface twice", "", xdpOn(one) + "    - name: q\n      engine: xdp\n      address: lo\n" + one, 11,
			[]string{`interface "q": interface lo belongs to the interface "p" already`, "another address",
				"put the queues of both below one interface"}},
		{"one port twice", "", "    - name: p\n      engine: sim\n      address: sim://here\n" + one +
			"    - name: q\n      engine: sim\n      address: sim://here\n" + one, 11,
			[]string{`interface "q": port here belongs to the interface "p" already`, "another address"}},
		{"one socket twice", "", "    - name: p\n      engine: socket\n      address: udp://127.0.0.1:5000\n" + one +
			"    - name: q\n      engine: socket\n      address: udp://127.0.0.1:5000\n" + one, 11,
			[]string{`interface "q": udp://127.0.0.1:5000 belongs to the interface "p" already`, "another address"}},
		{"memory that the engine cannot use", "    - {name: odd, kind: host, num_bufs: 2048, buf_size: 1500B}\n",
			xdpOn("      xdp: {spare: 0}\n      rx:\n        queues:\n          - depth: 64\n            " +
				"memory_regions: [odd]\n"), 13,
			[]string{`pool "odd": its slots are 1536 bytes apart`, "2048 or 4096 bytes of memory", "Options.Spare"}},
		{"more queues than the engine has", "", xdpOn("      rx:\n        queues:\n" + queues.String()), 42,
			[]string{`the engine xdp: 33 receive queues, and the port has 32`, "at most 32", "remove the others"}},
		{"a queue that the engine cannot have", "",
			xdpOn("      rx: {queues: [{memory_regions: [m]}, {id: 32, memory_regions: [m]}]}\n"), 8,
			[]string{"the engine xdp: the port has no receive queue 32", "0 to 31", "its place in the list"}},
		{"header/data split where there is none", "",
			"    - name: p\n      engine: socket\n      address: udp://127.0.0.1:5000\n      rx:\n        queues: [{memory_regions: [m, m]}]\n", 9,
			[]string{"the engine socket: two pools: the port does not split headers from payload",
				"one pool takes whole packets"}},
		{"times in software", "",
			xdpOn("      rx:\n        timestamps: true\n        queues: [{memory_regions: [m]}]\n"), 9,
			[]string{"the engine xdp: the port takes no receive times in software",
				"hardware_timestamps: true asks the network card"}},
		{"times of a byte stream", "",
			"    - name: p\n      engine: socket\n      address: tcp://127.0.0.1:5000?listen=1\n      rx:\n        timestamps: true\n        queues: [{memory_regions: [m]}]\n", 9,
			[]string{"a byte stream has no receive times", "ports of datagrams have them"}},
		{"an address of another machine", "",
			"    - name: p\n      engine: socket\n      address: udp://192.0.2.1:5000\n" + one, 7,
			[]string{"expected an address of this machine", `see "ip addr"`}},
		{"a headroom that takes the whole slot", "",
			xdpOn(one + "      tx: {queues: [{memory_regions: [m], headroom: 2048}]}\n"), 9,
			[]string{"headroom of 2048 bytes in slots of 2048", "less than a slot", "longer slots of m (buf_size)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := xdp.New().Available(); err != nil && strings.Contains(c.iface, "engine: xdp") {
				testenv.Missing(t, "AF_XDP", err)
			}
			name := filepath.Join(t.TempDir(), "here.yaml")
			if err := os.WriteFile(name, []byte(hereFile(c.region, c.iface)), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{{"run", name, "--dry-run", "--json"}, {"config", "check", "--here",
				"--json", name}, {"doctor", name, "--json"},
				{"bench", "stream", name, "--dry-run", "--strict", "--json"}} {
				var out, errOut bytes.Buffer
				if status := Main(args, strings.NewReader(""), &out, &errOut); status == 0 {
					t.Errorf("%v: exit status 0: %s%s", args, &out, &errOut)
				}
				var found []string
				for d := json.NewDecoder(&out); ; {
					var v any
					if err := d.Decode(&v); err != nil {
						break
					}
					found = append(found, needsAt(v, c.at)...)
				}
				if text := errOut.String(); strings.Contains(text, fmt.Sprintf(".yaml:%d:", c.at)) {
					// of a file that is not valid the errors are text
					found = append(found, text)
				}
				for _, want := range c.want {
					if !strings.Contains(strings.Join(found, "\n"), want) {
						t.Errorf("%s: line %d says %q, expected %q %s", args[0], c.at, found, want, &errOut)
					}
				}
			}
		})
	}
}
