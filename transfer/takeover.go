package transfer

import (
	"context"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/takeover"
)

// Instance tells the processes of a node apart: it is another one after the peer's process was
// started again.
func (p *Peer) Instance() uint64 { return p.info.Instance }

func (p *Peer) party() takeover.Party { return takeover.Party{Node: p.info.Node, Cert: p.cert.Name} }

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
	p.endSessions(takeover.Party{Node: h.Node, Cert: p.cert.Name}, h.Replaces)
	if p.grant, err = p.charge(sessionNeeds); err == nil {
		p.node.met(p)
	}
	return err
}

// endSessions ends sessions that a node had with this one before, and waits until nothing of them
// is left. A session's name is a secret of its two ends.
func (p *Peer) endSessions(of takeover.Party, ids [][16]byte) {
	if len(ids) == 0 {
		return
	}
	var end []*Peer
	for _, old := range p.node.Peers() {
		if old != p && old.wasReady() && old.party().Is(of) && slices.Contains(ids, old.id) {
			end = append(end, old)
		}
	}
	for _, old := range end {
		old.fail(fmt.Errorf("%w: the peer began a new session", control.Shutdown))
		<-old.gone // now its paths are closed, and no goroutine reads them
	}
}

// hasLostSessions reports whether an earlier session with the peer's node may still have bytes on
// their way there.
func (p *Peer) hasLostSessions() bool { return p.node.lost.Has(p.party()) }

// endLostSessions has the peer end the sessions that were lost with its node.
func (p *Peer) endLostSessions(ctx context.Context) error {
	for {
		ids := p.node.lost.With(p.party())
		if len(ids) == 0 {
			return nil
		}
		if _, err := p.request(ctx, &control.EndSessions{Sessions: ids}); err != nil {
			return fmt.Errorf("transfer: end earlier sessions: %w", err)
		}
		p.node.lost.Forget(p.party(), ids)
	}
}
