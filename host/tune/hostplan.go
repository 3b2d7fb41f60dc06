package tune

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/host"
)

// HostGoals says what the caller wants of the machine, apart from its interfaces. The zero value
// asks for what is right nearly always.
type HostGoals struct {
	// Buffers is how large a socket's buffers may be, in bytes; 0: 64 MiB.
	Buffers uint64
	// Sysctls are parameters of the kernel by their names with dots, of HostSysctls, and their
	// values.
	Sysctls map[string]string
	// HugePages is memory to have free in huge pages.
	HugePages []HostHuge
	// Governor is that of the processors' frequency; empty: performance.
	Governor string
	// Cores are the processors whose governor it is; none: all.
	Cores []int
	// Skip names steps to leave out, of HostNames.
	Skip []string
}

// HostHuge is memory in huge pages of one NUMA node.
type HostHuge struct {
	Huge
	Node int // -1: wherever the kernel puts it
}

// HostNames are the names of steps of Host, for HostGoals.Skip, in the order in which they are
// done.
var HostNames = []string{"buffers", "budget", "backlog", "numa-balancing", "sysctl", "hugepages", "governor"}

// HostSysctls are the parameters of the kernel that Host may set. It refuses others, so that a
// record that was tampered with reaches nothing else.
var HostSysctls = []string{"kernel.nmi_watchdog", "kernel.numa_balancing", "kernel.timer_migration",
	"net.core.busy_poll", "net.core.busy_read", "net.core.dev_weight",
	"net.core.netdev_budget", "net.core.netdev_budget_usecs", "net.core.netdev_max_backlog", "net.core.optmem_max",
	"net.core.rmem_default", "net.core.rmem_max",
	"net.core.wmem_default", "net.core.wmem_max", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "net.ipv4.udp_mem",
	"net.ipv4.udp_rmem_min", "vm.max_map_count",
	"vm.nr_overcommit_hugepages", "vm.swappiness", "vm.zone_reclaim_mode"}

const defaultBuffers = 64 << 20

// theHost stands for the machine where an interface's name is expected: no interface has it.
const theHost = ""

// Host makes the plan for the machine, apart from its interfaces: sockets' buffers and other
// parameters of the kernel, huge pages by size and NUMA node, the governor of the processors'
// frequency. It changes nothing and needs no rights. The error wraps ErrGoal where the machine
// cannot have what is wanted. Plan.Interface is empty; Apply does the plan, UndoHost takes it back.
func Host(ctx context.Context, goals HostGoals) (Plan, error) { return hostPlan(ctx, linux{}, goals) }

// UndoHost is Undo of a plan of Host.
func UndoHost(ctx context.Context, o Options) (Result, error) { return undo(ctx, linux{}, theHost, o) }

// subject is an interface, or the host, in words; command is how to undo what was done to it.
func subject(iface string) string {
	if iface == theHost {
		return "host"
	}
	return iface
}

func undoCommand(iface string) string {
	if iface == theHost {
		return "penstock tune host --undo"
	}
	if isPCI(iface) {
		return "penstock tune driver " + iface + " --undo"
	}
	return "penstock tune nic " + iface + " --undo"
}

func (g *HostGoals) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrGoal, fmt.Sprintf(format, args...))
	}
	if g.Buffers > 1<<31-1 {
		return bad("buffers of %d bytes: expected at most %d", g.Buffers, 1<<31-1)
	}
	for name, v := range g.Sysctls {
		if !slices.Contains(HostSysctls, name) {
			return bad("the kernel's parameter %q: expected one of %s", name, strings.Join(HostSysctls, ", "))
		}
		for w := range strings.FieldsSeq(v) {
			if _, err := strconv.ParseInt(w, 10, 64); err != nil {
				return bad("%s=%q: expected a number, or several", name, v)
			}
		}
		if strings.TrimSpace(v) == "" {
			return bad("%s without a value", name)
		}
	}
	seen := map[[2]int]bool{}
	for _, h := range g.HugePages {
		one := Goals{HugePages: h.Huge}
		if err := one.check(); err != nil {
			return err
		}
		page := h.Page
		if page == 0 {
			page = defaultHuge
		}
		switch k := [2]int{page, h.Node}; {
		case h.Bytes == 0 || h.Node < -1:
			return bad("%d bytes in huge pages of node %d", h.Bytes, h.Node)
		case seen[k]:
			return bad("huge pages of %s on node %d are asked for twice", sizeText(uint64(page)), h.Node)
		default:
			seen[k] = true
		}
		if h.Node >= 0 != (g.HugePages[0].Node >= 0) {
			return bad("huge pages of a node and of the whole machine at once: the machine's number is the sum of " +
				"the nodes'")
		}
	}
	if strings.ContainsAny(g.Governor, " \t\n@") {
		return bad("governor %q", g.Governor)
	}
	for _, c := range g.Cores {
		if c < 0 || c >= mostCPU {
			return bad("processor %d: expected 0 to %d", c, mostCPU-1)
		}
	}
	for _, s := range g.Skip {
		if !slices.Contains(HostNames, s) {
			return bad("no step is called %q: expected some of %s", s, strings.Join(HostNames, ", "))
		}
	}
	return nil
}

func hostPlan(ctx context.Context, h machine, goals HostGoals) (Plan, error) {
	if err := goals.check(); err != nil {
		return Plan{}, err
	}
	f, err := h.hostFacts(ctx)
	if err != nil {
		return Plan{}, err
	}
	b := builder{host: h, iface: theHost, goals: Goals{Skip: goals.Skip}}
	x := hostBuilder{&b, goals, f}
	x.sysctls()
	if err := x.hugePages(); err != nil {
		return b.plan, err
	}
	return b.plan, x.governor()
}

// hostBuilder makes a plan of Host out of facts and goals.
type hostBuilder struct {
	*builder
	goals HostGoals
	facts *host.Facts
}

func sysctlSetting(name string) Setting { return Setting("sysctl " + name) }

func (b *hostBuilder) sysctl(step, name, wanted, why string) {
	if _, explicit := b.goals.Sysctls[name]; explicit && step != "sysctl" {
		return
	}
	now, ok := b.facts.Sysctls[name]
	if !ok {
		b.plan.Unknown = append(b.plan.Unknown, Unknown{name,
			"it cannot be read: " + b.facts.Why("/"+host.SysctlFile(name))})
		return
	}
	b.add(Step{Name: step, What: name, Setting: sysctlSetting(name), Where: "/" + host.SysctlFile(name), Now: now,
		Wanted: wanted, Host: true, Why: why,
		Command: fmt.Sprintf("sysctl -w %s", shellWord(name+"="+wanted))})
}

// shellWord quotes what has blanks in it.
func shellWord(s string) string {
	if strings.Contains(s, " ") {
		return "'" + s + "'"
	}
	return s
}

// value is a parameter of the kernel as a number; -1 if it is none.
func (b *hostBuilder) value(name string) int {
	n, err := strconv.Atoi(b.facts.Sysctls[name])
	if err != nil {
		return -1
	}
	return n
}

func (b *hostBuilder) sysctls() {
	want := b.goals.Buffers
	if want == 0 {
		want = defaultBuffers
	}
	for _, name := range []string{"net.core.rmem_max", "net.core.wmem_max"} {
		if v := b.value(name); v < 0 || uint64(v) < want {
			b.sysctl("buffers", name, strconv.FormatUint(want, 10),
				"A UDP socket loses what arrives while its reader is away and its buffer full; a socket gets what it "+
					"asks for "+
					"only up to this many bytes.")
		}
	}
	if s := b.facts.Softnet; s.Squeezed > 0 && s.Squeezed >= s.Packets/1e5 {
		for _, x := range []struct {
			name  string
			least int
		}{{"net.core.netdev_budget", 600}, {"net.core.netdev_budget_usecs", 8000}} {
			if v := b.value(x.name); v < x.least {
				b.sysctl("budget", x.name, strconv.Itoa(x.least),
					fmt.Sprintf("The kernel was cut off %d times in the middle of receiving since the boot, by the "+
						"number of packets or by the "+
						"time that it may take at once.", s.Squeezed))
			}
		}
	}
	if s := b.facts.Softnet; s.Dropped > 0 && s.Dropped >= s.Packets/1e5 {
		if v := b.value("net.core.netdev_max_backlog"); v < 8192 {
			b.sysctl("backlog", "net.core.netdev_max_backlog", "8192",
				fmt.Sprintf("The kernel dropped %d packets since the boot that were handed from one processor to "+
					"another (RPS).", s.Dropped))
		}
	}
	if b.facts.Sysctls["kernel.numa_balancing"] != "" && len(b.facts.Nodes) > 1 {
		b.sysctl("numa-balancing", "kernel.numa_balancing", "0",
			"The kernel unmaps pages to see who uses them and moves them: page faults in the middle of a burst.")
	}
	var names []string
	for name := range b.goals.Sysctls {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		b.sysctl("sysctl", name, strings.Join(strings.Fields(b.goals.Sysctls[name]), " "), "As asked for.")
	}
}

func (b *hostBuilder) hugePages() error {
	for _, h := range b.goals.HugePages {
		pools, where := b.facts.Huge, ""
		if h.Node >= 0 {
			n := b.facts.Node(h.Node)
			if n == nil {
				return fmt.Errorf("%w: there is no NUMA node %d: expected one of %d", ErrGoal, h.Node,
					len(b.facts.Nodes))
			}
			pools, where = n.Huge, fmt.Sprintf(" of NUMA node %d", h.Node)
		}
		// The builder of interfaces does the rest with the pools of this place.
		b.builder.facts.hugePages, b.builder.goals.HugePages = nil, h.Huge
		for _, p := range pools {
			b.builder.facts.hugePages = append(b.builder.facts.hugePages,
				hugePages{size: int(p.Size), node: h.Node, total: p.Total, free: max(p.Free-p.Reserved, 0)})
		}
		before := len(b.plan.Steps)
		if err := b.builder.hugePages(); err != nil {
			return err
		}
		for i := before; i < len(b.plan.Steps); i++ {
			s := &b.plan.Steps[i]
			s.What += where
			s.Why = strings.Replace(s.Why, ", where the card is", "", 1)
		}
	}
	return nil
}

// governorSetting is the governors of a list of processors. Its value names each governor with its
// processors: "performance@0-3 powersave@4-7".
func governorSetting(cpus []int) Setting { return Setting("governor " + host.List(cpus)) }

func governorText(by map[string][]int) string {
	var parts []string
	for g, l := range by {
		parts = append(parts, g+"@"+host.List(l))
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

func (b *hostBuilder) governor() error {
	want := b.goals.Governor
	explicit := want != "" || b.goals.Cores != nil
	if want == "" {
		want = "performance"
	}
	var cpus, none []int
	by := map[string][]int{}
	for _, c := range b.facts.CPUs {
		switch {
		case b.goals.Cores != nil && !slices.Contains(b.goals.Cores, c.ID):
		case c.Governor == "":
			none = append(none, c.ID)
		default:
			cpus = append(cpus, c.ID)
			by[c.Governor] = append(by[c.Governor], c.ID)
		}
	}
	for _, c := range b.goals.Cores {
		if b.facts.CPU(c) == nil {
			return fmt.Errorf("%w: there is no processor %d online", ErrGoal, c)
		}
	}
	if none != nil && explicit {
		return fmt.Errorf("%w: processors %s have no governor here: in a virtual machine the hypervisor decides, "+
			"else the firmware", ErrGoal, host.List(none))
	}
	if cpus == nil {
		return nil
	}
	b.add(Step{Name: "governor", What: "CPU frequency", Setting: governorSetting(cpus),
		Where: "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", Now: governorText(by),
		Wanted: want + "@" + host.List(cpus), Host: true,
		Why:     "A processor that has slept or slowed down takes its time to come back, during which packets wait.",
		Command: fmt.Sprintf("cpupower -c %s frequency-set -g %s", host.List(cpus), want)})
	return nil
}

// hostFacts reads the machine.
func (l linux) hostFacts(ctx context.Context) (*host.Facts, error) {
	f := host.Read(ctx, os.DirFS(l.slash()))
	return f, ctx.Err()
}

// governorFile is the file of a processor's governor.
func governorFile(cpu int) string {
	return fmt.Sprintf("/sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor", cpu)
}

// governorCPUs is the list of a setting of governors.
func governorCPUs(s Setting) ([]int, bool) {
	text, ok := strings.CutPrefix(string(s), "governor ")
	if !ok {
		return nil, false
	}
	cpus, err := host.ParseList(text)
	return cpus, err == nil && len(cpus) > 0
}

func (l linux) getGovernors(cpus []int) (string, error) {
	by := map[string][]int{}
	for _, c := range cpus {
		g, err := l.read(governorFile(c))
		if errors.Is(err, fs.ErrNotExist) { // taken away since
			continue
		}
		if err != nil {
			return "", err
		}
		by[g] = append(by[g], c)
	}
	if len(by) == 0 {
		return "", fmt.Errorf("%w: governors of processors %s", errGone, host.List(cpus))
	}
	return governorText(by), nil
}

// setGovernors sets the governors that a value names, of no other processors than cpus.
func (l linux) setGovernors(cpus []int, value string) error {
	var errs []error
	for part := range strings.FieldsSeq(value) {
		g, text, ok := strings.Cut(part, "@")
		some, err := host.ParseList(text)
		if !ok || err != nil || g == "" {
			return fmt.Errorf("governors %q: expected such as performance@0-3", value)
		}
		for _, c := range some {
			if !slices.Contains(cpus, c) {
				return fmt.Errorf("governors %q: processor %d is not of %s", value, c, host.List(cpus))
			}
			if err := l.write(governorFile(c), g); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
