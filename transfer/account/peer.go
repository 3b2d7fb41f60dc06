package account

import (
	"errors"
	"sync"
	"time"

	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

// Peer is the account of what happened with one peer. Its methods may be called from any goroutine.
type Peer struct {
	node *Node
	of   PeerRow
	// Set by Up.
	name   string
	number uint64
	since  time.Time            // when it came up
	paths  observe.PathCounters // of its paths that are gone; guarded by the mutex of the node

	mu         sync.Mutex // guards what follows
	counts     counts
	active     *Transfer // the transfers under way, a doubly linked list
	open       int       // its length
	announcing int       // ended ones whose event is not out yet
	// the peer is: no transfer begins any more, and the account is merged when open and announcing
	// are 0
	gone    bool
	refused uint64 // of what the peer asked for
}

// PeerRow fills in what the account does not know of a peer that is up. No mutex is held.
type PeerRow interface{ FillPeer(r *observe.PeerStatus) }

// Transfer is the place of a transfer in the account of its peer.
type Transfer struct {
	of         TransferRow
	prev, next *Transfer
}

// TransferRow fills in what the account does not know of a transfer that is under way, or has just
// ended. No mutex is held.
type TransferRow interface {
	FillTransfer(r *observe.TransferStatus, now time.Time)
}

// Op says what transfer something is about, and of how many bytes.
type Op struct {
	ID    observe.ID
	Kind  path.OpKind
	Bytes uint64
}

// event begins the event of a transfer.
func (o *Op) event(k observe.EventKind) observe.Event {
	return observe.Event{Kind: k, Transfer: o.ID, Operation: KindName(o.Kind), Bytes: o.Bytes}
}

// Begun enters a transfer, unless the peer is gone; Ended is called for it exactly once.
func (p *Peer) Begun(t *Transfer, of TransferRow, op Op) bool {
	p.mu.Lock()
	if p.gone {
		p.unlock()
		return false
	}
	p.counts[opIndex(op.Kind)].begun++
	p.open++
	t.of, t.next = of, p.active
	if p.active != nil {
		p.active.prev = t
	}
	p.active = t
	p.mu.Unlock()
	if p.node.Bus.On() {
		p.emit(op.event(observe.EventTransferBegun))
	}
	return true
}

// Ended takes a transfer out: op.Bytes of it are in place, by the path via. err is why it failed.
func (p *Peer) Ended(t *Transfer, op Op, via string, took time.Duration, err error) {
	n, i := p.node, opIndex(op.Kind)
	if err == nil {
		n.took.Record(i, via, took) // before it is counted: no snapshot shows fewer latencies than completions
	}
	p.mu.Lock()
	c := &p.counts[i]
	switch {
	case err == nil:
		c.completed++
		c.bytes += op.Bytes
	case errors.Is(err, path.ErrCanceled):
		c.canceled++
		c.partial += op.Bytes
	default:
		c.failed[n.reasonOf(err)]++
		c.partial += op.Bytes
	}
	p.open--
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		p.active = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	}
	*t = Transfer{}
	announces := n.Bus.On()
	if announces {
		p.announcing++
	}
	p.unlock()
	if announces {
		e := op.event(observe.EventTransferEnded)
		e.Path = via
		if err != nil {
			e.Reason = err.Error()
		}
		p.emit(e)
		p.mu.Lock()
		p.announcing--
		p.unlock()
	}
}

// Rejected counts a request of the application that failed before a transfer began.
func (p *Peer) Rejected(kind path.OpKind, err error) {
	p.mu.Lock()
	p.counts[opIndex(kind)].rejected[p.node.reasonOf(err)]++
	p.unlock()
}

// Rerouted counts the choice of the path to: the first one may not be the best there is (index >
// 0), a later one is a failover. from is the path before, "" before the first one.
func (p *Peer) Rerouted(op Op, from, to string, index int) {
	if from == "" && index == 0 {
		return
	}
	p.mu.Lock()
	c := &p.counts[opIndex(op.Kind)]
	if from == "" {
		c.fallbacks++
	} else {
		c.failovers++
	}
	p.unlock()
	if from != "" && p.node.Bus.On() {
		e := op.event(observe.EventTransferFailedOver)
		e.Path, e.Reason = to, "before: "+from
		p.emit(e)
	}
}

// Received counts a transfer of the peer that was delivered here.
func (p *Peer) Received(kind path.OpKind) {
	p.mu.Lock()
	p.counts[opIndex(kind)].received++
	p.unlock()
}

// Refused counts something that the peer asked for, or sent, and that was not granted. What is an
// error for the peer may be usual: a name that is not there.
func (p *Peer) Refused(what, why string) {
	p.mu.Lock()
	p.refused++
	p.unlock()
	if p.node.Bus.On() {
		p.emit(observe.Event{Kind: observe.EventRefused, Operation: what, Reason: why})
	}
}

// Up opens the account of a peer whose handshake is done.
func (p *Peer) Up(name string, number uint64, address, security string) {
	n := p.node
	n.mu.Lock()
	if p.gone { // it failed at this moment
		n.mu.Unlock()
		return
	}
	n.peers[p] = true
	n.peersUp++
	p.name, p.number, p.since = name, number, time.Now()
	n.mu.Unlock()
	p.emit(observe.Event{Kind: observe.EventPeerUp, Address: address, Security: security})
}

// Down closes the account, unless transfers are still under way: then the last of them does.
func (p *Peer) Down(err error) {
	n := p.node
	n.mu.Lock()
	up := n.peers[p]
	if up {
		n.peers[p] = false
	}
	p.mu.Lock()
	p.gone = true
	n.mu.Unlock()
	p.unlock()
	if up {
		p.emit(observe.Event{Kind: observe.EventPeerDown, Reason: err.Error()})
	}
}

// emit announces something about the peer.
func (p *Peer) emit(e observe.Event) {
	e.Peer, e.PeerID = p.name, p.number
	p.node.Bus.Emit(e)
}

// unlock unlocks the account. That of a peer that is gone is merged when nothing of it is under
// way: also what a late call of the application has counted since.
func (p *Peer) unlock() {
	last := p.gone && p.open+p.announcing == 0
	p.mu.Unlock()
	if last {
		p.node.merge(p)
	}
}
