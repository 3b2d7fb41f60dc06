package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/penstock-io/penstock/host"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine opens a recording of testdata, with some of its lines replaced: "old" to "new", and lines
// to add behind.
func machine(t *testing.T, name string, edits ...string) Machine {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for i := 0; i < len(edits); i += 2 {
		if edits[i] == "" {
			text += edits[i+1] + "\n"
			continue
		}
		if !strings.Contains(text, edits[i]) {
			t.Fatalf("%s has no %q", name, edits[i])
		}
		text = strings.ReplaceAll(text, edits[i], edits[i+1])
	}
	m, err := Open(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return m
}

// stream is what a program wants that receives on queues of a card, into a GPU.
var stream = Needs{Interfaces: []Interface{{Name: "ens1f0np0", Engine: "xdp", Queues: 8, MTU: 9000,
	HardwareTime: true}}, Cores: []int{2, 3, 4, 5, 33, 68},
	Huge: []Huge{{2 << 30, 1 << 30, 0}, {1 << 30, 0, AnyNode}}, GPUs: []string{AnyGPU}, Receive: 64 << 20}

func TestReports(t *testing.T) {
	for _, x := range []struct {
		name, machine string
		needs         Needs
	}{
		{"server", "server", Needs{}}, {"spark", "spark", Needs{}}, {"laptop", "laptop", Needs{}}, {"vm", "vm", Needs{}},
		{"server-stream", "server", stream},
		{"spark-verbs", "spark", Needs{Interfaces: []Interface{{Name: "enp1s0f0np0", Engine: "verbs"}}, GPUs: []string{"000f:01:00.0"}, Clock: true}},
		{"laptop-all", "laptop", Needs{Interfaces: []Interface{{Name: "eth0", Engine: "dpdk"},
			{Name: "wlp0s20f3", Engine: "afpacket", Queues: 2}}, Cores: []int{0, 1, 40},
			Huge: []Huge{{1 << 30, 0, 3}}, Locked: 8 << 30, GPUs: []string{AnyGPU}}},
	} {
		m := machine(t, x.machine)
		r := Run(m, x.needs)
		text := r.Text(false)
		b, err := json.MarshalIndent(r, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if again := Run(m, x.needs); again.Text(true) != r.Text(true) {
			t.Errorf("%s: two runs differ", x.name)
		}
		for ext, got := range map[string][]byte{".golden": []byte(text), ".json": append(b, '\n')} {
			file := filepath.Join("testdata", x.name+ext)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("%v; go test ./host/doctor -run Reports -update writes it", err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s: it is\n%s\nexpected\n%s", file, got, want)
			}
		}
		for line := range strings.Lines(r.Text(true)) {
			line = strings.TrimRight(line, "\n")
			if utf8.RuneCountInString(line) > textWidth && strings.Contains(strings.TrimSpace(line), " ") {
				t.Errorf("%s: a line of %d columns: %s", x.name, utf8.RuneCountInString(line), line)
			}
		}
		for _, f := range r.Findings {
			if (f.Verdict == Warn || f.Verdict == Fail) && (f.Read == "" || f.Needed == "" || len(f.Fix) == 0) {
				t.Errorf("%s: %+v does not say what is, what should be and how to fix it", x.name, f)
			}
			if (f.Verdict == Unknown || f.Verdict == NotApplicable) && f.Why == "" {
				t.Errorf("%s: %+v does not say why", x.name, f)
			}
		}
	}
}

// Each check comes to each verdict that it can come to, by a change of what was read.
func TestVerdicts(t *testing.T) {
	one := func(i Interface) Needs { return Needs{Interfaces: []Interface{i}} }
	const mlx, ice = "ens1f0np0", "ens2f0"
	const gpuConfig = "0000:18:00.0/config : 4096 0=de10 6=1000 34=60 60=10000200 64=01000000 68=2020"
	const redirects, straight = "100=0d0001005f001d00", "100=0d0001005f000100" // access control of the GPU's bridge
	seen := map[string]map[Verdict]bool{}
	machines := map[string]Machine{}
	for _, x := range rdmaVerdicts {
		r := RunRDMA(machine(t, x.machine, x.edits...), Needs{}, x.devices)
		if x.general {
			r = Run(machine(t, x.machine, x.edits...), Needs{})
		}
		seenBy(t, seen, r, x.check, x.verdict, x.subject, x.edits)
	}
	for _, x := range []struct {
		check   string
		verdict Verdict
		subject string // beginning
		needs   Needs
		edits   []string
	}{
		{"interface", Fail, "eth7", one(Interface{Name: "eth7"}), nil},
		{"interface", Fail, "ens1f1np1", one(Interface{Name: "ens1f1np1"}), nil},
		{"interface", Fail, mlx, one(Interface{Name: mlx}), []string{"ens1f0np0/operstate = up", "ens1f0np0/operstate = down"}},
		{"interface", OK, mlx, one(Interface{Name: "0000:19:00.0"}), nil},
		{"interface", Fail, "0000:51:00.0", one(Interface{Name: "0000:51:00.0", Engine: "xdp"}), nil},
		{"interface", OK, "0000:51:00.0", one(Interface{Name: "0000:51:00.0", Engine: "dpdk"}), nil},
		{"mtu", Fail, ice, one(Interface{Name: ice, MTU: 9000}), nil},
		{"mtu", OK, mlx, one(Interface{Name: mlx, MTU: 9000}), nil},
		{"mtu", Unknown, mlx, one(Interface{Name: mlx}), []string{"ens1f0np0/mtu = 9000", "ens1f0np0/mtu = what"}},
		{"queues", Fail, ice, one(Interface{Name: ice, Queues: 8}), nil},
		{"queues", Fail, ice, one(Interface{Name: ice, Queues: 200}), nil},
		{"queues", Warn, ice, one(Interface{Name: ice, Queues: 2, Engine: "xdp"}), nil},
		{"queues", Warn, ice, Needs{}, []string{`"rx_queues":4,`, `"rx_queues":1,`}},
		{"queues", OK, ice, Needs{}, nil},
		{"queues", Unknown, ice, Needs{}, []string{"/penstock/ethtool/ens2f0 = {", "/penstock/ethtool/ens2f0 = {{"}},
		{"queues", NotApplicable, ice, Needs{}, []string{`"rx_queues":4,`, ``}},
		{"rings", Fail, ice, one(Interface{Name: ice, Ring: 4096}), nil},
		{"rings", Fail, ice, one(Interface{Name: ice, Ring: 16384}), nil},
		{"rings", Warn, ice, one(Interface{Name: ice}), nil},
		{"rings", OK, mlx, one(Interface{Name: mlx, Ring: 8192}), nil},
		{"offloads", OK, mlx, one(Interface{Name: mlx, Engine: "xdp"}), nil},
		{"offloads", Warn, mlx, one(Interface{Name: mlx, Engine: "afpacket"}), nil},
		{"offloads", Warn, mlx, one(Interface{Name: mlx, Engine: "xdp"}),
			[]string{`"rx-gro":"on","rx-lro":"off","rx-gro-hw"`, `"rx-lro":"on [fixed]","rx-gro-hw"`}},
		{"xdp", OK, mlx, one(Interface{Name: mlx, Engine: "xdp"}), nil},
		{"xdp", Fail, mlx, one(Interface{Name: mlx, Engine: "xdp"}),
			[]string{`"xdp_known":true,"hardware_rx_time":true,"stamps_all":true,"clock":0`,
				`"xdp_known":true,"xdp_mode":"native"`}},
		{"xdp", Warn, mlx, one(Interface{Name: mlx, Engine: "xdp", MTU: 9000}), []string{"xsk-zerocopy rx-sg", "xsk-zerocopy"}},
		{"xdp", Warn, mlx, one(Interface{Name: mlx, Engine: "xdp"}), []string{`"xdp":"basic redirect ndo-xmit xsk-zerocopy rx-sg"`, `"xdp":""`}},
		{"xdp", Unknown, mlx, one(Interface{Name: mlx, Engine: "xdp"}), []string{`"xdp_known":true,`, ``}},
		{"irq", OK, mlx, Needs{}, []string{"= irqbalance", "= idle"}},
		{"irq", Warn, mlx, Needs{}, []string{"= irqbalance", "= idle",
			"/proc/irq/{200-207}/effective_affinity_list = {2-9}",
			"/proc/irq/{200-207}/effective_affinity_list = 0-127"}},
		{"irq", Warn, mlx, Needs{}, []string{"= irqbalance", "= idle",
			"/proc/irq/{200-207}/effective_affinity_list = {2-9}", "/proc/irq/{200-207}/effective_affinity_list = 2"}},
		{"irq", Warn, mlx, Needs{}, []string{"= irqbalance", "= idle",
			"/proc/irq/{200-207}/effective_affinity_list = {2-9}",
			"/proc/irq/{200-207}/effective_affinity_list = {2-9},{20-27}"}},
		{"irq", Warn, ice, Needs{}, []string{"= irqbalance", "= idle"}}, // two are far
		{"drops", Warn, mlx, Needs{}, []string{`"rx_out_of_buffer":31`, `"rx_out_of_buffer":3100000`}},
		{"drops", OK, mlx, Needs{}, nil},
		{"pause", OK, mlx, Needs{}, nil},
		{"pause", NotApplicable, mlx, Needs{}, []string{`"pause":{"auto":false,"rx":false,"tx":false},`, ``}},
		{"pause", Warn, mlx, Needs{}, []string{`"rx_out_of_buffer":31`, `"rx_prio3_pause":31`}},
		{"hardware-time", Warn, mlx, one(Interface{Name: mlx, HardwareTime: true}), nil},
		{"hardware-time", OK, mlx, one(Interface{Name: mlx, HardwareTime: true}), []string{"= irqbalance", "= ptp4l"}},
		{"hardware-time", Warn, mlx, one(Interface{Name: mlx, HardwareTime: true}), []string{`"stamps_all":true,"clock":0`, `"clock":0`}},
		{"hardware-time", Fail, mlx, one(Interface{Name: mlx, HardwareTime: true}),
			[]string{`"hardware_rx_time":true,"stamps_all":true,"clock":0`, `"clock":0`}},
		{"cores", OK, "", Needs{Cores: []int{2, 3}}, nil},
		{"cores", Fail, "", Needs{Cores: []int{2, 200}}, nil},
		{"cores", Fail, "", Needs{Cores: []int{2, 9}}, []string{"Cpus_allowed_list: 0-127", "Cpus_allowed_list: 0-7"}},
		{"cores", Unknown, "", Needs{Cores: []int{2}}, []string{"| Cpus_allowed_list: 0-127\n", ""}},
		{"smt", OK, "", Needs{Cores: []int{2, 3}}, nil},
		{"smt", Warn, "", Needs{Cores: []int{2, 66}}, nil},
		{"numa-cores", OK, mlx, Needs{Interfaces: []Interface{{Name: mlx}}, Cores: []int{2, 95}}, nil},
		{"numa-cores", Warn, mlx, Needs{Interfaces: []Interface{{Name: mlx}}, Cores: []int{2, 32}}, nil},
		{"numa-cores", Warn, "NVIDIA H100", Needs{GPUs: []string{AnyGPU}, Cores: []int{2, 32}}, nil},
		{"numa-cores", Unknown, ice, Needs{Cores: []int{2}}, []string{"0000:98:00.0/numa_node = 1", "0000:98:00.0/numa_node = -1"}},
		{"governor", OK, "", Needs{Cores: []int{2}}, nil},
		{"governor", Warn, "", Needs{Cores: []int{66}}, nil},
		{"governor", Unknown, "", Needs{}, []string{"cpufreq", "nothing"}},
		{"idle", OK, "", Needs{Cores: []int{2}}, nil},
		{"idle", Warn, "", Needs{Cores: []int{66}}, nil},
		{"idle", Unknown, "", Needs{}, []string{"cpuidle", "nothing"}},
		{"isolation", OK, "", Needs{Cores: []int{2, 9}}, nil},
		{"isolation", Warn, "", Needs{Cores: []int{2, 10}}, nil},
		{"isolation", Warn, "", Needs{Cores: []int{2}}, []string{"ffffffff,fffffc03", "ffffffff,fffffc07"}},
		{"numa-balancing", Warn, "", Needs{}, nil},
		{"numa-balancing", OK, "", Needs{}, []string{"numa_balancing = 1", "numa_balancing = 0"}},
		{"clock-source", Warn, "", Needs{}, nil},
		{"clock-source", OK, "", Needs{}, []string{"current_clocksource = hpet", "current_clocksource = tsc"}},
		{"clock-source", Unknown, "", Needs{}, []string{"current_clocksource = hpet", "current_clocksource ! permission denied"}},
		{"clock-sync", OK, "", Needs{Clock: true}, nil},
		{"clock-sync", Warn, "", Needs{}, []string{`{"synchronised":true`, `{"synchronised":false`}},
		{"clock-sync", Fail, "", Needs{Clock: true}, []string{`{"synchronised":true`, `{"synchronised":false`}},
		{"clock-sync", Unknown, "", Needs{Clock: true}, []string{`/penstock/clock = {`, `/penstock/clock ! no {`}},
		{"hugepages", OK, "node 0", Needs{Huge: []Huge{{3 << 30, 1 << 30, 0}}}, nil},
		{"hugepages", Fail, "node 0", Needs{Huge: []Huge{{3<<30 + 1, 1 << 30, 0}}}, nil},
		// they add up
		{"hugepages", Fail, "node 0", Needs{Huge: []Huge{{2 << 30, 1 << 30, 0}, {2 << 30, 1 << 30, 0}}}, nil},
		{"hugepages", Fail, "node 2", Needs{Huge: []Huge{{1 << 30, 1 << 30, 2}}}, nil},
		{"hugepages", Fail, "", Needs{Huge: []Huge{{2 << 20, 1 << 16, AnyNode}}}, nil},
		{"hugepages", Fail, "", Needs{Huge: []Huge{{7 << 30, 1 << 30, AnyNode}}},
			[]string{"hugepages-1048576kB/resv_hugepages = 0", "hugepages-1048576kB/resv_hugepages = 1"}},
		{"hugepages", Warn, "", Needs{}, []string{"/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages = 8",
			"/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages = 0"}},
		{"numa-memory", OK, "rx", Needs{Interfaces: []Interface{{Name: mlx}},
			Memory: []Memory{{Name: "rx", Kind: "huge", Bytes: 1, Interfaces: []string{mlx}}}}, nil},
		{"numa-memory", Warn, "rx", Needs{Interfaces: []Interface{{Name: mlx}},
			Memory: []Memory{{Name: "rx", Kind: "huge", Bytes: 1, Node: 1, Interfaces: []string{mlx}}}}, nil},
		{"thp", Warn, "", Needs{}, nil},
		{"thp", OK, "", Needs{}, []string{"[always] madvise", "always [madvise]"}},
		{"memlock", OK, "", one(Interface{Name: mlx, Engine: "xdp"}), nil},
		{"memlock", Fail, "", one(Interface{Name: mlx, Engine: "xdp"}), []string{"CapEff: 000001ffffffffff", "CapEff: 0"}},
		{"memlock", OK, "", Needs{Locked: 8 << 20}, []string{"CapEff: 000001ffffffffff", "CapEff: 0"}},
		{"memlock", Warn, "", Needs{}, []string{"CapEff: 000001ffffffffff", "CapEff: 0"}},
		{"memlock", OK, "", Needs{Locked: 1 << 40}, []string{"CapEff: 000001ffffffffff", "CapEff: 0", "8388608              8388608", "unlimited unlimited"}},
		{"memlock", Unknown, "", Needs{}, []string{"Max locked memory", "Max something"}},
		{"capabilities", Fail, "engine xdp", one(Interface{Name: mlx, Engine: "xdp"}), []string{"CapEff: 000001ffffffffff", "CapEff: 0000000000003000"}},
		// an old CAP_SYS_ADMIN
		{"capabilities", OK, "engine xdp", one(Interface{Name: mlx, Engine: "xdp"}), []string{"CapEff: 000001ffffffffff", "CapEff: 0000000000203000"}},
		{"capabilities", Unknown, "engine afpacket", one(Interface{Name: mlx, Engine: "afpacket"}), []string{"CapEff: 000001ffffffffff", "CapEff: ?"}},
		{"kernel", OK, "", one(Interface{Name: mlx, Engine: "xdp", MTU: 9000}), nil},
		{"kernel", Fail, "", one(Interface{Name: mlx, Engine: "xdp", MTU: 9000}), []string{"6.8.0-49-generic", "6.5.0"}},
		{"kernel", OK, "", one(Interface{Name: mlx, Engine: "xdp"}), []string{"6.8.0-49-generic", "5.18"}},
		{"kernel", Fail, "", one(Interface{Name: mlx, Engine: "xdp"}), []string{"6.8.0-49-generic", "5.17.9"}},
		{"kernel", Unknown, "", one(Interface{Name: mlx, Engine: "xdp"}), []string{"6.8.0-49-generic", "new"}},
		{"lockdown", Warn, "", Needs{}, []string{"[none] integrity", "none [integrity]"}},
		{"lockdown", Unknown, "", Needs{}, []string{"lockdown = [none] integrity confidentiality", "lockdown ! permission denied"}},
		{"socket-buffers", Warn, "receiving", one(Interface{Name: mlx, Engine: "socket"}), nil},
		{"socket-buffers", Fail, "receiving", Needs{Receive: 1 << 20}, []string{"CapEff: 000001ffffffffff", "CapEff: 0"}},
		{"socket-buffers", OK, "sending", Needs{Send: 64 << 20}, nil},
		{"socket-buffers", Unknown, "sending", Needs{}, []string{"wmem_max = 67108864", "wmem_max = much"}},
		{"softnet", Warn, "", Needs{}, nil},
		{"softnet", OK, "", Needs{}, []string{"0000ffff", "0000000f"}},
		{"softnet", Warn, "", Needs{}, []string{"3b9aca00 00000000 00000002", "3b9aca00 00010000 00000002", "0000ffff", "0000000f"}},
		{"pcie-link", Warn, ice, Needs{}, nil},
		{"pcie-link", OK, mlx, Needs{}, nil},
		{"pcie-link", Warn, mlx, Needs{}, []string{"0000:19:00.{0,1}/current_link_speed = 32.0 GT/s", "0000:19:00.{0,1}/current_link_speed = 16.0 GT/s"}},
		// the switch
		{"pcie-link", Warn, mlx, Needs{}, []string{"0000:16:00.0/current_link_width = 16", "0000:16:00.0/current_link_width = 4"}},
		{"pcie-link", Warn, "NVIDIA", Needs{}, []string{"0000:18:00.0/current_link_width = 16", "0000:18:00.0/current_link_width = 8"}},
		{"pcie-payload", Warn, mlx, Needs{}, nil},
		{"pcie-payload", OK, "NVIDIA", Needs{}, nil},
		{"pcie-payload", Unknown, "NVIDIA", Needs{}, []string{gpuConfig, "0000:18:00.0/config : 64 6=10 34=60"}},
		{"pcie-read-request", OK, mlx, Needs{}, nil},
		{"pcie-read-request", Warn, ice, Needs{}, nil},
		{"pcie-acs", Warn, "Broadcom", Needs{}, nil},
		{"pcie-acs", OK, "Broadcom", Needs{}, []string{"5f001d00", "5f000100"}},
		{"iommu", OK, mlx, Needs{}, nil},
		{"iommu", Warn, mlx, Needs{}, []string{"type = identity", "type = DMA"}},
		{"iommu", Unknown, mlx, Needs{}, []string{"type = identity", "type ! permission denied"}},
		{"iommu", Fail, ice, one(Interface{Name: ice, Engine: "dpdk"}), []string{"0000:98:00.0/iommu_group -> ", "0000:98:00.0/no_group -> "}},
		{"driver", Fail, ice, one(Interface{Name: ice, Engine: "dpdk"}), nil},
		{"driver", OK, mlx, one(Interface{Name: mlx, Engine: "dpdk"}), nil},
		{"driver", OK, "Intel E810", one(Interface{Name: "0000:98:00.0", Engine: "dpdk"}),
			[]string{"bus/pci/drivers/ice\n", "bus/pci/drivers/vfio-pci\n", "/sys/class/net/ens2f0 ->",
				"/sys/class/no/ens2f0 ->"}},
		{"dpdk", Fail, "engine dpdk", one(Interface{Name: mlx, Engine: "dpdk"}), nil}, // tests are built without
		{"dpdk", Fail, "libdpdk", one(Interface{Name: mlx, Engine: "dpdk"}), nil},
		{"dpdk", OK, "libdpdk", one(Interface{Name: mlx, Engine: "dpdk"}), []string{"/librdmacm.so.1", "/librte_eal.so.23"}},
		{"dpdk", NotApplicable, "", one(Interface{Name: mlx, Engine: "xdp"}), nil},
		{"rdma", OK, "mlx5_0", Needs{}, nil},
		{"rdma", OK, "mlx5_0", one(Interface{Name: mlx, Engine: "verbs"}), nil},
		{"rdma-counters", Warn, "mlx5_0", Needs{}, nil},
		{"rdma-counters", OK, "mlx5_0", one(Interface{Name: mlx, Engine: "verbs"}),
			[]string{"np_ecn_marked_roce_packets = 5120", "np_ecn_marked_roce_packets = 0"}},
		{"rdma", Fail, "mlx5_1", one(Interface{Name: "ens1f1np1", Engine: "verbs"}), nil},
		{"rdma", Fail, ice, one(Interface{Name: ice, Engine: "verbs"}), nil},
		{"rdma", NotApplicable, "mlx5_1", Needs{}, nil},
		{"gpu", OK, "NVIDIA", Needs{GPUs: []string{"0000:18:00.0"}}, nil},
		{"gpu", Fail, "0000:19:00.0", Needs{GPUs: []string{"0000:19:00.0"}}, nil},
		{"gpu", Fail, "NVIDIA", Needs{GPUs: []string{AnyGPU}}, []string{"bus/pci/drivers/nvidia\n", "bus/pci/drivers/nouveau\n"}},
		{"gpu", Warn, "NVIDIA", Needs{}, []string{"bus/pci/drivers/nvidia\n", "bus/pci/drivers/vfio-pci\n"}},
		{"gpu-direct", Warn, "NVIDIA", Needs{}, nil},
		{"gpu-direct", Fail, "NVIDIA", Needs{GPUs: []string{AnyGPU}}, nil},
		{"gpu-direct", OK, "NVIDIA", Needs{}, []string{"| nvidia_uvm", "| nvidia_peermem"}},
		{"gpu-direct", OK, "NVIDIA", Needs{}, []string{"UNIX x86_64 Kernel Module", "UNIX Open Kernel Module"}},
		{"gpu-direct", Unknown, "NVIDIA", Needs{}, []string{"bus/pci/drivers/nvidia\n", "bus/pci/drivers/nouveau\n"}},
		{"rdma-gpu", Warn, "mlx5_0 and NVIDIA", Needs{}, nil},
		{"rdma-gpu", Fail, "mlx5_0 and NVIDIA", Needs{GPUs: []string{AnyGPU}}, nil},
		// by peer memory, but a bridge redirects
		{"rdma-gpu", Warn, "mlx5_0 and NVIDIA", Needs{}, []string{"| nvidia_uvm", "| nvidia_peermem"}},
		{"rdma-gpu", OK, "mlx5_0 and NVIDIA", Needs{}, []string{"UNIX x86_64 Kernel Module", "UNIX Open Kernel Module", redirects, straight}},
		{"rdma-gpu", OK, "mlx5_1 and NVIDIA", Needs{}, []string{"| nvidia_uvm", "| nv_peer_mem", redirects, straight}},
		{"rdma-gpu", Warn, "mlx5_0 and NVIDIA", Needs{}, []string{"| nvidia_uvm", "| nvidia_peermem", redirects,
			straight, "{21-23,40}/type = identity", "{21-23,40}/type = DMA"}},
		{"rdma-gpu", Unknown, "mlx5_0 and NVIDIA", Needs{}, []string{"bus/pci/drivers/nvidia\n", "bus/pci/drivers/nouveau\n"}},
		{"rdma-gpu", NotApplicable, "", Needs{GPUs: []string{}}, nil},
		{"gpu-bar", OK, "NVIDIA", Needs{}, nil},
		{"gpu-bar", Warn, "NVIDIA", Needs{}, []string{"0x0000203fffffffff", "0x000020203fffffff"}}, // one GiB
		{"gpu-bar", Unknown, "NVIDIA", Needs{}, []string{"0000:18:00.0/resource <", "0000:18:00.0/no_resource <"}},
		{"gpu-topology", OK, "NVIDIA", Needs{}, nil},
		{"gpu-topology", Warn, "NVIDIA", one(Interface{Name: ice}), nil},
		{"gpu-clocks", Warn, "NVIDIA", Needs{}, nil},
		{"gpu-clocks", OK, "NVIDIA", Needs{}, []string{"550.127.05, 345,", "550.127.05, 1255,"}},
		{"gpu-clocks", Warn, "NVIDIA", Needs{}, []string{"550.127.05, 345, 1755, 1593", "550.127.05, 1755, 1755, 1591"}},
		{"gpu-clocks", Unknown, "NVIDIA", Needs{}, []string{"/penstock/nvidia-smi = ", "/penstock/nvidia-smi ! "}},
	} {
		key := strings.Join(x.edits, "\n")
		if _, ok := machines[key]; !ok {
			// These are most of the lines, and matter only to a few checks.
			edits := x.edits
			if x.check != "idle" {
				edits = append([]string{"{0-127}/cpuidle/state1", "{0}/cpuidle/state1", "{0-127}/cpuidle/state0",
					"{0}/cpuidle/state0"}, edits...)
			}
			machines[key] = machine(t, "server", edits...)
		}
		r := Run(machines[key], x.needs)
		seenBy(t, seen, r, x.check, x.verdict, x.subject, x.edits)
	}
	for _, c := range Checks() {
		s := seen[c.ID]
		if !s[OK] && c.ID != "lockdown" || !s[Warn] && !s[Fail] {
			t.Errorf("%s was not seen well and ill: %v", c.ID, s)
		}
		if c.Title == "" || c.Why == "" || strings.ContainsAny(c.ID, " _,") {
			t.Errorf("%+v", c)
		}
	}
}

// seenBy notes that a check came to a verdict about a subject, or fails the test.
func seenBy(t *testing.T, seen map[string]map[Verdict]bool, r Report, check string, verdict Verdict, subject string,
	edits []string) {
	t.Helper()
	found := false
	var got []string
	for _, f := range r.Findings {
		if f.Check == check {
			found = found || f.Verdict == verdict && strings.HasPrefix(f.Subject, subject)
			got = append(got, string(f.Verdict)+" "+f.Subject+": "+f.Read+f.Why)
		}
	}
	if !found {
		t.Errorf("%s of %q: expected %s after %q; it is\n%s", check, subject, verdict, edits, strings.Join(got, "\n"))
	}
	if seen[check] == nil {
		seen[check] = map[Verdict]bool{}
	}
	seen[check][verdict] = true
}

// Without needs nothing fails, whatever the machine.
func TestNothingFailsInGeneral(t *testing.T) {
	for _, name := range []string{"server", "spark", "laptop", "vm", "roce", "infiniband", "rxe"} {
		if r := Run(machine(t, name), Needs{}); r.Count(Fail) != 0 || r.Worst() == Fail {
			t.Errorf("%s: %v", name, r)
		}
	}
}

func TestSkipAndWorst(t *testing.T) {
	m := machine(t, "server")
	r := Run(m, Needs{}, "mtu", "gpu")
	if slices.ContainsFunc(r.Findings, func(f Finding) bool {
		return f.Check == "mtu" || f.Check == "gpu"
	}) || r.Worst() != Warn {
		t.Errorf("%v", r)
	}
	if r := Run(m, stream); r.Worst() != Fail || r.Count(Fail) == 0 {
		t.Errorf("%v", r)
	}
	if w := (&Report{}).Worst(); w != NotApplicable {
		t.Error(w)
	}
}

func TestNeedsThatMakeNoSense(t *testing.T) {
	for _, x := range []struct {
		n    Needs
		want string
	}{
		{Needs{Interfaces: []Interface{{}}}, "without a name"},
		{Needs{Interfaces: []Interface{{Name: "a"}, {Name: "a"}}}, "twice"},
		{Needs{Interfaces: []Interface{{Name: "a", Engine: "ebpf"}}}, "expected one of xdp"},
		{Needs{Interfaces: []Interface{{Name: "a", Queues: -1}}}, "queues"},
		{Needs{Interfaces: []Interface{{Name: "a", MTU: 1 << 20}}}, "MTU"},
		{Needs{Interfaces: []Interface{{Name: "a", Ring: -1}}}, "descriptors"},
		{Needs{Cores: []int{-1}}, "processor -1"},
		{Needs{Cores: []int{1, 1}}, "twice"},
		{Needs{Huge: []Huge{{Bytes: 1, Page: 3 << 20}}}, "power of two"},
		{Needs{Huge: []Huge{{}}}, "expected 1 to"},
		{Needs{Huge: []Huge{{Bytes: 1, Node: -2}}}, "node -2"},
	} {
		if err := x.n.Check(); !errors.Is(err, ErrNeeds) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%+v: %v", x.n, err)
		}
	}
	if err := stream.Check(); err != nil {
		t.Error(err)
	}
}

// A machine of which nothing can be read gives no verdict but that.
func TestNothingCanBeRead(t *testing.T) {
	m, err := Open(strings.NewReader("penstock host recording 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	r := Run(m, Needs{})
	if r.Count(OK)+r.Count(Warn)+r.Count(Fail) != 0 || r.Count(Unknown) == 0 {
		t.Errorf("%v", r.Text(true))
	}
	if r := Run(m, stream); r.Count(OK) != 1 { // that no two of no processors share a core
		t.Errorf("%v", r.Text(true))
	}
}

// This machine: whatever it is, what can be read is read, and the recording gives the same report.
func TestThisMachine(t *testing.T) {
	var b bytes.Buffer
	m, err := Record(t.Context(), &b)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Open(&b)
	if err != nil {
		t.Fatal(err)
	}
	n := Needs{Interfaces: []Interface{{Name: "lo", Engine: "socket"}}, Cores: []int{0}}
	r := Run(m, n)
	if got := Run(again, n).Text(true); got != r.Text(true) {
		t.Errorf("from the recording:\n%s\nof the machine:\n%s", got, r.Text(true))
	}
	if i := slices.IndexFunc(r.Findings, func(f Finding) bool {
		return f.Check == "cores"
	}); i < 0 || r.Findings[i].Verdict != OK {
		t.Errorf("processor 0 is not well:\n%s", r.Text(true))
	}
	if r := Run(Look(t.Context()), Needs{}); !strings.Contains(r.Machine, "Linux ") {
		t.Error(r.Machine)
	}
}

// Commands and options that findings advise are for what the machine has: rings no longer than the
// card's, processors that are online, and one of them left.
func TestAdviceCanBeFollowed(t *testing.T) {
	asked := Needs{Cores: []int{0, 1, 3, 200}}
	every := Needs{}
	for i := range 128 {
		every.Cores = append(every.Cores, i)
	}
	rings := regexp.MustCompile(`tune nic (\S+) --rings (\d+)`)
	isolated := regexp.MustCompile(`(?:isolcpus|nohz_full|rcu_nocbs|irqaffinity)=(\S+)`)
	found := map[string]int{}
	for _, name := range []string{"server", "spark", "laptop", "vm"} {
		var edits []string
		if name == "vm" { // with a reader that is away too long, and rings that cannot be longer
			edits = []string{"virtio2/net/eth0/statistics/rx_dropped = 0",
				"virtio2/net/eth0/statistics/rx_dropped = 99999"}
		}
		m := machine(t, name, edits...)
		facts := m.facts
		online := map[int]bool{}
		for _, c := range facts.CPUs {
			online[c.ID] = true
		}
		for _, n := range []Needs{{}, asked, every} {
			for _, f := range Run(m, n).Findings {
				for _, fix := range f.Fix {
					for _, c := range rings.FindAllStringSubmatch(fix, -1) {
						found["rings"]++
						want, _ := strconv.Atoi(c[2])
						if i := facts.Net(c[1]); i == nil || i.Ethtool == nil || want > i.Ethtool.MaxRxRing ||
							want <= i.Ethtool.RxRing {
							t.Errorf("%s: %s", name, fix)
						}
					}
					for _, c := range isolated.FindAllStringSubmatch(fix, -1) {
						found["processors"]++
						list, err := host.ParseList(c[1])
						if err != nil || len(list) == 0 || len(list) == len(online) ||
							slices.ContainsFunc(list, func(i int) bool {
								return !online[i]
							}) {
							t.Errorf("%s: %s", name, fix)
						}
					}
				}
			}
		}
	}
	if found["rings"] == 0 || found["processors"] == 0 {
		t.Error("nothing was advised: ", found)
	}
}
