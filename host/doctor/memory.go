package doctor

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/host"
)

// poolText is the huge pages of one size.
func poolText(p host.HugePool) string {
	return fmt.Sprintf("%d of %d pages of %s free", p.Free, p.Total, sizeText(p.Size))
}

// flagSize is a size as flags of the command line take it.
func flagSize(n uint64) string {
	if n>>30<<30 == n {
		return fmt.Sprintf("%dGiB", n>>30)
	}
	if n>>20<<20 == n {
		return fmt.Sprintf("%dMiB", n>>20)
	}
	return fmt.Sprintf("%dKiB", n>>10)
}

// wish is memory to be free in huge pages of one size and place.
type wish struct {
	page  uint64
	node  int
	pages int
	// bound is how many pages of the size other wishes take from certain nodes. A wish that names
	// no node does not get those.
	bound  int
	strict bool // some of it has no fallback to ordinary pages
	at     []Place
}

// wishes are all of them, each size and place once: several wishes for one pool add up.
func (x *exam) wishes() (out []wish) {
	add := func(page uint64, node int, bytes uint64, strict bool, at ...Place) {
		if page == 0 {
			page = defaultPage
		}
		i := slices.IndexFunc(out, func(w wish) bool { return w.page == page && w.node == node })
		if i < 0 {
			i = len(out)
			out = append(out, wish{page: page, node: node})
		}
		w := &out[i]
		w.pages, w.strict, w.at = w.pages+int((bytes+page-1)/page), w.strict || strict, append(w.at, at...)
	}
	for _, h := range x.n.Huge {
		add(h.Page, h.Node, h.Bytes, true)
	}
	for _, m := range x.n.Memory {
		if m.Kind == "huge" {
			add(m.Page, m.Node, m.Bytes, !m.Fallback, m.At)
		}
	}
	for i := range out {
		for _, o := range out {
			if out[i].node == AnyNode && o.node != AnyNode && o.page == out[i].page {
				out[i].bound += o.pages
			}
		}
	}
	return out
}

func checkHugePages(x *exam) {
	all := x.wishes()
	switch {
	case all == nil && x.n.Whole && x.n.engine(vfio) == nil:
		x.skip("no memory is asked for in huge pages")
	case all == nil:
		x.hugeInGeneral()
	}
	for _, w := range all {
		x.hugePool(w)
	}
}

func (x *exam) hugePool(w wish) {
	page, node, bytes := w.page, w.node, uint64(w.pages)*w.page
	subject, pools, file := "", x.f.Huge, "/sys/kernel/mm/hugepages"
	if node != AnyNode {
		n := x.f.Node(node)
		subject = fmt.Sprintf("node %d", node)
		if n == nil && (node != 0 || len(x.f.Nodes) > 0) {
			x.add(Finding{Subject: subject, Verdict: Fail, Read: plural(len(x.f.Nodes), "NUMA node"),
				Needed: fmt.Sprintf("node %d", node), At: w.at, Fix: []string{"name a node that is here"}})
			return
		}
		if n != nil { // else a kernel without NUMA: all of it is node 0
			pools, file = n.Huge, fmt.Sprintf("/sys/devices/system/node/node%d/hugepages", node)
		}
	}
	needed := fmt.Sprintf("%s of %s free: %s", plural(w.pages, "page"), sizeText(page), sizeText(bytes))
	if w.bound > 0 {
		needed += fmt.Sprintf(", besides %d that are wanted of certain nodes", w.bound)
	}
	verdict, lacking := Fail, []string(nil)
	if !w.strict {
		verdict, lacking = Warn, []string{"fallback: true takes plain memory instead, which is slower"}
	}
	if pools == nil && len(x.f.Nodes) == 1 { // a kernel that does not count by node
		pools = x.f.Huge
	}
	if pools == nil {
		x.unknown(subject, x.f.Why(file))
		return
	}
	i := slices.IndexFunc(pools, func(p host.HugePool) bool { return p.Size == page })
	if i < 0 {
		var have []string
		for _, p := range pools {
			have = append(have, sizeText(p.Size))
		}
		x.add(Finding{Subject: subject, Verdict: verdict, Read: "this kernel has pages of " + strings.Join(have, ", "),
			Needed: needed, At: w.at,
			Fix: append([]string{"ask for pages of one of these sizes"}, lacking...)})
		return
	}
	p := pools[i]
	free := max(p.Free-p.Reserved, 0)
	want := w.pages + w.bound
	if free >= want {
		x.ok(subject, fmt.Sprintf("%s, %d are needed", poolText(p), want))
		return
	}
	f := Finding{Subject: subject, Verdict: verdict, Read: poolText(p), Needed: needed, At: w.at}
	if p.Reserved > 0 {
		f.Read += fmt.Sprintf(", %d of them promised to others", p.Reserved)
	}
	where := ""
	if node != AnyNode {
		where = fmt.Sprintf("@%d", node)
	}
	f.Fix = []string{fmt.Sprintf("penstock tune host --hugepages %s/%s%s --apply", flagSize(uint64(want)*page),
		flagSize(page), where)}
	if page >= 1<<30 {
		f.Fix = append(f.Fix,
			fmt.Sprintf("the kernel rarely finds pages this large after boot: hugepagesz=%s hugepages=%d on the "+
				"kernel's "+
				"command line",
				strings.ReplaceAll(strings.TrimSuffix(sizeText(page), "iB"), " ", ""), p.Total+want-free))
	}
	f.Fix = append(f.Fix, lacking...)
	x.add(f)
}

// leastHuge is how much memory in huge pages a machine for fast packets has at least.
const leastHuge = 500 << 20

func (x *exam) hugeInGeneral() {
	if x.f.Huge == nil {
		x.unknown("", x.f.Why("/sys/kernel/mm/hugepages"))
		return
	}
	total := uint64(0)
	var have []string
	for _, p := range x.f.Huge {
		total += p.Size * uint64(p.Total)
		if p.Total > 0 {
			have = append(have, poolText(p))
		}
	}
	read := strings.Join(have, "; ")
	if read == "" {
		read = "none are reserved"
	}
	dpdk := x.n.engine(vfio)
	switch {
	case total >= leastHuge:
		x.ok("", read)
	case dpdk != nil || x.fast():
		x.add(Finding{Verdict: x.bad(dpdk != nil), Read: read, Needed: sizeText(leastHuge) + " at least",
			For: forWhat(dpdk),
			Fix: []string{fmt.Sprintf("penstock tune host --hugepages %s --apply", flagSize(leastHuge))}})
	default:
		x.skip(read + ", and nothing here is fast enough to need some")
	}
}

// checkNUMAMemory looks at memory by node: whether it is there, and near the cards whose packets
// lie in it.
func checkNUMAMemory(x *exam) {
	if x.n.Memory == nil {
		x.skip("no memory is asked for of a node")
		return
	}
	x.roomOfNodes()
	for _, m := range x.n.Memory {
		if m.Node == AnyNode || m.GPU != "" || len(x.f.Nodes) < 2 || x.f.Node(m.Node) == nil {
			continue
		}
		if allowed := x.f.Process.Nodes; allowed != nil && !slices.Contains(allowed, m.Node) {
			x.add(Finding{Subject: m.Name, Verdict: Fail, Read: "this process may have memory of nodes " +
				host.List(allowed), Needed: fmt.Sprintf("node %d", m.Node), At: []Place{m.At},
				Fix: []string{"in a container: --cpuset-mems; in systemd: AllowedMemoryNodes; or numa: of a node " +
					"that is allowed"}})
			continue
		}
		var near, far []string
		node := 0
		for _, name := range m.Interfaces {
			switch n := x.f.Net(name); {
			case n == nil || n.Node < 0 || n.Virtual:
			case n.Node == m.Node:
				near = append(near, n.Name)
			default:
				far = append(far, n.Name)
				node = n.Node
			}
		}
		switch {
		case far != nil:
			x.add(Finding{Subject: m.Name, Verdict: Warn, Read: fmt.Sprintf("it is on node %d, %s on node %d", m.Node,
				strings.Join(far, ", "), node), Needed: fmt.Sprintf("memory of node %d", node), At: []Place{m.At},
				Fix: []string{fmt.Sprintf("numa: %d for %s: its packets cross between the sockets otherwise", node,
					m.Name)}})
		case near != nil:
			x.ok(m.Name, fmt.Sprintf("on node %d, with %s", m.Node, strings.Join(near, ", ")))
		}
	}
}

// roomOfNodes compares plain memory with what nodes have at all: what is free now says little, as
// the kernel gives back what it caches.
func (x *exam) roomOfNodes() {
	sum, at := map[int]uint64{}, map[int][]Place{}
	var order []int
	for _, m := range x.n.Memory {
		if m.Kind != "host" && m.Kind != "host_pinned" {
			continue
		}
		if at[m.Node] == nil {
			order = append(order, m.Node)
		}
		sum[m.Node], at[m.Node] = sum[m.Node]+m.Bytes, append(at[m.Node], m.At)
	}
	for _, node := range order {
		subject, has := "", x.f.Memory
		if node != AnyNode {
			subject = fmt.Sprintf("node %d", node)
			n := x.f.Node(node)
			if n == nil && (node != 0 || len(x.f.Nodes) > 0) {
				x.add(Finding{Subject: subject, Verdict: Fail, Read: plural(len(x.f.Nodes), "NUMA node"),
					Needed: subject, At: at[node], Fix: []string{"name a node that is here, or none: numa: -1"}})
				continue
			}
			if n != nil {
				has = n.Total
			}
		}
		switch {
		case has == 0:
			x.unknown(subject, x.f.Why("/proc/meminfo"))
		case sum[node] > has:
			x.add(Finding{Subject: subject, Verdict: Fail, Read: sizeText(has) + " in all", Needed: sizeText(sum[node]),
				At: at[node], Fix: []string{"fewer or smaller buffers: num_bufs, buf_size"}})
		default:
			x.ok(subject, fmt.Sprintf("%s of %s", sizeText(sum[node]), sizeText(has)))
		}
	}
}

func checkTHP(x *exam) {
	switch v := x.f.THP; {
	case v == "":
		x.skip("this kernel has none, or does not say")
	case v == "always" && x.fast():
		x.add(Finding{Verdict: Warn, Read: "always", Needed: "madvise",
			Fix: []string{"echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"}})
	default:
		x.ok("", v)
	}
}

func checkMemlock(x *exam) {
	p := &x.f.Process
	if !p.LockedKnown || !p.CapsKnown {
		x.unknown("", x.f.Why("/proc/self"))
		return
	}
	who := x.n.engine(pins)
	if x.n.RDMA != nil {
		who = append(who, "RDMA")
	}
	need := x.n.Locked
	var at []Place
	for _, m := range x.n.Memory {
		if m.Locked && m.GPU == "" {
			need += m.Bytes
			at = append(at, m.At)
		}
	}
	if need == 0 && who != nil {
		for _, h := range x.n.Huge {
			need += h.Bytes
		}
		need = max(need, 64<<20) // a pool of moderate size
	}
	limit := "at most " + lockText(p.Locked)
	if p.Locked == math.MaxUint64 {
		limit = lockText(p.Locked)
	} else if p.LockedHard > p.Locked {
		limit += ", and this process may raise it to " + lockText(p.LockedHard)
	}
	rules := lockRulesText(p.LockRules)
	if rules != "" {
		rules = "; new logins and services get: " + rules
	}
	switch {
	case p.Can(host.CapIPCLock):
		x.ok("", "CAP_IPC_LOCK: no limit counts")
	case p.Locked == math.MaxUint64 || need > 0 && p.Locked >= need:
		x.ok("", limit)
	case need > 0:
		x.add(Finding{Verdict: Fail, Read: limit + rules, Needed: sizeText(need), For: forWhat(who), At: at,
			Fix: x.raiseLock(fmt.Sprint(need>>10), fmt.Sprint(need), need)})
	case p.Locked < 64<<20 && x.fast():
		x.add(Finding{Verdict: Warn, Read: limit + rules, Needed: "64 MiB and more, for AF_XDP and RDMA",
			Fix: x.raiseLock("unlimited", "infinity", math.MaxUint64)})
	default:
		x.ok("", limit)
	}
}

func lockText(n uint64) string {
	if n == math.MaxUint64 {
		return "no limit"
	}
	return sizeText(n)
}

// raiseLock is how to raise the limit of locked memory: of this shell where it may, of logins and
// of services.
func (x *exam) raiseLock(shell, service string, need uint64) (out []string) {
	if x.f.Process.LockedHard >= need {
		out = append(out, "ulimit -l "+shell)
	}
	return append(out, fmt.Sprintf("for users, from their next login on, a line \"* - memlock %s\" in "+
		"/etc/security/limits.d/90-memlock.conf", shell),
		"for a service, in its [Service] section: LimitMEMLOCK="+service, "in a container: --ulimit memlock=-1")
}

// lockRulesText are the rules of files in a line; the last one of a kind counts.
func lockRulesText(rules []host.LockRule) string {
	var parts []string
	for _, r := range rules {
		v := r.Value
		if _, err := strconv.ParseUint(v, 10, 63); err == nil && r.Who != "services" && r.Who != "user services" {
			v += " KiB"
		}
		parts = append(parts, fmt.Sprintf("%s %s (%s)", r.Who, v, r.File))
	}
	return strings.Join(parts, ", ")
}

// capability is the number of a capability by its name.
var capability = map[string]int{"CAP_NET_RAW": host.CapNetRaw, "CAP_NET_ADMIN": host.CapNetAdmin,
	"CAP_BPF": host.CapBPF, "CAP_PERFMON": host.CapPerfmon,
	"CAP_IPC_LOCK": host.CapIPCLock, "CAP_SYS_RAWIO": host.CapSysRawIO, "CAP_SYS_ADMIN": host.CapSysAdmin}

// enginePlaces are where a file uses an engine.
func (x *exam) enginePlaces(engine string) (out []Place) {
	for _, i := range x.n.Interfaces {
		if i.Engine == engine && i.At != (Place{}) {
			out = append(out, i.At)
		}
	}
	for _, s := range x.n.Sockets {
		if s.Engine == engine && s.At != (Place{}) {
			out = append(out, s.At)
		}
	}
	return out
}

func checkCapabilities(x *exam) {
	p := &x.f.Process
	asked := false
	for _, e := range Engines() {
		all := wants(e).Capabilities
		who := x.n.of(e)
		if who == nil || all == nil {
			continue
		}
		asked = true
		if !p.CapsKnown {
			x.unknown("engine "+e, x.f.Why("/proc/self/status"))
			continue
		}
		var lacks []string
		for _, name := range all {
			// CAP_SYS_ADMIN was all of these before Linux 5.8, and still counts as CAP_BPF and
			// CAP_PERFMON.
			bit, known := capability[name]
			if known && !p.Can(bit) && !(bit >= host.CapPerfmon && p.Can(host.CapSysAdmin)) {
				lacks = append(lacks, name)
			}
		}
		if lacks == nil {
			x.ok("engine "+e, strings.Join(all, ", "))
			continue
		}
		x.add(Finding{Subject: "engine " + e, Verdict: Fail, Read: "missing: " + strings.Join(lacks, ", "),
			Needed: strings.Join(all, ", "), For: forWhat(who), At: x.enginePlaces(e),
			Fix: []string{fmt.Sprintf("run it as root, or: setcap %s+ep PROGRAM",
				strings.ToLower(strings.Join(all, ","))), "in systemd: AmbientCapabilities=" + strings.Join(all, " ")}})
	}
	if !asked {
		x.skip("no engine is asked for that takes some")
	}
}
