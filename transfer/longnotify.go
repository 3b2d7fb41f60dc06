package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/transfer/control"
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
	longAtOnce  = 4        // messages of a peer that are not complete; a further one replaces the oldest
	longWaiting = 4 << 20  // bytes of complete messages of a peer that wait for the application; more are refused
	longHeader  = headerSize + 8
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
		for off, msg := 0, t.msg[headerSize:]; err == nil && off < len(msg); off += longPart {
			part := msg[off:min(len(msg), off+longPart)]
			b := slices.Grow(bytes.Clone(t.msg[:headerSize]), 8+len(part))
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

// longParts are messages of a peer that are not complete, the oldest first.
type longParts struct {
	mu    sync.Mutex
	all   []longMessage
	ended bool
}

type longMessage struct {
	number uint64
	total  int
	b      []byte
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
	if len(b) <= longHeader || path.OpKind(b[0]) != path.Notify {
		return bad("a part without bytes, or of another kind")
	}
	number, part := binary.BigEndian.Uint64(b[5:]), b[longHeader:]
	total, off := binary.BigEndian.Uint32(b[headerSize:]), binary.BigEndian.Uint32(b[headerSize+4:])
	if total <= MaxPayload || total > MaxNotify || uint64(off)+uint64(len(part)) > uint64(total) {
		// shorter ones come by paths, which are held back when the inbox is full
		return bad(fmt.Sprintf("%d bytes at %d of %d, expected a message of %d to %d", len(part), off, total,
			MaxPayload+1, MaxNotify))
	}
	m, err := p.long.add(p, number, int(total), int(off), part)
	if err != nil || len(m) < int(total) {
		return nil, err
	}
	if !p.seen.first(number) {
		p.chargeLong(-len(m))
		return bad("delivered before")
	}
	p.account.Received(path.Notify)
	if !p.deliver(Incoming{Peer: p, ID: observe.NewID(p.info.Instance, number), Kind: path.Notify,
		Tag: binary.BigEndian.Uint32(b[1:]), Msg: m}) {
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

// add appends a part to its message, and returns what there is of it; a complete one is forgotten.
func (l *longParts) add(p *Peer, number uint64, total, off int, part []byte) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.all, func(m longMessage) bool { return m.number == number })
	if off == 0 && i < 0 {
		if p.inbox.holds() > longWaiting {
			return nil, control.Errorf(control.Busy, "more than %d bytes of messages wait for the application",
				longWaiting)
		}
		if l.ended {
			return nil, ErrPeerLost
		}
		more := total
		if len(l.all) == longAtOnce {
			more -= l.all[0].total
		}
		if err := p.chargeLong(more); err != nil {
			return nil, err
		}
		if len(l.all) == longAtOnce {
			l.all = slices.Delete(l.all, 0, 1)
		}
		i = len(l.all)
		l.all = append(l.all, longMessage{number: number, total: total})
	}
	if i < 0 || len(l.all[i].b) != off || l.all[i].total != total {
		return nil, control.Errorf(control.BadRequest, "notification: a part at %d does not follow one that is known",
			off)
	}
	m := &l.all[i]
	if m.b = append(m.b, part...); len(m.b) < total {
		return m.b, nil
	}
	b := m.b
	l.all = slices.Delete(l.all, i, i+1)
	return b, nil
}

// end forgets what is not complete; no message begins any more.
func (l *longParts) end(p *Peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.all {
		p.chargeLong(-m.total)
	}
	l.all, l.ended = nil, true
}
