package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/host"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/flow"
)

// check finds what this machine and the engines refuse: what Open would meet, as far as it is known
// without opening anything.
func (p *Plan) check() {
	p.checkMemory()
	held := map[string]int{} // first interface by what it holds
	can := map[string]engine.Capabilities{}
	for i := range p.cfg.Interfaces {
		path := fmt.Sprintf("interfaces[%d]", i)
		if p.engines[i] == nil || slices.ContainsFunc(p.Missing, func(d config.Diagnostic) bool {
			return d.Code == config.CodePlaceholder && strings.HasPrefix(d.Path, path+".")
		}) {
			continue
		}
		c := &portCheck{p: p, e: p.engines[i], c: &p.cfg.Interfaces[i], path: path}
		c.ask.Port = c.c.PortSpec()
		if c.port(i, held); c.specs() {
			can[c.c.Name] = c.caps
			c.rules()
		}
	}
	p.checkApplications(can)
}

// refuse is need, unless something else is said of the same value.
func (p *Plan) refuse(code config.Code, path, message, expected, hint string) {
	if !slices.ContainsFunc(p.Missing, func(d config.Diagnostic) bool { return d.Path == path }) {
		p.need(code, path, message, expected, hint)
	}
}

// portCheck asks the engine of one interface.
type portCheck struct {
	p    *Plan
	e    engine.Engine
	c    *config.Interface
	path string
	ask  engine.Ask
	caps engine.Capabilities
}

// refused says what the engine refuses, at the path of the value without which it does not: the
// first of those that cure it.
func (x *portCheck) refused(err error, otherwise string, cures []cure) {
	if err == nil {
		return
	}
	at := otherwise
	for _, c := range cures {
		if c.without() == nil {
			at = c.path
			break
		}
	}
	x.p.causes = append(x.p.causes, err)
	x.p.refuse(config.CodeHost, at, fmt.Sprintf("interface %q: %s", x.c.Name,
		strings.TrimSuffix(err.Error(), ": "+engine.ErrInvalid.Error())), "", "")
}

// cure asks an engine again without a value.
type cure struct {
	path    string
	without func() error
}

// takes refuses an interface whose port would take everything that the host receives, where the
// file does not say that this is meant.
func (x *portCheck) takes() {
	spec, rx := config.Engine(x.e.Name()).Spec(), x.c.Rx
	if spec == nil || !spec.Needs.Takes || rx == nil || len(rx.Queues) == 0 || rx.FlowIsolation || rx.TakeOver {
		return
	}
	device := spec.Device(x.c.Address)
	if driver, args, _ := strings.Cut(strings.TrimPrefix(x.c.Address, "dpdk://"), ","); strings.HasPrefix(driver,
		"net_af_xdp") {
		// the virtual device that takes packets from the kernel
		_, iface, _ := strings.Cut(","+args, ",iface=")
		device, _, _ = strings.Cut(iface, ",")
	}
	if device == "" { // a virtual device: nothing of the machine's
		return
	}
	routed, err := host.CarriesDefault(os.DirFS("/"), device)
	why := fmt.Sprintf("%s carries the default route, and all that it receives would come here: the machine could "+
		"not be reached any more", routed)
	switch {
	case err != nil:
		why = fmt.Sprintf("all that %s receives would come here, and whether it carries the default route cannot be "+
			"read: %v", device, err)
	case routed == "":
		return
	}
	x.p.causes = append(x.p.causes, engine.ErrInUse)
	x.p.refuse(config.CodeHost, x.path+".address", fmt.Sprintf("interface %q: %s", x.c.Name, why),
		"flow_isolation: true below rx, which leaves to the kernel what no flow matches",
		"take_over: true below rx says that it is meant; the engine afpacket receives copies")
}

func (x *portCheck) port(i int, held map[string]int) {
	x.takes()
	e, ok := x.e.(engine.Checker)
	if !ok {
		return
	}
	holds, err := e.CheckPort(context.Background(), x.ask.Port)
	again := func(change func(*engine.PortSpec)) func() error {
		return func() error {
			s := x.ask.Port
			change(&s)
			_, err := e.CheckPort(context.Background(), s)
			return err
		}
	}
	x.refused(err, x.path+".address", []cure{
		{x.path + ".mtu", again(func(s *engine.PortSpec) { s.MTU = 0 })},
		{x.path + ".rx.flow_isolation", again(func(s *engine.PortSpec) { s.Isolated = false })},
		{x.path, again(func(s *engine.PortSpec) { s.Options = nil })},
	})
	if err != nil || holds == "" {
		return
	}
	key := x.e.Name() + " " + holds
	first, twice := held[key]
	if !twice {
		held[key] = i
		return
	}
	other := &x.p.cfg.Interfaces[first]
	d := x.p.cfg.Diagnose(config.Needs, config.CodeConflict, x.path+".address",
		fmt.Sprintf("interface %q: %s belongs to the interface %q already, and the engine %s opens it once", x.c.Name,
			holds, other.Name, x.e.Name()),
		"another address", "or put the queues of both below one interface")
	d.Related = []config.Related{{At: x.p.cfg.At(fmt.Sprintf("interfaces[%d].address", first)),
		Text: "it is here first"}}
	x.p.causes = append(x.p.causes, engine.ErrInUse)
	x.p.Missing = append(x.p.Missing, d)
}

// pools are the regions of a queue as the engine is asked about them.
func (x *portCheck) pools(regions []string) (out []engine.PoolSpec) {
	for _, name := range regions {
		i := slices.IndexFunc(x.p.cfg.Regions, func(r config.Region) bool { return r.Name == name })
		if i < 0 {
			return nil
		}
		r := &x.p.cfg.Regions[i]
		s := r.PoolSpec()
		if given := x.p.o.Regions[name]; given != nil && !r.Owned {
			s = engine.PoolSpec{Name: name, Kind: given.Region().Kind(), SlotSize: given.SlotSize(),
				Stride: given.Stride()}
		}
		out = append(out, s)
	}
	return out
}

// specs says what the engine refuses of the queues by their specs. It is false when it refuses the
// port: port has said so.
func (x *portCheck) specs() bool {
	if rx := x.c.Rx; rx != nil {
		for k := range rx.Queues {
			x.ask.Rx = append(x.ask.Rx, engine.RxAsk{RxSpec: x.c.RxSpec(k), Memory: x.pools(rx.Queues[k].Regions)})
		}
	}
	if tx := x.c.Tx; tx != nil {
		for k := range tx.Queues {
			x.ask.Tx = append(x.ask.Tx, engine.TxAsk{TxSpec: x.c.TxSpec(k), Memory: x.pools(tx.Queues[k].Regions)})
		}
	}
	var found []*engine.SettingError
	var err error
	x.caps, found, err = engine.Check(x.e, &x.ask)
	for _, e := range found {
		code := config.CodeHost
		if errors.Is(e, engine.ErrUnsupported) {
			code = config.CodeNotBuilt
		}
		x.p.causes = append(x.p.causes, e)
		x.p.refuse(code, x.path+"."+e.Path, fmt.Sprintf("interface %q: the engine %s: %s", x.c.Name, x.e.Name(),
			e.Problem()), e.Expected, e.Hint)
	}
	return err == nil
}

// rules asks what the engine can do with the flows.
func (x *portCheck) rules() {
	rules, err := portRules(x.c)
	if err != nil {
		return
	}
	if n, ok := x.e.(engine.Noter); ok {
		for _, note := range n.PortNotes(x.ask.Port, rules) {
			x.p.note(x.path+".rx.flows", fmt.Sprintf("interface %q: %s", x.c.Name, note), "")
		}
	}
	if x.caps.Steering == nil {
		return
	}
	for _, d := range flow.Check(rules, x.caps.Steering) {
		at := fmt.Sprintf("%s.rx.flows[%d]", x.path, d.Rule)
		switch number, action := strings.CutPrefix(d.Field, "action "); {
		case action:
			if n, err := strconv.Atoi(number); err == nil {
				at += fmt.Sprintf(".actions[%d]", n-1)
			}
		case d.Field == "priority":
			at += ".priority"
		case d.Field != "rules":
			at += ".match"
		}
		x.p.causes = append(x.p.causes, &d)
		x.p.refuse(config.CodeNotBuilt, at, fmt.Sprintf("interface %q: flow %q: %s: %s", x.c.Name, d.Name,
			config.RuleWords(d.Field), config.RuleWords(d.Text)), "", x.others(rules[d.Rule]))
	}
}

// others names the engines of this build that carry out a rule, at the same kind of address.
func (x *portCheck) others(rule flow.Rule) string {
	mine := config.Engine(x.e.Name()).Spec()
	spec := x.ask.Port
	spec.Options = nil // those of this engine
	var names []string
	for _, e := range x.p.table.Engines() {
		can, ok := e.(engine.Checker)
		if s := config.Engine(e.Name()).Spec(); !ok || s == nil || mine == nil || e.Name() == x.e.Name() ||
			s.Needs.Interface != mine.Needs.Interface || errors.Is(e.Available(), engine.ErrNotBuilt) {
			continue
		}
		if c, _ := can.PortCapabilities(spec); c.Steering != nil &&
			len(flow.Check([]flow.Rule{rule}, c.Steering)) == 0 {
			names = append(names, "engine: "+e.Name())
		}
	}
	if names == nil {
		return ""
	}
	return strings.Join(names, " or ") + " carries it out"
}

// pagesOf are huge pages of one size on one node, -1 for any.
type pagesOf struct {
	node int
	size config.Size
}

// checkMemory compares the NUMA nodes and the huge pages that regions ask for with those that the
// machine has.
func (p *Plan) checkMemory() {
	nodes := numaNodes()
	want, last := map[pagesOf]int{}, map[pagesOf]int{}
	var order []pagesOf
	for i := range p.cfg.Regions {
		r, path := &p.cfg.Regions[i], fmt.Sprintf("memory_regions[%d]", i)
		if !r.Owned || r.Kind != "host" && r.Kind != "huge" {
			continue
		}
		if r.NUMA >= 0 && len(nodes) > 0 && !slices.Contains(nodes, r.NUMA) {
			p.need(config.CodeHost, path+".numa", fmt.Sprintf("this machine has no NUMA node %d", r.NUMA),
				"one of "+strings.Trim(fmt.Sprint(nodes), "[]"), "-1 leaves the choice to the system")
			continue
		}
		if r.Kind != "huge" || r.Fallback || r.PageSize <= 0 {
			continue
		}
		k := pagesOf{r.NUMA, r.PageSize}
		if last[k] = i; !slices.Contains(order, k) {
			order = append(order, k)
		}
		bytes := r.Bytes()
		if m := p.share(i); m != nil { // what is divided is one piece of memory, counted with its first part
			bytes = 0
			for k, n := range m.Parts {
				if k == 0 && n != i {
					break
				}
				bytes += config.Size(p.memoryNeed(n).Stride * p.cfg.Regions[n].NumBufs)
			}
		}
		want[k] += int((bytes + r.PageSize - 1) / r.PageSize)
	}
	for _, k := range order {
		path := fmt.Sprintf("memory_regions[%d]", last[k])
		have, err := sys.HugePageState(int(k.size), k.node)
		if err != nil {
			p.need(config.CodeHost, path+".page_size", err.Error(), "",
				"kind: host, or fallback: true, does without huge pages")
			continue
		}
		if all, err := sys.HugePageState(int(k.size), -1); err == nil {
			have.More = all.More // which is not counted for a node
		}
		if want[k] <= have.Free+have.More {
			continue
		}
		on := ""
		if k.node >= 0 {
			on = fmt.Sprintf(" on NUMA node %d", k.node)
		}
		p.causes = append(p.causes, mem.ErrUnavailable)
		p.need(config.CodeHost, path+".num_bufs",
			fmt.Sprintf("the regions of kind huge ask for %d of the pages of %v%s, and %d are free", want[k], k.size,
				on, have.Free), fmt.Sprintf("%d free", want[k]),
			have.Command(want[k])+" makes them, as root; fallback: true does without")
	}
}

// numaNodes are the nodes of this machine, none where the kernel does not say.
func numaNodes() (out []int) {
	dirs, _ := filepath.Glob("/sys/devices/system/node/node[0-9]*")
	for _, d := range dirs {
		if n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(d), "node")); err == nil {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}
