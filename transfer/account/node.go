package account

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

// Node has the accounts of a node. Its methods may be called from any goroutine.
type Node struct {
	Bus      observe.Bus
	started  time.Time
	reasons  []reason
	rejected atomic.Uint64      // connections rejected in the handshake
	took     *observe.Durations // of completed transfers
	setups   *observe.Durations // of paths

	mu          sync.Mutex     // guards what follows
	peersUp     uint64         // that ever came up
	peers       map[*Peer]bool // accounts not yet merged into past; true: up
	merged      sync.Cond      // on mu: peers has one less
	paths       map[any]*usedPath
	past        counts            // of accounts that are gone
	pastRefused uint64            // requests of peers that are gone
	ended       map[string]*ended // paths that are gone, by driver
	setupBad    map[string]uint64
}

// ended adds up paths of one driver.
type ended struct {
	paths uint64
	stats observe.PathCounters
}

// New makes the accounts of a node with the drivers of these names. The errors are those with which
// everything ends when this side closes a session, and when the session is lost.
func New(drivers []string, errClosed, errLost error) *Node {
	n := &Node{
		started: time.Now(),
		reasons: append([]reason{{"closed", errClosed}, {"peer_lost", errLost}}, failureReasons...),
		took:    observe.NewDurations(opNames[:], drivers...),
		setups:  observe.NewDurations([]string{"setup"}, drivers...),
		peers:   map[*Peer]bool{}, paths: map[any]*usedPath{}, ended: map[string]*ended{},
		setupBad: map[string]uint64{},
	}
	n.merged.L = &n.mu
	return n
}

// Peer makes the account of a peer; Up opens it.
func (n *Node) Peer(of PeerRow) *Peer { return &Peer{node: n, of: of} }

// merge moves the counts of a closed account to the past.
func (n *Node) merge(p *Peer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open+p.announcing > 0 {
		return
	}
	delete(n.peers, p)
	n.merged.Broadcast()
	n.past.add(&p.counts)
	n.pastRefused += p.refused
	p.counts, p.refused = counts{}, 0
}

// Await returns when the accounts of all peers are merged: every transfer has ended, and its events
// are out.
func (n *Node) Await() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.peers) > 0 {
		n.merged.Wait()
	}
}

// Rejected counts and announces a connection that did not become a peer.
func (n *Node) Rejected(from net.Addr, err error) {
	n.rejected.Add(1)
	if n.Bus.On() {
		n.Bus.Emit(observe.Event{Kind: observe.EventRefused, Operation: "connection",
			Address: from.Network() + "://" + from.String(), Reason: err.Error()})
	}
}

// UsedPath is a path that is up.
type UsedPath struct {
	Peer  *Peer
	Path  path.Path
	ID    uint64
	Queue string  // the name of the queue that owns it
	Row   PathRow // nil for a queue's
}

// PathRow fills in what the owner of a path knows of it. No mutex is held.
type PathRow interface{ FillPath(r *observe.PathStatus) }

type usedPath struct {
	UsedPath
	since time.Time
}

// emit announces something about a path.
func (x *usedPath) emit(e observe.Event) {
	e.Path, e.PathID, e.Queue = x.Path.Name(), x.ID, x.Queue
	x.Peer.emit(e)
}

// PathUp enters a path that is set up; its owner is the key.
func (n *Node) PathUp(key any, u UsedPath) {
	x := &usedPath{u, time.Now()}
	n.mu.Lock()
	n.paths[key] = x
	n.mu.Unlock()
	if n.Bus.On() {
		x.emit(observe.Event{Kind: observe.EventPathUp, Security: x.Path.Capabilities().Security.String()})
	}
}

// PathDown keeps what a path counted. It does nothing when the path is not there any more.
func (n *Node) PathDown(key any, err error) {
	n.mu.Lock()
	x := n.paths[key]
	delete(n.paths, key)
	if x != nil {
		name := x.Path.Name()
		s := n.ended[name]
		if s == nil {
			s = new(ended)
			n.ended[name] = s
		}
		s.paths++
		st := observe.PathCounters(x.Path.Stats())
		s.stats.Add(&st)
		x.Peer.paths.Add(&st)
	}
	n.mu.Unlock()
	if x != nil && n.Bus.On() {
		e := observe.Event{Kind: observe.EventPathDown, Reason: "closed"}
		if err != nil {
			e.Reason = err.Error()
		}
		x.emit(e)
	}
}

// SetUp notes how long it took to set a path up, or that it failed.
func (n *Node) SetUp(driver string, took time.Duration, err error) {
	if err == nil {
		n.setups.Record(0, driver, took)
		return
	}
	n.mu.Lock()
	n.setupBad[driver]++
	n.mu.Unlock()
}

// Retried counts an attempt after the first of something that is made of many transfers: it may be
// with another peer of the same address.
func (n *Node) Retried(kind path.OpKind) {
	if i := opIndex(kind); i >= 0 && i < numOps {
		n.mu.Lock()
		n.past[i].retries++
		n.mu.Unlock()
	}
}
