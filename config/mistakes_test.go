package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
	"go.yaml.in/yaml/v3"
)

// One mistake makes one error, at its place: nothing false follows from what cannot be read.
func TestOneMistakeOneError(t *testing.T) {
	names, err := filepath.Glob("testdata/*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if cfg, _ := config.Load(name, text, config.Options{}); cfg == nil || strings.Contains(string(text), "*") ||
			filepath.Base(name) == "daqiri_style_forms.yaml" {
			// testdata/bad, files with aliases, whose keys have several places, and DAQIRI's other
			// forms, whose keys no list has
			continue
		}
		var doc yaml.Node
		if yaml.Unmarshal([]byte(strings.Replace(string(text), "%YAML", "#YAML", 1)), &doc) != nil {
			continue
		}
		lines := strings.SplitAfter(string(text), "\n")
		replace := func(n *yaml.Node, by string) string {
			l := lines[n.Line-1]
			end := n.Column - 1 + len(n.Value)
			if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 {
				end += 2
			}
			out := slices.Clone(lines)
			out[n.Line-1] = l[:n.Column-1] + by + l[min(end, len(l)):]
			return strings.Join(out, "")
		}
		check := func(n *yaml.Node, what, changed string) {
			tried++
			_, d := config.Load(filepath.Base(name), []byte(changed), config.Options{})
			e := d.Only(config.Error)
			if len(e) > 1 || len(e) == 1 && e[0].At.Line != n.Line {
				t.Errorf("%s:%d: %s: expected one error in this line\n%s", filepath.Base(name), n.Line, what,
					e.Text([]byte(changed)))
			}
		}
		seen := map[string]int{}
		var walk func(n *yaml.Node)
		walk = func(n *yaml.Node) {
			for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
				k, v := n.Content[i], n.Content[i+1]
				if seen[fmt.Sprint(k.Value, k.Column)] > 2 { // enough of one section
					continue
				}
				seen[fmt.Sprint(k.Value, k.Column)]++
				if len(k.Value) > 3 {
					typo := k.Value[:2] + k.Value[3:]
					check(k, k.Value+" is "+typo, replace(k, typo))
				}
				if v.Kind == yaml.ScalarNode && v.Style&(yaml.LiteralStyle|yaml.FoldedStyle) == 0 && v.Line == k.Line &&
					k.Value != "name" {
					// a name may be anything, and others refer to it
					for _, wrong := range []string{"{a: 1}", "[x, y]", `"@!"`, "-7", "99999999999999999999"} {
						check(v, k.Value+": "+wrong, replace(v, wrong))
					}
				}
			}
			for _, c := range n.Content {
				walk(c)
			}
		}
		walk(&doc)
	}
	if tried < 1000 {
		t.Errorf("only %d mistakes were tried", tried)
	}
}

// What the YAML library reports elsewhere, or nowhere, is reported where it is.
func TestPlacesOfSyntax(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"penstock:\n  version: 1\n  x-a: \"b\x00c\"\n", "3:10: error: the control character U+0000"},
		{"penstock:\n  x-a: é\x01\n", "2:9: error: the control character U+0001"},
		{"penstock:\n  version: 1\n  x-a: \"é\xff\"\n", "3:10: error: the byte 0xff is not UTF-8"},
		{"\xff\xfep\x00", "1:1: error: the file is UTF-16"},
		{"penstock:\n  interfaces: [\n    {name: a},\n  version: 1\n", "2:15: error: [ is not closed"},
		{"penstock:\n  interfaces: [\n    {name: a}\n  version: 1\n", "2:15: error: [ is not closed"},
		{"penstock:\n  interfaces: [{name: a\n  version: 1\n", "2:16: error: { is not closed"},
		{"penstock: {version: 1\n", "1:11: error: { is not closed"},
		{"penstock:\n  logging: {level: info]\n", "2:24: error: ] closes {, which is in line 2"},
		{"penstock:\n  logging: {level: info}}\n  version: 1\n", "2:25: error: } behind what was closed"},
		{"penstock:\n  interfaces: [\n    {name: a}\n    {name: b}\n  ]\n", "4:5: error: a comma is missing in front of this"},
		{"penstock:\n  x-a: 'it's'\n  version: 1\n", "2:12: error: s behind what was closed"},
		{"penstock:\n  x-a: \"b\n  version: 1\n", "2:8: error: the quote \" is not closed"},
		{"penstock:\n  x-a: |\n    [ {\n  x-b: it's [\n  x-c: [a, #]\n  version: 1\n", "5:8: error: [ is not closed"},
		{"penstock:\n  version:1\n  x-a: 2\n", "2:10: error: a space is missing behind the colon"},
		{"penstock:\n  interfaces:\n  -name: a\n    address: b\n", "3:3: error: a space is missing behind the dash"},
		{"penstock:\n  interfaces:\n  - name: a\n    address: b\n   - name: c\n", "5:4: error: this is not YAML"},
		{"penstock:\n  version: 1\n version: 1\n", "3:2: error: this is not YAML"},
		{"penstock:\n  version 1\n  x-a: 1\n", "2:3: error: this line has no colon"},
		{"penstock:\n  x-a: @b\n  version: 1\n", "2:3: error: this is not YAML"},
		{"# c\n%YAML 1.2\n---\npenstock:\n  x-a: [b\n", "5:8: error: [ is not closed"},
		{"penstock:\n  x-a: 1\n---\npenstock: {a: [}\n", "4:16: error: } closes [, which is in line 4"},
	} {
		cfg, d := config.Load("f", []byte(c.text), config.Options{})
		if cfg != nil || len(d) != 1 || !strings.HasPrefix(d[0].String(), "f:"+c.want) {
			t.Errorf("expected %s\n%s", c.want, d.Text([]byte(c.text)))
		}
	}
}

// A tab in an excerpt is one column that people see.
func TestExcerptShowsTabs(t *testing.T) {
	text := []byte("penstock:\n\tversion: 1\n")
	_, d := config.Load("f", text, config.Options{})
	if got := d.Text(text); !strings.Contains(got, "  2 | →version: 1\n    | ^\n") {
		t.Error(got)
	}
}

// What several flows have in common with one is one warning.
func TestOverlapsOfOneFlowAreOneLine(t *testing.T) {
	file := func(flows ...string) string {
		return "penstock:\n  memory_regions: [{name: m, kind: host, num_bufs: 4096, buf_size: 2048}]\n  " +
			"interfaces:\n  - name: p\n    address: eth0\n    rx:\n" +
			"      queues: [{id: 0, memory_regions: [m]}, {id: 1, memory_regions: [m]}]\n      flows:\n      - " +
			strings.Join(flows, "\n      - ") + "\n"
	}
	var ports, nets []string
	for i := range 20 {
		ports = append(ports, fmt.Sprintf("{name: f%d, match: {udp_dst: %d}, actions: [{type: queue, id: 1}]}", i,
			i+1000))
		nets = append(nets, fmt.Sprintf("{name: n%d, match: {ip_src: 10.0.%d.0/24}, actions: [{type: drop}]}", i, i))
	}
	all := "{name: all, actions: [{type: queue, id: 0}]}"
	for _, c := range []struct {
		flows []string
		want  string
	}{
		{slices.Concat([]string{all}, ports),
			`f:9:9: warning: flow "all" takes every packet of 20 flows behind it, which never get one: "f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", and 12 more; put it behind them`},
		{slices.Concat(ports, []string{all}), `f:29:9: warning: flow "all": priority: 0 is also that of flow "f0", and 19 more`},
		{slices.Concat(ports, nets),
			`f:29:9: warning: 20 flows treat packets of flow "f0" differently, at the same priority: "n0", "n1"`},
	} {
		text := file(c.flows...)
		_, d := config.Load("f", []byte(text), config.Options{})
		if len(d) != 1 || !strings.HasPrefix(d[0].String(), c.want) {
			t.Errorf("expected %s\n%s", c.want, d.Text(nil))
		}
	}
}

// A list of actions with two ends, or with its end in the middle, has one mistake, in the words of
// a file.
func TestEndsOfActions(t *testing.T) {
	for actions, want := range map[string]string{
		"[queue, drop]":                            `an element of actions is a text ("queue"); expected a map, an action such as {type: queue, id: 0} or {type: drop}`,
		"[{type: queue, id: 0}, {type: drop}]":     `flow "f": action 2: drop behind an action that ends the list: a packet goes to one place, so keep one of them`,
		"[{type: queue, id: 0}, {type: vlan_pop}]": `flow "f": action 1: queue ends the list, but more follows: move it to the end`,
		"[{type: vlan_pop}]":                       `flow "f": action 1: the list ends with vlan_pop, which does not say where the packet goes: add queue`,
	} {
		text := with("", "udp_dst: 5", "")
		text = strings.Replace(text, "action: {type: queue, id: 0}", "actions: "+actions, 1)
		_, d := load(t, text)
		e := d.Only(config.Error)
		if n := strings.Count(actions, "queue, drop"); len(e) != 1+n || !strings.HasSuffix(e[0].String(), want) {
			t.Errorf("%s: expected %s\n%s", actions, want, e.Text(nil))
		}
	}
}

// The limits that a message names are those that count.
func TestLimitsAreSaid(t *testing.T) {
	_, d := load(t, strings.Replace(with("", "", ""), "num_bufs: 8192", "num_bufs: 99999999999", 1))
	if len(d.Only(config.Error)) != 1 || !strings.Contains(d.Err().Error(),
		"num_bufs: 99999999999 is out of range; expected a whole number from 1 to 2147483647") {
		t.Error(d.Text(nil))
	}
}

// Slots are compared with packets of the MTU, of the file or of the machine, with what flows put in
// front of them.
func TestRoomOfSlots(t *testing.T) {
	file := func(mtu, engine, size, actions string) string {
		return fmt.Sprintf(`penstock:
  memory_regions:
  - {name: m, kind: host, num_bufs: 4096, buf_size: %s}
  interfaces:
  - name: p
    address: eth0
    engine: %s
    rx:
      queues: [{id: 0, memory_regions: [m]}]
      flows: [{name: f, match: {udp_dst: 5}, actions: [%s{type: queue, id: 0}]}]
    mtu: %s
`, size, engine, actions, mtu)
	}
	push := "{type: vlan_push, vlan_id: 5}, "
	tunnel := "{type: tunnel_encap, tunnel: {type: vxlan, vni: 5, outer_eth_src: 02:00:00:00:00:01, outer_eth_dst: " +
		"02:00:00:00:00:02, outer_ip_src: 10.0.0.1, outer_ip_dst: 10.0.0.2}}, "
	for _, c := range []struct{ text, want string }{
		{file("1500", "afpacket", "1514", ""), ""},
		{file("1500", "afpacket", "1513", ""),
			"packets of the MTU 1500 have 1514 bytes with their Ethernet header, and a slot of m has 1513: longer " +
				"packets are dropped; expected buf_size: 1514 or more"},
		{file("1500", "afpacket", "1514", push),
			"packets of the MTU 1500 have 1518 bytes with their Ethernet header and the 4 that flows add, and a slot " +
				"of m has 1514"},
		{file("1500", "afpacket", "1514", tunnel), "packets of the MTU 1500 have 1564 bytes with their Ethernet header and the 50 that flows add"},
		{file("1500", "afpacket", "1564", tunnel), ""},
		{file("0", "afpacket", "1024", ""),
			"packets of the MTU of eth0, 1500 have 1514 bytes with their Ethernet header, and a slot of m has 1024: " +
				"longer packets are dropped; expected buf_size: 1514 or more"},
		{file("0", "xdp", "1024", ""), ""}, // chains of slots
		{file("0", "xdp\n    xdp: {chains: false}", "1024", ""), "packets of the MTU of eth0, 1500"},
	} {
		_, d := config.Load("f", []byte(c.text), config.Options{Host: testHost()})
		w := d.Only(config.Warning)
		if d.Err() != nil || (c.want == "") != (len(w) == 0) || c.want != "" &&
			!strings.Contains(w[0].String(), c.want) {
			t.Errorf("%s: expected %q\n%s", c.text, c.want, d.Text(nil))
		}
	}
	bench := strings.Replace(file("0", "afpacket", "2048", ""), "    mtu: 0\n", `    tx:
      queues: [{id: 0, memory_regions: [m]}]
      flows: [{name: t, actions: [{type: vlan_push, vlan_id: 5}]}]
bench_tx: {interface_name: p, payload_size: 1984, eth_dst_addr: "02:00:00:00:00:02", ip_src_addr: 10.0.0.1, ip_dst_addr: 10.0.0.2, udp_src_port: 1, udp_dst_port: 2}
`, 1)
	if _, d := load(t, bench); len(d) != 1 || d[0].Severity != config.Warning || !strings.Contains(d[0].String(),
		"packets of 2052 bytes with the 4 that flows of tx add do not fit into the slots of m, which have 2048; "+
			"expected buf_size of 2052 or more") {
		t.Error(d.Text(nil))
	}
}

// What is in the way of huge pages names the number that leaves those in use alone.
func TestHugePagesBesideThoseInUse(t *testing.T) {
	text := "penstock:\n  memory_regions: [{name: m, kind: huge, numa: 0, num_bufs: 8192, buf_size: 4KiB}]\n"
	if _, d := config.Load("f", []byte(text), config.Options{Host: testHost()}); len(d) != 1 ||
		!strings.HasPrefix(d[0].Hint, "echo 70 > ") {
		// 54 are in use
		t.Error(d.Text(nil))
	}
}

// A card that a driver of DPDK has makes no network interface, and a virtual device is none; the
// name of an interface is compared with those of the machine.
func TestAddressesWithoutInterface(t *testing.T) {
	for address, want := range map[string]string{
		"0000:3b:00.0": "", "dpdk://0000:3b:00.0,dv_flow_en=1": "", "dpdk://net_null0": "",
		"dpdk://net_af_xdp0,iface=nothing": "", "eth0": "", "dpdk://eth0?descriptors=64": "",
		"eth7": `no network interface "eth7"`, "dpdk://eth7?descriptors=64": `no network interface "eth7"`,
	} {
		text := "penstock:\n  memory_regions: [{name: m, num_bufs: 256, buf_size: 2KiB}]\n  interfaces: [{name: p, " +
			"engine: dpdk, address: \"" + address + "\", rx: {queues: [{memory_regions: [m]}]}}]\n"
		_, d := config.Load("f", []byte(text), config.Options{Host: testHost()})
		said := ""
		for _, x := range d {
			if x.Code == config.CodeHost {
				said += x.String()
			}
		}
		if (want == "") != (said == "") || !strings.Contains(said, want) {
			t.Errorf("%s: %q", address, d.Text(nil))
		}
	}
}
