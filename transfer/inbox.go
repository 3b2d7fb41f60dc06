package transfer

import (
	"encoding/binary"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

// headerSize is the length in bytes of what precedes the caller's message in a notification: kind
// (1), tag (4), number of the transfer (8), bytes of the whole transfer (8), all big-endian. It
// fits into the first cell of a message over shared memory.
const headerSize = 21

func appendHeader(b []byte, kind path.OpKind, tag uint32, number, bytes uint64) []byte {
	b = binary.BigEndian.AppendUint32(append(b, byte(kind)), tag)
	b = binary.BigEndian.AppendUint64(b, number)
	return binary.BigEndian.AppendUint64(b, bytes)
}

// parseNotify reads a notification of the peer. It refuses what the peer cannot have begun and what
// was delivered before. The caller holds the mutex of the channel that it came by.
func (p *Peer) parseNotify(e *path.Event, via string) (Incoming, bool) {
	if len(e.Msg) < headerSize {
		p.account.Refused("notification", "shorter than its header")
		return Incoming{}, false
	}
	number := binary.BigEndian.Uint64(e.Msg[5:])
	in := Incoming{Peer: p, ID: observe.NewID(p.info.Instance, number), Kind: path.OpKind(e.Msg[0]), Path: via,
		Tag: binary.BigEndian.Uint32(e.Msg[1:]), Bytes: binary.BigEndian.Uint64(e.Msg[13:])}
	if in.Kind < path.Put || in.Kind > path.Notify || !p.seen.first(number) {
		p.account.Refused("notification", "of an unknown kind, or delivered before")
		return Incoming{}, false
	}
	p.account.Received(in.Kind)
	if len(e.Msg) > headerSize {
		in.Msg = append([]byte(nil), e.Msg[headerSize:]...)
	}
	return in, true
}

// seen remembers which transfer numbers of a peer were delivered: a bitmap over the latest ones,
// like that of RFC 4303 section 3.4.3. Older ones count as new, unlike there: paths deliver each
// notification once, so this only guards against a peer that repeats itself, while a large transfer
// may well end after many small ones that began later.
type seen struct {
	mu   sync.Mutex
	high uint64
	bits [1 << 10]uint64
}

const seenSpan = 64 * (1 << 10)

// first reports whether n was not seen before, and remembers it.
func (s *seen) first(n uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n <= s.high && s.high-n >= seenSpan {
		return true
	}
	if n > s.high {
		if n-s.high >= seenSpan {
			clear(s.bits[:])
		} else {
			for i := s.high + 1; i-1 != n; i++ { // n may be the largest number there is
				s.bits[i/64%uint64(len(s.bits))] &^= 1 << (i % 64)
			}
		}
		s.high = n
	}
	w, b := n/64%uint64(len(s.bits)), uint64(1)<<(n%64)
	if s.bits[w]&b != 0 {
		return false
	}
	s.bits[w] |= b
	return true
}

// has reports whether n was seen. Numbers that are too old to be remembered count as not seen.
func (s *seen) has(n uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > s.high || s.high-n >= seenSpan {
		return false
	}
	return s.bits[n/64%uint64(len(s.bits))]&(1<<(n%64)) != 0
}

// inboxMax is the number of notifications of one peer that may wait for the application. A peer
// that has more under way is not polled until there is room, so that its path pushes back.
const inboxMax = 1024

// inboxFenced is that number while a fence of the peer's paths is under way: what they hold before
// the end of the fence has to go somewhere.
const inboxFenced = 4 * inboxMax

// inbox holds what a peer's channels delivered until the application has taken it: OnTransfer is
// called on a goroutine that lives only while there is something to do.
type inbox struct {
	mu      sync.Mutex
	queue   []Incoming
	long    int // bytes of messages that no path carried and that the application has not taken
	running bool
	full    []*channel // not served until the inbox has room
	last    func()     // called once when everything was taken, after the peer's end
}

// deliver hands a completed transfer of the peer to the receiver that waits for it, or to
// OnTransfer, and reports whether there is one.
func (p *Peer) deliver(in Incoming) bool {
	b := &p.inbox
	b.mu.Lock()
	if !b.running && !p.awaits(in) { // no goroutine has to start for it
		b.mu.Unlock()
		return false
	}
	b.queue = append(b.queue, in)
	if len(in.Msg) > MaxPayload {
		b.long += len(in.Msg)
	}
	start := !b.running
	b.running = true
	b.mu.Unlock()
	if start {
		go p.drain()
	}
	return true
}

// awaits reports whether a receiver waits for a completed transfer of the peer, or a handler takes
// it.
func (p *Peer) awaits(in Incoming) bool {
	select {
	case <-p.introduced:
	default: // OnPeer may add handlers
		return true
	}
	return p.node.offered.Load() || p.node.onTag(in.Tag) != nil
}

// drained calls f when everything that was delivered has been taken: now or after the last call of
// OnTransfer. Nothing may be delivered any more.
func (p *Peer) drained(f func()) {
	b := &p.inbox
	b.mu.Lock()
	if b.running {
		b.last = f
		f = nil
	}
	b.mu.Unlock()
	if f != nil {
		f()
	}
}

// holds is how many bytes of long messages wait for the application.
func (b *inbox) holds() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.long
}

// hold reports whether the inbox is full; the channel is then kicked when it has room again.
func (p *Peer) hold(ch *channel) bool {
	b := &p.inbox
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) < inboxMax {
		return false
	}
	if !slices.Contains(b.full, ch) {
		b.full = append(b.full, ch)
	}
	return true
}

// crowded reports whether the inbox is so full that not even a fence is a reason to poll the peer.
func (p *Peer) crowded() bool {
	b := &p.inbox
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue) >= inboxFenced
}

func (p *Peer) drain() {
	<-p.introduced
	for {
		in, ok := p.next()
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

// next takes the oldest notification, and has the channels served again for which there is room
// now. It returns false when nothing waits, or nobody will ever take it. One poll brings many, so
// few of those that are taken kick a channel.
func (p *Peer) next() (in Incoming, ok bool) {
	b := &p.inbox
	b.mu.Lock()
	if len(b.queue) == 0 || p.unwelcome.Load() {
		rest, last := b.queue, b.last
		b.queue, b.last, b.running = nil, nil, false
		b.mu.Unlock()
		for _, in := range rest {
			p.took(in)
		}
		if last != nil {
			last()
		}
		return in, false
	}
	in, b.queue[0] = b.queue[0], Incoming{}
	if b.queue = b.queue[1:]; len(b.queue) == 0 {
		b.queue = nil
	}
	var room []*channel
	if len(b.queue) < inboxMax {
		room, b.full = b.full, nil
	}
	b.mu.Unlock()
	for _, ch := range room {
		p.node.loop.Kick(ch)
	}
	return in, true
}

// took gives back what a long message holds in the inbox.
func (p *Peer) took(in Incoming) {
	if n := len(in.Msg); n > MaxPayload {
		p.inbox.mu.Lock()
		p.inbox.long -= n
		p.inbox.mu.Unlock()
		p.chargeLong(-n)
	}
}
