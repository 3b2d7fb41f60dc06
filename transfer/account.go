package transfer

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// This file counts. Every transfer that began is entered in its peer's account (transferBegun) and
// leaves it once (transferEnded); a call that was refused before anything began is counted apart.
// Accounts are merged into the node's past when their peer is gone and their last transfer has
// ended, so that the totals only grow and each transfer is in them once.
//
// The mutexes, in the order in which they may be taken: a peer's or a channel's, observer.mu,
// account.mu; then the leaves: those of a cell, of the bus. Nothing here takes the mutex of a node,
// peer, channel or transfer while it holds one of its own.

const numOps = 3 // kinds of operations that are a transfer: path.Put, path.Get and path.Notify

var opNames = [numOps]string{"put", "get", "notify"}

func opIndex(k path.OpKind) int { return int(k - path.Put) }

func kindName(k path.OpKind) string { return opNames[opIndex(k)] }

// failureReasons are the causes of failures as snapshots and metrics tell them apart; the first
// that matches counts. They are few and fixed: a peer cannot make more of them.
var failureReasons = [numReasons - 2]struct {
	name string
	err  error
}{
	{"closed", ErrClosed},
	{"peer_lost", ErrPeerLost},
	{"integrity", path.ErrIntegrity},
	{"protocol", path.ErrProtocol},
	{"path_down", path.ErrDown},
	{"revoked", path.ErrRevoked},
	{"not_permitted", path.ErrRights},
	{"unknown_export", path.ErrKey},
	{"bounds", path.ErrBounds},
	{"too_large", path.ErrTooLarge},
	{"unreachable", path.ErrUnreachable},
	{"unavailable", path.ErrUnavailable},
	{"bad_memory", mem.ErrBounds},
	{"over_budget", control.OverBudget},
	{"too_many", control.TooMany},
	{"too_many_bytes", control.TooManyBytes},
	{"transfer_too_large", control.TooLarge},
	{"dtype", control.DType},
	{"rate", control.OverRate},
	{"busy", control.Busy},
	{"timeout", context.DeadlineExceeded},
	{"timeout", control.Timeout},
	{"canceled", path.ErrCanceled},
	{"canceled", context.Canceled},
}

const numReasons = 26 // those of the table, "refused" (by the peer, for another reason) and "other"

// reasonOf is the index of what an error comes from.
func reasonOf(err error) int {
	for i := range failureReasons {
		if errors.Is(err, failureReasons[i].err) {
			return i
		}
	}
	if errors.As(err, new(control.Code)) {
		return numReasons - 2
	}
	return numReasons - 1
}

func reasonName(i int) string {
	switch {
	case i < len(failureReasons):
		return failureReasons[i].name
	case i == len(failureReasons):
		return "refused"
	}
	return "other"
}

// opCounts count the transfers of one kind. They are guarded by the mutex of what holds them.
type opCounts struct {
	begun, completed, canceled uint64
	failed                     [numReasons]uint64
	rejected                   [numReasons]uint64 // calls that failed before a transfer began
	bytes                      uint64             // of those that were completed
	partial                    uint64             // known to be in place of those that were not
	retries                    uint64             // attempts of jobs after the first
	failovers                  uint64             // paths that were changed under way
	fallbacks                  uint64             // not taken the best path, since it could not be set up
	received                   uint64             // the peer's, completed and delivered here
}

type counts [numOps]opCounts

func (c *counts) add(o *counts) {
	for i := range c {
		c, o := &c[i], &o[i]
		c.begun += o.begun
		c.completed += o.completed
		c.canceled += o.canceled
		for i := range c.failed {
			c.failed[i] += o.failed[i]
			c.rejected[i] += o.rejected[i]
		}
		c.bytes += o.bytes
		c.partial += o.partial
		c.retries += o.retries
		c.failovers += o.failovers
		c.fallbacks += o.fallbacks
		c.received += o.received
	}
}

// account is what happened with one peer.
type account struct {
	since time.Time            // when it came up
	paths observe.PathCounters // of its paths that are gone; guarded by the mutex of the observer

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

// lockAccount locks the peer's account.
func (p *Peer) lockAccount() *account {
	p.account.mu.Lock()
	return &p.account
}

// unlockAccount unlocks the account. That of a peer that is gone is merged when nothing of it is
// under way: also what a late call of the application has counted since.
func (p *Peer) unlockAccount() {
	last := p.account.gone && p.account.open+p.account.announcing == 0
	p.account.mu.Unlock()
	if last {
		p.node.obs.merge(p)
	}
}

// observer is what a node knows of itself for people and monitors.
type observer struct {
	started time.Time
	bus     observe.Bus
	loaded  atomic.Uint64      // of the identity, when it was last looked at
	broken  complaint          // about files of the identity
	ending  complaint          // about the end of its certificate
	turned  atomic.Uint64      // connections turned away in the handshake
	status  sync.Mutex         // held while an answer to a peer is made
	took    *observe.Durations // of completed transfers
	setups  *observe.Durations // of paths

	mu          sync.Mutex      // guards what follows
	peersUp     uint64          // that ever came up
	peers       map[*Peer]bool  // accounts not yet merged into past; true: up
	merged      sync.Cond       // on mu: peers has one less
	paths       map[any]*inUse  // by *channel or *Queue
	past        counts          // of accounts that are gone
	pastRefused uint64          // requests of peers that are gone
	ended       map[string]*sum // of paths that are gone, by driver
	setupBad    map[string]uint64
}

// inUse is a path that is up.
type inUse struct {
	peer  *Peer
	p     path.Path
	ch    *channel // nil for a queue's
	queue string   // its name
	id    uint64
	since time.Time
}

// sum adds up paths of one driver.
type sum struct {
	paths uint64
	stats observe.PathCounters
}

func (o *observer) init(drivers []setup.Driver, id *identity.Identity) {
	if id != nil {
		o.loaded.Store(id.Stats().Loaded)
	}
	names := make([]string, len(drivers))
	for i, d := range drivers {
		names[i] = d.Name()
	}
	o.took, o.setups = observe.NewDurations(opNames[:], names...), observe.NewDurations([]string{"setup"}, names...)
	o.started = time.Now()
	o.peers = map[*Peer]bool{}
	o.merged.L = &o.mu
	o.paths = map[any]*inUse{}
	o.ended = map[string]*sum{}
	o.setupBad = map[string]uint64{}
}

// transferBegun enters a transfer, unless the peer is lost; transferEnded will be called for it
// exactly once.
func (p *Peer) transferBegun(t *Transfer) error {
	a := p.lockAccount()
	if a.gone {
		p.unlockAccount()
		return p.Err()
	}
	a.counts[opIndex(t.kind)].begun++
	a.open++
	t.nextOpen = a.active
	if a.active != nil {
		a.active.prevOpen = t
	}
	a.active = t
	a.mu.Unlock()
	if b := &p.node.obs.bus; b.On() {
		b.Emit(p.event(observe.Event{Kind: observe.EventTransferBegun, Transfer: t.id, Operation: kindName(t.kind),
			Bytes: t.bytes}))
	}
	return nil
}

// transferEnded takes a transfer out of the books. No mutex is held.
func (p *Peer) transferEnded(t *Transfer, err error) {
	t.mu.Lock()
	via, took := t.explain.Path, t.explain.Times.Total
	t.mu.Unlock()
	op, moved := opIndex(t.kind), t.moved.Load()
	o := &p.node.obs
	if err == nil {
		o.took.Record(op, via, took) // before it is counted: no snapshot shows fewer latencies than completions
	}
	a := p.lockAccount()
	c := &a.counts[op]
	switch {
	case err == nil:
		c.completed++
		c.bytes += moved
	case errors.Is(err, path.ErrCanceled):
		c.canceled++
		c.partial += moved
	default:
		c.failed[reasonOf(err)]++
		c.partial += moved
	}
	a.open--
	if t.prevOpen != nil {
		t.prevOpen.nextOpen = t.nextOpen
	} else {
		a.active = t.nextOpen
	}
	if t.nextOpen != nil {
		t.nextOpen.prevOpen = t.prevOpen
	}
	t.prevOpen, t.nextOpen = nil, nil
	announces := o.bus.On()
	if announces {
		a.announcing++
	}
	p.unlockAccount()
	if announces {
		e := observe.Event{Kind: observe.EventTransferEnded, Transfer: t.id, Operation: kindName(t.kind), Bytes: moved,
			Path: via}
		if err != nil {
			e.Reason = err.Error()
		}
		o.bus.Emit(p.event(e))
		p.lockAccount().announcing--
		p.unlockAccount()
	}
}

// transferRejected counts a request of the application that failed before a transfer began.
func (p *Peer) transferRejected(kind path.OpKind, err error) {
	p.lockAccount().counts[opIndex(kind)].rejected[reasonOf(err)]++
	p.unlockAccount()
}

// transferPath counts the choice of a path: the first one may not be the best there is (index > 0),
// a later one is a failover.
func (p *Peer) transferPath(t *Transfer, to string, index int) {
	t.mu.Lock()
	from := t.explain.Path
	t.mu.Unlock()
	if from == "" && index == 0 {
		return
	}
	c := &p.lockAccount().counts[opIndex(t.kind)]
	if from == "" {
		c.fallbacks++
	} else {
		c.failovers++
	}
	p.unlockAccount()
	if b := &p.node.obs.bus; from != "" && b.On() {
		b.Emit(p.event(observe.Event{Kind: observe.EventTransferFailedOver, Transfer: t.id, Operation: kindName(t.kind),
			Bytes: t.bytes, Path: to, Reason: "before: " + from}))
	}
}

// transferReceived counts a transfer of the peer that was delivered here.
func (p *Peer) transferReceived(kind path.OpKind) {
	p.lockAccount().counts[opIndex(kind)].received++
	p.unlockAccount()
}

// requestRefused counts a request of the peer that was not granted. What is an error for the peer
// may be usual: a name that is not there.
func (p *Peer) requestRefused(what string, err error) {
	p.node.log.Debug("request refused", "peer", p.info.Name, "method", what, "error", err)
	p.countRefused(what, err.Error())
}

// notifyRefused counts a notification of the peer that it cannot have meant.
func (p *Peer) notifyRefused(why string) { p.countRefused("notification", why) }

func (p *Peer) countRefused(what, why string) {
	p.lockAccount().refused++
	p.unlockAccount()
	if b := &p.node.obs.bus; b.On() {
		b.Emit(p.event(observe.Event{Kind: observe.EventRefused, Operation: what, Reason: why}))
	}
}

// event fills in who the peer is.
func (p *Peer) event(e observe.Event) observe.Event {
	e.Peer, e.PeerID = p.info.Name, p.number
	return e
}

// peerUp opens the account of a peer whose handshake is done. The peer's mutex may be held.
func (o *observer) peerUp(p *Peer) {
	o.mu.Lock()
	if p.account.gone { // it failed at this moment
		o.mu.Unlock()
		return
	}
	o.peers[p] = true
	o.peersUp++
	p.account.since = time.Now()
	o.mu.Unlock()
	o.bus.Emit(p.event(observe.Event{Kind: observe.EventPeerUp, Address: p.address(), Security: p.Security().String()}))
}

// peerDown closes the account of a peer, unless transfers are still under way: then the last of
// them does.
func (o *observer) peerDown(p *Peer, err error) {
	o.mu.Lock()
	up := o.peers[p]
	if up {
		o.peers[p] = false
	}
	p.account.mu.Lock()
	p.account.gone = true
	o.mu.Unlock()
	p.unlockAccount()
	if up {
		o.bus.Emit(p.event(observe.Event{Kind: observe.EventPeerDown, Reason: err.Error()}))
	}
}

// merge moves the counts of a closed account to the past.
func (o *observer) merge(p *Peer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a := &p.account
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open+a.announcing > 0 {
		return
	}
	delete(o.peers, p)
	o.merged.Broadcast()
	o.past.add(&a.counts)
	o.pastRefused += a.refused
	a.counts, a.refused = counts{}, 0
}

// await returns when the accounts of all peers are merged: every transfer has ended, and its events
// are out.
func (o *observer) await() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.peers) > 0 {
		o.merged.Wait()
	}
}

// turnedAway counts and announces a connection that did not become a peer.
func (o *observer) turnedAway(from net.Addr, err error) {
	o.turned.Add(1)
	if o.bus.On() {
		o.bus.Emit(observe.Event{Kind: observe.EventRefused, Operation: "connection",
			Address: from.Network() + "://" + from.String(), Reason: err.Error()})
	}
}

// pathUp enters a path that is set up: a *channel or a *Queue. The peer's mutex may be held.
func (o *observer) pathUp(key any, x inUse) {
	x.since = time.Now()
	o.mu.Lock()
	o.paths[key] = &x
	o.mu.Unlock()
	if o.bus.On() {
		o.bus.Emit(x.peer.event(observe.Event{Kind: observe.EventPathUp, Path: x.p.Name(), PathID: x.id, Queue: x.queue,
			Security: x.p.Capabilities().Security.String()}))
	}
}

// pathDown keeps what a path counted.
func (o *observer) pathDown(key any, err error) {
	o.mu.Lock()
	x := o.paths[key]
	delete(o.paths, key)
	if x != nil {
		name := x.p.Name()
		s := o.ended[name]
		if s == nil {
			s = new(sum)
			o.ended[name] = s
		}
		s.paths++
		st := observe.PathCounters(x.p.Stats())
		s.stats.Add(&st)
		x.peer.account.paths.Add(&st)
	}
	o.mu.Unlock()
	if x != nil && o.bus.On() {
		e := observe.Event{Kind: observe.EventPathDown, Path: x.p.Name(), PathID: x.id, Queue: x.queue,
			Reason: "closed"}
		if err != nil {
			e.Reason = err.Error()
		}
		o.bus.Emit(x.peer.event(e))
	}
}

// setUp notes how long it took to set a path up, or that it failed.
func (o *observer) setUp(driver string, took time.Duration, err error) {
	if err == nil {
		o.setups.Record(0, driver, took)
		return
	}
	o.mu.Lock()
	o.setupBad[driver]++
	o.mu.Unlock()
}

func (o *observer) exportEvent(k observe.EventKind, x *Export) {
	if o.bus.On() {
		o.bus.Emit(observe.Event{Kind: k, Name: x.name, Bytes: x.Span().Len})
	}
}

// address is where the peer is, in the form of Dial, as far as the connection tells.
func (p *Peer) address() string {
	a := p.conn.RemoteAddr()
	return a.Network() + "://" + a.String()
}

// why is why the queue's peer was lost, nil if it was not.
func (q *Queue) why() error {
	if err := q.dead.Load(); err != nil {
		return *err
	}
	return nil
}

// Retried counts an attempt after the first of something that is made of many transfers: it may be
// with another peer of the same address.
func (n *Node) Retried(kind path.OpKind) {
	if i := opIndex(kind); i >= 0 && i < numOps {
		n.obs.mu.Lock()
		n.obs.past[i].retries++
		n.obs.mu.Unlock()
	}
}

// plaintext tells that the node listens or dials in the clear beyond this machine.
func (o *observer) plaintext(a address) {
	o.bus.Emit(observe.Event{Kind: observe.EventPlaintext, Address: a.String(), Security: path.SecurityNone.String()})
}
