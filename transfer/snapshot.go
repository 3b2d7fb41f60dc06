package transfer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/transfer/account"
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
		Insecure: n.opts.Insecure}
	for _, d := range n.drivers {
		s.Node.Drivers = append(s.Node.Drivers, d.Name())
	}
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
	n.account.Snapshot(&s)
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

// The rows of a snapshot that package account asks for.
type (
	peerRow     Peer
	channelRow  channel
	transferRow Transfer
)

func (row *peerRow) FillPeer(r *observe.PeerStatus) {
	p := (*Peer)(row)
	r.Address, r.SameHost, r.Security = p.address(), p.SameHost(), p.Security().String()
	r.Certificate, r.Rights = p.cert.Name, p.Rights().String()
	r.RoundTripSeconds = p.RoundTrip().Seconds()
}

func (row *channelRow) FillPath(r *observe.PathStatus) {
	ch := (*channel)(row)
	ch.mu.Lock()
	r.InFlight, r.Queued = ch.inflight, ch.queue.Len()
	cost := ch.cost.Get(clock())
	r.Explain = ch.p.Explain()
	ch.unlock() // a transfer may have come meanwhile
	r.Cost = observe.CostStatus{LatencySeconds: cost.Latency.Seconds(), BytesPerSecond: cost.BytesPerSec,
		Measured: cost.Measured}
}

// FillTransfer says how the transfer is now; it may have ended since it was listed.
func (row *transferRow) FillTransfer(r *observe.TransferStatus, now time.Time) {
	t := (*Transfer)(row)
	t.mu.Lock()
	via, begin, changes := t.explain.Path, t.explain.Times.begin, len(t.explain.Failovers)
	t.mu.Unlock()
	*r = observe.TransferStatus{ID: t.id, Kind: account.KindName(t.kind), Peer: t.peer.info.Name, PeerID: t.peer.number,
		Bytes: t.bytes, Moved: t.moved.Load(),
		AgeSeconds: max(now.Sub(epoch)-begin, 0).Seconds(), Path: via, Priority: t.priority.String(), Stream: t.stream,
		Failovers: changes}
}

// entered puts a transfer into the account of its peer, unless that is lost; counted takes it out.
func (t *Transfer) entered() error {
	if p := t.peer; !p.account.Begun(&t.entry, (*transferRow)(t), t.op(t.bytes)) {
		return p.Err()
	}
	return nil
}

// counted takes a transfer out of the account of its peer. No mutex is held.
func (t *Transfer) counted(err error) {
	t.mu.Lock()
	via, took := t.explain.Path, t.explain.Times.Total
	t.mu.Unlock()
	t.peer.account.Ended(&t.entry, t.op(t.moved.Load()), via, took, err)
}

// rerouted counts the choice of a path, the one with this index among the candidates.
func (t *Transfer) rerouted(to string, index int) {
	t.mu.Lock()
	from := t.explain.Path
	t.mu.Unlock()
	t.peer.account.Rerouted(t.op(t.bytes), from, to, index)
}

func (t *Transfer) op(bytes uint64) account.Op {
	return account.Op{ID: t.id, Kind: t.kind, Bytes: bytes}
}

// Retried counts an attempt after the first of something that is made of many transfers: it may be
// with another peer of the same address.
func (n *Node) Retried(kind path.OpKind) { n.account.Retried(kind) }
