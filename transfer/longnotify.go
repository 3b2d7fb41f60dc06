package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/inbox"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

// Notifications that are longer than what travels with a transfer go by the control connection, in
// parts: they are messages of an application, not its bulk, and reach a peer to which no path is
// open. The receiver bounds what it holds for a peer.

// MaxNotify is the longest message of Notify in bytes.
const MaxNotify = 1 << 20

const (
	longService = "penstock.notify"
	longPart    = 16 << 10 // bytes of a message in one call
	longHeader  = inbox.HeaderSize + 8
)

// notifyLong sends the message of a transfer that has no bytes.
func (p *Peer) notifyLong(t *Transfer) {
	ctx, abort := t.abortable(p.ctx)
	t.mu.Lock()
	t.explain.more().Why = "too long for a path: by the control connection"
	t.mu.Unlock()
	go func() {
		defer abort()
		err := below(p.Security(), t.floor)
		for off, msg := 0, t.msg[inbox.HeaderSize:]; err == nil && off < len(msg); off += longPart {
			part := msg[off:min(len(msg), off+longPart)]
			b := slices.Grow(bytes.Clone(t.msg[:inbox.HeaderSize]), 8+len(part))
			b = binary.BigEndian.AppendUint32(b, uint32(len(msg)))
			b = binary.BigEndian.AppendUint32(b, uint32(off))
			_, err = p.Call(ctx, longService, append(b, part...))
		}
		if err != nil && t.canceled() {
			err = path.ErrCanceled
		}
		t.complete(err)
	}()
}

// longNotified takes a part of a peer's message. The parts of one come in order.
func (n *Node) longNotified(_ context.Context, p *Peer, b []byte) ([]byte, error) {
	if pathRights(p.rights) == 0 { // as for a path
		return nil, control.Errorf(control.NotPermitted, "notifications need the right to read or to write")
	}
	bad := func(why string) ([]byte, error) {
		p.account.Refused("notification", why)
		return nil, control.Errorf(control.BadRequest, "notification: %s", why)
	}
	h, _, ok := inbox.Parse(b)
	if !ok || len(b) <= longHeader || h.Kind != path.Notify {
		return bad("a part without bytes, or of another kind")
	}
	part := b[longHeader:]
	total, off := binary.BigEndian.Uint32(b[inbox.HeaderSize:]), binary.BigEndian.Uint32(b[inbox.HeaderSize+4:])
	if total <= MaxPayload || total > MaxNotify || uint64(off)+uint64(len(part)) > uint64(total) {
		// shorter ones come by paths, which are held back when the inbox is full
		return bad(fmt.Sprintf("%d bytes at %d of %d, expected a message of %d to %d", len(part), off, total,
			MaxPayload+1, MaxNotify))
	}
	m, err := p.parts.Add(h.Number, int(total), int(off), part, p.inbox.Long())
	if err != nil || len(m) < int(total) {
		return nil, err
	}
	if !p.seen.First(h.Number) {
		p.chargeLong(-len(m))
		return bad("delivered before")
	}
	p.account.Received(path.Notify)
	if !p.deliver(Incoming{Peer: p, ID: observe.NewID(p.info.Instance, h.Number), Kind: path.Notify,
		Tag: h.Tag, Msg: m}) {
		p.chargeLong(-len(m))
	}
	return nil, nil
}

// chargeLong charges a message to the peer from its first part until the application takes it.
func (p *Peer) chargeLong(bytes int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.chargeHeld(bytes)
}
