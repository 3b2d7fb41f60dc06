package transfer

import (
	"github.com/penstock-io/penstock/transfer/inbox"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

// parseNotify reads a notification of the peer. It refuses what the peer cannot have begun and what
// was delivered before. The caller holds the mutex of the channel that it came by.
func (p *Peer) parseNotify(e *path.Event, via string) (Incoming, bool) {
	h, msg, ok := inbox.Parse(e.Msg)
	if !ok {
		p.account.Refused("notification", "shorter than its header")
		return Incoming{}, false
	}
	if h.Kind < path.Put || h.Kind > path.Notify || !p.seen.First(h.Number) {
		p.account.Refused("notification", "of an unknown kind, or delivered before")
		return Incoming{}, false
	}
	p.account.Received(h.Kind)
	in := Incoming{Peer: p, ID: observe.NewID(p.info.Instance, h.Number), Kind: h.Kind, Path: via, Tag: h.Tag,
		Bytes: h.Bytes}
	if len(msg) > 0 {
		in.Msg = append([]byte(nil), msg...)
	}
	return in, true
}

// deliver hands a completed transfer of the peer to the receiver that waits for it, or to
// OnTransfer, and reports whether there is one.
func (p *Peer) deliver(in Incoming) bool {
	long := 0
	if len(in.Msg) > MaxPayload {
		long = len(in.Msg)
	}
	taken, start := p.inbox.Put(in, long, awaits)
	if start {
		go p.drain()
	}
	return taken
}

// awaits reports whether a receiver waits for a completed transfer of the peer, or a handler takes
// it.
func awaits(in Incoming) bool {
	p := in.Peer
	select {
	case <-p.introduced:
	default: // OnPeer may add handlers
		return true
	}
	return p.node.offered.Load() || p.node.onTag(in.Tag) != nil
}

// drain has the application take what was delivered: OnTransfer is called here.
func (p *Peer) drain() {
	<-p.introduced
	for {
		in, room, rest, ok := p.inbox.Next(p.unwelcome.Load())
		for _, ch := range room {
			p.node.loop.Kick(ch)
		}
		for _, in := range rest {
			p.took(in)
		}
		if !ok {
			return
		}
		p.took(in)
		if p.node.received(in) {
			continue // a tensor that a receiver waits for
		}
		if f := p.node.onTag(in.Tag); f != nil {
			f(in)
		}
	}
}

// took gives back what a long message holds in the inbox.
func (p *Peer) took(in Incoming) {
	if n := len(in.Msg); n > MaxPayload {
		p.inbox.Took(n)
		p.chargeLong(-n)
	}
}
