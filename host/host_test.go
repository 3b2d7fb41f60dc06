package host

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recordings are the machines of the package doctor.
func recordings(t testing.TB) map[string]string {
	t.Helper()
	out := map[string]string{}
	files, _ := filepath.Glob("doctor/testdata/*.txt")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(f)] = string(b)
	}
	if len(out) < 4 {
		t.Fatalf("%d recordings", len(out))
	}
	return out
}

func parse(t testing.TB, text string) *Recording {
	t.Helper()
	r, err := Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func text(t testing.TB, r *Recording) string {
	t.Helper()
	var b bytes.Buffer
	if _, err := r.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestFactsOfAServer(t *testing.T) {
	f := Read(t.Context(), parse(t, recordings(t)["server.txt"]))
	if len(f.CPUs) != 128 || f.CPUs[70].ID != 70 ||
		!slices.Equal(f.CPUs[70].Siblings, []int{6, 70}) || f.CPUs[70].Governor != "powersave" ||
		len(f.CPUs[70].Idle) != 3 ||
		f.CPUs[6].Idle[2] != (Idle{"C6", 290, true}) {
		t.Errorf("%+v", f.CPUs[70])
	}
	if len(f.Nodes) != 2 || f.Nodes[0].Free != 201000000<<10 ||
		f.Nodes[0].Huge[1] != (HugePool{Size: 1 << 30, Total: 4, Free: 3}) || f.Huge[1].Total != 8 {
		t.Errorf("%+v", f.Nodes)
	}
	if v, ok := f.Option("isolcpus"); !ok || v != "2-9" || f.Lockdown != "none" || f.THP != "always" ||
		List(f.Isolated) != "2-9" || f.ClockSource != "hpet" {
		t.Errorf("%v, %q, %q", f.Options, f.Lockdown, f.THP)
	}
	gpu, nic := f.Device("0000:18:00.0"), f.Device("0000:19:00.0")
	want := PCI{Addr: "0000:18:00.0", Parent: "0000:17:00.0", Root: "pci0000:15", Vendor: 0x10de, Device: 0x2331,
		Class: 0x030200, Driver: "nvidia", Node: 0,
		Group: 21, GroupType: "identity", Speed: 2.5, MaxSpeed: 32, Width: 16, MaxWidth: 16, Express: true,
		Payload: 256, MaxPayload: 256, ReadRequest: 512,
		BARs: []uint64{16 << 20, 128 << 30}}
	if d := cmp.Diff(want, *gpu); d != "" {
		t.Error(d)
	}
	if nic.ReadRequest != 4096 || nic.MaxPayload != 512 || nic.Name() != "Mellanox ConnectX-7" {
		t.Errorf("%+v", nic)
	}
	if a := f.Device("0000:17:00.0"); a.ACS == nil || !a.ACS.Detours() || a.Port != PortDownstream ||
		f.Device("0000:17:01.0").ACS.Detours() {
		t.Errorf("%+v", a)
	}
	for _, x := range []struct {
		a, b string
		want Distance
	}{{"0000:18:00.0", "0000:19:00.0", OneBridge}, {"0000:19:00.0", "0000:19:00.1", Same},
		{"0000:18:00.0", "0000:98:00.0", System}, {"0000:18:00.0", "0000:51:00.0", InNode},
		{"0000:17:00.0", "0000:16:00.0", RootComplex}} {
		if a, b := f.Distance(f.Device(x.a), f.Device(x.b)),
			f.Distance(f.Device(x.b), f.Device(x.a)); (a != x.want || b != x.want) && x.want != RootComplex {
			t.Errorf("%s to %s: %s, back %s, expected %s", x.a, x.b, a, b, x.want)
		}
	}
	n := f.Net("ens1f0np0")
	if n.Mbits != 200000 || n.MTU != 9000 || n.PCI != "0000:19:00.0" || n.Node != 0 || n.Clock != 0 ||
		len(n.IRQs) != 8 || n.Driver != "mlx5_core" ||
		n.IRQs[3].Queue != 3 || !slices.Equal(n.IRQs[3].Effective, []int{5}) || n.Ethtool.RxRing != 8192 ||
		n.Statistics["rx_dropped"] != 12 || n != f.Net("0000:19:00.0") {
		t.Errorf("%+v", n)
	}
	if f.Net("bonding_masters") != nil || !f.Net("lo").Virtual || f.Net("nothing") != nil || f.Net("") != nil {
		t.Error("interfaces that are none")
	}
	if len(f.RDMA) != 2 || f.RDMA[0].Net != "ens1f0np0" || f.RDMA[0].PCI != "0000:19:00.0" ||
		f.RDMA[0].Ports[0].State != "ACTIVE" || f.RDMA[0].Ports[0].Counters["np_ecn_marked_roce_packets"] != 5120 {
		t.Errorf("%+v", f.RDMA)
	}
	if g := f.GPUs; len(g) != 1 || g[0].Name != "NVIDIA H100 PCIe" || g[0].MaxClock != 1755 || g[0].Open ||
		!g[0].Asked || g[0].Celsius != 34 {
		t.Errorf("%+v", g)
	}
	if f.Softnet != (Softnet{2000000000, 0, 65537}) || !slices.Equal(f.Daemons, []string{"chronyd", "irqbalance"}) ||
		f.Time == nil || !f.Time.Synchronised {
		t.Errorf("%+v, %v", f.Softnet, f.Daemons)
	}
	if p := f.Process; !p.Can(CapBPF) || p.Locked != 8<<20 || List(p.CPUs) != "0-127" {
		t.Errorf("%+v", p)
	}
	if r := linkRate(16, 16); r < 31.5e9 || r > 31.6e9 || linkRate(2.5, 1) != 250e6 || linkRate(64, 1) != 7.375e9 {
		t.Errorf("%g", r)
	}
}

// What a recording of a machine has is what was read of it: the facts are the same, whatever the
// machine.
func TestRecordingIsTheMachine(t *testing.T) {
	trees := map[string]fs.FS{"this machine": Live(t.Context())}
	for name, text := range recordings(t) {
		trees[name] = parse(t, text)
	}
	for name, tree := range trees {
		f, rec := Record(t.Context(), tree)
		written := text(t, rec)
		again := parse(t, written)
		if d := cmp.Diff(f, Read(t.Context(), again)); d != "" {
			t.Errorf("%s: facts of the machine and of its recording:\n%s", name, d)
		}
		if s := text(t, again); s != written {
			t.Errorf("%s: a recording that was read is written otherwise", name)
		}
		if len(f.CPUs) == 0 || len(f.Nets) == 0 {
			t.Errorf("%s: %d processors, %d interfaces", name, len(f.CPUs), len(f.Nets))
		}
		_, rec = Record(t.Context(), again) // a recording of a recording is the same
		if s := text(t, rec); s != written {
			t.Errorf("%s: recorded twice:\n%s", name, cmp.Diff(written, s))
		}
	}
}

// Nothing that identifies the machine, its owner or other programs gets into a recording.
func TestRecordingTellsNoSecrets(t *testing.T) {
	serial := make([]byte, 4096)
	copy(serial, parse(t, recordings(t)["server.txt"]).entries["sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0/config"].data)
	copy(serial[0x100:], "\x03\x00\x01\x14"+"SECRET12") // device serial number, the next capability at 140
	copy(serial[0x140:], "\x0d\x00\x01\x00"+"\x5f\x00\x1d\x00"+"SECRET13")
	serial[0x61] = 0x90 // and behind the capability of PCI Express one of the vendor's
	copy(serial[0x90:], "\x09\x00"+"SECRET14")
	m := fstest.MapFS{}
	put := func(name, s string) { m[name] = &fstest.MapFile{Data: []byte(s)} }
	dev := "sys/devices/pci0000:00/0000:00:01.0"
	m["sys/bus/pci/devices/0000:00:01.0"] = &fstest.MapFile{Data: []byte("../../../devices/pci0000:00/0000:00:01.0"),
		Mode: fs.ModeSymlink}
	m["sys/class/net/eth0"] = &fstest.MapFile{Data: []byte("../../devices/pci0000:00/0000:00:01.0/net/eth0"),
		Mode: fs.ModeSymlink}
	m[dev+"/net/eth0/device"] = &fstest.MapFile{Data: []byte("../../../0000:00:01.0"), Mode: fs.ModeSymlink}
	put(dev+"/config", string(serial))
	put(dev+"/class", "0x030000\n")
	put(dev+"/vendor", "0x10de\n")
	m[dev+"/driver"] = &fstest.MapFile{Data: []byte("../../../bus/pci/drivers/nvidia"), Mode: fs.ModeSymlink}
	put("proc/driver/nvidia/gpus/0000:00:01.0/information",
		"Model: \t\t NVIDIA L4\nGPU UUID: \t GPU-SECRET1\nSerial: SECRET2\n")
	put(dev+"/net/eth0/address", "52:54:00:SE:CR:ET\n")
	put(dev+"/net/eth0/mtu", "1500\n")
	put("proc/cmdline", "BOOT_IMAGE=/SECRET3 root=UUID=SECRET4 isolcpus=1 -- --token SECRET5\n")
	put("proc/cpuinfo", "processor : 0\nmodel name : A Processor\nflags : fpu hypervisor SECRET6\n\nprocessor : "+
		"1\nSECRET7\n")
	put("proc/77/comm", "SECRET8\n")
	put("proc/78/comm", "chronyd\n")
	put("proc/modules", "SECRET9 16384 0 - Live 0x0\nnvidia 1 0 - Live 0xffffffffSECRET\n")
	put("proc/self/status", "Name:\tSECRET10\nCapEff:\t0\nUid:\tSECRET\nCpus_allowed_list:\t0\n")
	put("proc/sys/kernel/hostname", "SECRET11\n")
	put("proc/net/softnet_stat", "1 2 3\n")
	f, rec := Record(t.Context(), m)
	s := text(t, rec)
	for _, c := range chunksOf(s) {
		if strings.Contains(c, "SECRET") {
			t.Errorf("the recording has %q", c)
		}
	}
	for _, want := range []string{"isolcpus=1", "NVIDIA L4", "chronyd", "nvidia"} {
		if !strings.Contains(s, want) {
			t.Errorf("the recording lacks %q:\n%s", want, s)
		}
	}
	if p := f.Device("0000:00:01.0"); p.ACS == nil || p.ACS.Does != 0x1d || p.ReadRequest != 4096 {
		t.Errorf("%+v", p)
	}
	if strings.Contains(s, "/77/") || strings.Contains(s, "52:54") {
		t.Error(s)
	}
	if g := f.GPUs; len(g) != 1 || g[0].Name != "NVIDIA L4" {
		t.Errorf("%+v", g)
	}
}

// chunksOf are the lines of a recording, with the bytes of binary files as they are.
func chunksOf(s string) (out []string) {
	r, err := Parse(strings.NewReader(s))
	if err != nil {
		return []string{err.Error() + " SECRET"}
	}
	for _, e := range r.entries {
		out = append(out, string(e.data)+e.link+e.err)
	}
	return append(out, s)
}

// All values that a capability of PCI Express can have.
func TestSizesOfPackets(t *testing.T) {
	for i, size := range []int{128, 256, 512, 1024, 2048, 4096} {
		c := make([]byte, 256)
		c[pciStatus], c[pciCapPointer], c[0x40] = pciStatusCaps, 0x40, pciCapExpress
		c[0x44], c[0x48], c[0x49] = byte(i), byte(i)<<5, byte(i)<<4
		var p PCI
		if parseConfig(c, &p); p.MaxPayload != size || p.Payload != size || p.ReadRequest != size {
			t.Errorf("%d: %+v", size, p)
		}
	}
}

func TestRecordingsThatAreNone(t *testing.T) {
	const head = recordingHead + "\n"
	for _, x := range []struct{ text, want string }{
		{"", "empty"},
		{"hello\n", "line 1: expected"},
		{head + "hello\n", "line 2: expected"},
		{head + "a = b\n", "no path from the root"},
		{head + "/a b = c\n", "no path from the root"},
		{head + "/../a = b\n", "no path from the root"},
		{head + "/a/../b = b\n", "no path from the root"},
		{head + "| x\n", "without a path before it"},
		{head + "/a = b\n| x\n", "without a path before it"},
		{head + "/a = b\n/a = c\n", "line 3: /a is there twice"},
		{head + "/a = \"b\n", "quoted"},
		{head + "/a : x\n", "how many bytes"},
		{head + "/a : 70000\n", "how many bytes"},
		{head + "/a :\n", "how many bytes"},
		{head + "/a : 4 3=0102\n", "inside of 4"},
		{head + "/a : 4 -1=01\n", "inside of 4"},
		{head + "/a -> \n", "to nowhere"},
		{head + "/a ! \n", "no reason behind"},
		{head + "/a{0-3}{0-2} = 1\n", "numbers"},
		{head + "/a{0-3} = {1,2}\n", "numbers"},
		{head + "/a{x} = 1\n", "in braces"},
		{head + "/a{0-99999} = 1\n", "in braces"},
		{head + "/a{3-0} = 1\n", "in braces"},
	} {
		if r, err := Parse(strings.NewReader(x.text)); !errors.Is(err, ErrRecording) ||
			!strings.Contains(err.Error(), x.want) {
			t.Errorf("%q: %v, %v; expected %q", x.text, r, err, x.want)
		}
	}
	if _, err := Parse(strings.NewReader(head + strings.Repeat("#"+strings.Repeat("x", 1<<19)+"\n",
		mostRecording>>19))); !errors.Is(err, ErrRecording) {
		t.Errorf("one that is too long: %v", err)
	}
}

// A tree that is full of nonsense is no reason to fail, nor to run in circles.
func TestHostileTree(t *testing.T) {
	r := parse(t, recordingHead+`
/sys/devices/system/cpu/online = 0-99999999
/sys/devices/system/node/online = 0-3
/sys/devices/system/node/node0/cpulist = what
/sys/devices/system/node/node0/distance = 10 -5 x 7 7 7 7 7
/sys/bus/pci/devices/0000:00:01.0 -> ../../../../../../etc
/sys/bus/pci/devices/0000:00:02.0 -> ../../../devices/pci0000:00/0000:00:02.0/0000:00:02.0
/sys/devices/pci0000:00/0000:00:02.0/0000:00:02.0/class = 0x060400
/sys/devices/pci0000:00/0000:00:02.0/0000:00:02.0/config : 64 6=10 34=40
/sys/bus/pci/devices/0000:00:03.0 -> ../../../devices/pci0000:00/0000:00:03.0
/sys/devices/pci0000:00/0000:00:03.0/class = 0x020000
/sys/devices/pci0000:00/0000:00:03.0/config : 4096 6=10 34=40 40=0540 100=05000010
/sys/devices/pci0000:00/0000:00:03.0/current_link_speed = NaN GT/s PCIe
/sys/devices/pci0000:00/0000:00:03.0/resource = 0x1 0x0 0x200
/sys/class/net/eth0 -> /sys/class/net/eth0
/sys/class/net/eth1 -> ..
/sys/class/net/eth0/mtu = 99999999999999999999
/penstock/ethtool/eth0 = {"rx_queues": "many"}
/penstock/nvidia-smi = a,"b
/proc/self/limits = Max locked memory
/proc/net/softnet_stat = x y z
`)
	f := Read(t.Context(), r)
	p := f.Device("0000:00:02.0")
	if p == nil || len(f.Above(p)) > 32 || len(f.CPUs) != 0 || f.Net("eth0") == nil || f.Net("eth0").MTU != 0 {
		t.Errorf("%+v", f)
	}
	for _, want := range []string{"/sys/devices/system/cpu/online", "/sys/class/net/eth0/mtu", "/penstock/ethtool/eth0",
		"/penstock/nvidia-smi"} {
		if f.Missing[want] == "" || f.Why(want) == "" {
			t.Errorf("%s is not missed: %v", want, f.Missing)
		}
	}
	// Read that is called off ends with what it has.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if f := Read(ctx, r); len(f.PCI) != 0 || f.Why("/proc/cmdline") != "/proc/cmdline: context canceled" {
		t.Errorf("%v", f.Missing)
	}
}

func TestLists(t *testing.T) {
	for s, want := range map[string][]int{"": nil, "0": {0}, "0-2,7": {0, 1, 2, 7}, " 3 ,4": {3, 4},
		"4,1-2,2": {1, 2, 4}} {
		if got, err := ParseList(s); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"a", "3-1", "-1", "0-99999999", "1-2-3"} {
		if got, err := ParseList(s); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
	if got, err := ParseMask("1,80000003"); err != nil || !slices.Equal(got, []int{0, 1, 31, 32}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, l := range [][]int{{}, {0}, {31, 32}, {3, 64, 100}} {
		if got, err := ParseMask(Mask(l)); err != nil || !slices.Equal(got, l) {
			t.Errorf("%v: %q, %v, %v", l, Mask(l), got, err)
		}
	}
	if s := List([]int{0, 1, 2, 5, 7, 8}); s != "0-2,5,7-8" {
		t.Error(s)
	}
	for name, want := range map[string]int{"eth0-TxRx-3": 3, "mlx5_comp12@pci:0000:19:00.0": 12, "virtio2-input.0": 0,
		"virtio2-config": -1, "nvme0q5": 5, "eth0": -1, "i40e-eth0-TxRx-12": 12,
		"virtio1-output.7": 7, "ens5-Tx-Rx-2": 2, "eth0-rx-1": 1, "eth0-fp-4": 4, "nic1-rxtx-1": 1,
		"mlx5_async0@pci:0000:01:00.0": -1, "ena-mgmnt@pci:0000:00:05.0": -1} {
		if got := Queue(name); got != want {
			t.Errorf("%s: %d", name, got)
		}
	}
}

// Huge pages are of a node or of the machine; what cannot be read is an error, and a kernel without
// them none.
func TestHugePages(t *testing.T) {
	tree := fstest.MapFS{}
	add := func(name, text string) { tree[name] = &fstest.MapFile{Data: []byte(text)} }
	for _, dir := range []string{"sys/kernel/mm/hugepages/hugepages-2048kB/",
		"sys/devices/system/node/node1/hugepages/hugepages-2048kB/"} {
		add(dir+"nr_hugepages", "64\n")
		add(dir+"free_hugepages", "10\n")
	}
	add("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "3\n")
	for node, want := range map[int][]HugePool{-1: {{Size: 2 << 20, Total: 64, Free: 10, Reserved: 3}},
		1: {{Size: 2 << 20, Total: 64, Free: 10}}, 2: nil} {
		if got, err := HugePages(tree, node); err != nil || !slices.Equal(got, want) {
			t.Errorf("node %d: %v, %v", node, got, err)
		}
	}
	add("sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "many")
	if got, err := HugePages(tree, 1); err == nil || !strings.Contains(err.Error(), "free_hugepages") {
		t.Errorf("%v, %v", got, err)
	}
}

// nvidia-smi is run where the driver is, with what it prints and what it says when it fails.
func TestAskSMI(t *testing.T) {
	dir := t.TempDir()
	prog := filepath.Join(dir, "smi")
	script := func(s string) {
		if err := os.WriteFile(prog, []byte("#!/bin/sh\n"+s+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l := live{t.Context(), os.DirFS(dir).(dirFS), prog,
		[]Source{{"penstock/more", func(context.Context) ([]byte, error) {
			return []byte("as told"), nil
		}}}}
	script(`echo "00000000:18:00.0, NVIDIA H100 PCIe, 550.1, 345, 1755, 1593, 1593, Enabled, [N/A]"; case "$1" in --query-gpu=pci.bus_id,name,*) ;; *) exit 3;; esac`)
	if _, err := fs.ReadFile(l, smiFile); err == nil || !strings.Contains(err.Error(), "not loaded") {
		t.Errorf("without a driver: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "proc/driver/nvidia"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "proc/driver/nvidia/version"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b, err := fs.ReadFile(l, smiFile)
	if err != nil {
		t.Fatal(err)
	}
	g, err := parseSMI(string(b))
	if err != nil || len(g) != 1 || g[0] != (GPU{Addr: "0000:18:00.0", Name: "NVIDIA H100 PCIe", Version: "550.1",
		Clock: 345, MaxClock: 1755, MemoryClock: 1593, MaxMemoryClock: 1593, Persistent: true}) {
		t.Errorf("%+v, %v", g, err)
	}
	script("echo couldn\\'t communicate; exit 9")
	if _, err := fs.ReadFile(l, smiFile); err == nil || !strings.Contains(err.Error(), "couldn't communicate") {
		t.Errorf("%v", err)
	}
	if b, err := fs.ReadFile(l, "penstock/more"); err != nil || string(b) != "as told" {
		t.Errorf("of a source: %q, %v", b, err)
	}
	if _, err := fs.ReadFile(l, "penstock/other"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestCountersThatAreKept(t *testing.T) {
	from := map[string]uint64{"rx_packets": 7, "rx_discards": 0, "rx_prio0_pause": 3, "rx_out_of_buffer": 2}
	for i := range 2 * mostCounters {
		from["rx"+strings.Repeat("x", i)+"_dropped"] = 1
	}
	to := map[string]uint64{}
	if keep(to, from); to["rx_prio0_pause"] != 3 || to["rx_out_of_buffer"] != 2 || len(to) != mostCounters ||
		to["rx_dropped"] != 1 || to["rx_packets"] != 0 {
		t.Errorf("%d: %v", len(to), to)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("penstock host recording 1\n/sys/devices/system/cpu/online = 0-1\n/sys/bus/pci/devices/0000:00:03.0 -> " +
		"../../../devices/pci0000:00/0000:00:03.0\n" +
		"/sys/devices/pci0000:00/0000:00:03.0/class = 0x020000\n/sys/devices/pci0000:00/0000:00:03.0/config : 256 " +
		"6=10 34=40 40=10\n")
	f.Add("penstock host recording 1\n/sys/class/net/eth{0,1} -> " +
		"../../devices/virtual/net/eth{0,1}\n/penstock/ethtool/eth0 = {}\n/proc/1/comm <\n| a\n|b\n/x/\n/y ! no\n")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := Parse(strings.NewReader(s))
		if err != nil {
			if !errors.Is(err, ErrRecording) {
				t.Fatal(err)
			}
			return
		}
		facts, rec := Record(context.Background(), r)
		var b bytes.Buffer
		if _, err := rec.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		again, err := Parse(&b)
		if err != nil {
			t.Fatalf("%v of what was written:\n%s", err, text(t, rec))
		}
		if d := cmp.Diff(facts, Read(context.Background(), again)); d != "" {
			t.Fatalf("%s\n%s", d, text(t, rec))
		}
		for i := range facts.PCI {
			facts.Above(&facts.PCI[i])
			facts.Distance(&facts.PCI[0], &facts.PCI[i])
		}
	})
}

func FuzzFiles(f *testing.F) {
	for _, s := range []string{"0-3,8", "ff,00000001", "0x0 0xff 0x200", "16.0 GT/s PCIe",
		"Max locked memory 1 2 bytes", "a,b,c,1,2,3,4,5,6", "isolcpus=1 x --", "1 2 3\n4 5 6",
		"\xde\x10\x31\x23\x06\x04\x10\x00", "eth0-TxRx-3"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := string(b)
		if l, err := ParseList(s); err == nil {
			if again, err := ParseList(List(l)); err != nil || !slices.Equal(again, l) {
				t.Fatalf("%v: %v, %v", l, again, err)
			}
		}
		ParseMask(s)
		parseResource(s)
		parseSpeed(s)
		parseLimits(s)
		parseSMI(s)
		parseCmdline(s)
		parseSoftnet(s)
		parseNodeMemory(s)
		Queue(s)
		var p, q PCI
		parseConfig(b, &p)
		parseConfig(scrubConfig(b), &q)
		if cmp.Diff(p, q) != "" {
			t.Fatalf("%+v, without secrets %+v", p, q)
		}
	})
}
