package socket

import (
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/burst"
)

const (
	sendBatch   = 64 // messages of one system call
	sendPieces  = 256
	maxSegments = 64 // datagrams of one message, UDP_MAX_SEGMENTS of older kernels
	soon        = time.Millisecond
)

// udpSink sends the packets of a transmit queue of a UDPPort.
type udpSink struct {
	port   *UDPPort
	msgs   *sys.Messages
	sent   sent
	box    *engine.Outbox
	end    [sendBatch]int // of each message, the first packet behind it
	num    [sendBatch]int // of packets in it
	len    [sendBatch]int // bytes in it
	size   [sendBatch]int // of its first packet
	most   int            // size up to which packets may be merged
	tag    uint64         // in events, while watched is true
	fd     int            // that is watched
	kernel *pace.TxTime   // nil where the kernel gets no times
	on     bool
	to     [1]sys.SockAddr
}

// AddTxQueue implements engine.Port.
func (p *UDPPort) AddTxQueue(spec engine.TxSpec) (engine.TxQueue, error) {
	p.rx.Lock()
	defer p.rx.Unlock()
	if p.rx.Closed() {
		return nil, engine.ErrClosed
	}
	id, err := engine.TxID(spec.ID, maxQueues, p.tx)
	if err != nil {
		return nil, err
	}
	s := &udpSink{port: p, msgs: sys.NewMessages(sendBatch, sendPieces, 24+pace.ControlSize), most: maxPayload}
	if p.o.NoGSO {
		s.most = 0
	}
	does := burst.Segmented
	if p.o.NoGSO {
		does = 0
	}
	q, err := newTxQueue(p.address, &spec, p.can(), id, p.o.longest(), does, &s.sent)
	if err != nil {
		return nil, err
	}
	// Another socket may take this one's place where there are several queues; then it is this
	// process that waits.
	if spec.SendAt && q.pace.Kernel == nil && p.support.Qdisc != "" && p.o.Queues == 1 {
		t, err := p.support.Enable(p.fd)
		if err != nil {
			p.notes = append(p.notes, "times are kept in software: "+err.Error())
		} else {
			q.pace.Kernel = t
		}
	}
	if s.kernel = q.pace.Kernel; s.kernel != nil {
		p.timed.Store(s.kernel)
	}
	if err := q.start(spec, s, false); err != nil {
		return nil, err
	}
	s.box = q.box
	q.end = func() {
		s.stop()
		p.rx.Lock()
		defer p.rx.Unlock()
		p.tx, p.ended = engine.RetireTx(q, p.tx, p.ended, &p.pastTx)
	}
	p.tx = append(p.tx, q)
	return q, nil
}

// Transmit implements engine.Sink.
func (s *udpSink) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	s.port.sendMu.RLock()
	defer s.port.sendMu.RUnlock()
	fd := s.port.fd
	if s.port.down.Load() {
		s.sent.drops[engine.DropDown].Add(uint64(b.Builder().LivePart(from, to)))
		return to, time.Time{}
	}
	failed := -1 // the packet at which the last call failed
	for from < to {
		from = s.gather(b, from, to)
		if s.msgs.Count() == 0 {
			continue
		}
		n, e := s.msgs.Send(fd, 0)
		s.sent.calls.Add(1)
		if e == 0 {
			packets, bytes := 0, 0
			for i := range n {
				packets += s.num[i]
				bytes += s.len[i]
			}
			s.sent.packets.Add(uint64(packets))
			s.sent.bytes.Add(uint64(bytes))
			from = s.end[n-1]
			continue
		}
		first := s.end[0] - s.num[0] // less those without segments in between; they are passed over again
		switch e {
		case sys.EINTR:
			continue
		case sys.EAGAIN:
			s.watch(fd)
			return from, time.Time{}
		case sys.ENOBUFS, sys.ENOMEM:
			return from, time.Now().Add(soon)
		case sys.EMSGSIZE, sys.EINVAL, sys.EIO:
			if s.num[0] > 1 { // longer than the link takes, or the device cannot do checksums: each by itself then
				s.most = s.size[0] - 1
				if e == sys.EIO {
					s.most = 0
				}
				continue
			}
		}
		// An error may be the answer to an earlier packet; it comes once, and this one was not
		// looked at.
		if failed != first {
			if failed = first; s.port.remote.IsValid() {
				continue
			}
		}
		s.sent.drops[reason(e)].Add(uint64(s.num[0]))
		from = s.end[0]
	}
	return to, time.Time{}
}

// gather makes messages of packets from from on and returns where it began: behind packets that
// cannot be sent, which are counted.
func (s *udpSink) gather(b *burst.Burst, from, to int) (start int) {
	p := s.port
	s.msgs.Reset()
	start = from
	var last uint32   // peer of the message that is being made
	var size, all int // of its packets, and altogether
	open := false     // it can take more
	locked := false
	var when int64 // it is to leave
	longest := p.o.MaxPayload
	if longest == 0 {
		longest = maxPayload + 20 // over IPv6; the kernel refuses it over IPv4
	}
	for i := from; i < to; i++ {
		if b.Segments(i) == 0 {
			if s.msgs.Count() == 0 {
				start = i + 1
			}
			continue
		}
		k := s.msgs.Count()
		length, cut := b.PacketLen(i), b.SegmentSize(i)
		if cut >= length {
			cut = 0
		}
		to := b.Conn(i)
		if open && cut == 0 && to == last && length <= size && length > 0 && all+length <= maxPayload &&
			s.num[k-1] < maxSegments && b.Segments(i) <= s.msgs.Room() && (s.kernel == nil || s.at(b, i) == when) {
			if s.num[k-1] == 1 {
				s.msgs.SetSegment(uint16(size))
			}
			s.append(b, i)
			s.num[k-1]++
			s.end[k-1] = i + 1
			all += length
			s.len[k-1] = all
			open = length == size
			continue
		}
		if b.Segments(i) > s.msgs.Room() && k > 0 {
			break
		}
		var addr *sys.SockAddr
		if !p.remote.IsValid() {
			ok := k > 0 && to == last
			if !ok && p.peers != nil {
				if !locked {
					p.peers.mu.Lock()
					locked = true
				}
				var a *sys.SockAddr
				if a, ok = p.peers.find(to); ok {
					s.to[0] = *a
				}
			}
			if !ok {
				if k > 0 {
					break // first what is before it
				}
				s.sent.drops[engine.DropNoRoute].Add(1)
				start = i + 1
				continue
			}
			addr = &s.to[0]
		}
		if longestOf(length, cut) > longest || length > maxPayload+20 || length > cut*maxSegments && cut > 0 ||
			b.Segments(i) > s.msgs.Room() {
			if k > 0 {
				break
			}
			s.sent.drops[engine.DropTooLong].Add(1)
			start = i + 1
			continue
		}
		if !s.msgs.Add(addr) {
			break
		}
		s.append(b, i)
		if s.kernel != nil {
			when = s.at(b, i)
			s.msgs.Grow(s.kernel.Control(s.msgs.Spare(), when, when != 0))
		}
		s.num[k], s.len[k], s.size[k], s.end[k] = 1, length, length, i+1
		last, size, all = to, length, length
		open = length > 0 && length <= s.most && cut == 0
		if cut > 0 {
			s.msgs.SetSegment(uint16(cut))
		}
	}
	if locked {
		p.peers.mu.Unlock()
	}
	return start
}

// longestOf is the length of the longest datagram of a packet that the kernel cuts, or of one that
// it does not when cut is 0.
func longestOf(length, cut int) int {
	if cut > 0 {
		return cut
	}
	return length
}

// at is the time of a packet, 0 for none.
func (s *udpSink) at(b *burst.Burst, i int) int64 {
	if ns, ok := b.Time(i); ok {
		return ns
	}
	return 0
}

func (s *udpSink) append(b *burst.Burst, i int) {
	for k := range b.Segments(i) {
		s.msgs.Append(b.Bytes(i, k))
	}
}

// watch asks for a Kick when the socket takes packets again.
func (s *udpSink) watch(fd int) {
	if s.on && s.fd != fd {
		s.on = false
		events.Drop(s.tag) // that one is closed
	}
	if s.on {
		events.Set(fd, sys.EventOut|sys.EventOneShot, s.tag)
		return
	}
	tag, err := events.Add(fd, sys.EventOut|sys.EventOneShot, s)
	if err == nil {
		s.tag, s.fd, s.on = tag, fd, true
	}
}

// Ready implements engine.Watcher.
func (s *udpSink) Ready(uint32) { s.box.Kick() }

// stop ends the watch, after the Outbox was closed.
func (s *udpSink) stop() {
	s.port.sendMu.RLock()
	defer s.port.sendMu.RUnlock()
	switch {
	case !s.on:
	case s.fd == s.port.fd:
		events.Remove(s.fd, s.tag)
	default:
		events.Drop(s.tag)
	}
	s.on = false
}
