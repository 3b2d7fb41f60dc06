package transfer

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/penstock-io/penstock/transfer/control"
)

// A session that was lost may have left bytes in the other side's sockets: that side may have been
// stopped, or cut off, and takes them out when it runs again. They must not be written after what a
// later session brings. So a node remembers the sessions that it lost, by the node at the other
// end, and has them ended there, before it moves anything by another session with that node: in the
// hello when it dials, or by a request.

const (
	maxLostNodes = 1024 // nodes whose lost sessions are remembered
	maxLost      = control.MaxReplaced
)

// Instance tells the processes of a node apart: it is another one after the peer's process was
// started anew.
func (p *Peer) Instance() uint64 { return p.info.Instance }

// party is the other end of a session: the node that it says it is, and the certificate that it has
// shown, "" without TLS. A peer that shows another certificate and says that it is the same node
// has no say in sessions with the first one.
type party struct {
	node [16]byte
	cert string
}

func (p *Peer) party() party { return party{p.info.Node, p.cert.Name} }

// is reports whether two parties can be the same. Without a certificate nothing is proven, or the
// kernel says that it is a process of the same user.
func (a party) is(b party) bool {
	return a.node == b.node && (a.cert == b.cert || a.cert == "" || b.cert == "")
}

// admit decides about a peer that dialed. It runs in the peer's handshake, under its mutex; no
// other goroutine uses the peer yet.
func (p *Peer) admit(h *control.Hello) (err error) {
	if p.lost != nil { // what is charged now would not come back
		return p.lost
	}
	if h.Session == ([16]byte{}) {
		return control.Errorf(control.BadRequest, "a session without a name")
	}
	if err := p.mayEnter(); err != nil {
		return err
	}
	p.id = h.Session
	p.endSessions(party{h.Node, p.cert.Name}, h.Replaces)
	if p.grant, err = p.charge(sessionNeeds); err == nil {
		p.node.met(p)
	}
	return err
}

// endSessions ends sessions that a node had with this one before, and waits until nothing of them
// is left. A session's name is a secret of its two ends.
func (p *Peer) endSessions(of party, ids [][16]byte) {
	if len(ids) == 0 {
		return
	}
	var end []*Peer
	for _, old := range p.node.Peers() {
		if old != p && old.wasReady() && old.party().is(of) && slices.Contains(ids, old.id) {
			end = append(end, old)
		}
	}
	for _, old := range end {
		old.fail(fmt.Errorf("%w: the peer began a new session", control.Shutdown))
		<-old.gone // now its paths are closed, and no goroutine reads them
	}
}

// lose remembers a session that ended, until the other side is known to have ended it as well.
func (n *Node) lose(p *Peer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	of := p.party()
	ids := n.lost[of]
	if ids == nil && len(n.lost) >= maxLostNodes {
		n.forgetLost(of.cert)
	}
	if len(ids) >= maxLost {
		ids = ids[1:]
	}
	n.lost[of] = append(ids, p.id)
	n.anyLost.Store(true)
}

// forgetLost makes room: for a certificate that says it is many nodes among these, else among nodes
// that have not come back since so many others were lost. The mutex is held.
func (n *Node) forgetLost(cert string) {
	var any party
	for any = range n.lost {
		if any.cert == cert {
			break
		}
	}
	delete(n.lost, any)
}

// lostAs are the parties that one can be and with which sessions were lost. The mutex is held.
func (n *Node) lostAs(who party) iter.Seq[party] {
	return func(yield func(party) bool) {
		if who.cert == "" && n.opts.Identity != nil {
			for of := range n.lost {
				if of.is(who) && !yield(of) {
					return
				}
			}
			return
		}
		for _, of := range []party{who, {who.node, ""}} {
			if n.lost[of] != nil && !yield(of) || of.cert == "" {
				return
			}
		}
	}
}

// lostWith lists the sessions with a party that were lost and may not have been ended there, as
// many as one request takes.
func (n *Node) lostWith(who party) (ids [][16]byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for of := range n.lostAs(who) {
		ids = append(ids, n.lost[of]...)
	}
	return ids[:min(len(ids), maxLost)]
}

// forgetSessions forgets lost sessions: the other side has ended them.
func (n *Node) forgetSessions(who party, ids [][16]byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for of := range n.lostAs(who) {
		rest := slices.DeleteFunc(n.lost[of], func(id [16]byte) bool { return slices.Contains(ids, id) })
		if len(rest) == 0 {
			delete(n.lost, of)
		} else {
			n.lost[of] = rest
		}
	}
	n.anyLost.Store(len(n.lost) > 0)
}

// hasLostSessions reports whether an earlier session with the peer's node may still have bytes on
// their way there.
func (p *Peer) hasLostSessions() bool {
	if !p.node.anyLost.Load() {
		return false
	}
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	for range p.node.lostAs(p.party()) {
		return true
	}
	return false
}

// endLostSessions has the peer end the sessions that were lost with its node.
func (p *Peer) endLostSessions(ctx context.Context) error {
	for {
		ids := p.node.lostWith(p.party())
		if len(ids) == 0 {
			return nil
		}
		if _, err := p.request(ctx, &control.EndSessions{Sessions: ids}); err != nil {
			return fmt.Errorf("transfer: end earlier sessions: %w", err)
		}
		p.node.forgetSessions(p.party(), ids)
	}
}
