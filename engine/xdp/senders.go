package xdp

import (
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// sender is a transmit queue with the queue of the interface whose completion ring will have its
// chunks. A chunk that is being sent carries its number in the entry, so that nothing else needs to
// be written for a packet that is passed on, and read when it was sent.
type sender struct {
	tx       *txQueue
	via      *nicQueue
	number   int
	inFlight int  // chunks that are given to the kernel; under via.mu
	ended    bool // there will be no more; under via.mu
}

const maxSenders = 1<<senderBits - 1

// addSender adds a sender, and gives it its number.
func (m *Memory) addSender(q *txQueue, n *nicQueue) (*sender, error) {
	m.sendersMu.Lock()
	defer m.sendersMu.Unlock()
	all := slices.Clone(*m.senders.Load())
	at := 1
	for at < len(all) && all[at] != nil {
		at++
	}
	if at > maxSenders {
		return nil, fmt.Errorf("xdp: %d transmit queues use one memory: expected at most that many: %w", maxSenders,
			engine.ErrUnsupported)
	}
	if at == len(all) {
		all = append(all, nil)
	}
	s := &sender{tx: q, via: n, number: at}
	all[at] = s
	m.senders.Store(&all)
	return s, nil
}

// forget takes out a sender of which the kernel has no packet any more. The caller holds via.mu.
func (m *Memory) forget(s *sender) {
	m.sendersMu.Lock()
	defer m.sendersMu.Unlock()
	all := slices.Clone(*m.senders.Load())
	all[s.number] = nil
	m.senders.Store(&all)
}

// end says that a sender gives the kernel no more. The caller holds via.mu.
func (s *sender) end() {
	s.ended = true
	s.gone(0)
}

// passes is what the low half of an entry becomes whose chunk, a whole packet, the sender passes
// on.
func (s *sender) forwards() entry { return forwarding | lastChunk | entry(s.number)*oneSender }

// gone counts chunks that the kernel has no more. The caller holds via.mu.
func (s *sender) gone(chunks int) {
	s.inFlight -= chunks
	s.via.inFlight -= chunks
	if s.ended && s.inFlight == 0 {
		s.via.memory.forget(s)
	}
}

// sender is the one that sends the chunk of this entry by the queue n, nil if none does.
func (m *Memory) sender(all []*sender, e entry, n *nicQueue) *sender {
	at := int(e & senders / oneSender)
	if e&stateMask < sending || at >= len(all) || all[at] == nil || all[at].via != n {
		return nil
	}
	return all[at]
}

// unsend makes chunk i one that is not being sent any more, and returns what takes it back.
func (m *Memory) unsend(i uint64) carried {
	e := m.table[i]
	m.table[i] = e.sent()
	if e&stateMask == forwarding {
		return carried{m.table[i].handle(i), m.source}
	}
	l := &m.origins[i]
	return carried{l.handle, l.src}
}

// reap takes what was sent: chunks go back to where they are from, and queues have their
// descriptors again. The caller holds mu.
func (n *nicQueue) reap() {
	done := n.queue.Completion()
	addrs, handles := &n.addrs, &n.handles
	m := n.memory
	all := *m.senders.Load()
	for k := len(addrs); k == len(addrs); { // fewer were all
		if k = done.Get(addrs[:]); k == 0 {
			return
		}
		var src *burst.Source
		var from *sender
		have, chunks, packets := 0, 0, 0
		for _, a := range addrs[:k] {
			i := a >> m.shift
			if i >= uint64(len(m.table)) {
				n.faults++
				continue
			}
			e := m.table[i]
			if from != nil && src == m.source && e&(stateMask|senders) == forwarding|entry(from.number)*oneSender {
				// nearly always
				chunks++
				if e&lastChunk != 0 {
					packets++
				}
				e = e&^low | lent
				m.table[i], handles[have] = e, e.handle(i)
				have++
				continue
			}
			s := m.sender(all, e, n)
			if s == nil {
				n.faults++
				continue
			}
			if s != from {
				from.sent(chunks, packets)
				from, chunks, packets = s, 0, 0
			}
			chunks++
			if e&lastChunk != 0 {
				packets++
			}
			c := m.unsend(i)
			if c.src != src {
				m.put(src, handles[:have])
				src, have = c.src, 0
			}
			handles[have] = c.handle
			have++
		}
		m.put(src, handles[:have])
		from.sent(chunks, packets)
	}
}

// sent counts what the kernel has sent. The caller holds via.mu.
func (s *sender) sent(chunks, packets int) {
	if s != nil {
		s.gone(chunks)
		s.tx.complete(packets)
	}
}

// unsent is a chunk that the kernel had to send when its queue was closed.
type unsent struct {
	carried
	tx   *txQueue
	last bool // of the chunks of a packet
}

// carried is what takes a chunk back that is to be sent.
type carried struct {
	handle mem.Handle
	src    *burst.Source // nil for the spare pool
}
