package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// skeleton is a valid file in DAQIRI's spelling, section by section; @name stands for another one.
func skeleton() map[string]map[string]string {
	return map[string]map[string]string{
		"file": {"daqiri": "{cfg: @root}", "bench_rx": "[@bench_rx]", "bench_tx": "[@bench_tx]"},
		"root": {"version": "1", "stream_type": "raw", "master_core": "0",
			"memory_regions": "[@region, @other, @big]", "interfaces": "[@interface]"},
		"region":    {"name": "m", "kind": "host", "affinity": "0", "num_bufs": "8192", "buf_size": "2048"},
		"other":     {"name": "m2", "kind": "huge", "affinity": "0", "num_bufs": "8192", "buf_size": "64"},
		"big":       {"name": "big", "kind": "host", "affinity": "0", "num_bufs": "16", "buf_size": "1048576"},
		"interface": {"name": "p", "address": "eth0", "rx": "@rx", "tx": "@tx"},
		"rx":        {"queues": "[@rx_queue]", "flows": "[@flow]", "flex_items": "[@flex_item]"},
		"rx_queue":  {"name": "r", "id": "0", "cpu_core": "3", "batch_size": "64", "memory_regions": "[m]"},
		"flex_item": {"name": "x", "id": "1", "udp_dst_port": "4096", "offset": "4"},
		"flow":      {"name": "f", "id": "7", "actions": "[@action]", "match": "@match"},
		"match":     {"udp_dst": "4096"},
		"action":    {"type": "queue", "id": "0"},
		"tx":        {"queues": "[@tx_queue]"},
		"tx_queue":  {"name": "t", "id": "0", "cpu_core": "4", "batch_size": "64", "memory_regions": "[m]"},
		"bench_rx":  {"interface_name": "p"},
		"bench_tx": {"interface_name": "p", "payload_size": "1000", "eth_dst_addr": "02:00:00:00:00:01",
			"ip_src_addr": "10.0.0.1", "ip_dst_addr": "10.0.0.2",
			"udp_src_port": "1", "udp_dst_port": "2"},

		"reorder": {"name": "o", "reorder_type": "cpu", "memory_region": "big",
			"payload_byte_offset": "64", "flow_ids": "[7]", "method": "@reorder_method"},
		"reorder_method":        {"seq_packets_per_batch": "@seq_packets_per_batch"},
		"seq_packets_per_batch": {"sequence_number": "@bit_field", "packets_per_batch": "64"},
		"seq_batch_number":      {"sequence_number": "@bit_field", "batch_number": "{bit_offset: 64, bit_width: 8}"},
		"bit_field":             {"bit_offset": "512", "bit_width": "16"},
		"data_types":            {"input_type": "int16", "output_type": "fp32"},
		"socket": {"mode": "client", "local_addr": `"udp://10.0.0.1:5000"`,
			"remote_addr": `"udp://10.0.0.2:5000"`},
		"efa": {"mode": "client"},
		"tunnel": {"type": "vxlan", "outer_eth_src": "02:00:00:00:00:01", "outer_eth_dst": "02:00:00:00:00:02",
			"outer_ipv4_src": "10.0.0.1", "outer_ipv4_dst": "10.0.0.2",
			"vni": "5"},
		"bench_socket": {"server": "true", "receive": "true", "message_size": "1000",
			"server_address": "10.0.0.1", "server_port": "4096"},
		"bench_reorder_quantize": {"input_type": "int16", "output_type": "fp32"},
		"bench_latency":          {},
	}
}

var include = regexp.MustCompile(`@\w+`)

func render(doc map[string]map[string]string, name string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(doc[name])) {
		v := include.ReplaceAllStringFunc(doc[name][k], func(s string) string { return render(doc, s[1:]) })
		parts = append(parts, k+": "+v)
	}
	if name == "file" {
		return strings.Join(parts, "\n") + "\n"
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// daqiriKeys is every key of DAQIRI's schema, those of its newest versions and branches too, with
// values that it may have and may not. Where a key needs others around it, setup puts them there.
var daqiriKeys = []struct {
	section, key string
	good, bad    []string
	setup        func(d map[string]map[string]string)
}{
	{"root", "version", []string{"1"}, []string{"2", "one", "0"}, nil},
	{"root", "master_core", []string{"3", `"3"`, "-1"}, []string{"-2", "x", "1.5", "03"}, nil},
	{"root", "stream_type", []string{"raw", `"raw"`}, []string{"rwa", "[raw]", "1", "socket"}, nil},
	{"root", "stream_type", []string{"pcie"}, nil, func(d map[string]map[string]string) { delete(d["rx"], "flows") }},
	{"root", "engine", []string{"default", "dpdk", "ibverbs", "gpunetio", "xdp"}, []string{"rdma", "socket", "dpkd"}, nil},
	{"root", "log_level", []string{"trace", "debug", "info", "warn", "error", "critical", "off"}, []string{"verbose", "WARN"}, nil},
	{"root", "loopback", []string{`""`, "sw", "hw"}, []string{"software", "true"}, nil},
	{"root", "debug", []string{"true", "false", "yes"}, []string{"2", "maybe"}, nil},
	{"root", "tx_meta_buffers", []string{"256"}, []string{"-1", "many"}, nil},
	{"root", "rx_meta_buffers", []string{"256"}, []string{"-1", "many"}, nil},
	{"root", "manager", nil, []string{"dpdk"}, nil},
	{"root", "protocol", nil, []string{"udp"}, nil},
	{"root", "rdma_config", nil, []string{"{}"}, nil},
	{"region", "name", []string{"m", `"m"`}, []string{"m2", "[m]"}, nil},
	{"region", "kind", []string{"host", "huge", "device", "host_pinned"}, []string{"hugepages", "Host"}, nil},
	{"region", "affinity", []string{"0", "1"}, []string{"-1", "65536", "gpu0"}, nil},
	{"region", "access", []string{"[local]", "[local, rdma_write, rdma_read]"}, []string{"[locl]", "local", "[local, local]", "[rdma]"}, nil},
	{"region", "num_bufs", []string{"4096"}, []string{"0", "-1", "x", "1.5"}, nil},
	{"region", "buf_size", []string{"4096", "4KiB"}, []string{"0", "-1", "4M", "1.5"}, nil},
	{"region", "owned", []string{"true", "false"}, []string{"mine"}, nil},
	{"interface", "name", []string{"p"}, []string{"q"}, nil},
	{"interface", "address", []string{"eth0", "0000:01:00.0", "mlx5_0", "<0000:00:00.0>"}, []string{"{a: 1}", "[]"}, nil},
	{"interface", "socket_config", []string{"@socket"}, []string{"tcp", "[1]"}, sockets},
	{"interface", "roce_config", []string{"{transport_mode: RC}"}, []string{"RC"}, nil},
	{"interface", "efa_config", []string{"@efa"}, []string{"{mode: peer}"}, efa},
	{"socket", "mode", []string{"client", "server"}, []string{"both"}, sockets},
	{"socket", "local_addr", []string{`"udp://10.0.0.1:5000"`, `"udp://:5000"`},
		[]string{`"10.0.0.1:5000"`, `"udp://host:5000"`, `"udp://10.0.0.1:70000"`, `"tcp://10.0.0.1:5000"`}, sockets},
	{"socket", "remote_addr", []string{`"udp://10.0.0.2:1"`}, []string{`"udp://10.0.0.2"`, `"sctp://10.0.0.2:1"`, `"udp://10.0.0.2:1?engine=dpdk"`}, sockets},
	{"socket", "local_ip", []string{"10.0.0.1"}, []string{"10.0.0", "10.0.0.1:5000"}, old("local_addr")},
	{"socket", "local_port", []string{"5000"}, []string{"0", "65536"}, old("local_addr")},
	{"socket", "remote_ip", []string{"10.0.0.1"}, []string{"any"}, old("remote_addr", "remote_port: 5000")},
	{"socket", "remote_port", []string{"5000"}, []string{"0", "65536"}, old("remote_addr", "remote_ip: 10.0.0.2")},
	{"socket", "max_payload_size", []string{"1000", "1048576"}, []string{"0", "1073741825"}, sockets},
	{"socket", "max_burst_interval_ms", []string{"0", "5"}, []string{"-1", "x"}, sockets},
	{"socket", "min_ipg_ns", []string{"0", "100"}, []string{"-1", "4294967296"}, sockets},
	{"socket", "retry_connect_s", []string{"0", "5", "100ms"}, []string{"-1", "soon"}, sockets},
	{"roce", "transport_mode", []string{"RC", "UC", "UD"}, []string{"rc", "XRC"}, func(d map[string]map[string]string) {
		sockets(d)
		d["interface"]["roce_config"] = "@roce"
		d["roce"] = map[string]string{}
		d["socket"] = map[string]string{"mode": "client", "local_addr": `"roce://10.0.0.1"`}
		delete(d["rx"], "flows")
	}},
	{"efa", "mode", []string{"client", "server"}, []string{"both"}, efa},
	{"efa", "local_port", []string{"1"}, []string{"65536"}, efa},
	{"efa", "remote_port", []string{"1"}, []string{"65536"}, efa},
	{"rx", "flow_isolation", []string{"true", "off"}, []string{"2", "isolated"}, nil},
	{"rx", "hardware_timestamps", []string{"true", "false"}, []string{"ns"}, nil},
	{"rx", "dynamic_flow_capacity", []string{"0", "128"}, []string{"-1", "x"}, nil},
	{"rx_queue", "name", []string{"r"}, []string{"{}"}, nil},
	{"rx_queue", "id", []string{"0"}, []string{"-1", "65536", "1"}, nil}, // 1: the flow goes to 0
	{"rx_queue", "poll_mode", []string{"indirect"}, []string{"direct", "poll"}, nil},
	{"rx_queue", "cpu_core", []string{"-1", "9", `"9"`}, []string{"-2", "all", "0x"}, nil},
	{"rx_queue", "batch_size", []string{"1", "8192"}, []string{"0", "8193", "x"}, nil},
	{"rx_queue", "memory_regions", []string{"[m]", "[m2, m]"}, []string{"m", "[]", "[m, m2, big]", "[nowhere]"}, nil},
	{"rx_queue", "timeout_us", []string{"0", "2000", "2ms"}, []string{"-1", "2 weeks"}, nil},
	{"flex_item", "name", []string{"x"}, []string{"[x]"}, nil},
	{"flex_item", "id", []string{"1"}, []string{"-1", "x"}, nil},
	{"flex_item", "udp_dst_port", []string{"0", "4096"}, []string{"65536"}, nil},
	{"flex_item", "offset", []string{"0", "28"}, []string{"-4", "253"}, nil},
	{"flow", "name", []string{"f"}, []string{"{}"}, nil},
	{"flow", "id", []string{"0", "16777215"}, []string{"16777216", "-1"}, nil},
	{"flow", "action", []string{"@action"}, []string{"queue", "{type: queue}", "{type: queue, id: 5}"},
		func(d map[string]map[string]string) {
			delete(d["flow"], "actions")
		}},
	{"flow", "actions", []string{"[{type: vlan_pop}, @action]"}, []string{"[]", "[queue]", "[@action, {type: vlan_pop}]", "[{type: vlan_pop}]"}, nil},
	{"flow", "match", []string{"{}", "{udp_src: 1}"}, []string{"5", "[udp_src]"}, nil},
	{"match", "udp_src", []string{"0", "5", "1000-1010", `"1000-1010"`}, []string{"65536", "1010-1000", "1000-", "any", "-5"}, nil},
	{"match", "udp_dst", []string{"0", "5", "1000-1010"}, []string{"65536", "1000-1010-1020"}, nil},
	{"match", "ipv4_len", []string{"0", "1050", "64-1500"}, []string{"65536", "long"}, nil},
	{"match", "ipv4_src", []string{"10.0.0.1", "10.0.0.0/8", "fd00::/8"}, []string{"10.0.0", "10.0.0.1/8", "300.0.0.1"}, nil},
	{"match", "ipv4_dst", []string{"10.0.0.1"}, []string{"10.0.0.1/33"}, nil},
	{"match", "flex_item_id", []string{"1"}, []string{"2", "x"}, func(d map[string]map[string]string) { d["match"]["val"] = "5" }},
	{"match", "val", []string{"5", "0x10"}, []string{"-1", "4294967296"}, func(d map[string]map[string]string) { d["match"]["flex_item_id"] = "1" }},
	{"match", "mask", []string{"255", "0xffffffff"}, []string{"-1", "0x1ffffffff"},
		func(d map[string]map[string]string) {
			d["match"]["flex_item_id"], d["match"]["val"] = "1", "0"
		}},
	{"match", "ethernet", []string{"{src: 02:00:00:00:00:01, dst: 02:00:00:00:00:02}"},
		[]string{"02:00:00:00:00:01", "{source: 02:00:00:00:00:01}", "{src: 02:00:00:00:00}"}, nil},
	{"match", "ecpri", []string{"{msg_type: 0, pc_id: 5}", "{msg_type: 2, rtc_id: 5}", "{msg_type: 2, pc_id: 5}",
		"{msg_type: 0, rtc_id: 5}"}, []string{"5", "{pc_id: 5}", "{msg_type: 256}", "{msg_type: 0, pc_id: 65536}"},
		func(d map[string]map[string]string) {
			delete(d["match"], "udp_dst")
		}},
	{"action", "type", []string{"queue"}, []string{"steer"}, nil},
	{"action", "id", []string{"0"}, []string{"9", "65536", "x"}, nil},
	{"action", "ids", []string{"[0, 0]", "[0]"}, []string{"[]", "0", "[0, 5]", "[5]"}, func(d map[string]map[string]string) { delete(d["action"], "id") }},
	{"action", "vlan_id", []string{"0", "4095"}, []string{"4096", "-1"}, push},
	{"action", "pcp", []string{"0", "7"}, []string{"8"}, push},
	{"action", "dei", []string{"0", "1"}, []string{"2"}, push},
	{"action", "ethertype", []string{"0x8100", "0x88a8", "33024"}, []string{"0x0800", "0x10000"}, push},
	{"action", "tunnel", []string{"@tunnel"}, []string{"vxlan", "{type: vlan}"}, encap},
	{"tunnel", "type", []string{"vxlan"}, []string{"gre", "ipip"}, encap}, // gre has no vni
	{"tunnel", "outer_eth_src", []string{"02:00:00:00:00:01", "<00:00:00:00:00:00>"}, []string{"02:00", "01:00:5e:00:00:01"}, encap},
	{"tunnel", "outer_eth_dst", []string{"02:00:00:00:00:01"}, []string{"x"}, encap},
	// of another version than dst
	{"tunnel", "outer_ipv4_src", []string{"10.0.0.1"}, []string{"10.0.0.1/8", "fd00::1"}, encap},
	{"tunnel", "outer_ipv4_dst", []string{"10.0.0.1"}, []string{"host"}, encap},
	{"tunnel", "outer_ipv4_ttl", []string{"1", "255"}, []string{"0", "256"}, encap},
	{"tunnel", "outer_ipv4_tos", []string{"0", "255"}, []string{"256"}, encap},
	{"tunnel", "outer_udp_src", []string{"0", "65535"}, []string{"65536"}, encap},
	{"tunnel", "outer_udp_dst", []string{"4789"}, []string{"0", "65536"}, encap},
	{"tunnel", "vni", []string{"0", "16777215"}, []string{"16777216"}, encap},
	{"tunnel", "gre_protocol", []string{"0x0800", "0x6558"}, []string{"0x10000", "ip"}, gre},
	{"tunnel", "tni", []string{"9"}, []string{"16777216"}, nvgre},
	{"tunnel", "flow_id", []string{"0", "255"}, []string{"256"}, nvgre},
	{"reorder", "name", []string{"o"}, []string{"[]"}, reorders},
	{"reorder", "reorder_engine", []string{"sw"}, []string{"hw", "nic"}, reorders}, // hw needs cyclic_sequence
	{"reorder", "cyclic_sequence", []string{"true"}, []string{"2"}, reorders},
	{"reorder", "missing_action", []string{"passthrough", "drop"}, []string{"wait"}, reorders},
	{"reorder", "packet_size", []string{"0", "8000"}, []string{"-1", "x"}, reorders},
	{"reorder", "reorder_type", []string{"gpu", "cpu"}, []string{"nic"}, reorders},
	{"reorder", "memory_region", []string{"big"}, []string{"bug", "[big]"}, reorders},
	// nothing is left of 2048
	{"reorder", "payload_byte_offset", []string{"0", "64"}, []string{"-1", "2048"}, reorders},
	{"reorder", "channels", []string{"0", "4"}, []string{"-1", "x"}, reorders},
	{"reorder", "payload_size", []string{"0", "1984"}, []string{"-1", "1985", "x"}, reorders}, // of a slot of 2048
	// batches of 64, and 65536 numbers
	{"reorder", "window", []string{"0", "513"}, []string{"-1", "514", "1025", "x"}, reorders},
	{"reorder", "flow_ids", []string{"[7]"}, []string{"[]", "[8]", "7", "[7, 7]"}, reorders},
	{"reorder", "data_types", []string{"@data_types", "{input: int4, output: bf16, input_endianness: network}"},
		[]string{"fp32", "{input_type: int16}"}, reorders},
	{"data_types", "input_type", []string{"int4", "int8", "int16", "int32", "uint14", "int12"}, []string{"int24"}, converts},
	{"data_types", "output_type", []string{"f16", "fp16", "float16", "half", "F16", "torch.bfloat16", "fp64", "int32",
		"i8", "<u2",
		"complex64"}, []string{"int4", "f17", "f4"}, converts},
	{"data_types", "endianness", []string{"host", "network"}, []string{"big"}, converts},
	{"data_types", "scale", []string{"0.5", "-3e5"}, []string{"0", "x", ".inf"}, converts},
	{"data_types", "offset", []string{"0", "-2048.5"}, []string{"x"}, converts},
	{"reorder", "method", []string{"@reorder_method", "{seq_batch_number: @seq_batch_number}"}, []string{"{}",
		"{seq_batch_number: @seq_batch_number, seq_packets_per_batch: @seq_packets_per_batch}", "seq"}, reorders},
	{"seq_packets_per_batch", "packets_per_batch", []string{"1", "65536"}, []string{"0", "100", "131072"}, reorders},
	// of 64 packets
	{"seq_packets_per_batch", "sequence_number", []string{"@bit_field", "{bit_offset: 512, bit_width: 6}"},
		[]string{"5", "{bit_offset: 512, bit_width: 5}"}, reorders},
	{"seq_batch_number", "batch_number", []string{"{bit_offset: 0, bit_width: 4}"},
		[]string{"{bit_offset: 0, bit_width: 16}", "{bit_offset: 0, bit_width: 1}", "{bit_width: 4}"}, batches},
	{"seq_batch_number", "sequence_number", []string{"@bit_field"}, []string{"{bit_offset: 0, bit_width: 8}"}, batches},
	{"reorder_method", "seq_packets_per_batch", []string{"@seq_packets_per_batch"}, []string{"5"}, reorders},
	{"reorder_method", "seq_batch_number", []string{"@seq_batch_number"}, []string{"5"}, batches},
	{"bit_field", "bit_offset", []string{"0", "512"}, []string{"-1"}, reorders},
	{"bit_field", "bit_width", []string{"6", "32"}, []string{"0", "33"}, reorders},
	{"rx", "queues", []string{"[@rx_queue]"}, []string{"@rx_queue", "5"}, nil},
	{"rx", "flows", []string{"[@flow]"}, []string{"@flow"}, nil},
	{"rx", "flex_items", []string{"[@flex_item]", "[]"}, []string{"@flex_item"}, nil},
	{"rx", "reorder_configs", []string{"[@reorder]"}, []string{"@reorder"}, nil},
	{"tx", "accurate_send", []string{"true"}, []string{"500"}, nil},
	{"tx", "queues", []string{"[@tx_queue]"}, []string{"@tx_queue"}, nil},
	{"tx", "flows", []string{"[{name: v, id: 3, actions: [{type: vlan_push, vlan_id: 4}]}]"},
		[]string{"[{name: v, id: 3, actions: [{type: queue, id: 0}]}]", "{}"}, nil},
	{"tx_queue", "name", []string{"t"}, []string{"{}"}, nil},
	{"tx_queue", "id", []string{"0"}, []string{"-1", "1"}, nil},                      // bench_tx uses 0
	{"tx_queue", "poll_mode", []string{"indirect", "direct"}, []string{"poll"}, nil}, // nothing follows from it here
	{"tx_queue", "cpu_core", []string{"4", "-1"}, []string{"-2"}, nil},
	{"tx_queue", "batch_size", []string{"1"}, []string{"0", "9999999"}, nil},
	{"tx_queue", "memory_regions", []string{"[m]", "[m2, m]"}, []string{"m", "[m3]"}, nil},
	{"tx_queue", "offloads", []string{"[tx_eth_src]", "[]"}, []string{"tx_eth_src", "[checksum]"}, nil},
	{"tx_queue", "pacing_mbps", []string{"0", "10000", "10Gbps"}, []string{"-1", "10G", "fast"}, nil},
	{"tx_queue", "timeout_us", []string{"0", "1000"}, []string{"-1", "x"}, nil},
	{"tx_queue", "gpunetio", []string{"{tx_kernel: persistent}", "{tx_kernel: per_burst}"}, []string{"{tx_kernel: resident}", "true"}, nil},
	{"root", "memory_regions", []string{"[@region, @other, @big]"}, []string{"@region", "5"}, nil},
	{"root", "interfaces", []string{"[@interface]"}, []string{"@interface", "[p]"}, nil},
	{"interface", "rx", []string{"@rx"}, []string{"[@rx]"}, nil},
	{"interface", "tx", []string{"@tx"}, []string{"on"}, nil},
	{"gpunetio_tx", "tx_kernel", []string{"persistent", "per_burst"}, []string{"resident"},
		func(d map[string]map[string]string) {
			d["tx_queue"]["gpunetio"] = "@gpunetio_tx"
			d["gpunetio_tx"] = map[string]string{}
		}},
	{"ecpri", "msg_type", []string{"0", "255"}, []string{"256"}, ecpri},
	{"ecpri", "pc_id", []string{"0", "65535"}, []string{"65536"}, func(d map[string]map[string]string) { ecpri(d); d["ecpri"]["msg_type"] = "1" }},
	{"ecpri", "rtc_id", []string{"0", "65535"}, []string{"65536"}, func(d map[string]map[string]string) { ecpri(d); d["ecpri"]["msg_type"] = "2" }},
}

func sockets(d map[string]map[string]string) {
	d["root"]["stream_type"] = "socket"
	d["interface"]["socket_config"] = "@socket"
	d["interface"]["address"] = "10.0.0.1"
	delete(d["rx"], "flows")
}

func old(instead string, more ...string) func(d map[string]map[string]string) {
	return func(d map[string]map[string]string) {
		sockets(d)
		delete(d["socket"], instead)
		for _, m := range more {
			k, v, _ := strings.Cut(m, ": ")
			d["socket"][k] = v
		}
	}
}

func efa(d map[string]map[string]string) {
	d["interface"]["efa_config"] = "@efa"
	delete(d["rx"], "flows")
}

func push(d map[string]map[string]string) {
	d["flow"]["actions"] = "[@action, {type: queue, id: 0}]"
	d["action"] = map[string]string{"type": "vlan_push", "vlan_id": "5"}
}

func encap(d map[string]map[string]string) {
	d["flow"]["actions"] = "[@action, {type: queue, id: 0}]"
	d["action"] = map[string]string{"type": "tunnel_encap", "tunnel": "@tunnel"}
}

func gre(d map[string]map[string]string) {
	encap(d)
	d["tunnel"]["type"] = "gre"
	delete(d["tunnel"], "vni")
}

func nvgre(d map[string]map[string]string) {
	gre(d)
	d["tunnel"]["type"], d["tunnel"]["tni"] = "nvgre", "1"
}

func reorders(d map[string]map[string]string) { d["rx"]["reorder_configs"] = "[@reorder]" }

func converts(d map[string]map[string]string) {
	reorders(d)
	d["reorder"]["data_types"] = "@data_types"
}

func batches(d map[string]map[string]string) {
	reorders(d)
	d["reorder_method"] = map[string]string{"seq_batch_number": "@seq_batch_number"}
}

func ecpri(d map[string]map[string]string) {
	d["match"] = map[string]string{"ecpri": "@ecpri"}
	d["ecpri"] = map[string]string{}
}

func TestSkeletonIsRight(t *testing.T) {
	text := render(skeleton(), "file")
	if _, d := Load("skeleton", []byte(text), Options{}); d.Count(Error)+d.Count(Warning) > 2 {
		// two regions are for others
		t.Fatal(d.Text([]byte(text)))
	}
}

func TestEveryKeyOfDAQIRI(t *testing.T) {
	for _, c := range daqiriKeys {
		for _, v := range append(slices.Clone(c.good), c.bad...) {
			doc := skeleton()
			if c.setup != nil {
				c.setup(doc)
			}
			doc[c.section][c.key] = v
			text := []byte(render(doc, "file"))
			_, d := Load("f", text, Options{})
			if good := slices.Contains(c.good, v); (d.Err() == nil) != good {
				t.Errorf("%s.%s: %s: expected it to be right: %v; said was\n%s%s", c.section, c.key, v, good, text,
					d.Only(Error).Text(text))
			}
		}
	}
}

// The table above has every key that DAQIRI has.
func TestEveryKeyOfDAQIRIIsTested(t *testing.T) {
	have := map[string]bool{}
	for _, c := range daqiriKeys {
		have[c.section+"."+c.key] = true
	}
	theirs := map[string]bool{}
	for _, s := range allSections() {
		for i := range s.keys {
			k := &s.keys[i]
			switch {
			case k.ours || k.beside || strings.HasPrefix(s.name, "bench_"):
				continue
			case slices.Contains([]string{"transfers", "tcp_paths", "verbs_paths", "share", "peer", "security",
				"registry",
				"application", "stage", "tensor", "sequence", "logging", "metrics", "flex_word", "rotate"}, s.name):
				continue // ours as a whole
			}
			name := s.name + "." + k.written(DAQIRI)
			theirs[name] = true
			if !have[name] {
				t.Errorf("%s is not tested", name)
			}
		}
	}
	if len(theirs) < 90 {
		t.Errorf("only %d keys", len(theirs))
	}
}

// Any key whose value cannot be is reported, at its place, by its name: of ours too.
func TestEveryKeyRefusesNonsense(t *testing.T) {
	for _, s := range allSections() {
		for i := range s.keys {
			k := &s.keys[i]
			if k.gone != "" || k.kind == nil && k.sub == nil {
				continue
			}
			bad := "[[nonsense]]"
			if !k.list && k.kind != nil && !strings.HasPrefix(k.kind.name, "a ") && k.kind.name != "an address" {
				bad = "nonsense!"
			}
			text := "penstock:\n" + nest(s, k.name, bad)
			if at := slices.IndexFunc(schema().keys, func(r key) bool { return r.beside && r.sub == s }); at >= 0 {
				text = fmt.Sprintf("penstock:\n  version: 1\n%s:\n  %s: %s\n", schema().keys[at].name, k.name, bad)
			} else if k.beside {
				text = fmt.Sprintf("penstock:\n  version: 1\n%s: %s\n", k.name, bad)
			}
			_, d := Load("f", []byte(text), Options{})
			found := false
			for _, x := range d {
				found = found || x.Severity == Error && x.At.Line == lineOf(text, bad) &&
					strings.Contains(x.Message+x.Path, k.name)
			}
			if !found {
				t.Errorf("%s.%s: %s is not refused:\n%s%s", s.name, k.name, bad, text, d.Text([]byte(text)))
			}
		}
	}
}

func lineOf(text, part string) int {
	before, _, _ := strings.Cut(text, part)
	return 1 + strings.Count(before, "\n")
}

// nest writes the shortest text in which section s has the key.
func nest(s *section, key, value string) string {
	var find func(x *section, depth int, indent string) (string, bool)
	find = func(x *section, depth int, indent string) (string, bool) {
		if x == s {
			return indent + key + ": " + value + "\n", true
		}
		if depth > 7 {
			return "", false
		}
		for i := range x.keys {
			k := &x.keys[i]
			if k.sub == nil || k.beside {
				continue
			}
			next := indent + "  "
			if k.list {
				next += "  "
			}
			if below, ok := find(k.sub, depth+1, next); ok {
				if k.list {
					below = next[:len(next)-2] + "- " + below[len(next):]
				}
				return indent + k.name + ":\n" + below, true
			}
		}
		return "", false
	}
	text, _ := find(schema(), 0, "  ")
	return text
}

// TestEveryKeyMigrates: what loads of DAQIRI's keys is rewritten, and says the same.
func TestEveryKeyMigrates(t *testing.T) {
	for _, c := range daqiriKeys {
		for _, v := range append(slices.Clone(c.good), c.bad...) {
			doc := skeleton()
			if c.setup != nil {
				c.setup(doc)
			}
			doc[c.section][c.key] = v
			text := []byte(render(doc, "file"))
			if cfg, _ := Load("file", text, Options{}); cfg == nil {
				continue
			}
			if _, _, err := Migrate("file", text); err != nil {
				t.Errorf("%s.%s: %s: %v\n%s", c.section, c.key, v, err, text)
			}
		}
	}
}
