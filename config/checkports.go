package config

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/input"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/tensor/convert"
)

func (d *decoder) checkRx(p *Interface, path string, used map[string]bool) {
	rx := p.Rx
	ids := map[int]bool{}
	queues := join(path, "queues")
	d.unique(queues, "a receive queue", len(rx.Queues), func(i int) string { return rx.Queues[i].Name })
	d.uniqueID(queues, "id", "a receive queue", len(rx.Queues), func(i int) int { return rx.Queues[i].ID }, true)
	for k := range rx.Queues {
		q := &rx.Queues[k]
		at := item(queues, k)
		ids[q.ID] = true
		for n := range q.Stages {
			s, stage := &q.Stages[n], join(at, item("stages", n))
			d.checkStage(s, stage)
			d.checkFormat(&s.Recording, p, q.ID, stage)
			i := slices.IndexFunc(rx.Reorder, func(r Reorder) bool { return r.Takes(rx, q.ID) })
			if i >= 0 && n >= q.OfPackets() && s.ofPackets() {
				d.also(d.reportBatches(&s.Recording, &rx.Reorder[i], stage), join(path, item("reorder", i)),
					"the plan is here")
			}
		}
		d.regionsOf(p, q.Regions, at, q.Depth, q.BatchSize, used)
		if core := join(at, "cpu_core"); q.PollMode == "direct" && d.cfg.given(core) {
			d.also(d.report(Error, CodeConflict, core,
				"cpu_core with poll_mode: direct: the application polls this queue", "",
				"remove it, or write poll_mode: indirect"), join(at, "poll_mode"), "poll_mode is here")
		}
	}
	if len(rx.Queues) == 0 && !rx.FlowIsolation && !d.broken[queues] {
		d.report(Warning, CodeMissingKey, path, "rx has no queues", "",
			"nothing is received; with flow_isolation: true queues can come later")
	}
	if rx.DynamicFlowCapacity > 0 {
		d.report(Note, CodeNoEffect, join(path, "dynamic_flow_capacity"),
			"dynamic_flow_capacity has no effect here: tables of flows grow by themselves", "", "")
	}
	d.checkFlex(rx, path)
	flows := join(path, "flows")
	d.unique(flows, "a flow", len(rx.Flows), func(i int) string { return rx.Flows[i].Name })
	d.uniqueID(flows, "id", "a flow", len(rx.Flows), func(i int) int { return rx.Flows[i].ID }, false)
	if len(rx.Flows) > 0 && !p.Engine.frames() {
		d.report(Error, CodeConflict, flows,
			fmt.Sprintf("the engine %s has no flows: its packets are payloads without headers", p.Engine), "",
			"remove flows: the address says what is received")
	}
	d.checkFlows(rx.Flows, rx.FlexItems, flows, func(f *Flow, at string) bool {
		return d.checkFlow(f, at, ids, queues, false)
	}, nil)
	for k := range rx.Reorder {
		d.checkReorder(p, &rx.Reorder[k], join(path, item("reorder", k)), used)
	}
	d.checkReorders(rx, join(path, "reorder"))
}

// checkFlows looks at each flow, and at those that make sense together.
func (d *decoder) checkFlows(all []Flow, items []FlexItem, path string, check func(f *Flow, at string) bool,
	end []flow.Action) {
	var rules []flow.Rule
	var sound []*Flow
	var at []int
	for k := range all {
		f := &all[k]
		here := item(path, k)
		ok := check(f, here)
		r, err := f.rule(items)
		if !ok || err != nil || d.around[here] {
			continue
		}
		r.Actions = append(r.Actions, end...)
		rules, sound, at = append(rules, r), append(sound, f), append(at, k)
	}
	d.problems(d.validate(rules, path), func(i int) string { return item(path, at[i]) }, sound)
}

func (d *decoder) checkFlex(rx *Rx, path string) {
	items := join(path, "flex_items")
	d.unique(items, "a flex item", len(rx.FlexItems), func(i int) string { return rx.FlexItems[i].Name })
	d.uniqueID(items, "id", "a flex item", len(rx.FlexItems), func(i int) int { return rx.FlexItems[i].ID }, true)
	for k := range rx.Flows {
		m := &rx.Flows[k].Match
		if m.FlexItem.Set && !slices.ContainsFunc(rx.FlexItems, func(f FlexItem) bool {
			return f.ID == m.FlexItem.Value
		}) && !d.unread(items, plainPath(items)+".id") {
			var l []string
			for _, f := range rx.FlexItems {
				l = append(l, fmt.Sprint(f.ID))
			}
			d.report(Error, CodeReference, join(path, item("flows", k)+".match.flex_item_id"),
				fmt.Sprintf("there is no flex item %d", m.FlexItem.Value), listed(l), "add it below flex_items")
		}
	}
}

// checkFlow looks at one flow; it reports false where flow.Validate could say nothing that is true.
func (d *decoder) checkFlow(f *Flow, path string, ids map[int]bool, queues string, tx bool) bool {
	sound := len(f.Actions) > 0
	missing := func(at string, id int) {
		if !ids[id] && !d.unread(queues, plainPath(queues)+".id") {
			var l []int
			for q := range ids {
				l = append(l, q)
			}
			slices.Sort(l)
			expected, hint := "", "add it below rx: queues:"
			if len(l) > 0 {
				expected = spans(l)
			}
			d.report(Error, CodeReference, at, fmt.Sprintf("flow %s goes to queue %d, which is not there",
				shown(f.Name), id), expected, hint)
		}
	}
	for k := range f.Actions {
		a := &f.Actions[k]
		at := join(path, item("actions", k))
		switch {
		case a.Type == "":
			sound = false
		case tx && (a.Type == "queue" || a.Type == "drop" || a.Type == "kernel"):
			d.report(Error, CodeConflict, join(at, "type"), fmt.Sprintf("a flow of tx has the action %s", a.Type),
				"vlan_push, vlan_pop, tunnel_encap or tunnel_decap", "packets that are sent have no queue to go to")
			sound = false
		case a.Type == "queue" && a.ID.Set:
			missing(join(at, "id"), a.ID.Value)
		case a.Type == "queue":
			for j, id := range a.IDs {
				missing(join(at, item("ids", j)), id)
			}
			sound = sound && len(a.IDs) >= 2
		case a.Type == "vlan_push":
			sound = sound && a.VLANID.Set
		case a.Tunnel == nil && (a.Type == "tunnel_decap" || a.Type == "tunnel_encap"):
			sound = false
		case a.Type == "tunnel_encap":
			sound = d.checkTunnel(a.Tunnel, join(at, "tunnel")) && sound
		}
	}
	return sound
}

// checkTunnel reports false where a part is missing, or is a placeholder.
func (d *decoder) checkTunnel(t *Tunnel, path string) bool {
	if t.Type == "" {
		return false
	}
	ok := true
	var missing []string
	for _, need := range []struct {
		key     string
		missing bool
	}{{"outer_eth_src", t.EthSrc.IsZero()}, {"outer_eth_dst", t.EthDst.IsZero()}, {"outer_ip_src", !t.IPSrc.IsValid()},
		{"outer_ip_dst", !t.IPDst.IsValid()},
		{"vni", t.Type == "vxlan" && !t.VNI.Set}, {"tni", t.Type == "nvgre" && !t.TNI.Set}} {
		if !need.missing {
			continue
		}
		ok = false
		at := join(path, need.key)
		if s, there := d.cfg.sources[at]; (!there || s.Origin != FromFile) && !d.broken[at] {
			missing = append(missing, need.key)
		}
	}
	if missing != nil {
		d.report(Error, CodeMissingKey, path, fmt.Sprintf("a %s tunnel has no %s", t.Type,
			strings.Join(missing, ", no ")), "", "add what is missing")
	}
	for _, no := range []struct {
		key  string
		set  bool
		only string
	}{{"vni", t.VNI.Set, "vxlan"}, {"tni", t.TNI.Set, "nvgre"}} {
		if no.set && t.Type != no.only {
			d.report(Error, CodeConflict, join(path, no.key),
				fmt.Sprintf("%s is of %s tunnels, and this one is %s", no.key, no.only, t.Type), "", "remove it")
			ok = false
		}
	}
	return ok
}

func (d *decoder) checkReorder(p *Interface, r *Reorder, path string, used map[string]bool) {
	if r.Engine == "hw" {
		d.report(Needs, CodeNotBuilt, join(path, "reorder_engine"),
			fmt.Sprintf("the reorder plan %s needs a network card that places packets, which no engine "+
				"here supports", shown(r.Name)), "reorder_engine: sw", "")
	}
	reg, at := d.region(r.Region)
	used[r.Region] = true
	if r.Region != "" && reg == nil && !d.unread("memory_regions", "memory_regions.name") {
		known := d.regionNames()
		hint := ""
		if near := input.Nearest(r.Region, known); near != "" {
			hint = fmt.Sprintf("did you mean %s?", near)
		}
		d.report(Error, CodeReference, join(path, "memory_region"),
			fmt.Sprintf("there is no memory region %s", shown(r.Region)), listed(known), hint)
	}
	queue := -1 // the first that the packets come by
	for k, id := range r.FlowIDs {
		i := slices.IndexFunc(p.Rx.Flows, func(f Flow) bool { return f.ID == id })
		if i < 0 && id == 0 { // packets without a flow
			if len(p.Rx.Queues) > 0 {
				queue = p.Rx.Queues[0].ID
			}
			continue
		}
		if i < 0 {
			if !d.unread("interfaces.rx.flows", "interfaces.rx.flows.id") {
				d.report(Error, CodeReference, join(path, item("flow_ids", k)),
					fmt.Sprintf("there is no flow with the id %d on this interface", id),
					"the id of a flow of rx: flows:", "")
			}
			continue
		}
		for _, a := range p.Rx.Flows[i].Actions {
			if a.Type == "queue" && queue < 0 {
				if a.ID.Set {
					queue = a.ID.Value
				} else if len(a.IDs) > 0 {
					queue = a.IDs[0]
				}
			}
		}
	}
	if r.Engine == "hw" && !r.Cyclic {
		d.report(Error, CodeConflict, join(path, "reorder_engine"), "reorder_engine: hw without cyclic_sequence: true",
			"cyclic_sequence: true", "the card counts in a circle")
	}
	if r.PacketSize > 0 && r.Engine != "hw" {
		d.report(Warning, CodeNoEffect, join(path, "packet_size"), "packet_size is for reorder_engine: hw", "",
			"remove it")
	} else if r.PacketSize > 0 && r.PacketSize < 4000 {
		d.report(Warning, CodeConflict, join(path, "packet_size"),
			fmt.Sprintf("packet_size: %v is small", r.PacketSize), "4000B or more", "cards are slow with small packets")
	}
	if r.DataTypes != nil && r.Type == "cpu" && d.cfg.dialect != Ours {
		d.report(Note, CodeMeaning, join(path, "data_types"), "DAQIRI converts types only with reorder_type: gpu", "",
			"its own programs would refuse this file")
	}
	ppb := d.packetsPerBatch(&r.Method, join(path, "method"))
	if ppb > 0 {
		d.reorderNumbers(r, path)
	}
	d.reorderSize(p, r, path, ppb, queue, reg, at)
	if r.Engine == "hw" || slices.ContainsFunc(d.diags, func(x Diagnostic) bool {
		return x.Severity == Error && strings.HasPrefix(x.Path, path)
	}) {
		return
	}
	plan := r.Plan()
	if err := plan.CheckFor(r.Region, math.MaxInt, true); err != nil { // the memory may be the program's
		d.report(Error, CodeConflict, path, err.Error(), "", "")
	}
}

// packetsPerBatch checks the arithmetic of a method and returns how many packets a batch has, 0 if
// that is not known.
func (d *decoder) packetsPerBatch(m *ReorderMethod, path string) int64 {
	if b := m.BatchNumber; b != nil && b.Sequence.Width > 0 && b.Batch.Width > 0 {
		if b.Batch.Width >= b.Sequence.Width {
			d.report(Error, CodeConflict, join(path, "seq_batch_number.batch_number.bit_width"),
				fmt.Sprintf("batch_number has %d bits, and sequence_number %d", b.Batch.Width, b.Sequence.Width),
				"fewer bits than sequence_number", "a batch has 2 to their difference packets")
			return 0
		}
		return 1 << (b.Sequence.Width - b.Batch.Width)
	}
	if b := m.PacketsPerBatch; b != nil && b.Sequence.Width > 0 && b.PacketsPerBatch > 0 {
		n := int64(b.PacketsPerBatch)
		if n > 1<<b.Sequence.Width || n&(n-1) != 0 {
			d.report(Error, CodeConflict, join(path, "seq_packets_per_batch.packets_per_batch"),
				fmt.Sprintf("packets_per_batch %d does not divide 2 to %d", n, b.Sequence.Width),
				fmt.Sprintf("a power of two up to %d", int64(1)<<b.Sequence.Width),
				"else a batch changes its place when the number begins again")
			return 0
		}
		return n
	}
	return 0
}

// reorderNumbers checks that the numbers of packets tell those of one batch from those of the next.
func (d *decoder) reorderNumbers(r *Reorder, path string) {
	p := r.Plan()
	at, name, width := "method.seq_packets_per_batch.sequence_number.bit_width", "sequence_number", p.Sequence.Width
	if p.Batch.Width > 0 {
		at, name, width = "method.seq_batch_number.batch_number.bit_width", "batch_number", p.Batch.Width
	}
	switch least := p.Width(r.Window); {
	case width < p.Width(0):
		d.report(Error, CodeConflict, join(path, at),
			fmt.Sprintf("%s of 1 bit does not tell a packet that was overtaken from one of the next batch", name),
			fmt.Sprintf("bit_width: %d or more", least), "")
	case width < least:
		d.also(d.report(Error, CodeConflict, join(path, "window"),
			fmt.Sprintf("%s of %d bits tells %d batches apart, and the window is of %d", name, width, p.Reach(),
				r.Window), fmt.Sprintf("window: %d, or bit_width: %d", p.Reach(), least), ""), join(path, at),
			"bit_width is here")
	}
}

func (d *decoder) reorderSize(p *Interface, r *Reorder, path string, ppb int64, queue int, reg *Region, at int) {
	k := slices.IndexFunc(p.Rx.Queues, func(q RxQueue) bool { return q.ID == queue })
	if k < 0 || ppb == 0 {
		return
	}
	q := &p.Rx.Queues[k]
	if len(q.Regions) != 1 { // with two a packet is longer than a slot
		return
	}
	src, i := d.region(q.Regions[0])
	if src == nil || reg == nil || src.BufSize == 0 || reg.BufSize == 0 {
		return
	}
	payload := int64(src.BufSize) - int64(r.PayloadOffset)
	if payload <= 0 {
		d.also(d.report(Error, CodeConflict, join(path, "payload_byte_offset"),
			fmt.Sprintf("payload_byte_offset %d leaves nothing of a slot of %d bytes", r.PayloadOffset,
				int64(src.BufSize)), "", ""), join(item("memory_regions", i), "buf_size"), "buf_size is here")
		return
	}
	if n := int64(r.PayloadSize); n > payload {
		d.also(d.report(Error, CodeConflict, join(path, "payload_size"),
			fmt.Sprintf("a slot of %s has %d bytes, which are %d behind payload_byte_offset", src.Name,
				int64(src.BufSize), payload), fmt.Sprintf("payload_size: %d or less", payload), ""),
			join(item("memory_regions", i), "buf_size"), "buf_size is here")
		return
	} else if n > 0 {
		payload = n
	}
	if r.DataTypes != nil {
		if c, err := convert.New(r.DataTypes.Spec()); err == nil {
			payload = int64(c.OutLen(int(payload)))
		}
	}
	if need := payload * ppb; need > int64(reg.BufSize) {
		d.also(d.report(Warning, CodeConflict, join(path, "memory_region"),
			fmt.Sprintf("a batch of %d packets can have %d bytes, and a slot of %s has %d", ppb, need, reg.Name,
				int64(reg.BufSize)), fmt.Sprintf("buf_size of %d", need),
			"packets that fill their slots would not fit"), join(item("memory_regions", at), "buf_size"),
			"buf_size is here")
	}
}

// checkReorders finds flows that are in two plans.
func (d *decoder) checkReorders(rx *Rx, path string) {
	d.unique(path, "a reorder plan", len(rx.Reorder), func(i int) string { return rx.Reorder[i].Name })
	first := map[int]string{}
	for i := range rx.Reorder {
		mine := map[int]bool{}
		for k, id := range rx.Reorder[i].FlowIDs {
			at := join(item(path, i), item("flow_ids", k))
			if other, twice := first[id]; twice && !mine[id] {
				d.also(d.report(Error, CodeConflict, at, fmt.Sprintf("flow %d is in two reorder plans", id),
					"each flow in one", ""), other, "it is here first")
				continue
			}
			first[id], mine[id] = at, true
		}
	}
}

func (d *decoder) checkTx(p *Interface, path string, used map[string]bool) {
	tx := p.Tx
	queues := join(path, "queues")
	d.unique(queues, "a transmit queue", len(tx.Queues), func(i int) string { return tx.Queues[i].Name })
	d.uniqueID(queues, "id", "a transmit queue", len(tx.Queues), func(i int) int { return tx.Queues[i].ID }, true)
	for k := range tx.Queues {
		q := &tx.Queues[k]
		at := item(queues, k)
		d.regionsOf(p, q.Regions, at, q.Depth, q.BatchSize, used)
		if len(q.Offloads) > 0 && !p.Engine.frames() {
			d.report(Warning, CodeNoEffect, join(at, "offloads"),
				fmt.Sprintf("the engine %s writes no Ethernet headers of its own", p.Engine), "", "remove offloads")
		}
	}
	if len(tx.Queues) == 0 && !d.broken[queues] {
		d.report(Warning, CodeMissingKey, path, "tx has no queues", "", "nothing can be sent")
	}
	flows := join(path, "flows")
	d.unique(flows, "a flow", len(tx.Flows), func(i int) string { return tx.Flows[i].Name })
	d.uniqueID(flows, "id", "a flow", len(tx.Flows), func(i int) int { return tx.Flows[i].ID }, false)
	// What is sent goes to no queue, and rules need an end.
	d.checkFlows(tx.Flows, nil, flows, func(f *Flow, at string) bool {
		return d.checkFlow(f, at, nil, "", true)
	}, []flow.Action{flow.Queue(0)})
}

// queue is what receive and transmit queues have in common: their fields, with their place.
type queue struct {
	path      string
	direction string // rx, tx
	place     int    // in the list
	name      *string
	id, depth *int
	core      int
	regions   *[]string
}

// queues are all queues of the interface at a path, receive queues first.
func (p *Interface) queues(path string) (out []queue) {
	if p.Rx != nil {
		for k := range p.Rx.Queues {
			q := &p.Rx.Queues[k]
			out = append(out, queue{join(path, item("rx.queues", k)), "rx", k, &q.Name, &q.ID, &q.Depth, q.CPUCore,
				&q.Regions})
		}
	}
	if p.Tx != nil {
		for k := range p.Tx.Queues {
			q := &p.Tx.Queues[k]
			out = append(out, queue{join(path, item("tx.queues", k)), "tx", k, &q.Name, &q.ID, &q.Depth, q.CPUCore,
				&q.Regions})
		}
	}
	return out
}

// CoreUse is a core that something of a configuration is bound to.
type CoreUse struct {
	Core      int
	Path      string // of the value, such as interfaces[0].rx.queues[1].cpu_core
	What      string // in words
	Interface string // name of the interface whose packets it works on; empty: none
	Polls     bool   // all the time
}

// CoreUses are all cores that the configuration names, in the order of the file.
func (c *Config) CoreUses() []CoreUse {
	var out []CoreUse
	add := func(core int, path, what, iface string, polls bool) {
		if core >= 0 {
			out = append(out, CoreUse{core, path + "cpu_core", what, iface, polls})
		}
	}
	if c.MasterCore >= 0 {
		out = append(out, CoreUse{Core: c.MasterCore, Path: "master_core", What: "master_core"})
	}
	for i := range c.Interfaces {
		p := &c.Interfaces[i]
		for _, q := range p.queues(item("interfaces", i)) {
			add(q.core, q.path+".", "the queue "+q.path, p.Name, p.Engine.frames())
		}
	}
	for i := range c.Applications {
		a := &c.Applications[i]
		add(a.CPUCore, item("applications", i)+".", "the application "+a.Name, a.Interface, true)
	}
	for i := range c.BenchRx {
		add(c.BenchRx[i].CPUCore, item("bench_rx", i)+".", "bench_rx", c.BenchRx[i].Interface, true)
	}
	for i := range c.BenchTx {
		add(c.BenchTx[i].CPUCore, item("bench_tx", i)+".", "bench_tx", c.BenchTx[i].Interface, true)
	}
	for _, b := range []struct {
		s    *BenchSocket
		name string
	}{{c.SocketServer, "socket_bench_server"}, {c.SocketClient, "socket_bench_client"},
		{c.RDMAServer, "rdma_bench_server"}, {c.RDMAClient, "rdma_bench_client"}} {
		if b.s != nil {
			add(b.s.CPUCore, b.name+".", b.name, "", false)
		}
	}
	if c.Latency != nil {
		add(c.Latency.CPUCore, "bench_latency.", "bench_latency", "", true)
	}
	return out
}

// checkCores finds cores with two tasks.
func (d *decoder) checkCores() {
	first := map[int]CoreUse{}
	for _, u := range d.cfg.CoreUses() {
		o, twice := first[u.Core]
		if !twice {
			first[u.Core] = u
			continue
		}
		if !u.Polls && !o.Polls {
			continue // both sleep while there is nothing to do
		}
		d.also(d.report(Warning, CodePlacement, u.Path, fmt.Sprintf("core %d has %s already", u.Core, o.What),
			"a core of its own", "polling takes a whole core: each gets half of it"), o.Path, "it is here")
	}
}
