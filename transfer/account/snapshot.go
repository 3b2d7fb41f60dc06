package account

import (
	"cmp"
	"maps"
	"slices"

	"github.com/penstock-io/penstock/transfer/observe"
)

// Snapshot fills in peers, paths, transfers and totals. Totals, accounts of peers and counters of
// paths are of one moment; what peers, paths and transfers say themselves a little later.
func (n *Node) Snapshot(s *observe.Snapshot) {
	var peers []*Peer // beside s.Peers
	var open []TransferRow
	rows := map[*Peer][]*usedPath{}
	stats := map[*usedPath]observe.PathCounters{}
	byDriver := map[string]*observe.PathTotals{}
	driver := func(name string) *observe.PathTotals {
		if byDriver[name] == nil {
			byDriver[name] = &observe.PathTotals{Path: name}
		}
		return byDriver[name]
	}
	s.Node.Started, s.Node.UptimeSeconds = n.started, s.Time.Sub(n.started).Seconds()
	s.Node.Rejected, s.Node.EventsMissed = n.rejected.Load(), map[string]uint64{}
	for k, m := range n.Bus.Missed() {
		s.Node.EventsMissed[k.String()] = m
	}

	n.mu.Lock()
	s.Node.PeersTotal, s.Node.Refused, s.Node.SetupFailures = n.peersUp, n.pastRefused, maps.Clone(n.setupBad)
	all := n.past
	for name, x := range n.ended {
		d := driver(name)
		d.Opened += x.paths
		d.Counters.Add(&x.stats)
	}
	for _, x := range n.paths {
		c := observe.PathCounters(x.Path.Stats())
		stats[x] = c
		rows[x.Peer] = append(rows[x.Peer], x)
		d := driver(x.Path.Name())
		d.Up++
		d.Opened++
		d.Counters.Add(&c)
	}
	for p, up := range n.peers {
		p.mu.Lock()
		all.add(&p.counts)
		s.Node.Refused += p.refused
		s.Node.TransfersRunning += p.open
		for t := p.active; t != nil; t = t.next {
			open = append(open, t.of)
		}
		if up {
			peers = append(peers, p)
			s.Peers = append(s.Peers, observe.PeerStatus{ID: p.number, BytesOut: p.paths.Out(), BytesIn: p.paths.In(),
				Name: p.name, Since: p.since, Transfers: p.open, Refused: p.refused, Totals: n.totals(&p.counts)})
		}
		p.mu.Unlock()
	}
	n.mu.Unlock()

	s.Totals = n.totals(&all)
	for _, d := range byDriver {
		s.Paths = append(s.Paths, *d)
	}
	slices.SortFunc(s.Paths, func(a, b observe.PathTotals) int { return cmp.Compare(a.Path, b.Path) })
	for i, p := range peers {
		r := &s.Peers[i]
		p.of.FillPeer(r)
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
		s.Transfers = append(s.Transfers, observe.TransferStatus{})
		t.FillTransfer(&s.Transfers[len(s.Transfers)-1], s.Time)
	}
	slices.SortFunc(s.Transfers, func(a, b observe.TransferStatus) int {
		return cmp.Or(-cmp.Compare(a.AgeSeconds, b.AgeSeconds), cmp.Compare(a.ID.Number(), b.ID.Number()))
	})
	s.Latency, s.Setup = n.took.Latencies(), n.setups.Latencies()
}

// status is the path as its owner sees it.
func (x *usedPath) status(c observe.PathCounters) observe.PathStatus {
	caps := x.Path.Capabilities()
	r := observe.PathStatus{Path: x.Path.Name(), ID: x.ID, Queue: x.Queue, Since: x.since,
		Security: caps.Security.String(), Proof: caps.Proof.String(),
		OneSided: caps.OneSided, Window: caps.Window, UserCopies: caps.UserCopies, KernelCopies: caps.KernelCopies,
		Counters: c}
	if x.Row != nil {
		x.Row.FillPath(&r)
	}
	return r
}
