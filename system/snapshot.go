package system

import (
	"slices"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/observe"
)

// Snapshot is what a System is doing: plain values that share nothing with it. Counts begin when it
// was opened and only grow.
type Snapshot struct {
	Time       time.Time
	Interfaces []InterfaceSnapshot // in the order of the configuration
	Pollers    []PollerSnapshot
	// Applications are in the order of the plan. After Close, Packets of each is the sum of Sent,
	// Taken and its drops.
	Applications []ApplicationSnapshot
	Regions      []RegionSnapshot // likewise
	Node         *observe.Snapshot
	Share        *share.Snapshot
	Links        []LinkSnapshot // in the order of the configuration
}

// InterfaceSnapshot is a port. What its queues that are open counted is in Rx and Tx, and in Stats
// with those that were.
type InterfaceSnapshot struct {
	Name  string
	Info  engine.PortInfo
	Stats engine.PortStats
	Rx    []RxSnapshot
	Tx    []TxSnapshot
	Rules []RuleSnapshot // highest priority first
	// Notes say what the port does not do, and why, without those that every port of its engine
	// has: that the kernel copies each packet, or that rules look at VLAN tags which the card takes
	// out of frames.
	Notes []string
	// Unmatched are packets that no rule accepted, Deleted those of rules that are no more.
	Unmatched, Deleted flow.Count
}

// RxSnapshot is a receive queue.
type RxSnapshot struct {
	Name   string
	ID     int
	Stats  engine.RxStats
	Stages []StageSnapshot     // from the queue to the application
	Poller string              // "": the application polls
	Polled *engine.PolledStats // of the hand-off; nil likewise
	// Closed are packets that waited when the System was closed, and that no application received,
	// by their flow (burst.Burst.Flow; 0: none). Stats counts them as received; what came after
	// them it counts as engine.DropClosed.
	Closed map[uint32]flow.Count
}

// TxSnapshot is a transmit queue.
type TxSnapshot struct {
	Name  string
	ID    int
	Stats engine.TxStats
}

// RuleSnapshot is a flow.
type RuleSnapshot struct {
	Rule flow.Rule // Rule.ID is that of the table
	flow.Count
}

// PollerSnapshot is a poller.
type PollerSnapshot struct {
	Name  string
	Core  int // -1: any
	Stats engine.PollerStats
}

// RegionSnapshot is memory for packets.
type RegionSnapshot struct {
	Name     string
	Kind     mem.Kind
	SlotSize int    // bytes
	Note     string // what differs from what was asked for, such as a fallback from huge pages
	Stats    mem.PoolStats
}

// LinkSnapshot is the connection to a peer of the configuration.
type LinkSnapshot struct {
	Name string
	job.LinkSnapshot
}

// Snapshot reads all counts. It looks at every slot of the memory, which is fit for a display and
// not for a hot path.
func (s *System) Snapshot() Snapshot {
	out := Snapshot{Time: time.Now()}
	for i := range s.ifaces {
		f := s.ifaces[i].snapshot()
		f.Notes = s.portNotes(i)
		out.Interfaces = append(out.Interfaces, f)
	}
	for i, p := range s.pollers {
		ps := PollerSnapshot{Name: p.Name(), Core: s.plan.Pollers[i].Core}
		p.Stats(&ps.Stats)
		out.Pollers = append(out.Pollers, ps)
	}
	for _, a := range s.apps {
		out.Applications = append(out.Applications, a.snapshot())
	}
	for i := range s.plan.Regions {
		if p := s.pools[s.plan.Regions[i].Name]; p != nil {
			out.Regions = append(out.Regions, RegionSnapshot{s.plan.Regions[i].Name, p.Region().Kind(), p.SlotSize(),
				p.Region().Note(), p.Stats()})
		}
	}
	if s.node != nil {
		n := s.node.Snapshot()
		out.Node = &n
		for _, p := range s.plan.Node.Peers {
			out.Links = append(out.Links, LinkSnapshot{p.Name, s.links[p.Name].Snapshot()})
		}
	}
	if s.share != nil {
		n := s.share.Snapshot()
		out.Share = &n
	}
	return out
}

func (f *Interface) snapshot() InterfaceSnapshot {
	out := InterfaceSnapshot{Name: f.Name, Info: f.Port.Info()}
	f.Port.Stats(&out.Stats)
	for i := range f.Rx {
		q := &f.Rx[i]
		r := RxSnapshot{Name: q.Name, ID: q.ID, Stages: q.stages(), Poller: q.Poller, Closed: q.guard.thrown()}
		q.guard.q.Stats(&r.Stats)
		if p := q.guard.polled; p != nil {
			r.Polled = new(engine.PolledStats)
			p.Stats(r.Polled)
		}
		out.Rx = append(out.Rx, r)
	}
	for i := range f.Tx {
		q := &f.Tx[i]
		t := TxSnapshot{Name: q.Name, ID: q.ID}
		q.Queue.Stats(&t.Stats)
		out.Tx = append(out.Tx, t)
	}
	if rules := f.Port.Rules(); rules != nil {
		stats := rules.Stats()
		out.Unmatched, out.Deleted = stats.Unmatched, stats.Deleted
		for _, r := range rules.List() {
			rs := RuleSnapshot{Rule: r}
			if k := slices.IndexFunc(stats.Rules, func(x flow.RuleStats) bool { return x.ID == r.ID }); k >= 0 {
				rs.Count = stats.Rules[k].Count
			}
			out.Rules = append(out.Rules, rs)
		}
	}
	return out
}
