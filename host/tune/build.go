package tune

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/host"
	"github.com/penstock-io/penstock/internal/ethtool"
)

const (
	// singleBuffer is the largest MTU with which XDP in native mode needs one buffer for a frame: a
	// page of 4096 bytes without 256 of headroom, 320 of struct skb_shared_info, an Ethernet header
	// and two VLAN tags (kernel: XDP_PACKET_HEADROOM).
	singleBuffer = 4096 - 256 - 320 - 14 - 8

	leastRing = 2048

	// For busy polling, as the kernel's networking/napi.rst advises: so many polls by interrupt are
	// put off, for so many ns.
	deferIRQs    = "2"
	flushTimeout = "200000"

	defaultHuge = 2 << 20
)

// builder makes a plan out of facts and goals: it opens nothing.
type builder struct {
	host  machine
	iface string
	facts facts
	goals Goals
	plan  Plan
}

func (b *builder) add(s Step) {
	if slices.Contains(b.goals.Skip, s.Name) || s.Now == s.Wanted {
		return
	}
	if !s.Advice {
		s.Needs, s.Missing = b.host.needs(b.iface, s.Setting)
		s.Reversible = true
	}
	b.plan.Steps = append(b.plan.Steps, s)
}

// build is the whole plan, in the order in which it is to be done: what makes a driver build its
// queues again comes before what belongs to a queue, and a table of RSS that names queues goes
// before they do.
func (b *builder) build() (Plan, error) {
	f := &b.facts
	b.plan = Plan{Interface: b.iface, Driver: f.driver, Unknown: f.unknown}
	if err := b.goals.check(); err != nil {
		return b.plan, err
	}
	b.offloads()
	for _, step := range []func() error{b.mtu, b.queues, b.rings} {
		if err := step(); err != nil {
			return b.plan, err
		}
	}
	b.hash()
	b.ntuple()
	b.interrupts()
	b.steering()
	if err := b.hugePages(); err != nil {
		return b.plan, err
	}
	b.advice()
	return b.plan, nil
}

func (b *builder) offloads() {
	off := func(name, feature, what, why string) {
		f, ok := b.facts.features[feature]
		if !ok || !f.Active {
			return
		}
		s := Step{Name: name, What: what, Setting: Setting("feature " + feature), Where: "ethtool -K", Now: "on",
			Wanted: "off", Why: why,
			Command: fmt.Sprintf("ethtool -K %s %s off", b.iface, feature)}
		if f.Fixed {
			s.Advice, s.Why = true, why+" This driver does not let it be turned off."
			s.Command = "turn it off where the card comes from (the hypervisor), or use another card"
		}
		b.add(s)
	}
	off("lro", ethtool.FeatureLRO, "LRO",
		"The card joins packets for good; XDP needs them as they came, and drivers refuse it, or turn LRO off behind "+
			"your back.")
	off("gro-hw", ethtool.FeatureHardGRO, "GRO by the card",
		"The card joins packets before XDP sees them; drivers refuse XDP with it.")
	off("gro", ethtool.FeatureGRO, "GRO",
		"The kernel joins packets to up to 64 KiB, which the afpacket engine and generic XDP then get. "+
			"Costs the kernel's own TCP on this interface throughput; --skip gro keeps it, which is right if only "+
			"native "+
			"XDP is used.")
}

func (b *builder) mtu() error {
	f, want := &b.facts, b.goals.MTU
	if want == 0 {
		want = f.mtu
	}
	if f.mtu == 0 { // not known
		return nil
	}
	if f.minMTU > 0 && want < f.minMTU || f.maxMTU > 0 && want > f.maxMTU {
		return fmt.Errorf("%w: MTU %d of %s: expected %d to %d", ErrGoal, want, b.iface, f.minMTU, f.maxMTU)
	}
	b.add(Step{Name: "mtu", What: "MTU", Setting: "mtu", Where: "/sys/class/net/" + b.iface + "/mtu",
		Now: strconv.Itoa(f.mtu), Wanted: strconv.Itoa(want),
		Why:     "As asked for. Every machine of the network must have it.",
		Command: fmt.Sprintf("ip link set dev %s mtu %d", b.iface, want)})
	if want <= singleBuffer {
		return nil
	}
	chunks := "unknown"
	if f.xdp != nil {
		chunks = "not supported"
		if f.xdp.Features.Has(ethtool.XDPRxChunks) {
			return nil // the engine uses several buffers
		}
	}
	b.add(Step{Name: "xdp-mode", What: "XDP with large frames", Where: "netdev xdp-features: rx-sg", Now: chunks,
		Wanted: "rx-sg", Advice: true,
		Why: fmt.Sprintf("With an MTU above %d a frame takes several buffers. A driver without rx-sg refuses native "+
			"XDP then (ERANGE, EINVAL); "+
			"generic mode still works.", singleBuffer),
		Command: fmt.Sprintf("ip link set dev %s mtu %d", b.iface, singleBuffer)})
	return nil
}

// channelText is the form of the setting "channels".
func channelText(c ethtool.Channels) string {
	return fmt.Sprintf("rx %d tx %d other %d combined %d", c.Rx, c.Tx, c.Other, c.Combined)
}

func (b *builder) queues() error {
	f, want := &b.facts, b.goals.Queues
	if want == 0 {
		return nil
	}
	c := f.channels
	if c == nil {
		if want == 1 {
			return nil
		}
		return fmt.Errorf("%w: %d queues of %s: its driver %s has no channels to set", ErrGoal, want, b.iface, f.driver)
	}
	to := *c
	switch {
	case want == c.RxQueues() && want == c.TxQueues():
		return nil
	case want <= c.MaxCombined:
		to.Combined, to.Rx, to.Tx = want, 0, 0
	case c.MaxCombined == 0 && want <= c.MaxRx:
		to.Rx, to.Tx = want, min(want, c.MaxTx)
		to.Tx = max(to.Tx, 1)
	default:
		return fmt.Errorf("%w: %d queues of %s: expected at most %d", ErrGoal, want, b.iface,
			max(c.MaxCombined, c.MaxRx))
	}
	now, wanted := channelText(*c), channelText(to)
	if now != wanted && f.rss != "" && f.rss != rssDefault {
		b.add(Step{Name: "rss", What: "RSS table", Setting: "rss", Where: "ethtool -X", Now: f.rss, Wanted: rssDefault,
			Why: "The table names queues. One that was set by hand does not follow the number of queues, and the " +
				"kernel refuses to take a queue away that it names.",
			Command: fmt.Sprintf("ethtool -X %s default", b.iface)})
	}
	words := strings.Fields(wanted)
	var args []string
	for i := 0; i+1 < len(words); i += 2 {
		if old := strings.Fields(now); words[i+1] != old[i+1] {
			args = append(args, words[i], words[i+1])
		}
	}
	b.add(Step{Name: "channels", What: "queues", Setting: "channels", Where: "ethtool -L", Now: now, Wanted: wanted,
		Why: fmt.Sprintf("%d receive queues, each with a socket and a core of its own. The link may be down for "+
			"a moment.%s", want, b.queueNote(to)),
		Command: fmt.Sprintf("ethtool -L %s %s", b.iface, strings.Join(args, " "))})
	if now != wanted && f.rss != "" {
		b.add(Step{Name: "rss", What: "RSS table over the new queues", Setting: "rss", Where: "ethtool -X",
			Now: fmt.Sprintf("of %d queues", c.RxQueues()), Wanted: rssDefault,
			Why: "Some drivers leave the table as it was when the number of queues changes: then new queues get " +
				"nothing.",
			Command: fmt.Sprintf("ethtool -X %s default", b.iface)})
	}
	return nil
}

// queueNote says what some drivers want of the number of queues.
func (b *builder) queueNote(to ethtool.Channels) string {
	if half := to.MaxCombined / 2; (b.facts.driver == "ena" || b.facts.driver == "virtio_net") && to.Combined > half {
		return fmt.Sprintf(" %s wants as many transmit queues again for XDP: more than %d leave it none.",
			b.facts.driver, half)
	}
	return ""
}

// ringText is the form of the setting "rings".
func ringText(rx, tx int) string { return fmt.Sprintf("rx %d tx %d", rx, tx) }

func (b *builder) rings() error {
	r := b.facts.rings
	if r == nil {
		if b.goals.Ring != 0 {
			return fmt.Errorf("%w: rings of %d descriptors of %s: its driver %s has none to set", ErrGoal, b.goals.Ring,
				b.iface, b.facts.driver)
		}
		return nil
	}
	rx, tx := r.Rx, r.Tx
	why := "A longer ring takes a longer pause of its reader without loss."
	if want := b.goals.Ring; want != 0 {
		if r.MaxRx > 0 && want > r.MaxRx || r.MaxTx > 0 && want > r.MaxTx {
			return fmt.Errorf("%w: rings of %d descriptors of %s: expected at most %d to receive and %d to send",
				ErrGoal, want, b.iface, r.MaxRx, r.MaxTx)
		}
		rx, tx, why = want, want, "As asked for. Drivers round it up."
	} else {
		rx = max(rx, min(leastRing, r.MaxRx))
		tx = max(tx, min(leastRing, r.MaxTx))
	}
	var args string
	if rx != r.Rx {
		args += fmt.Sprintf(" rx %d", rx)
	}
	if tx != r.Tx {
		args += fmt.Sprintf(" tx %d", tx)
	}
	b.add(Step{Name: "rings", What: "rings", Setting: "rings", Where: "ethtool -G", Now: ringText(r.Rx, r.Tx),
		Wanted: ringText(rx, tx), Why: why,
		Command: fmt.Sprintf("ethtool -G %s%s", b.iface, args)})
	return nil
}

// addressesOnly is the hash of UDP that most drivers begin with.
const addressesOnly = ethtool.HashSrc | ethtool.HashDst

func (b *builder) hash() {
	f := &b.facts
	queues := b.goals.Queues
	if queues == 0 && f.channels != nil {
		queues = f.channels.RxQueues()
	}
	if queues < 2 {
		return
	}
	for i, h := range hashes {
		if f.udpHash[i] != addressesOnly.String() {
			continue
		}
		_, name, _ := strings.Cut(string(h.setting), " ")
		b.add(Step{Name: "udp-hash", What: "hash of " + name, Setting: h.setting, Where: "ethtool -N",
			Now: f.udpHash[i], Wanted: ethtool.HashTuple.String(),
			Why: "By addresses alone, all flows between two hosts go to one queue. With ports too they spread; " +
				"fragments of a datagram, which have no ports, " +
				"may then overtake each other.",
			Command: fmt.Sprintf("ethtool -N %s rx-flow-hash %s %v", b.iface, name, ethtool.HashTuple)})
	}
}

func (b *builder) ntuple() {
	if f, ok := b.facts.features[ethtool.FeatureNtuple]; ok && !f.Active && !f.Fixed {
		b.add(Step{Name: "ntuple", What: "n-tuple rules", Setting: "feature " + ethtool.FeatureNtuple,
			Where: "ethtool -K", Now: "off", Wanted: "on",
			Why: "The card sends flows to the queues that your rules name; without it every queue gets some " +
				"of each.",
			Command: fmt.Sprintf("ethtool -K %s ntuple on", b.iface)})
	}
}

func (b *builder) interrupts() {
	f := &b.facts
	if c := f.coalesce; c != nil {
		adaptive := func(name, dir string, on bool) {
			if on {
				b.add(Step{Name: name, What: "adaptive interrupts, " + dir, Setting: Setting("coalesce " + name),
					Where: "ethtool -C", Now: "on", Wanted: "off",
					Why: "The driver changes its pauses between interrupts by what it sees, which makes latency " +
						"and batches differ from run to run.",
					Command: fmt.Sprintf("ethtool -C %s %s off", b.iface, name)})
			}
		}
		adaptive("adaptive-rx", "receiving", c.AdaptiveRx)
		adaptive("adaptive-tx", "sending", c.AdaptiveTx)
	}
	if b.goals.BusyPoll {
		for _, x := range []struct{ name, file, now, wanted string }{
			{"defer-irqs", "napi_defer_hard_irqs", f.deferIRQs, deferIRQs},
			{"flush-timeout", "gro_flush_timeout", f.flushTimeout, flushTimeout}} {
			if x.now == "" {
				continue
			}
			path := "/sys/class/net/" + b.iface + "/" + x.file
			b.add(Step{Name: x.name, What: x.file, Setting: Setting("napi " + x.file), Where: path, Now: x.now,
				Wanted: x.wanted,
				Why: "While the application polls the queue itself, interrupts stay off; if it does not come for 0.2 " +
					"ms, the kernel does. " +
					"Other traffic of the interface waits up to that long.",
				Command: fmt.Sprintf("echo %s > %s", x.wanted, path)})
		}
	}
	if len(f.cpus) == 0 {
		return
	}
	queues := 0
	if f.channels != nil {
		queues = max(f.channels.RxQueues(), f.channels.TxQueues())
		if b.goals.Queues != 0 {
			queues = b.goals.Queues
		}
	}
	for _, q := range f.irqs {
		if queues > 0 && q.queue >= queues {
			continue // it will not be there
		}
		path := fmt.Sprintf("/proc/irq/%d/smp_affinity_list", q.number)
		cpu := strconv.Itoa(f.cpus[q.queue%len(f.cpus)])
		b.add(Step{Name: "irq", What: fmt.Sprintf("interrupt %d (%s)", q.number, q.name),
			Setting: irqSetting(q.number, q.name), Where: path,
			Now: q.affinity, Wanted: cpu,
			Why: fmt.Sprintf("One processor for queue %d, near the card, so that its data stays in one cache and "+
				"no two queues share one.", q.queue),
			Command: fmt.Sprintf("echo %s > %s", cpu, path)})
	}
}

// steering is RPS and XPS of the queues that are there now and will be there.
func (b *builder) steering() {
	queues := map[string][]steering{}
	for _, q := range b.facts.steering {
		if b.goals.Queues == 0 || q.queue < b.goals.Queues {
			queues[q.kind] = append(queues[q.kind], q)
		}
	}
	add := func(q steering, cpus []int, what, why string) {
		s := steeringSetting(q.kind, q.queue)
		file, _ := linux{}.file(b.iface, s)
		b.add(Step{Name: q.kind, What: fmt.Sprintf("%s of queue %d", what, q.queue), Setting: s, Where: file,
			Now: q.cpus, Wanted: cpuText(cpus), Why: why,
			Command: fmt.Sprintf("echo %s > %s", host.Mask(cpus), file)})
	}
	if b.goals.RPS != nil {
		for _, q := range queues["rps"] {
			add(q, sorted(b.goals.RPS), "RPS",
				"The kernel hands the packets of the queue on to these processors, by flow: for cards with fewer "+
					"queues than cores. It costs an interrupt "+
					"between processors; AF_XDP comes before it and does not care.")
		}
	}
	if b.goals.XPS != nil {
		n := len(queues["xps"])
		for i, q := range queues["xps"] {
			var cpus []int
			for j, c := range sorted(b.goals.XPS) {
				if j%n == i {
					cpus = append(cpus, c)
				}
			}
			add(q, cpus, "XPS",
				"What these processors send takes this queue, so that its lock and its data stay in one cache.")
		}
	}
}

func sorted(l []int) []int { return slices.Compact(slices.Sorted(slices.Values(l))) }

// noCPUs is the value of RPS and XPS of a queue that has none.
const noCPUs = "none"

// cpuText is a list of processors as a value of RPS and XPS.
func cpuText(l []int) string {
	if len(l) == 0 {
		return noCPUs
	}
	return host.List(l)
}

// steeringDirs are the directories of queues, and the files, of RPS and XPS.
var steeringDirs = map[string][2]string{"rps": {"rx-", "rps_cpus"}, "xps": {"tx-", "xps_cpus"}}

func steeringSetting(kind string, queue int) Setting {
	return Setting(fmt.Sprintf("%s %d", kind, queue))
}

// steers reports whether a setting is RPS or XPS: those go with their queue, and come back empty
// with it.
func steers(s Setting) bool {
	return strings.HasPrefix(string(s), "rps ") || strings.HasPrefix(string(s), "xps ")
}

// irqSetting has the name that the driver gave the interrupt: its number may be another device's
// later.
func irqSetting(number int, name string) Setting {
	return Setting(fmt.Sprintf("irq %d %s", number, name))
}

func (b *builder) hugePages() error {
	g, f := b.goals.HugePages, &b.facts
	if g.Bytes == 0 {
		return nil
	}
	if g.Page == 0 {
		g.Page = defaultHuge
	}
	i := slices.IndexFunc(f.hugePages, func(h hugePages) bool { return h.size == g.Page })
	if i < 0 {
		var have []string
		for _, h := range f.hugePages {
			have = append(have, sizeText(uint64(h.size)))
		}
		if have == nil {
			have = []string{"none"}
		}
		return fmt.Errorf("%w: this kernel has no huge pages of %s; it has %s", ErrGoal, sizeText(uint64(g.Page)),
			strings.Join(have, ", "))
	}
	h := f.hugePages[i]
	need := int((g.Bytes + uint64(g.Page) - 1) / uint64(g.Page))
	if h.free >= need {
		return nil
	}
	where, file := "", fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages", h.size>>10)
	if h.node >= 0 {
		where = fmt.Sprintf(" on NUMA node %d, where the card is", h.node)
		file = fmt.Sprintf("/sys/devices/system/node/node%d/hugepages/hugepages-%dkB/nr_hugepages", h.node, h.size>>10)
	}
	wanted := strconv.Itoa(h.total + need - h.free)
	b.add(Step{Name: "hugepages", What: fmt.Sprintf("huge pages of %s", sizeText(uint64(h.size))),
		Setting: hugeSetting(h.size, h.node), Where: file,
		Now: strconv.Itoa(h.total), Wanted: wanted, Host: true,
		Why: fmt.Sprintf("%s free%s: frames in huge pages take fewer entries of the TLB and of the IOMMU. Free "+
			"now: %d.", sizeText(g.Bytes), where, h.free),
		Command: fmt.Sprintf("echo %s > %s", wanted, file)})
	return nil
}

func hugeSetting(size, node int) Setting {
	return Setting(fmt.Sprintf("hugepages %d node %d", size, node))
}

// sizeText is a number of bytes in the largest unit that fits without a rest.
func sizeText(n uint64) string {
	for _, u := range []struct {
		bits int
		name string
	}{{30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if n>>u.bits<<u.bits == n && n>>u.bits > 0 {
			return fmt.Sprintf("%d %s", n>>u.bits, u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

func (b *builder) advice() {
	f := &b.facts
	advise := func(s Step) {
		s.Advice = true
		b.add(s)
	}
	if f.xdpMode != "" {
		mode := map[string]string{"native": "xdpdrv", "generic": "xdpgeneric", "hardware": "xdpoffload"}[f.xdpMode]
		if mode == "" {
			mode = "xdp"
		}
		advise(Step{Name: "xdp-program", What: "XDP program", Where: "ip link show " + b.iface,
			Now: fmt.Sprintf("%s, id %d", f.xdpMode, f.xdpProgram), Wanted: "none",
			Why: fmt.Sprintf("Somebody's program takes this interface's packets (bpftool prog show id %d); the "+
				"xdp engine does not replace it.", f.xdpProgram),
			Command: fmt.Sprintf("ip link set dev %s %s off", b.iface, mode)})
	}
	if f.xdp != nil && !f.xdp.Features.Has(ethtool.XDPBasic|ethtool.XDPRedirect) {
		advise(Step{Name: "xdp-mode", What: "native XDP", Where: "netdev xdp-features", Now: "not supported",
			Wanted: "basic redirect", Host: false,
			Why: fmt.Sprintf("The driver %s declares no native XDP with redirect: AF_XDP works in generic mode, "+
				"which is slower.", f.driver), Command: "use another card or driver for native mode"})
	}
	if f.irqBalance && len(f.irqs) > 0 {
		advise(Step{Name: "irqbalance", What: "irqbalance", Where: "process irqbalance", Now: "runs", Wanted: "stopped",
			Host:    true,
			Why:     "It moves interrupts between processors and so undoes their placing, minutes later.",
			Command: "systemctl stop irqbalance"})
	}
	if b.goals.HugePages.Bytes > 0 && !f.mayLock && f.lockLimit < b.goals.HugePages.Bytes &&
		f.lockLimit != math.MaxUint64 {
		advise(Step{Name: "memlock", What: "locked memory", Where: "RLIMIT_MEMLOCK", Now: sizeText(f.lockLimit),
			Wanted: sizeText(b.goals.HugePages.Bytes),
			Why: "AF_XDP pins its frames, and the kernel counts them against this limit of the process that " +
				"opens it, unless it has CAP_IPC_LOCK (ENOBUFS).",
			Command: fmt.Sprintf("ulimit -l %d, or LimitMEMLOCK=%d in its systemd unit", b.goals.HugePages.Bytes>>10,
				b.goals.HugePages.Bytes)})
	}
	if slow := slices.DeleteFunc(slices.Clone(f.governors), func(g string) bool {
		return g == "performance"
	}); len(slow) > 0 {
		advise(Step{Name: "governor", What: "CPU frequency",
			Where:  "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
			Now:    strings.Join(slices.Compact(slow), ", "),
			Wanted: "performance", Host: true,
			Why:     "A processor that has slept or slowed down takes its time to come back, during which packets wait.",
			Command: "cpupower frequency-set -g performance"})
	}
	if f.isolated == "none" && b.goals.BusyPoll {
		advise(Step{Name: "isolation", What: "isolated processors", Where: "/sys/devices/system/cpu/isolated",
			Now: "none", Wanted: "those of the pollers", Host: true,
			Why:     "A polling core has its processor for itself if the scheduler puts nothing else there.",
			Command: "isolcpus=LIST nohz_full=LIST on the kernel's command line, and a reboot"})
	}
}
