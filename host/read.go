package host

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Sysctls are the parameters of the kernel that are read, by their names with dots.
var Sysctls = []string{"kernel.numa_balancing", "kernel.nmi_watchdog", "kernel.perf_event_paranoid",
	"kernel.sched_rt_runtime_us", "kernel.timer_migration",
	"kernel.unprivileged_bpf_disabled", "net.core.bpf_jit_enable", "net.core.busy_poll", "net.core.busy_read",
	"net.core.default_qdisc", "net.core.dev_weight",
	"net.core.netdev_budget", "net.core.netdev_budget_usecs", "net.core.netdev_max_backlog", "net.core.optmem_max",
	"net.core.rmem_default", "net.core.rmem_max",
	"net.core.rps_sock_flow_entries", "net.core.wmem_default", "net.core.wmem_max", "net.ipv4.tcp_rmem",
	"net.ipv4.tcp_wmem", "net.ipv4.udp_mem",
	"net.ipv4.udp_rmem_min", "vm.max_map_count", "vm.nr_overcommit_hugepages", "vm.swappiness", "vm.zone_reclaim_mode"}

// SysctlFile is the file of a parameter of the kernel, without the first slash.
func SysctlFile(name string) string { return "proc/sys/" + strings.ReplaceAll(name, ".", "/") }

// modules and drivers that matter here, and programs that keep clocks on time or move interrupts
// about.
var (
	modules = []string{"amdgpu", "amdkfd", "bnxt_re", "efa", "gdrdrv", "ib_core", "ib_ipoib", "ib_peer_mem", "ib_umad",
		"ib_uverbs", "ice", "irdma", "mlx4_ib", "mlx5_core", "mlx5_ib",
		"nouveau", "nvidia", "nvidia_drm", "nvidia_fs", "nvidia_peermem", "nvidia_uvm", "nv_peer_mem", "rdma_cm",
		"rdma_rxe", "rdma_ucm", "siw", "uio_pci_generic", "vfio",
		"vfio_iommu_type1", "vfio_pci", "xe"}
	drivers = []string{"amdgpu", "bnxt_en", "ena", "i40e", "iavf", "ice", "igc", "ixgbe", "mlx5_core", "nvidia",
		"uio_pci_generic", "vfio-pci", "virtio-pci"}
	daemons = []string{"chronyd", "irqbalance", "ntpd", "openntpd", "phc2sys", "ptp4l", "systemd-timesyn", "timemaster",
		"ts2phc", "tuned"}
)

// Read finds out what a machine is. It ends early, with what it has, when ctx is done.
func Read(ctx context.Context, tree fs.FS) *Facts {
	r := &reader{ctx: ctx, tree: tree, missing: map[string]string{}}
	f := &Facts{Missing: r.missing}
	r.system(f)
	r.cpus(f)
	r.memory(f)
	r.pci(f)
	r.gpus(f)
	r.nets(f)
	r.rdma(f)
	r.verbs(f)
	r.dpdk(f)
	r.times(f)
	r.process(f)
	return f
}

func (r *reader) system(f *Facts) {
	f.Kernel = r.word("proc/sys/kernel/osrelease")
	f.Arch = r.word("proc/sys/kernel/arch")
	f.Product = r.word("sys/class/dmi/id/product_name")
	if f.Product == "" {
		f.Product = strings.Trim(r.word("sys/firmware/devicetree/base/model"), "\x00 ")
	}
	if s, ok := r.text("proc/cmdline"); ok {
		f.Options = parseCmdline(s)
	}
	// The one that is in force stands in brackets.
	if s, ok := r.text("sys/kernel/security/lockdown"); ok {
		f.Lockdown = bracketed(s)
	}
	f.THP = bracketed(r.word("sys/kernel/mm/transparent_hugepage/enabled"))
	f.Sysctls = map[string]string{}
	for _, name := range Sysctls {
		if v, ok := r.text(SysctlFile(name)); ok {
			f.Sysctls[name] = strings.Join(strings.Fields(v), " ")
		}
	}
	f.Softnet = parseSoftnet(r.word("proc/net/softnet_stat"))
	if s, ok := r.text("proc/modules"); ok {
		for line := range strings.Lines(s) {
			if w := strings.Fields(line); len(w) > 0 && slices.Contains(modules, w[0]) {
				f.Modules = append(f.Modules, w[0])
			}
		}
		slices.Sort(f.Modules)
		f.Modules = slices.Compact(f.Modules)
	}
	for _, d := range drivers {
		if r.is("sys/bus/pci/drivers/" + d) {
			f.Drivers = append(f.Drivers, d)
		}
	}
	if s, ok := r.text("proc/irq/default_smp_affinity"); ok {
		var err error
		if f.IRQAffinity, err = ParseMask(s); err != nil {
			r.miss("proc/irq/default_smp_affinity", err)
		}
	}
}

// bracketed is the word in brackets of "none [integrity] confidentiality".
func bracketed(s string) string {
	_, rest, _ := strings.Cut(s, "[")
	w, _, ok := strings.Cut(rest, "]")
	if !ok {
		return ""
	}
	return w
}

func (r *reader) cpus(f *Facts) {
	const dir = "sys/devices/system/cpu/"
	info := parseFields(r.word("proc/cpuinfo"))
	f.Virtual = slices.Contains(strings.Fields(info["flags"]), "hypervisor")
	if r.is("sys/hypervisor/type") {
		f.Virtual = true
	}
	online, _ := r.processors(dir + "online")
	f.Offline, _ = r.processors(dir + "offline")
	f.Isolated, _ = r.processors(dir + "isolated")
	if s, ok := r.text(dir + "nohz_full"); ok && s != "(null)" {
		// what a kernel prints that has the option and does not use it
		var err error
		if f.Tickless, err = ParseList(s); err != nil {
			r.miss(dir+"nohz_full", err)
		}
	}
	for _, id := range online {
		at := dir + "cpu" + strconv.Itoa(id)
		c := CPU{ID: id}
		c.Siblings, _ = r.processors(at + "/topology/thread_siblings_list")
		c.Governor = r.word(at + "/cpufreq/scaling_governor")
		for _, n := range r.numbered(at+"/cpuidle", "state") {
			s := at + "/cpuidle/state" + strconv.Itoa(n)
			c.Idle = append(c.Idle, Idle{Name: r.word(s + "/name"), Micros: r.number(s+"/latency", 0),
				Disabled: r.number(s+"/disable", 0) != 0})
		}
		f.CPUs = append(f.CPUs, c)
	}
}

func (r *reader) memory(f *Facts) {
	if n, ok := kilobytes(parseFields(r.word("proc/meminfo"))["MemTotal"]); ok {
		f.Memory = n
	}
	f.Huge = r.pools("sys/kernel/mm/hugepages")
	const dir = "sys/devices/system/node/"
	nodes, _ := r.processors(dir + "online")
	for _, id := range nodes {
		at := dir + "node" + strconv.Itoa(id)
		n := Node{ID: id, Huge: r.pools(at + "/hugepages")}
		n.CPUs, _ = r.processors(at + "/cpulist")
		n.Total, n.Free = parseNodeMemory(r.word(at + "/meminfo"))
		f.Nodes = append(f.Nodes, n)
	}
}

// HugePages are the huge pages of a NUMA node, or of the whole machine where node is -1, by size;
// none on a kernel without. Unlike Read it says why something cannot be read.
func HugePages(tree fs.FS, node int) ([]HugePool, error) {
	dir := "sys/kernel/mm/hugepages"
	if node >= 0 {
		dir = fmt.Sprintf("sys/devices/system/node/node%d/hugepages", node)
	}
	r := &reader{ctx: context.Background(), tree: tree, missing: map[string]string{}}
	out := r.pools(dir)
	for _, path := range slices.Sorted(maps.Keys(r.missing)) {
		if path == "/"+dir && r.missing[path] == reason(fs.ErrNotExist) || strings.HasSuffix(path, "/resv_hugepages") {
			continue
		}
		return nil, fmt.Errorf("%s: %s", path, r.missing[path])
	}
	return out, nil
}

func (r *reader) pools(dir string) (out []HugePool) {
	for _, e := range r.list(dir) {
		kb, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(e, "hugepages-"), "kB"), 10, 40)
		if err != nil {
			continue
		}
		at := dir + "/" + e
		p := HugePool{Size: kb << 10, Total: r.number(at+"/nr_hugepages", 0), Free: r.number(at+"/free_hugepages", 0)}
		if strings.HasPrefix(dir, "sys/kernel/") { // not counted per node
			p.Reserved = r.number(at+"/resv_hugepages", 0)
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b HugePool) int { return int(int64(a.Size) - int64(b.Size)) })
	return out
}

func (r *reader) times(f *Facts) {
	const dir = "sys/devices/system/clocksource/clocksource0/"
	f.ClockSource = r.word(dir + "current_clocksource")
	f.ClockSources = strings.Fields(r.word(dir + "available_clocksource"))
	r.object(clockFile, &f.Time)
	running := map[string]bool{}
	for _, pid := range r.numbered("proc", "") {
		name := "proc/" + strconv.Itoa(pid) + "/comm"
		if s, ok := r.text(name); ok && slices.Contains(daemons, s) {
			running[s] = true
		} else if !ok { // it ended while we looked
			delete(r.missing, "/"+name)
		}
	}
	f.Daemons = slices.Sorted(maps.Keys(running))
}

func (r *reader) process(f *Facts) {
	status := parseFields(r.word("proc/self/status"))
	p := &f.Process
	if n, err := strconv.ParseUint(status["CapEff"], 16, 64); err == nil {
		p.Capabilities, p.CapsKnown = n, true
	}
	p.CPUs, _ = ParseList(status["Cpus_allowed_list"])
	p.Nodes, _ = ParseList(status["Mems_allowed_list"])
	p.Locked, p.LockedHard, p.LockedKnown = parseLimits(r.word("proc/self/limits"))
	p.LockRules = r.lockRules()
}
