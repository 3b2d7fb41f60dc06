package config

import (
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

// Grows is how many bytes the flows of receiving add to a packet of a queue at most: tags and
// tunnels, which engines put on in software, in the queue's slots.
func (p *Interface) Grows(queue int) (most int) {
	if p.Rx == nil {
		return 0
	}
	for i := range p.Rx.Flows {
		r, err := p.Rx.Flows[i].rule(p.Rx.FlexItems)
		if n := len(r.Actions) - 1; err == nil && n >= 0 && (r.Actions[n].Kind == flow.ToQueue &&
			int(r.Actions[n].Queue) == queue || slices.Contains(r.Actions[n].Queues, uint16(queue))) {
			most = max(most, flow.Headroom(r.Actions))
		}
	}
	return most
}

// Joins reports whether a packet of the interface may take several slots.
func (p *Interface) Joins() bool {
	return slices.ContainsFunc(p.Asked(), func(a Asked) bool { return a.What == "chains" && a.Value == true })
}

// checkRoom compares the slots of receive queues with the packets of an MTU, which is the file's,
// or that of the network interface in words.
func (d *decoder) checkRoom(p *Interface, path string, mtu int, whose string) {
	if p.Rx == nil || mtu <= 0 || !p.Engine.frames() || p.Joins() || d.unclear(path) {
		return
	}
	for k := range p.Rx.Queues {
		q := &p.Rx.Queues[k]
		at := join(path, item("rx.queues", k)+".memory_regions")
		have, last := Size(0), -1
		for _, name := range q.Regions {
			r, i := d.region(name)
			if r == nil || r.BufSize == 0 {
				have, last = 0, -1
				break
			}
			have, last = have+r.BufSize, i
		}
		adds := p.Grows(q.ID)
		need := Size(mtu + packet.EthernetLen + adds)
		if last < 0 || have >= need || d.broken[at] {
			continue
		}
		with := "their Ethernet header"
		if adds > 0 {
			with += fmt.Sprintf(" and the %d that flows add", adds)
		}
		r := &d.cfg.Regions[last]
		d.also(d.report(Warning, CodeConflict, at,
			fmt.Sprintf("packets of %s %d have %d bytes with %s, and a slot of %s has %d: longer packets are dropped",
				whose, mtu, need, with, r.Name, have),
			fmt.Sprintf("buf_size: %d or more", need-have+r.BufSize), ""),
			join(item("memory_regions", last), "buf_size"), "buf_size is here")
	}
}

// added is how many bytes the flows of sending put in front of a packet at most.
func (tx *Tx) added() (most int) {
	for _, r := range tx.Rules() {
		most = max(most, flow.Headroom(r.Actions))
	}
	return most
}
