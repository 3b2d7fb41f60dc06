package doctor

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/host"
)

// file reads a configuration of testdata/files, with some of its text replaced: "old" to "new".
func file(t *testing.T, name string, edits ...string) (*config.Config, config.Diagnostics) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "files", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for i := 0; i < len(edits); i += 2 {
		if !strings.Contains(text, edits[i]) {
			t.Fatalf("%s has no %q", name, edits[i])
		}
		text = strings.ReplaceAll(text, edits[i], edits[i+1])
	}
	c, problems := config.Load(name+".yaml", []byte(text), config.Options{})
	if c == nil {
		t.Fatalf("%s: %s", name, problems.Text([]byte(text)))
	}
	return c, problems
}

// Edits of the recorded server, for machines that lack something.
var (
	noRights  = []string{"CapEff: 000001ffffffffff", "CapEff: 0"}
	powersave = []string{"cpu{0-63}/cpufreq/scaling_governor = performance",
		"cpu{0-63}/cpufreq/scaling_governor = powersave"}
	fewPages = []string{"hugepages-1048576kB/free_hugepages = 3", "hugepages-1048576kB/free_hugepages = 0"}
	hasGPU   = []string{"| nvidia_uvm", "| nvidia_peermem"}
)

func TestFiles(t *testing.T) {
	for _, x := range []struct {
		name, file, machine string
		edits               []string
	}{
		{"stream-server", "stream", "server", nil},
		{"stream-norights", "stream", "server", noRights},
		{"stream-powersave", "stream", "server", powersave},
		{"stream-fewpages", "stream", "server", fewPages},
		{"stream-laptop", "stream", "laptop", nil},
		{"wrong-server", "wrong", "server", nil},
		{"daqiri-server", "daqiri", "server", nil},
		{"daqiri-peermem", "daqiri", "server", hasGPU},
		{"daqiri-spark", "daqiri", "spark", nil},
		{"sockets-vm", "sockets", "vm", nil},
		{"laptop-laptop", "laptop", "laptop", nil},
	} {
		m := machine(t, x.machine, x.edits...)
		c, problems := file(t, x.file)
		if err := NeedsOf(c).Check(); err != nil {
			t.Errorf("%s: %v", x.name, err)
		}
		r := ForFile(m, c, problems)
		b, err := json.MarshalIndent(r, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		var again Report
		if err := json.Unmarshal(b, &again); err != nil || again.Text(true) != r.Text(true) ||
			again.Worst() != r.Worst() {
			t.Errorf("%s: by way of JSON it is another one: %v\n%s", x.name, err, again.Text(true))
		}
		for ext, got := range map[string][]byte{".golden": []byte(r.Text(false)), ".json": append(b, '\n')} {
			if ext == ".json" && x.name != "wrong-server" && x.name != "daqiri-server" { // one of each spelling will do
				continue
			}
			name := filepath.Join("testdata", "files", x.name+ext)
			if *update {
				if err := os.WriteFile(name, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatalf("%v; go test ./host/doctor -run Files -update writes it", err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s: it is\n%s\nexpected\n%s", name, got, want)
			}
		}
		for _, f := range r.Findings {
			if (f.Verdict == Warn || f.Verdict == Fail) && (f.Read == "" || f.Needed == "" || len(f.Fix) == 0) {
				t.Errorf("%s: %+v does not say what is, what should be and how to fix it", x.name, f)
			}
			if f.Verdict == Fail && f.Check != "kernel" && len(f.At) == 0 {
				t.Errorf("%s: %s fails, and does not say which part of the file asks for it", x.name, f.Check)
			}
			for _, p := range f.At {
				if p.File != x.file+".yaml" || p.Line == 0 || p.Path == "" {
					t.Errorf("%s: %s: place %+v", x.name, f.Check, p)
				}
			}
		}
	}
}

// What a file says changes verdicts: each check that a file has something to do with, by a change
// of the file or of the machine.
func TestFileVerdicts(t *testing.T) {
	const mlx = "ens1f0np0"
	for _, x := range []struct {
		check   string
		verdict Verdict
		subject string // beginning
		path    string // of the place; empty: any or none
		file    string
		change  []string // of the file
		edits   []string // of the machine
	}{
		{"interface", OK, mlx, "", "stream", nil, nil},
		{"interface", Fail, "eth9", "interfaces[0].address", "stream", []string{"address: ens1f0np0", "address: eth9"}, nil},
		{"interface", Fail, "0000:77:00.0", "interfaces[1].address", "daqiri", []string{"0000:19:00.0", "0000:77:00.0"}, nil},
		{"interface", Unknown, "socket datagrams", "interfaces[0].socket.local", "sockets", nil, nil},
		{"interface", OK, "socket home", "", "sockets", nil, nil},
		{"interface", NotApplicable, "socket stream", "", "sockets", nil, nil},
		// a group, which is nobody's address
		{"interface", NotApplicable, "socket datagrams", "", "sockets", []string{"192.0.2.7", "239.1.1.1"}, nil},
		{"mtu", OK, mlx, "", "stream", nil, nil},
		{"mtu", Fail, mlx, "interfaces[0].mtu", "stream", nil, []string{"ens1f0np0/mtu = 9000", "ens1f0np0/mtu = 1500"}},
		{"mtu", Warn, mlx, "interfaces[0].rx.queues[0].memory_regions", "stream", []string{"      mtu: 3000\n", "",
			"buf_size: 4KiB", "buf_size: 8KiB"}, []string{"ens1f0np0/mtu = 9000", "ens1f0np0/mtu = 1500"}},
		{"mtu", Warn, mlx, "interfaces[0].rx.queues[0].memory_regions", "stream",
			[]string{"      mtu: 3000\n", "", "ring: 4096", "ring: 4096, chains: false"}, nil},
		{"mtu", OK, mlx, "", "stream", []string{"      mtu: 3000\n", ""}, nil}, // chains of slots
		{"mtu", Fail, mlx, "bench_tx[0].payload_size", "daqiri", nil, []string{"ens1f0np0/mtu = 9000", "ens1f0np0/mtu = 8949"}},
		{"mtu", OK, mlx, "", "daqiri", nil, []string{"ens1f0np0/mtu = 9000", "ens1f0np0/mtu = 8950"}},
		{"queues", Fail, mlx, "interfaces[0].xdp.queues[7]", "stream", nil, []string{`"rx_queues":8,`, `"rx_queues":7,`}},
		{"queues", Fail, mlx, "interfaces[0].xdp.queues[7]", "stream", []string{"6, 7]", "6, 70]"}, nil},
		{"queues", Warn, mlx, "interfaces[0].xdp.queues[1]", "stream", []string{", 2, 3, 4, 5, 6, 7]", "]"}, nil},
		{"rings", Warn, mlx, "interfaces[0].rx.queues[0].depth", "stream", nil, []string{`"rx_ring":8192,`, `"rx_ring":2048,`}},
		{"rings", OK, mlx, "", "stream", []string{"depth: 4096, ", ""}, []string{`"rx_ring":8192,`, `"rx_ring":2048,`}},
		{"offloads", Warn, mlx, "interfaces[0].address", "stream", []string{"engine: xdp", "engine: afpacket",
			"xdp: {queues", "x-unused: {queues", "        hardware_timestamps: true\n", ""}, nil},
		{"xdp", OK, mlx, "", "stream", nil, nil},
		{"xdp", Fail, mlx, "interfaces[0].xdp.bind", "stream", []string{"ring: 4096", "ring: 4096, bind: zerocopy"}, []string{" xsk-zerocopy", ""}},
		{"xdp", Fail, mlx, "interfaces[0].xdp.attach", "stream", []string{"ring: 4096", "ring: 4096, attach: native"},
			[]string{`"xdp":"basic redirect ndo-xmit xsk-zerocopy rx-sg"`, `"xdp":""`}},
		{"xdp", Fail, mlx, "interfaces[0].mtu", "stream", []string{"ring: 4096", "ring: 4096, attach: native",
			"4KiB, align: 4KiB", "2KiB, align: 2KiB"}, []string{"xsk-zerocopy rx-sg", "xsk-zerocopy"}},
		{"irq", Warn, mlx, "interfaces[0].rx.queues[0].cpu_core", "stream", []string{", busy_poll: 50us", ""}, []string{"= irqbalance", "= idle"}},
		{"irq", OK, mlx, "", "stream", nil, []string{"= irqbalance", "= idle"}}, // busy polling does their work
		{"hardware-time", Warn, mlx, "interfaces[0].rx.hardware_timestamps", "stream", nil, nil},
		{"hardware-time", Fail, mlx, "interfaces[0].rx.hardware_timestamps", "stream", nil,
			[]string{`"hardware_rx_time":true,"stamps_all":true,"clock":0`, `"clock":0`}},
		{"cores", Fail, "", "applications[0].cpu_core", "stream", []string{"cpu_core: 5", "cpu_core: 500"}, nil},
		{"cores", Fail, "", "interfaces[0].tx.queues[0].cpu_core", "stream", nil, []string{"Cpus_allowed_list: 0-127", "Cpus_allowed_list: 0-3,5"}},
		{"smt", Warn, "", "interfaces[0].rx.queues[0].cpu_core", "stream", []string{"cpu_core: 5", "cpu_core: 66"}, nil},
		// which works on no packets
		{"numa-cores", OK, mlx, "", "stream", []string{"master_core: 0", "master_core: 32"}, nil},
		{"numa-cores", Warn, mlx, "interfaces[0].rx.queues[1].cpu_core", "stream", []string{"cpu_core: 3", "cpu_core: 33"}, nil},
		{"governor", Warn, "", "interfaces[0].rx.queues[0].cpu_core", "stream", nil, powersave},
		{"idle", Warn, "", "applications[0].cpu_core", "stream", []string{"cpu_core: 5", "cpu_core: 70"}, nil},
		{"isolation", OK, "", "", "stream", nil, nil}, // master_core is not, and sleeps mostly
		{"isolation", Warn, "", "applications[0].cpu_core", "stream", []string{"cpu_core: 5", "cpu_core: 12"}, nil},
		{"clock-sync", Warn, "", "interfaces[0].tx.accurate_send", "stream", []string{"      tx:\n",
			"      tx:\n        accurate_send: true\n"}, []string{`{"synchronised":true`, `{"synchronised":false`}},
		{"hugepages", OK, "node 0", "", "stream", nil, nil},
		{"hugepages", Fail, "node 0", "memory_regions[0]", "stream", nil, fewPages},
		// one and three
		{"hugepages", Fail, "node 0", "memory_regions[1]", "stream", []string{"tx, kind: host, numa: 0, num_bufs: 4096",
			"tx, kind: huge, page_size: 1GiB, numa: 0, num_bufs: 786432"}, nil},
		// one, and seven anywhere: all
		{"hugepages", Fail, "", "memory_regions[1]", "stream",
			[]string{"tx, kind: host, numa: 0, num_bufs: 4096", "tx, kind: huge, page_size: 1GiB, num_bufs: 1835008"},
			nil},
		{"hugepages", Warn, "node 0", "memory_regions[0]", "stream", []string{"page_size: 1GiB", "page_size: 1GiB, fallback: true"}, fewPages},
		{"hugepages", NotApplicable, "", "", "laptop", nil, nil},
		{"numa-memory", OK, "rx", "", "stream", nil, nil},
		{"numa-memory", Warn, "rx", "memory_regions[0]", "stream", []string{"rx, kind: huge, numa: 0", "rx, kind: huge, numa: 1"}, nil},
		{"numa-memory", Fail, "node 7", "memory_regions[1]", "stream", []string{"tx, kind: host, numa: 0", "tx, kind: host, numa: 7"}, nil},
		{"numa-memory", Fail, "node 0", "memory_regions[1]", "stream", []string{"num_bufs: 4096", "num_bufs: 1000000000"}, nil},
		{"numa-memory", Fail, "rx", "memory_regions[0]", "stream", nil, []string{"Mems_allowed_list: 0-1", "Mems_allowed_list: 1"}},
		{"memlock", Fail, "", "memory_regions[0]", "stream", nil, noRights},
		// just that
		{"memlock", OK, "", "", "stream", nil, append(noRights[:2:2], "8388608              8388608", "1090519040 1090519040")},
		{"memlock", Fail, "", "memory_regions[1]", "stream", nil, append(noRights[:2:2], "8388608              8388608", "1090519039 1090519039")},
		// without that of the GPU
		{"memlock", OK, "", "", "daqiri", nil, append(noRights[:2:2], "8388608              8388608", "463470592 463470592")},
		{"capabilities", Fail, "engine xdp", "interfaces[0].address", "stream", nil, noRights},
		{"kernel", OK, "", "", "stream", nil, []string{"6.8.0-49-generic", "6.5.0"}},
		{"kernel", Fail, "", "", "stream", []string{"mtu: 3000", "mtu: 3600"}, []string{"6.8.0-49-generic", "6.5.0"}},
		{"kernel", Fail, "", "", "stream", []string{"buf_size: 4KiB, align: 4KiB", "buf_size: 2KiB, align: 2KiB"}, []string{"6.8.0-49-generic", "6.5.0"}},
		{"socket-buffers", Fail, "receiving", "interfaces[0].socket.receive_buffer", "sockets", nil, noRights},
		{"socket-buffers", Warn, "receiving", "interfaces[0]", "sockets", []string{"receive_buffer: 128MiB, ", ""}, nil},
		{"socket-buffers", NotApplicable, "", "", "stream", nil, nil},
		{"softnet", NotApplicable, "", "", "daqiri", nil, nil},
		{"pcie-link", Warn, mlx, "interfaces[0].address", "stream", nil,
			[]string{"0000:16:00.0/current_link_width = 16", "0000:16:00.0/current_link_width = 4"}},
		{"iommu", Fail, "ens1f0np0", "interfaces[1].address", "daqiri", []string{"stream_type: raw",
			"stream_type: raw\n    engine: dpdk", "flow_isolation: true", "flow_isolation: false"},
			[]string{"iommu_group -> ../../../../../../kernel/iommu_groups/{22,23}",
				"no_group -> ../../../../../../kernel/iommu_groups/{22,23}"}},
		{"driver", Fail, "ens2f0", "interfaces[1].address", "daqiri", []string{"stream_type: raw",
			"stream_type: raw\n    engine: dpdk", "flow_isolation: true", "flow_isolation: false", "0000:19:00.0",
			"0000:98:00.0"}, nil},
		{"rdma", NotApplicable, "", "", "stream", nil, nil},
		{"rdma", OK, "mlx5_0", "", "daqiri", nil, nil},
		{"rdma-counters", Warn, "mlx5_0", "", "daqiri", nil, nil},
		{"gpu", OK, "NVIDIA", "", "daqiri", nil, nil},
		{"gpu", Fail, "number 1", "memory_regions[1]", "daqiri", []string{"kind: device, affinity: 0", "kind: device, affinity: 1"}, nil},
		{"gpu", NotApplicable, "", "", "daqiri", []string{"stream_type: raw", "stream_type: raw\n    gpu_runtime: host"}, nil},
		{"gpu", NotApplicable, "", "", "daqiri", []string{"stream_type: raw", "stream_type: raw\n    gpu_runtime: opencl"}, nil},
		{"gpu", NotApplicable, "", "", "stream", nil, nil},
		{"gpu-direct", Fail, "NVIDIA", "memory_regions[1]", "daqiri", nil, nil},
		{"gpu-direct", OK, "NVIDIA", "", "daqiri", nil, hasGPU},
		{"gpu-direct", NotApplicable, "", "", "daqiri", []string{"kind: device", "kind: host_pinned"}, nil},
		{"gpu-bar", OK, "NVIDIA", "", "daqiri", nil, nil},
		{"gpu-bar", Fail, "NVIDIA", "memory_regions[1]", "daqiri",
			[]string{"affinity: 0, num_bufs: 51200, buf_size: 9000}\n    interfaces",
				"affinity: 0, num_bufs: 51200000, buf_size: 9000}\n    interfaces"}, nil},
		{"gpu-topology", Warn, "NVIDIA", "memory_regions[1]", "daqiri", []string{"0000:19:00.0", "0000:98:00.0"}, nil},
	} {
		c, problems := file(t, x.file, x.change...)
		r := ForFile(machine(t, "server", append([]string{"{0-127}/cpuidle/state1", "{0}/cpuidle/state1",
			"{0-127}/cpuidle/state0", "{0}/cpuidle/state0"}, x.edits...)...), c, problems)
		found := false
		var got []string
		for _, f := range r.Findings {
			if f.Check != x.check {
				continue
			}
			at := x.path == "" || slices.ContainsFunc(f.At, func(p Place) bool { return p.Path == x.path })
			found = found || f.Verdict == x.verdict && strings.HasPrefix(f.Subject, x.subject) && at
			got = append(got, string(f.Verdict)+" "+f.Subject+": "+f.Read+f.Why+" needed "+f.Needed,
				"\tat "+strings.TrimSpace(strings.Join(placeTexts(f.At), ", ")))
		}
		if !found {
			t.Errorf("%s of %q at %q: expected %s after %q and %q; it is\n%s", x.check, x.subject, x.path, x.verdict,
				x.change, x.edits, strings.Join(got, "\n"))
		}
	}
}

func placeTexts(all []Place) (out []string) {
	for _, p := range all {
		out = append(out, p.String())
	}
	return out
}

// The needs of a file are what its values say.
func TestNeedsOf(t *testing.T) {
	c, _ := file(t, "stream")
	n := NeedsOf(c)
	place := func(line, column int, path string) Place { return Place{"stream.yaml", line, column, path} }
	i := n.Interfaces[0]
	if i.Name != "ens1f0np0" || i.Engine != "xdp" || i.MTU != 3000 || i.Queues != 8 || i.Depth != 4096 ||
		i.Frame != 4096 || !i.HardwareTime || !i.BusyPoll || i.ZeroCopy || i.Native || i.Chains {
		t.Errorf("%+v", i)
	}
	if i.At != place(11, 16, "interfaces[0].address") || i.Places["mtu"] != place(12, 12, "interfaces[0].mtu") {
		t.Errorf("%v %v", i.At, i.Places)
	}
	if !slices.Equal(n.Cores, []int{0, 2, 3, 4, 5}) || len(n.Uses) != 5 || n.Uses[0].Polls ||
		n.Uses[0].Interface != "" || !n.Uses[1].Polls || n.Uses[4].Interface != "ens1f0np0" {
		t.Errorf("%v %+v", n.Cores, n.Uses)
	}
	want := []Memory{{Name: "rx", Kind: "huge", Bytes: 1 << 30, Page: 1 << 30, Locked: true, Node: 0,
		Interfaces: []string{"ens1f0np0"}, At: place(6, 7, "memory_regions[0]")},
		{Name: "tx", Kind: "host", Bytes: 16 << 20, Locked: true, Node: 0, Interfaces: []string{"ens1f0np0"},
			At: place(7, 7, "memory_regions[1]")}}
	if !reflect.DeepEqual(n.Memory, want) {
		t.Errorf("%+v", n.Memory)
	}
	if !n.Whole || n.GPUs == nil || len(n.GPUs) != 0 || n.Sockets != nil || n.Timed != nil {
		t.Errorf("%+v", n)
	}

	// The queue of the highest number counts, a frame that is sent more than the MTU that is asked
	// for, and memory of the program not at all.
	c, _ = file(t, "stream", ", 1, 2, 3, 4, 5, 6, 7]", "]", "rx, kind: huge", "rx, owned: false, kind: huge",
		"penstock:\n", "bench_tx: {interface_name: port, payload_size: 3400, header_size: 64, "+
			"eth_dst_addr: 02:00:00:00:00:06, ip_src_addr: 10.0.0.1, ip_dst_addr: 10.0.0.2, udp_src_port: 5000, "+
			"udp_dst_port: 5000}\npenstock:\n", "buf_size: 4KiB", "buf_size: 8KiB")
	if n = NeedsOf(c); n.Interfaces[0].Queues != 1 || n.Interfaces[0].MTU != 3450 ||
		n.Interfaces[0].Places["mtu"].Path != "bench_tx[0].payload_size" || len(n.Memory) != 1 ||
		n.Memory[0].Name != "tx" {
		t.Errorf("%+v %+v", n.Interfaces, n.Memory)
	}

	c, _ = file(t, "daqiri")
	n = NeedsOf(c) // one interface: the other's address is a placeholder
	if len(n.Interfaces) != 1 || n.Interfaces[0].Name != "0000:19:00.0" || n.Interfaces[0].Engine != "verbs" ||
		n.Interfaces[0].MTU != 8950 {
		t.Errorf("%+v", n.Interfaces)
	}
	if !slices.Equal(n.GPUs, []string{"0"}) || !n.Memory[1].Locked || n.Memory[1].GPU != "0" ||
		n.Memory[1].Kind != "device" {
		t.Errorf("%v %+v", n.GPUs, n.Memory)
	}

	c, _ = file(t, "sockets")
	n = NeedsOf(c)
	if s := n.Sockets; len(s) != 3 || s[0].Local != "192.0.2.7" || s[0].Receive != 128<<20 || s[0].Send != 1<<20 ||
		s[0].Packet != 9000 || s[1].Local != "" || s[2].Local != "127.0.0.1" || n.Interfaces == nil {
		t.Errorf("%+v", s)
	}
	if c, _ = config.Load("t.yaml",
		[]byte("penstock:\n  version: 1\n  transfers: {listen: [\"tcp://192.0.2.9:7070\", \"unix:///run/x\"]}\n  security: {identity: /x}\n"), config.Options{}); c == nil {
		t.Fatal("it is wrong")
	}
	if n = NeedsOf(c); n.Interfaces != nil || len(n.Sockets) != 1 || n.Sockets[0].Local != "192.0.2.9" ||
		n.Sockets[0].Name != "transfers.listen[0]" {
		t.Errorf("%+v", n)
	}
}

// A file that shapes paths over RDMA needs a device, the one that it names.
func TestNeedsOfVerbs(t *testing.T) {
	for text, want := range map[string][]string{"": nil, "verbs: {}": {AnyDevice},
		"verbs: {device: mlx5_0, queue_pairs: 2}": {"mlx5_0"}, "verbs: {device: /dev/mlx5_0}": {AnyDevice}} {
		c, problems := config.Load("t.yaml", []byte("penstock: {transfers: {"+text+"}}"), config.Options{})
		if c == nil {
			t.Fatal(problems)
		}
		n := NeedsOf(c)
		if err := n.Check(); err != nil || !slices.Equal(n.RDMA, want) {
			t.Errorf("%s: %q, %v", text, n.RDMA, err)
		}
	}
	for memory, want := range map[uint64]string{391 << 20: "391 MiB", 1 << 30: "1 GiB", 0: ""} {
		if got := summary(&host.Facts{Memory: memory}); want != "" && !strings.HasSuffix(got, ", "+want) ||
			want == "" && strings.Contains(got, "iB") {
			t.Errorf("%d bytes: %s", memory, got)
		}
	}
}

// The addresses of sockets lead to interfaces where the machine's are known, and datagrams have to
// fit into their MTU.
func TestSocketsOnInterfaces(t *testing.T) {
	m := machine(t, "server")
	m.addrs = map[netip.Addr]string{netip.MustParseAddr("192.0.2.7"): "ens2f0"}
	c, problems := file(t, "sockets")
	find := func(r Report, check, subject string) Finding {
		for _, f := range r.Findings {
			if f.Check == check && f.Subject == subject {
				return f
			}
		}
		t.Fatalf("no %s of %s:\n%s", check, subject, r.Text(true))
		return Finding{}
	}
	r := ForFile(m, c, problems)
	if f := find(r, "interface", "socket datagrams"); f.Verdict != OK || f.Read != "192.0.2.7 is on ens2f0" {
		t.Errorf("%+v", f)
	}
	if f := find(r, "mtu", "ens2f0"); f.Verdict != Warn || f.Needed != "9000" ||
		f.At[0].Path != "interfaces[0].socket.max_payload_size" || f.Fix[0] != "a payload that is 7500 bytes shorter" {
		t.Errorf("%+v", f)
	}
	if len(r.Needs.Interfaces) != 1 || len(NeedsOf(c).Interfaces) != 0 {
		t.Errorf("%+v", r.Needs.Interfaces)
	}
	m.addrs = map[netip.Addr]string{netip.MustParseAddr("192.0.2.8"): "ens2f0"}
	if f := find(ForFile(m, c, problems), "interface", "socket datagrams"); f.Verdict != Fail ||
		f.At[0].Path != "interfaces[0].socket.local" {
		t.Errorf("%+v", f)
	}
}

// What no machine gives a file makes the report as bad as it is.
func TestWorstOfFile(t *testing.T) {
	r := Report{Findings: []Finding{{Verdict: OK}}}
	for s, want := range map[config.Severity]Verdict{config.Error: Fail, config.Needs: Fail, config.Warning: Warn,
		config.Note: OK} {
		if r.Problems = (config.Diagnostics{{Severity: s}}); r.Worst() != want {
			t.Errorf("%v: %s", s, r.Worst())
		}
	}
}

// Two sections about one card are one interface, and what both ask for is asked once.
func TestSectionsOfOneCard(t *testing.T) {
	c, _ := file(t, "stream", "    - name: port\n",
		"    - {name: other, engine: xdp, address: ens1f0np0, mtu: 9700, tx: {queues: [{memory_regions: [tx]}]}}\n   "+
			" - name: port\n")
	n := NeedsOf(c)
	if len(n.Interfaces) != 1 || n.Interfaces[0].MTU != 9700 || n.Interfaces[0].Queues != 8 ||
		n.Interfaces[0].Places["mtu"].Path != "interfaces[0].mtu" ||
		n.Interfaces[0].Places["queues"].Path != "interfaces[1].xdp.queues[7]" {
		t.Errorf("%+v", n.Interfaces)
	}
	c, problems := file(t, "stream", "    - name: port\n",
		"    - {name: other, engine: afpacket, address: eth9, rx: {queues: [{memory_regions: [tx]}]}}\n    - "+
			"name: port\n", "ens1f0np0", "eth9")
	fails := 0
	for _, f := range ForFile(machine(t, "server"), c, problems).Findings {
		if f.Check == "interface" && f.Verdict == Fail {
			if fails++; len(f.At) != 2 {
				t.Errorf("%+v", f)
			}
		}
	}
	if fails != 1 {
		t.Errorf("%d findings of one interface", fails)
	}
}

// Whatever is in a file that loads: its needs make sense, and looking at a machine for them ends.
func FuzzNeedsOf(f *testing.F) {
	files, _ := filepath.Glob("testdata/files/*.yaml")
	more, _ := filepath.Glob("../../config/testdata/good/*.yaml")
	for _, name := range append(files, more...) {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	b, err := os.ReadFile("testdata/laptop.txt")
	if err != nil {
		f.Fatal(err)
	}
	m, err := Open(bytes.NewReader(b))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, problems := config.Load("f.yaml", text, config.Options{})
		if c == nil {
			return
		}
		if err := NeedsOf(c).Check(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		r := ForFile(m, c, problems)
		if _, err := json.Marshal(r); err != nil || r.Text(true) == "" {
			t.Fatal(err)
		}
	})
}
