package observe

import (
	"cmp"
	"maps"
	"slices"

	"github.com/penstock-io/penstock/metrics"
)

// maxPeerSeries is how many peers get series of their own; the others are in the totals only.
const maxPeerSeries = 100

// Families is the snapshot as families for exporters. One that came from a peer has no histograms.
func (s *Snapshot) Families() []metrics.Family {
	b := familyBuilder{}
	b.node(s)
	b.transfers(s)
	b.paths(s)
	b.peers(s)
	b.memory(s)
	return b
}

type familyBuilder []metrics.Family

// family begins a family; add adds to the one begun last.
func (b *familyBuilder) family(kind metrics.FamilyKind, name, help string, labels ...string) {
	*b = append(*b, metrics.Family{Name: name, Help: help, Kind: kind, Labels: labels})
}

func (b *familyBuilder) add(v float64, values ...string) {
	f := &(*b)[len(*b)-1]
	f.Samples = append(f.Samples, metrics.Sample{Values: values, Value: v})
}

func (b *familyBuilder) counter(name, help string, v uint64) {
	b.family(metrics.KindCounter, name, help)
	b.add(float64(v))
}

func (b *familyBuilder) gauge(name, help string, v float64) {
	b.family(metrics.KindGauge, name, help)
	b.add(v)
}

// counters is a family with one sample for each key of a map, in the order of the keys.
func (b *familyBuilder) counters(name, help, label string, m map[string]uint64) {
	b.family(metrics.KindCounter, name, help, label)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		b.add(float64(m[k]), k)
	}
}

func (b *familyBuilder) node(s *Snapshot) {
	b.family(metrics.KindGauge, "penstock_node_info", "Always 1; the labels name the node.", "name", "instance")
	b.add(1, metrics.LabelValue(s.Node.Name), s.Node.Instance)
	b.gauge("penstock_node_start_time_seconds", "When the node began, in seconds since 1970.",
		float64(s.Node.Started.UnixNano())/1e9)
	if id := s.Node.Identity; id != nil {
		b.gauge("penstock_certificate_expiry_time_seconds",
			"When the node's certificate must have been renewed, in seconds since 1970.", float64(id.NotAfter.Unix()))
	}
	b.gauge("penstock_peers", "Peers that are connected.", float64(len(s.Peers)+s.Omitted.Peers))
	b.counter("penstock_peers_connected_total", "Peers that ever were connected.", s.Node.PeersTotal)
	b.counter("penstock_connections_rejected_total", "Connections that ended before the handshake was done.",
		s.Node.Rejected)
	b.counter("penstock_requests_refused_total", "Requests of peers that were refused.", s.Node.Refused)
	b.counters("penstock_events_missed_total", "Events that subscribers were too slow for.", "kind",
		s.Node.EventsMissed)
	b.gauge("penstock_exports", "Exports that peers can reach.", float64(len(s.Exports)+s.Omitted.Exports))
	var bytes uint64
	for _, x := range s.Exports {
		bytes += x.Bytes
	}
	b.gauge("penstock_exported_bytes", "Memory that peers can reach; what is exported twice counts twice.",
		float64(bytes))
}

func (b *familyBuilder) transfers(s *Snapshot) {
	each := func(kind metrics.FamilyKind, name, help string, value func(*KindTotals) uint64) {
		b.family(kind, name, help, "kind")
		for i := range s.Totals {
			b.add(float64(value(&s.Totals[i])), s.Totals[i].Kind)
		}
	}
	each(metrics.KindGauge, "penstock_transfers_active", "Transfers that this node began and that have not ended.",
		func(t *KindTotals) uint64 {
			return t.Running
		})
	b.family(metrics.KindCounter, "penstock_transfers_total",
		"Transfers that this node began and that have ended, each counted once.", "kind", "outcome")
	for _, t := range s.Totals {
		b.add(float64(t.Completed), t.Kind, "completed")
		b.add(float64(t.Failed), t.Kind, "failed")
		b.add(float64(t.Canceled), t.Kind, "canceled")
	}
	b.family(metrics.KindCounter, "penstock_transfer_bytes_total",
		"Payload of transfers that have ended, known to be in place.", "kind", "outcome")
	for _, t := range s.Totals {
		b.add(float64(t.Bytes), t.Kind, "completed")
		b.add(float64(t.Partial), t.Kind, "partial")
	}
	b.family(metrics.KindCounter, "penstock_transfer_failures_total", "Transfers that failed, by reason.", "kind",
		"reason")
	b.reasons(s.Totals, func(t *KindTotals) map[string]uint64 { return t.Failures })
	b.family(metrics.KindCounter, "penstock_transfers_rejected_total",
		"Calls that failed before a transfer began, by reason.", "kind", "reason")
	b.reasons(s.Totals, func(t *KindTotals) map[string]uint64 { return t.Rejected })
	each(metrics.KindCounter, "penstock_transfer_retries_total", "Attempts after the first.",
		func(t *KindTotals) uint64 {
			return t.Retries
		})
	each(metrics.KindCounter, "penstock_transfer_failovers_total", "Changes of the path under way.",
		func(t *KindTotals) uint64 {
			return t.Failovers
		})
	each(metrics.KindCounter, "penstock_transfer_fallbacks_total",
		"Transfers that did not begin on the best path, which could not be set up.", func(t *KindTotals) uint64 {
			return t.Fallbacks
		})
	each(metrics.KindCounter, "penstock_transfers_received_total",
		"Transfers that peers began and completed, as they reported them.", func(t *KindTotals) uint64 {
			return t.Received
		})
	b.histograms("penstock_transfer_latency_seconds",
		"Time from the call until a transfer was done, of completed ones.", s.Latency, "kind", "path")
}

func (b *familyBuilder) reasons(all []KindTotals, of func(*KindTotals) map[string]uint64) {
	for i := range all {
		m := of(&all[i])
		for _, k := range slices.Sorted(maps.Keys(m)) {
			b.add(float64(m[k]), all[i].Kind, k)
		}
	}
}

func (b *familyBuilder) histograms(name, help string, all []Latency, labels ...string) {
	f := metrics.Family{Name: name, Help: help, Kind: metrics.KindHistogram, Labels: labels, Scale: 1e-9}
	for _, l := range all {
		if l.Histogram == nil {
			continue // it came from a peer
		}
		values := []string{l.Path}
		if len(labels) == 2 {
			values = []string{l.Kind, l.Path}
		}
		f.Samples = append(f.Samples, metrics.Sample{Values: values, Histogram: l.Histogram})
	}
	*b = append(*b, f)
}

func (b *familyBuilder) paths(s *Snapshot) {
	each := func(kind metrics.FamilyKind, name, help string, value func(*PathTotals) uint64) {
		b.family(kind, name, help, "path")
		for i := range s.Paths {
			b.add(float64(value(&s.Paths[i])), s.Paths[i].Path)
		}
	}
	each(metrics.KindGauge, "penstock_paths", "Paths that are up.", func(p *PathTotals) uint64 { return p.Up })
	for _, c := range []struct {
		name, help, label string
		values            map[string]func(*PathTotals) uint64
	}{
		{"penstock_bytes_total",
			"Payload that this side sent or received, by path: its own operations and the peers' that it took part in.",
			"direction",
			map[string]func(*PathTotals) uint64{"in": func(p *PathTotals) uint64 {
				return p.Counters.In()
			}, "out": func(p *PathTotals) uint64 { return p.Counters.Out() }}},
		{"penstock_path_operations_total", "Operations that this side handed to paths, by what became of them.",
			"state",
			map[string]func(*PathTotals) uint64{"posted": func(p *PathTotals) uint64 { return p.Counters.OpsPosted },
				"done": func(p *PathTotals) uint64 {
					return p.Counters.OpsDone
				}, "failed": func(p *PathTotals) uint64 { return p.Counters.OpsFailed }}},
		{"penstock_path_notifications_total", "Notifications sent and received.", "direction",
			map[string]func(*PathTotals) uint64{"in": func(p *PathTotals) uint64 {
				return p.Counters.NotifyReceived
			}, "out": func(p *PathTotals) uint64 { return p.Counters.NotifySent }}},
	} {
		b.family(metrics.KindCounter, c.name, c.help, "path", c.label)
		for i := range s.Paths {
			for _, k := range slices.Sorted(maps.Keys(c.values)) {
				b.add(float64(c.values[k](&s.Paths[i])), s.Paths[i].Path, k)
			}
		}
	}
	each(metrics.KindCounter, "penstock_paths_opened_total", "Paths that were set up, from either side.",
		func(p *PathTotals) uint64 {
			return p.Opened
		})
	each(metrics.KindCounter, "penstock_path_copied_bytes_total",
		"Payload copied once more than the path's design needs.", func(p *PathTotals) uint64 {
			return p.Counters.BytesCopied
		})
	each(metrics.KindCounter, "penstock_path_window_full_total", "Posts that found the window full.",
		func(p *PathTotals) uint64 {
			return p.Counters.WindowFull
		})
	each(metrics.KindCounter, "penstock_path_rejected_total",
		"References of peers that were refused: key, rights or bounds.", func(p *PathTotals) uint64 {
			return p.Counters.Rejected
		})
	each(metrics.KindCounter, "penstock_path_corrupt_total", "Frames that failed their checksum.",
		func(p *PathTotals) uint64 {
			return p.Counters.Corrupt
		})
	each(metrics.KindCounter, "penstock_path_syscalls_total", "Calls to send and receive.", func(p *PathTotals) uint64 {
		return p.Counters.Syscalls
	})
	b.histograms("penstock_path_setup_seconds", "Time to set a path up from this side.", s.Setup, "path")
	b.counters("penstock_path_setup_failures_total", "Paths that could not be set up from this side.", "path",
		s.Node.SetupFailures)
}

// peers adds connections of one name up: two samples must not have the same labels.
func (b *familyBuilder) peers(s *Snapshot) {
	type row struct {
		name                        string
		connections, running        int
		in, out, completed, refused uint64
		roundTrip                   float64
	}
	var rows []*row
	byName := map[string]*row{}
	for i := range s.Peers {
		p := &s.Peers[i]
		name := metrics.LabelValue(p.Name)
		r := byName[name]
		if r == nil {
			if len(rows) == maxPeerSeries {
				continue
			}
			r = &row{name: name}
			byName[name] = r
			rows = append(rows, r)
		}
		r.connections++
		r.running += p.Transfers
		r.in += p.BytesIn
		r.out += p.BytesOut
		r.refused += p.Refused
		r.roundTrip = max(r.roundTrip, p.RoundTripSeconds)
		for _, t := range p.Totals {
			r.completed += t.Completed
		}
	}
	slices.SortFunc(rows, func(a, b *row) int { return cmp.Compare(a.name, b.name) })
	each := func(kind metrics.FamilyKind, name, help string, value func(*row) float64) {
		b.family(kind, name, help, "peer")
		for _, r := range rows {
			b.add(value(r), r.name)
		}
	}
	each(metrics.KindGauge, "penstock_peer_connections", "Connections to peers of this name.", func(r *row) float64 {
		return float64(r.connections)
	})
	each(metrics.KindGauge, "penstock_peer_transfers_active",
		"Transfers with the peer that this node began and that have not ended.", func(r *row) float64 {
			return float64(r.running)
		})
	each(metrics.KindGauge, "penstock_peer_round_trip_seconds", "Round trip of heartbeats; 0 before the first.",
		func(r *row) float64 {
			return r.roundTrip
		})
	each(metrics.KindCounter, "penstock_peer_transfers_total",
		"Transfers with the peer that this node began and that were completed, since it connected.",
		func(r *row) float64 {
			return float64(r.completed)
		})
	each(metrics.KindCounter, "penstock_peer_requests_refused_total",
		"Requests of the peer that were refused, since it connected.", func(r *row) float64 {
			return float64(r.refused)
		})
	b.family(metrics.KindCounter, "penstock_peer_bytes_total",
		"Payload to and from the peer as far as this side took part, since it connected.", "peer", "direction")
	for _, r := range rows {
		b.add(float64(r.in), r.name, "in")
		b.add(float64(r.out), r.name, "out")
	}
}

func (b *familyBuilder) memory(s *Snapshot) {
	m := &s.Memory
	b.gauge("penstock_landing_budget_bytes", "Memory that pushed tensors may take.", float64(m.LandingBudget))
	b.gauge("penstock_landing_used_bytes", "Memory that pushed tensors take.", float64(m.LandingUsed))
	b.gauge("penstock_landing_reserved_bytes", "Memory mapped for pushed tensors.", float64(m.LandingReserved))
	b.counter("penstock_landing_allocations_total", "Blocks taken for pushed tensors.", m.LandingAllocs)
	b.counter("penstock_landing_failures_total", "Pushed tensors for which there was no memory.", m.LandingFailed)
	b.gauge("penstock_registrations", "Ranges of local memory that are kept registered.", float64(m.Registrations))
	b.gauge("penstock_registered_bytes", "Local memory that is kept registered.", float64(m.Registered))
	b.family(metrics.KindCounter, "penstock_registrations_total",
		"Requests to register local memory: found, made, failed, and those given up for room.", "outcome")
	b.add(float64(m.RegisterHits), "hit")
	b.add(float64(m.RegisterMisses), "miss")
	b.add(float64(m.RegisterFailed), "failed")
	b.add(float64(m.RegisterEvictions), "evicted")
}
