package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/host"
)

func checkCores(x *exam) {
	if len(x.n.Cores) == 0 {
		x.skip("no cores are asked for")
		return
	}
	if len(x.f.CPUs) == 0 {
		x.unknown("", x.f.Why("/sys/devices/system/cpu/online"))
		return
	}
	var online []int
	for _, c := range x.f.CPUs {
		online = append(online, c.ID)
	}
	cores := slices.Sorted(slices.Values(x.n.Cores))
	if off := without(cores, online); off != nil {
		f := Finding{Verdict: Fail, Read: "online are " + host.List(online), Needed: "processors " + host.List(cores),
			Why: fmt.Sprintf("%s: not online", host.List(off)), At: x.usesOf(off)}
		for _, c := range common(off, x.f.Offline) {
			f.Fix = append(f.Fix, fmt.Sprintf("echo 1 > /sys/devices/system/cpu/cpu%d/online", c))
		}
		if f.Fix == nil {
			f.Fix = []string{"choose others"}
		}
		x.add(f)
		return
	}
	allowed := x.f.Process.CPUs
	if allowed == nil {
		x.unknown("", x.f.Why("/proc/self/status"))
		return
	}
	if no := without(cores, allowed); no != nil {
		x.add(Finding{Verdict: Fail, Read: "this process may run on " + host.List(allowed),
			Needed: "processors " + host.List(cores),
			Why:    fmt.Sprintf("%s: not allowed, by taskset, a cpuset or the container", host.List(no)),
			At:     x.usesOf(no),
			Fix: []string{"start it with: taskset -c " + host.List(cores) + " ...",
				"in a container: --cpuset-cpus=" + host.List(cores) + "; in systemd: AllowedCPUs=" + host.List(cores)}})
		return
	}
	x.ok("", host.List(cores)+" are online and allowed")
}

func checkSMT(x *exam) {
	if len(x.n.Cores) < 2 {
		x.skip("fewer than two cores are asked for")
		return
	}
	var pairs []string
	var both []int
	for _, c := range x.cores() {
		for _, s := range c.Siblings {
			if s > c.ID && slices.Contains(x.n.Cores, s) {
				pairs = append(pairs, fmt.Sprintf("%d and %d", c.ID, s))
				both = append(both, c.ID, s)
			}
		}
	}
	if pairs == nil {
		x.ok("", "no two of them share a core")
		return
	}
	var free []int // a thread of each core of which no task has one yet
	for _, c := range x.f.CPUs {
		if len(c.Siblings) > 0 && c.Siblings[0] == c.ID && len(common(c.Siblings, x.n.Cores)) == 0 {
			free = append(free, c.ID)
		}
	}
	f := Finding{Verdict: Warn, Read: strings.Join(pairs, "; ") + " are threads of one core", Needed: "a core for each",
		At: x.usesOf(both)}
	if free != nil {
		f.Fix = []string{"take others; free cores begin with " + host.List(free[:min(len(free), 16)])}
	} else {
		f.Fix = []string{"use fewer cores"}
	}
	x.add(f)
}

func checkNUMACores(x *exam) {
	if len(x.f.Nodes) < 2 {
		x.skip("there is one NUMA node")
		return
	}
	if len(x.n.Cores) == 0 {
		x.skip("no cores are asked for")
		return
	}
	look := func(subject string, node int, cores []int) {
		if len(cores) == 0 {
			x.skipOf(subject, "no cores are named for it")
			return
		}
		n := x.f.Node(node)
		if n == nil {
			x.unknown(subject, "the firmware does not say to which NUMA node it belongs")
			return
		}
		far := without(cores, n.CPUs)
		if far == nil {
			x.ok(subject, fmt.Sprintf("all are on node %d", node))
			return
		}
		x.add(Finding{Subject: subject, Verdict: Warn,
			Read:   fmt.Sprintf("it is on node %d, processors %s are not", node, host.List(far)),
			Needed: fmt.Sprintf("processors of node %d", node), Fix: []string{"take some of " + host.List(n.CPUs)},
			At: x.usesOf(far)})
	}
	for _, u := range x.nets() {
		if !u.net.Virtual {
			look(u.Name, u.net.Node, x.working(u.asked))
		}
	}
	if x.n.GPUs == nil {
		return
	}
	for _, g := range x.gpus() {
		look(x.name(x.f.Device(g.Addr)), x.f.Device(g.Addr).Node, x.polling())
	}
}

func checkGovernor(x *exam) {
	slow, by := []int(nil), map[string][]int{}
	known := 0
	for _, c := range x.cores() {
		if c.Governor == "" {
			continue
		}
		known++
		if c.Governor != "performance" {
			slow = append(slow, c.ID)
			by[c.Governor] = append(by[c.Governor], c.ID)
		}
	}
	switch {
	case known == 0 && x.f.Virtual:
		x.skip("the hypervisor decides about it")
	case known == 0:
		x.unknown("", x.f.Why("/sys/devices/system/cpu/cpu"),
			"set the firmware (BIOS) to maximum performance, and look with: turbostat")
	case slow == nil:
		x.ok("", fmt.Sprintf("performance on %s", plural(known, "processor")))
	default:
		var read []string
		for g, l := range by {
			read = append(read, fmt.Sprintf("%s on %s", g, host.List(l)))
		}
		slices.Sort(read)
		if !x.fast() && len(x.n.Cores) == 0 {
			x.ok("", strings.Join(read, "; ")+"; no low-latency requirement")
			return
		}
		x.add(Finding{Verdict: Warn, Read: strings.Join(read, "; "), Needed: "performance", At: x.usesOf(slow),
			Fix: []string{"penstock tune host --governor performance --apply"}})
	}
}

// deepest is how many microseconds a processor may take to wake up: beyond it a ring of 2048
// descriptors fills at 100 Gb/s.
const deepest = 20

func checkIdle(x *exam) {
	known, deep, worst := 0, []int(nil), host.Idle{}
	for _, c := range x.cores() {
		if len(c.Idle) == 0 {
			continue
		}
		known++
		for _, s := range c.Idle {
			if !s.Disabled && s.Micros > deepest {
				if s.Micros > worst.Micros {
					worst = s
				}
			}
		}
		if slices.ContainsFunc(c.Idle, func(s host.Idle) bool { return !s.Disabled && s.Micros > deepest }) {
			deep = append(deep, c.ID)
		}
	}
	switch {
	case known == 0 && x.f.Virtual:
		x.skip("the hypervisor decides about it")
	case known == 0:
		x.unknown("", x.f.Why("/sys/devices/system/cpu/cpu"))
	case deep == nil:
		x.ok("", fmt.Sprintf("none takes more than %d us to wake up", deepest))
	case !x.fast() && len(x.n.Cores) == 0:
		x.ok("", fmt.Sprintf("up to %s, %d us; no low-latency requirement", worst.Name, worst.Micros))
	default:
		options := "intel_idle.max_cstate=1 processor.max_cstate=1"
		if x.f.Arch != "x86_64" {
			options = "cpuidle.off=1"
		}
		x.add(Finding{Verdict: Warn, Read: fmt.Sprintf("%s may sleep as deep as %s, which takes %d us to wake up",
			plural(len(deep), "processor"), worst.Name, worst.Micros),
			Needed: fmt.Sprintf("at most %d us", deepest), At: x.usesOf(deep),
			Fix: []string{fmt.Sprintf("cpupower idle-set -D %d", deepest),
				"for good: " + options + " on the kernel's command line"}})
	}
}

func checkIsolation(x *exam) {
	if len(x.n.Cores) == 0 {
		x.skip("no cores are asked for")
		return
	}
	cores := x.polling()
	if cores == nil {
		x.skip("no core polls all the time")
		return
	}
	var all []int
	for _, c := range x.f.CPUs {
		all = append(all, c.ID)
	}
	if cores = common(cores, all); cores == nil { // what is not there, the check of cores says
		x.skip("the cores that are asked for are not there")
		return
	}
	if len(cores) == len(all) {
		x.add(Finding{Verdict: Warn, Read: "every processor polls", Needed: "cores that nothing else runs on",
			For: "processors " + host.List(cores), At: x.usesOf(cores),
			Fix: []string{"poll on fewer: the kernel and everything else need one"}})
		return
	}
	list := host.List(cores)
	var lacks, options []string
	var bare []int
	need := func(what, option string, have []int) {
		if l := without(cores, have); l != nil {
			bare = append(bare, l...)
			lacks = append(lacks, fmt.Sprintf("%s not on %s", what, host.List(l)))
			options = append(options, option+"="+list)
		}
	}
	need("isolated", "isolcpus", x.f.Isolated)
	need("without ticks", "nohz_full", x.f.Tickless)
	rcu := []int(nil)
	if v, ok := x.f.Option("rcu_nocbs"); ok {
		rcu, _ = host.ParseList(v)
		if v == "all" {
			rcu = cores
		}
	}
	// Processors without ticks have their callbacks elsewhere, too.
	need("without RCU callbacks", "rcu_nocbs", append(slices.Clone(rcu), x.f.Tickless...))
	if l := common(cores, x.f.IRQAffinity); l != nil {
		bare = append(bare, l...)
		lacks = append(lacks, fmt.Sprintf("new interrupts may go to %s", host.List(l)))
		options = append(options, "irqaffinity="+host.List(without(all, cores)))
	}
	if lacks == nil {
		x.ok("", list+": isolated, without ticks, callbacks and new interrupts")
		return
	}
	x.add(Finding{Verdict: Warn, Read: strings.Join(lacks, "; "), Needed: "cores that nothing else runs on",
		For: "processors " + list, At: x.usesOf(bare),
		Fix: []string{"on the kernel's command line, and a reboot: " + strings.Join(options, " ")}})
}

func checkBalancing(x *exam) {
	v, ok := x.f.Sysctls["kernel.numa_balancing"]
	switch {
	case len(x.f.Nodes) < 2:
		x.skip("there is one NUMA node")
	case !ok:
		x.skip("this kernel has none")
	case v == "0":
		x.ok("", "off")
	default:
		x.add(Finding{Verdict: Warn, Read: "kernel.numa_balancing is " + v, Needed: "0",
			Fix: []string{"penstock tune host --sysctl kernel.numa_balancing=0 --apply"}})
	}
}

func checkClockSource(x *exam) {
	good := []string{"tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page", "timebase"}
	switch s := x.f.ClockSource; {
	case s == "":
		x.unknown("", x.f.Why("/sys/devices/system/clocksource"))
	case slices.Contains(good, s):
		x.ok("", s)
	default:
		f := Finding{Verdict: Warn, Read: fmt.Sprintf("%s; there are %s", s, strings.Join(x.f.ClockSources, ", ")),
			Needed: "tsc"}
		if slices.Contains(x.f.ClockSources, "tsc") {
			f.Fix = []string{"echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource"}
		} else {
			f.Fix = []string{"look why the kernel gave it up: dmesg | grep -i tsc"}
		}
		x.add(f)
	}
}

func checkClockSync(x *exam) {
	who := common2(x.f.Daemons, []string{"chronyd", "ntpd", "openntpd", "phc2sys", "ptp4l", "systemd-timesyn",
		"timemaster", "ts2phc"})
	by := "no program that is known here"
	if who != nil {
		by = strings.Join(who, ", ")
	}
	switch t := x.f.Time; {
	case t == nil:
		x.unknown("", x.f.Why("/penstock/clock"))
	case t.Synchronised:
		x.ok("", fmt.Sprintf("synchronised by %s, to %g ms at worst", by, float64(t.MaxError)/1000))
	case x.f.Virtual && !x.n.Clock && x.n.Timed == nil:
		x.ok("", "no program known to the kernel synchronises it; in a virtual machine the host may")
	default:
		x.add(Finding{Verdict: x.bad(x.n.Clock), Read: "not synchronised; running: " + by,
			Needed: "a synchronised clock", At: x.n.Timed,
			Fix: []string{"systemctl enable --now chronyd, or for microseconds ptp4l and phc2sys"}})
	}
}

// common2 is common for words.
func common2(a, b []string) (out []string) {
	for _, s := range a {
		if slices.Contains(b, s) {
			out = append(out, s)
		}
	}
	return out
}
