package transfer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/path"
)

// Snapshot is the state of a node at one time: plain values that share nothing with the node, and no secrets (no keys of exports,
// no tokens, no certificates). Its JSON form has stable field names, is described in docs/observability.md, and is what
// `penstock status --json` prints. Counters only grow as long as the node lives; those of a peer or path begin with it.
// Texts that came from peers (names, reasons) may hold any characters.
type Snapshot struct {
	Time      time.Time        `json:"time"`
	Node      NodeStatus       `json:"node"`
	Memory    MemoryStatus     `json:"memory"`
	Exports   []ExportStatus   `json:"exports"`   // by name, those without a name last
	Peers     []PeerStatus     `json:"peers"`     // in the order in which they came
	Transfers []TransferStatus `json:"transfers"` // begun here and under way, the oldest first
	Totals    []KindTotals     `json:"totals"`    // one for each kind of transfer
	Paths     []PathTotals     `json:"paths"`     // one for each driver that was ever used, by name
	Latency   []Latency        `json:"latency"`   // one for each kind and path that completed a transfer
	Setup     []Latency        `json:"setup"`     // one for each path that was set up from here; Kind is "setup"
	// Omitted says how many rows of a list are not there, because the snapshot had to fit into an answer to a peer.
	Omitted Omitted `json:"omitted,omitzero"`
}

// Omitted counts rows that were left out of a Snapshot.
type Omitted struct {
	Exports   int `json:"exports,omitempty"`
	Peers     int `json:"peers,omitempty"`
	Transfers int `json:"transfers,omitempty"`
	Paths     int `json:"paths,omitempty"`   // of the peers that are there
	Explain   int `json:"explain,omitempty"` // paths whose Explain was left out
}

// NodeStatus is the node itself.
type NodeStatus struct {
	Name             string            `json:"name"`
	Instance         string            `json:"instance"`  // 16 hexadecimal digits: another one after a restart
	Addresses        []string          `json:"addresses"` // where it listens
	Started          time.Time         `json:"started"`
	UptimeSeconds    float64           `json:"uptime_seconds"`
	Drivers          []string          `json:"drivers"`           // of paths, in order of preference
	PeersTotal       uint64            `json:"peers_total"`       // that ever were connected
	TurnedAway       uint64            `json:"turned_away"`       // connections that did not become peers
	Refused          uint64            `json:"refused"`           // requests of peers that were refused
	SetupFailures    map[string]uint64 `json:"setup_failures"`    // paths that could not be set up from here, by driver
	EventsMissed     map[string]uint64 `json:"events_missed"`     // by subscribers that were too slow, by kind of event
	TransfersRunning int               `json:"transfers_running"` // also those that Transfers omits
	Failed           string            `json:"failed,omitempty"`  // why the node moves nothing any more; see ErrFailed
	Insecure         bool              `json:"insecure"`          // Options.Insecure: plaintext beyond this machine is permitted
	Identity         *IdentityStatus   `json:"identity,omitempty"`
}

// IdentityStatus is the certificate by which the node proves its name. Keys are not shown.
type IdentityStatus struct {
	Name       string    `json:"name"`
	NotAfter   time.Time `json:"not_after"` // when it must have been renewed
	Accepted   uint64    `json:"accepted"`  // handshakes
	Refused    uint64    `json:"refused"`
	Loaded     uint64    `json:"loaded"` // times that certificates or rules were replaced
	LoadErrors uint64    `json:"load_errors"`
	LoadError  string    `json:"load_error,omitempty"` // the last one, until it is fixed
}

// MemoryStatus is the memory that the node itself manages, in bytes.
type MemoryStatus struct {
	LandingBudget     uint64 `json:"landing_budget_bytes"` // for pushed tensors, Options.Budget
	LandingReserved   uint64 `json:"landing_reserved_bytes"`
	LandingUsed       uint64 `json:"landing_used_bytes"`
	LandingHighWater  uint64 `json:"landing_high_water_bytes"`
	LandingAllocs     uint64 `json:"landing_allocs"`
	LandingFailed     uint64 `json:"landing_failed"` // tensors refused for want of memory
	Registrations     int    `json:"registrations"`
	Registered        uint64 `json:"registered_bytes"`
	RegisteredMost    uint64 `json:"registered_high_water_bytes"`
	RegisterHits      uint64 `json:"register_hits"`
	RegisterMisses    uint64 `json:"register_misses"`
	RegisterFailed    uint64 `json:"register_failed"`
	RegisterEvictions uint64 `json:"register_evictions"`
}

// ExportStatus is memory that peers can reach. Its key is not shown.
type ExportStatus struct {
	Name       string `json:"name"` // "" for one that only a descriptor names, such as memory for a pushed tensor
	Bytes      uint64 `json:"bytes"`
	Rights     string `json:"rights"`
	Whole      bool   `json:"whole"` // a whole memfd: shared memory can reach it
	Tensor     string `json:"tensor,omitempty"`
	Generation uint64 `json:"generation"`
}

// PeerStatus is one connected peer.
type PeerStatus struct {
	ID               uint64       `json:"id"` // the node's own number of the connection
	Name             string       `json:"name"`
	Certificate      string       `json:"certificate,omitempty"` // the name in its certificate, if it has shown one
	Address          string       `json:"address"`
	Since            time.Time    `json:"since"`
	RoundTripSeconds float64      `json:"round_trip_seconds"` // 0 before the first heartbeat
	SameHost         bool         `json:"same_host"`
	Security         string       `json:"security"` // of the control connection
	Rights           string       `json:"rights"`   // on this node
	Transfers        int          `json:"transfers"`
	BytesOut         uint64       `json:"bytes_out"` // payload that went to the peer by all its paths, as far as this side took part
	BytesIn          uint64       `json:"bytes_in"`
	Refused          uint64       `json:"refused"`
	Totals           []KindTotals `json:"totals"`
	Paths            []PathStatus `json:"paths"`
}

// PathStatus is one path to a peer.
type PathStatus struct {
	Path         string       `json:"path"`
	ID           uint64       `json:"id"`
	Queue        string       `json:"queue,omitempty"` // the path belongs to the owner of this queue
	Since        time.Time    `json:"since"`
	Security     string       `json:"security"`
	Proof        string       `json:"proof"`
	OneSided     bool         `json:"one_sided"`
	Window       int          `json:"window"`
	InFlight     int          `json:"in_flight"` // operations; 0 for a queue, whose owner alone knows
	Queued       int          `json:"queued"`    // transfers that wait for their turn
	UserCopies   int          `json:"user_copies"`
	KernelCopies int          `json:"kernel_copies"`
	Cost         CostStatus   `json:"cost"`
	Counters     PathCounters `json:"counters"`
	Explain      []string     `json:"explain,omitempty"`
}

// CostStatus is what the path is taken to cost when a path is chosen.
type CostStatus struct {
	LatencySeconds float64 `json:"latency_seconds"`
	BytesPerSecond float64 `json:"bytes_per_second"`
	Measured       bool    `json:"measured"`
}

// PathCounters are the counters of path.Stats under stable names. All of them only grow.
type PathCounters struct {
	OpsPosted      uint64 `json:"ops_posted"`
	OpsDone        uint64 `json:"ops_done"`
	OpsFailed      uint64 `json:"ops_failed"`
	BytesPut       uint64 `json:"bytes_put"`
	BytesGot       uint64 `json:"bytes_got"`
	BytesPlaced    uint64 `json:"bytes_placed"`
	BytesServed    uint64 `json:"bytes_served"`
	BytesCopied    uint64 `json:"bytes_copied"`
	NotifySent     uint64 `json:"notify_sent"`
	NotifyReceived uint64 `json:"notify_received"`
	WindowFull     uint64 `json:"window_full"`
	Rejected       uint64 `json:"rejected"`
	Corrupt        uint64 `json:"corrupt"`
	Syscalls       uint64 `json:"syscalls"`
	Wakeups        uint64 `json:"wakeups"`
	ZeroCopySends  uint64 `json:"zero_copy_sends"`
	ZeroCopyCopied uint64 `json:"zero_copy_copied"`
	HelpedBytes    uint64 `json:"helped_bytes"`
}

// pathCounters gives the counters their names: the structs have the same fields, and the conversion fails to compile otherwise.
func pathCounters(s path.Stats) PathCounters { return PathCounters(s) }

// out and in are the payload bytes that went to and came from the peer, as far as this side has part in it.
func (c *PathCounters) out() uint64 { return c.BytesPut + c.BytesServed }
func (c *PathCounters) in() uint64  { return c.BytesGot + c.BytesPlaced }

// TransferStatus is a transfer that this node began and that has not ended.
type TransferStatus struct {
	ID         ID      `json:"id"`
	Kind       string  `json:"kind"`
	Peer       string  `json:"peer"`
	PeerID     uint64  `json:"peer_id"`
	Bytes      uint64  `json:"bytes"`
	Moved      uint64  `json:"moved"`
	AgeSeconds float64 `json:"age_seconds"`
	Path       string  `json:"path"` // "" while none is chosen
	Priority   string  `json:"priority"`
	Stream     uint32  `json:"stream,omitempty"`
	Failovers  int     `json:"failovers,omitempty"`
}

// KindTotals are the transfers of one kind that this node (or, in PeerStatus, with this peer) began. Each one that began is in
// exactly one of Running, Completed, Canceled and Failed.
type KindTotals struct {
	Kind      string            `json:"kind"`
	Begun     uint64            `json:"begun"`
	Running   uint64            `json:"running"`
	Completed uint64            `json:"completed"`
	Canceled  uint64            `json:"canceled"`
	Failed    uint64            `json:"failed"`
	Failures  map[string]uint64 `json:"failures"` // Failed by reason; docs/observability.md lists them
	Rejected  map[string]uint64 `json:"rejected"` // calls that failed before a transfer began, by reason
	Bytes     uint64            `json:"bytes"`    // of completed transfers
	Partial   uint64            `json:"partial_bytes"`
	Retries   uint64            `json:"retries"`   // attempts after the first
	Failovers uint64            `json:"failovers"` // paths changed under way
	Fallbacks uint64            `json:"fallbacks"` // begun on another than the best path, which could not be set up
	Received  uint64            `json:"received"`  // transfers that peers began and completed, as they reported them
}

// PathTotals are all paths of one driver since the node began, those that are gone included.
type PathTotals struct {
	Path     string       `json:"path"`
	Up       uint64       `json:"up"`     // now
	Opened   uint64       `json:"opened"` // ever
	Counters PathCounters `json:"counters"`
}

// Latency is the distribution of durations of one kind of transfer over one path, from the call until the transfer was done.
type Latency struct {
	Kind  string  `json:"kind"`
	Path  string  `json:"path"`
	Count uint64  `json:"count"`
	Mean  float64 `json:"mean_seconds"`
	Min   float64 `json:"min_seconds"`
	P50   float64 `json:"p50_seconds"`
	P90   float64 `json:"p90_seconds"`
	P99   float64 `json:"p99_seconds"`
	P999  float64 `json:"p999_seconds"`
	Max   float64 `json:"max_seconds"`
	// Histogram is in nanoseconds; it does not travel in JSON.
	Histogram *metrics.HistogramSnapshot `json:"-"`
}

// Snapshot takes the node's state. It may be called from any goroutine, costs some 10 us and more with many peers, and never
// waits for a peer. Totals, accounts of peers and counters of paths are of one moment; details of paths and transfers a little later.
func (n *Node) Snapshot() Snapshot {
	// Lists are empty, not null, in JSON.
	s := Snapshot{Time: time.Now(), Peers: []PeerStatus{}, Transfers: []TransferStatus{}, Paths: []PathTotals{}}
	s.Node = NodeStatus{Name: n.opts.Name, Instance: fmt.Sprintf("%016x", n.instance), Addresses: n.Addrs(), Started: n.obs.started,
		UptimeSeconds: s.Time.Sub(n.obs.started).Seconds(), TurnedAway: n.obs.turned.Load(), EventsMissed: map[string]uint64{}}
	for _, d := range n.drivers {
		s.Node.Drivers = append(s.Node.Drivers, d.Name())
	}
	for k, m := range n.obs.bus.missedEvents() {
		if m > 0 {
			s.Node.EventsMissed[EventKind(k).String()] = m
		}
	}
	s.Node.Insecure = n.opts.Insecure
	n.mu.Lock()
	if n.failed != nil {
		s.Node.Failed = n.failed.Error()
	}
	n.mu.Unlock()
	if id := n.opts.Identity; id != nil {
		st := id.Stats()
		s.Node.Identity = &IdentityStatus{Name: id.Name(), NotAfter: st.Self.NotAfter, Accepted: st.Accepted, Refused: st.Refused, Loaded: st.Loaded,
			LoadErrors: st.LoadErrors, LoadError: st.LoadError}
	}
	s.Memory = n.memoryStatus()
	s.Exports = n.exportStatus()
	n.obs.snapshot(&s)
	s.Latency, s.Setup = n.obs.latencies()
	return s
}

func (n *Node) memoryStatus() MemoryStatus {
	a, r := n.pool.Stats(), n.regs.Stats()
	return MemoryStatus{LandingBudget: a.Budget, LandingReserved: a.Reserved, LandingUsed: a.InUse, LandingHighWater: a.HighWater,
		LandingAllocs: a.Allocs, LandingFailed: a.Failed, Registrations: r.Count, Registered: r.Bytes, RegisteredMost: r.HighWater,
		RegisterHits: r.Hits, RegisterMisses: r.Misses, RegisterFailed: r.Failed, RegisterEvictions: r.Evictions}
}

func (n *Node) exportStatus() []ExportStatus {
	n.mu.Lock()
	all := slices.Collect(maps.Values(n.byKey))
	n.mu.Unlock()
	out := make([]ExportStatus, 0, len(all))
	for _, x := range all {
		d := x.Desc()
		e := ExportStatus{Name: x.name, Bytes: d.Size, Rights: d.Rights.String(), Whole: d.Whole, Generation: x.generation}
		if x.tensor != nil {
			e.Tensor = x.tensor.String()
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b ExportStatus) int {
		if (a.Name == "") != (b.Name == "") {
			return -cmp.Compare(a.Name, b.Name)
		}
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Generation, b.Generation))
	})
	return out
}

// snapshot fills in what is guarded by the observer's mutex, then asks peers, paths and transfers for their details.
func (o *observer) snapshot(s *Snapshot) {
	var peers []*Peer // beside s.Peers
	var open []*Transfer
	rows := map[*Peer][]*inUse{}
	stats := map[*inUse]PathCounters{}
	byDriver := map[string]*PathTotals{}
	driver := func(name string) *PathTotals {
		if byDriver[name] == nil {
			byDriver[name] = &PathTotals{Path: name}
		}
		return byDriver[name]
	}
	gone := map[string]path.Stats{}

	o.mu.Lock()
	s.Node.PeersTotal, s.Node.Refused, s.Node.SetupFailures = o.peersUp, o.pastRefused, maps.Clone(o.setupBad)
	all := o.past
	for name, x := range o.ended {
		driver(name).Opened += x.paths
		gone[name] = x.stats
	}
	for _, x := range o.paths {
		st := x.p.Stats()
		stats[x] = pathCounters(st)
		rows[x.peer] = append(rows[x.peer], x)
		name := x.p.Name()
		d := driver(name)
		d.Up++
		d.Opened++
		g := gone[name]
		addStats(&g, st)
		gone[name] = g
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
			c := pathCounters(a.paths)
			s.Peers = append(s.Peers, PeerStatus{ID: p.number, BytesOut: c.out(), BytesIn: c.in(), Since: a.since, Transfers: a.open, Refused: a.refused, Totals: a.counts.totals()})
		}
		a.mu.Unlock()
	}
	o.mu.Unlock()

	s.Totals = all.totals()
	for name, d := range byDriver {
		d.Counters = pathCounters(gone[name])
		s.Paths = append(s.Paths, *d)
	}
	slices.SortFunc(s.Paths, func(a, b PathTotals) int { return cmp.Compare(a.Path, b.Path) })
	for i, p := range peers {
		r := &s.Peers[i]
		r.Name, r.Address, r.SameHost, r.Security = p.info.Name, p.address(), p.SameHost(), p.Security().String()
		r.Certificate, r.Rights = p.cert.Name, p.Rights().String()
		r.RoundTripSeconds = p.RoundTrip().Seconds()
		for _, x := range rows[p] {
			c := stats[x]
			r.BytesOut += c.out()
			r.BytesIn += c.in()
			r.Paths = append(r.Paths, x.status(c))
		}
		slices.SortFunc(r.Paths, func(a, b PathStatus) int {
			return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.ID, b.ID), a.Since.Compare(b.Since))
		})
	}
	slices.SortFunc(s.Peers, func(a, b PeerStatus) int { return cmp.Compare(a.ID, b.ID) })
	for _, t := range open {
		s.Transfers = append(s.Transfers, t.status(s.Time))
	}
	slices.SortFunc(s.Transfers, func(a, b TransferStatus) int {
		return cmp.Or(-cmp.Compare(a.AgeSeconds, b.AgeSeconds), cmp.Compare(a.ID.number(), b.ID.number()))
	})
}

// status is the path as its owner sees it.
func (x *inUse) status(c PathCounters) PathStatus {
	caps := x.p.Capabilities()
	r := PathStatus{Path: x.p.Name(), ID: x.id, Queue: x.queue, Since: x.since, Security: caps.Security.String(), Proof: caps.Proof.String(),
		OneSided: caps.OneSided, Window: caps.Window, UserCopies: caps.UserCopies, KernelCopies: caps.KernelCopies, Counters: c}
	cost := path.Cost{}
	if l := x.ln; l != nil {
		prior := unknownPrior
		if d := l.peer.node.driver(r.Path); d != nil && d.Traits().Prior != (path.Cost{}) {
			prior = d.Traits().Prior
		}
		l.mu.Lock()
		r.InFlight, r.Queued = l.inflight, l.queue.Len()
		cost = l.cost.get(prior, time.Now())
		r.Explain = l.p.Explain()
		l.unlock() // a transfer may have come meanwhile
	}
	r.Cost = CostStatus{cost.Latency.Seconds(), cost.BytesPerSec, cost.Measured}
	return r
}

// status is the transfer now; it may have ended since it was listed.
func (t *Transfer) status(now time.Time) TransferStatus {
	t.mu.Lock()
	via, begin, changes := t.explain.Path, t.explain.Times.begin, len(t.explain.Failovers)
	t.mu.Unlock()
	return TransferStatus{ID: t.id, Kind: kindName(t.kind), Peer: t.peer.info.Name, PeerID: t.peer.number, Bytes: t.bytes, Moved: t.moved.Load(),
		AgeSeconds: max(now.Sub(begin), 0).Seconds(), Path: via, Priority: t.priority.String(), Stream: t.stream, Failovers: changes}
}

// totals gives the counts their names.
func (c *counts) totals() []KindTotals {
	out := make([]KindTotals, 0, numOps)
	for i := range c {
		x := &c[i]
		t := KindTotals{Kind: opNames[i], Begun: x.begun, Completed: x.completed, Canceled: x.canceled, Bytes: x.bytes, Partial: x.partial,
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

// latencies are the histograms in order of kind and path.
func (o *observer) latencies() (transfers, setup []Latency) {
	transfers, setup = []Latency{}, []Latency{}
	for i := range o.cells {
		for op := range o.cells[i].of {
			c := o.cells[i].of[op].Load()
			if c == nil {
				continue
			}
			h := new(metrics.HistogramSnapshot)
			c.h.Snapshot(h)
			l := latencyOf(h)
			l.Path = o.cells[i].path
			if op == opSetup {
				l.Kind = "setup"
				setup = append(setup, l)
			} else {
				l.Kind = opNames[op]
				transfers = append(transfers, l)
			}
		}
	}
	order := func(a, b Latency) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Path, b.Path)) }
	slices.SortFunc(transfers, order)
	slices.SortFunc(setup, order)
	return transfers, setup
}

func latencyOf(h *metrics.HistogramSnapshot) Latency {
	sec := func(ns uint64) float64 { return float64(ns) / 1e9 }
	return Latency{Count: h.Count, Mean: h.Mean() / 1e9, Min: sec(h.Min), P50: sec(h.Quantile(0.5)), P90: sec(h.Quantile(0.9)),
		P99: sec(h.Quantile(0.99)), P999: sec(h.Quantile(0.999)), Max: sec(h.Max), Histogram: h}
}
