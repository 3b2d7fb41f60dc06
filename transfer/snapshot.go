package transfer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

// Snapshot takes the node's state. It may be called from any goroutine, costs some 10 us and more
// with many peers, and never waits for a peer. Totals, accounts of peers and counters of paths are
// of one moment; details of paths and transfers a little later.
func (n *Node) Snapshot() observe.Snapshot {
	// Lists are empty, not null, in JSON.
	s := observe.Snapshot{Time: time.Now(), Peers: []observe.PeerStatus{}, Transfers: []observe.TransferStatus{},
		Paths: []observe.PathTotals{}}
	s.Node = observe.NodeStatus{Name: n.opts.Name, Instance: fmt.Sprintf("%016x", n.instance), Addresses: n.Addrs(),
		Started:       n.obs.started,
		UptimeSeconds: s.Time.Sub(n.obs.started).Seconds(), TurnedAway: n.obs.turned.Load(),
		EventsMissed: map[string]uint64{}}
	for _, d := range n.drivers {
		s.Node.Drivers = append(s.Node.Drivers, d.Name())
	}
	for k, m := range n.obs.bus.Missed() {
		s.Node.EventsMissed[k.String()] = m
	}
	s.Node.Insecure = n.opts.Insecure
	n.mu.Lock()
	if n.failed != nil {
		s.Node.Failed = n.failed.Error()
	}
	n.mu.Unlock()
	if id := n.opts.Identity; id != nil {
		st := id.Stats()
		s.Node.Identity = &observe.IdentityStatus{Name: id.Name(), NotAfter: st.Self.NotAfter, Accepted: st.Accepted,
			Refused: st.Refused, Loaded: st.Loaded,
			LoadErrors: st.LoadErrors, LoadError: st.LoadError}
	}
	s.Memory = n.memoryStatus()
	s.Exports = n.exportStatus()
	n.obs.snapshot(&s)
	s.Latency, s.Setup = n.obs.took.Latencies(), n.obs.setups.Latencies()
	return s
}

// Metrics is the node's snapshot as families for exporters: a metrics.Source. Names and labels are
// fixed and described in docs/observability.md. No label tells single transfers or exports apart;
// peers do by name, the first 100 that came (connections of one name are added up), and their names
// are made fit to be labels.
func (n *Node) Metrics() []metrics.Family {
	s := n.Snapshot()
	return s.Families()
}

func (n *Node) memoryStatus() observe.MemoryStatus {
	a, r := n.pool.Stats(), n.regs.Stats()
	return observe.MemoryStatus{LandingBudget: a.Budget, LandingReserved: a.Reserved, LandingUsed: a.InUse,
		LandingHighWater: a.HighWater,
		LandingAllocs:    a.Allocs, LandingFailed: a.Failed, Registrations: r.Count, Registered: r.Bytes,
		RegisteredMost: r.HighWater,
		RegisterHits:   r.Hits, RegisterMisses: r.Misses, RegisterFailed: r.Failed, RegisterEvictions: r.Evictions}
}

func (n *Node) exportStatus() []observe.ExportStatus {
	n.mu.Lock()
	all := slices.Collect(maps.Values(n.byKey))
	n.mu.Unlock()
	out := make([]observe.ExportStatus, 0, len(all))
	for _, x := range all {
		d := x.e.Desc()
		e := observe.ExportStatus{Name: x.name, Bytes: d.Size, Rights: d.Rights.String(), Whole: d.Whole,
			Generation: x.generation}
		if x.tensor != nil {
			e.Tensor = x.tensor.String()
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b observe.ExportStatus) int {
		if (a.Name == "") != (b.Name == "") {
			return -cmp.Compare(a.Name, b.Name)
		}
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Generation, b.Generation))
	})
	return out
}

// snapshot fills in what is guarded by the observer's mutex, then asks peers, paths and transfers
// for their details.
func (o *observer) snapshot(s *observe.Snapshot) {
	var peers []*Peer // beside s.Peers
	var open []*Transfer
	rows := map[*Peer][]*inUse{}
	stats := map[*inUse]observe.PathCounters{}
	byDriver := map[string]*observe.PathTotals{}
	driver := func(name string) *observe.PathTotals {
		if byDriver[name] == nil {
			byDriver[name] = &observe.PathTotals{Path: name}
		}
		return byDriver[name]
	}

	o.mu.Lock()
	s.Node.PeersTotal, s.Node.Refused, s.Node.SetupFailures = o.peersUp, o.pastRefused, maps.Clone(o.setupBad)
	all := o.past
	for name, x := range o.ended {
		d := driver(name)
		d.Opened += x.paths
		d.Counters.Add(&x.stats)
	}
	for _, x := range o.paths {
		c := observe.PathCounters(x.p.Stats())
		stats[x] = c
		rows[x.peer] = append(rows[x.peer], x)
		d := driver(x.p.Name())
		d.Up++
		d.Opened++
		d.Counters.Add(&c)
	}
	for p, up := range o.peers {
		a := &p.account
		a.mu.Lock()
		all.add(&a.counts)
		s.Node.Refused += a.refused
		s.Node.TransfersRunning += a.open
		for t := a.active; t != nil; t = t.nextOpen {
			open = append(open, t)
		}
		if up {
			peers = append(peers, p)
			c := a.paths
			s.Peers = append(s.Peers, observe.PeerStatus{ID: p.number, BytesOut: c.Out(), BytesIn: c.In(),
				Since: a.since, Transfers: a.open, Refused: a.refused, Totals: a.counts.totals()})
		}
		a.mu.Unlock()
	}
	o.mu.Unlock()

	s.Totals = all.totals()
	for _, d := range byDriver {
		s.Paths = append(s.Paths, *d)
	}
	slices.SortFunc(s.Paths, func(a, b observe.PathTotals) int { return cmp.Compare(a.Path, b.Path) })
	for i, p := range peers {
		r := &s.Peers[i]
		r.Name, r.Address, r.SameHost, r.Security = p.info.Name, p.address(), p.SameHost(), p.Security().String()
		r.Certificate, r.Rights = p.cert.Name, p.Rights().String()
		r.RoundTripSeconds = p.RoundTrip().Seconds()
		for _, x := range rows[p] {
			c := stats[x]
			r.BytesOut += c.Out()
			r.BytesIn += c.In()
			r.Paths = append(r.Paths, x.status(c))
		}
		slices.SortFunc(r.Paths, func(a, b observe.PathStatus) int {
			return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.ID, b.ID), a.Since.Compare(b.Since))
		})
	}
	slices.SortFunc(s.Peers, func(a, b observe.PeerStatus) int { return cmp.Compare(a.ID, b.ID) })
	for _, t := range open {
		s.Transfers = append(s.Transfers, t.status(s.Time))
	}
	slices.SortFunc(s.Transfers, func(a, b observe.TransferStatus) int {
		return cmp.Or(-cmp.Compare(a.AgeSeconds, b.AgeSeconds), cmp.Compare(a.ID.Number(), b.ID.Number()))
	})
}

// status is the path as its owner sees it.
func (x *inUse) status(c observe.PathCounters) observe.PathStatus {
	caps := x.p.Capabilities()
	r := observe.PathStatus{Path: x.p.Name(), ID: x.id, Queue: x.queue, Since: x.since,
		Security: caps.Security.String(), Proof: caps.Proof.String(),
		OneSided: caps.OneSided, Window: caps.Window, UserCopies: caps.UserCopies, KernelCopies: caps.KernelCopies,
		Counters: c}
	cost := path.Cost{}
	if l := x.ch; l != nil {
		l.mu.Lock()
		r.InFlight, r.Queued = l.inflight, l.queue.Len()
		cost = l.cost.get(clock())
		r.Explain = l.p.Explain()
		l.unlock() // a transfer may have come meanwhile
	}
	r.Cost = observe.CostStatus{LatencySeconds: cost.Latency.Seconds(), BytesPerSecond: cost.BytesPerSec,
		Measured: cost.Measured}
	return r
}

// status is the transfer now; it may have ended since it was listed.
func (t *Transfer) status(now time.Time) observe.TransferStatus {
	t.mu.Lock()
	via, begin, changes := t.explain.Path, t.explain.Times.begin, len(t.explain.Failovers)
	t.mu.Unlock()
	return observe.TransferStatus{ID: t.id, Kind: kindName(t.kind), Peer: t.peer.info.Name, PeerID: t.peer.number,
		Bytes: t.bytes, Moved: t.moved.Load(),
		AgeSeconds: max(now.Sub(epoch)-begin, 0).Seconds(), Path: via, Priority: t.priority.String(), Stream: t.stream,
		Failovers: changes}
}

// totals gives the counts their names.
func (c *counts) totals() []observe.KindTotals {
	out := make([]observe.KindTotals, 0, numOps)
	for i := range c {
		x := &c[i]
		t := observe.KindTotals{Kind: opNames[i], Begun: x.begun, Completed: x.completed, Canceled: x.canceled,
			Bytes: x.bytes, Partial: x.partial,
			Retries: x.retries, Failovers: x.failovers, Fallbacks: x.fallbacks, Received: x.received,
			Failures: map[string]uint64{}, Rejected: map[string]uint64{}}
		for k, n := range x.failed {
			t.Failed += n
			if n > 0 {
				t.Failures[reasonName(k)] += n
			}
			if m := x.rejected[k]; m > 0 {
				t.Rejected[reasonName(k)] += m
			}
		}
		t.Running = t.Begun - t.Completed - t.Canceled - t.Failed
		out = append(out, t)
	}
	return out
}
