package transfer

import (
	"fmt"
	"strconv"
	"time"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/sched"
)

// Limits bound what a node does at once and how fast, so that no peer can take what the others
// need. The zero value limits nothing but the memory for pushed tensors (Options.Budget).
//
// What is refused is refused at once, with an error that matches one of sched.ErrTooMany,
// ErrTooManyBytes, ErrTooLarge, ErrDType, ErrRate and ErrMemory, here and, for what a peer asked
// for, there too. It says which limit and whose. A refused transfer has cost nothing and leaves
// nothing. Rates refuse nothing: they make wait.
//
// Queues are outside: their owners post as they like. So are the peer's puts and gets of exports,
// except for the rate: a one-sided transfer asks no permission. What bounds these is the window of
// the path.
type Limits struct {
	Node Quota // for all peers together
	Peer Quota // for each peer, all its sessions together
	// ForPeer, if not nil, is asked for the quota of a peer when it connects for the first time;
	// false leaves it at Peer. The name is that of its certificate, or what it calls itself where
	// there is none.
	ForPeer func(name string) (Quota, bool)
}

// Quota bounds the two directions.
type Quota struct {
	// Out bounds the transfers that this node begins: Put, Get, Notify and SendTensor. DTypes holds
	// for SendTensor; Memory means nothing here. The rate counts the bytes of puts and gets alike.
	Out sched.Limits
	// In bounds what peers begin. Transfers, Bytes, Largest and DTypes hold for tensors that they
	// push (Receive); Memory for the memory of those until they are released. The rate is that of
	// all bytes that this side writes or reads for them: a peer that is faster is not polled for a
	// while, so that its connections push back, which also delays transfers of this node's making
	// on the same connections. A path by which a peer reaches memory without this side's doing
	// cannot be held to a rate: with one, this side does not open it, and the peer gets
	// sched.ErrRate.
	In sched.Limits
}

func (q *Quota) check(whose string) error {
	if err := q.Out.Check(); err != nil {
		return fmt.Errorf("transfer: limits of %s, outgoing: %w", whose, err)
	}
	if err := q.In.Check(); err != nil {
		return fmt.Errorf("transfer: limits of %s, incoming: %w", whose, err)
	}
	return nil
}

// newLimits makes the limits of a node, or with the node's as parent those of a peer.
func newLimits(whose string, q Quota, parent *sched.Bounds) (*sched.Bounds, error) {
	if err := q.check(whose); err != nil {
		return nil, err
	}
	return sched.NewBounds(whose, q.Out, q.In, parent, int64(clock())), nil
}

// limitsKey is who the peer is for its limits: the name in its certificate, or else the node that
// it says it is. All sessions of one share its limits, so that more of them do not mean more.
func (p *Peer) limitsKey() (key, name string) {
	if p.tls != nil {
		return "certificate " + p.cert.Name, p.cert.Name
	}
	return "node " + string(p.info.Node[:]), p.info.Name
}

// limitsFor finds the limits of a peer that has just connected, or makes them.
func (n *Node) limitsFor(p *Peer) (*sched.Bounds, error) {
	key, name := p.limitsKey()
	n.mu.Lock()
	l := n.limitsOf[key]
	n.mu.Unlock()
	if l != nil {
		return l, nil
	}
	q := n.opts.Limits.Peer
	if f := n.opts.Limits.ForPeer; f != nil {
		if own, ok := f(name); ok {
			q = own
		}
	}
	l, err := newLimits("peer "+strconv.Quote(name), q, n.limits)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if other := n.limitsOf[key]; other != nil {
		return other, nil
	}
	if len(n.limitsOf) >= maxPrincipals {
		n.forgetLimits()
	}
	n.limitsOf[key] = l
	return l, nil
}

// maxPrincipals is how many peers' limits a node remembers before it forgets those not in use. They
// outlive sessions: a peer that dials again has the memory that it had, and the rate.
const maxPrincipals = 1024

// forgetLimits drops the limits of peers that are not connected and hold nothing. The node's mutex
// is held.
func (n *Node) forgetLimits() {
	used := map[*sched.Bounds]bool{}
	for p := range n.peers {
		select {
		case <-p.ready:
			used[p.limits] = true
		default: // it has none yet
		}
	}
	for key, l := range n.limitsOf {
		if in, out := l.In.Use(), l.Out.Use(); !used[l] && in.Transfers+out.Transfers == 0 &&
			in.Memory+out.Memory == 0 {
			delete(n.limitsOf, key)
		}
	}
}

// Carries reports whether bytes of the application may go to and from the peer by calls as well as
// by paths: there is no limit that would hold them there, and the control connection has the
// security that this node asks of paths.
func (p *Peer) Carries() bool {
	return p.wasReady() && !p.limits.Holds && p.Security() >= p.floor(path.SecurityNone)
}

// Rate is how many bytes per second this node's limits let its transfers with the peer move; 0: as
// many as there are.
func (p *Peer) Rate() (perSecond uint64) {
	if !p.wasReady() {
		return 0
	}
	for _, r := range p.limits.OutRates {
		if perSecond == 0 || r.PerSec() < perSecond {
			perSecond = r.PerSec()
		}
	}
	return perSecond
}

// cannotPace refuses a path that cannot be held to a rate.
func (p *Peer) cannotPace(traits setup.Traits) error {
	if !p.limits.Paces() || !traits.Whole {
		return nil
	}
	return &sched.Refusal{Code: control.OverRate,
		Text: "a path by which the peer reaches memory by itself cannot be held to a rate", Whose: "this node"}
}

// meter counts what the peer did by this path since the last call.
func (ch *channel) meter() {
	if !ch.peer.limits.Paces() {
		return
	}
	s := ch.p.Stats()
	total := s.BytesPlaced + s.BytesServed
	n := total - ch.metered
	ch.metered = total
	if n == 0 {
		return
	}
	if wait := ch.peer.limits.Heard(int64(clock()), n); wait > 0 {
		ch.heldTill = time.Now().Add(wait)
	}
}

// overRate reports whether the peer was faster than it may be; the channel is then served again
// when it may go on.
func (ch *channel) overRate() bool {
	if ch.heldTill.IsZero() {
		return false
	}
	wait := time.Until(ch.heldTill)
	if wait <= 0 {
		ch.heldTill = time.Time{}
		return false
	}
	if ch.resume == nil {
		ch.resume = time.AfterFunc(wait, func() { ch.peer.node.loop.Kick(ch) })
	} else {
		ch.resume.Reset(wait)
	}
	return true
}
