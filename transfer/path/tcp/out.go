package tcp

import (
	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/transfer/path"
)

// verdict says what became of an attempt to add a frame.
type verdict uint8

const (
	added verdict = iota // a frame was added; there may be more of the same
	ended                // a frame was added, or none was needed, and there are no more of it
	full                 // no room in this batch, or too much is unacknowledged
	later                // it has to wait for something else
)

// fill makes a new batch for a stream whose last one is gone: short frames, the acknowledgement
// that is owed, and payload as far as there is any for this stream. An acknowledgement alone is
// sent only when ackNow is set.
func (c *core) fill(s *stream, ackNow bool) {
	o := &s.out
	o.reset()
	sentCtl := 0
	for sentCtl < len(o.ctl) && o.room(headerSize, 0) {
		k := &o.ctl[sentCtl]
		o.header(o.reserve(headerSize), &header{typ: k.typ, op: k.op, where: k.where, imm: k.imm})
		sentCtl++
	}
	if sentCtl > 0 {
		o.ctl = o.ctl[:copy(o.ctl, o.ctl[sentCtl:])]
	}
	// An acknowledgement covers everything before it, so it must not overtake a refusal.
	if s.in.ackOwed && len(o.ctl) == 0 && (ackNow || c.workFor(s)) && o.room(headerSize, 0) {
		c.acknowledge(s, c.workFor(s))
	}
	c.fillWork(s)
	if o.ackNext { // there was work, but no room for any of it
		o.ackNext = false
		o.header(o.reserve(headerSize), &header{typ: frameAck, where: uint64(s.in.ackSent)})
	}
}

// acknowledge tells the peer how far its frames were dealt with: in the next header, if there will
// be one, or in a frame of its own. The next header has room for the difference only.
func (c *core) acknowledge(s *stream, work bool) {
	in, o := &s.in, &s.out
	upTo := in.seq - 1 - in.unfinished()
	grown := upTo - in.ackSent
	in.ackOwed, in.unacked, in.unackedBytes, in.ackSent = false, 0, 0, upTo
	if work && grown < 1<<16 {
		o.ack, o.ackNext = grown, true
		return
	}
	o.header(o.reserve(headerSize), &header{typ: frameAck, where: uint64(upTo)})
}

// fillWork adds frames of operations and requests.
func (c *core) fillWork(s *stream) {
	o := &s.out
	if s.index == 0 {
		c.serveTurn = !c.serveTurn
		if c.serveTurn {
			c.fillServed(s)
			c.fillSmall(s)
		} else {
			c.fillSmall(s)
			c.fillServed(s)
		}
	}
	if !c.carriesBig(s) {
		return
	}
	for o.left < c.batch {
		c.serveTurn = !c.serveTurn
		if !c.serveTurn {
			if !c.fillBig(s) && !c.fillServe(s, &c.serveBig) {
				return
			}
		} else if !c.fillServe(s, &c.serveBig) && !c.fillBig(s) {
			return
		}
	}
}

// carriesBig says on which streams large operations travel: not on the first if there is another,
// so that small ones never wait behind megabytes in the buffers of a socket.
func (c *core) carriesBig(s *stream) bool { return s.index > 0 || c.data == 1 }

// moved notes a frame of an operation of n bytes on the first stream, if that carries what is small
// only.
func (c *core) moved(s *stream, n uint64) {
	if s.index == 0 && c.data > 1 && n < stripeMin {
		c.smallMoved = true
	}
}

// fillSmall adds frames of small operations.
func (c *core) fillSmall(s *stream) {
	for c.small.n > 0 {
		slot := c.small.peek()
		v := c.cut(s, slot)
		if v == full {
			return
		}
		if v == added {
			continue
		}
		c.small.pop()
		if v == later {
			c.short.push(slot)
		} else {
			c.ops[slot].queued = false
		}
	}
}

// fillServed adds what the peer asked for in small pieces.
func (c *core) fillServed(s *stream) {
	for s.out.left < c.batch && c.fillServe(s, &c.serveSmall) {
	}
}

// unfinished is 1 while the last frame that began has not ended, so that it is not acknowledged.
func (in *input) unfinished() uint32 {
	if in.state != wantHeader {
		return 1
	}
	return 0
}

// workFor reports whether a batch for s would carry more than an acknowledgement.
func (c *core) workFor(s *stream) bool {
	return s.index == 0 && c.small.n+c.serveSmall.n > 0 || c.carriesBig(s) && c.big.n+c.serveBig.n > 0
}

// ackDue reports whether so much is unacknowledged that the peer should hear of it before this side
// goes idle.
func (s *stream) ackDue() bool {
	return s.in.ackOwed && (s.in.unacked >= flightSize/4 || s.in.unackedBytes >= ackBytes)
}

const ackBytes = 1 << 20

func (c *core) fillBig(s *stream) bool {
	if c.big.n == 0 {
		return false
	}
	slot := c.big.peek()
	switch c.cut(s, slot) {
	case full:
		return false
	case ended:
		c.big.pop()
		c.ops[slot].queued = false
	}
	return true
}

func (c *core) fillServe(s *stream, q *requests) bool {
	if q.n == 0 {
		return false
	}
	c.moved(s, 0)
	switch c.serve(s, q) {
	case full:
		return false
	case ended:
		q.drop()
	}
	return true
}

// cut adds the next frame of an operation.
func (c *core) cut(s *stream, slot uint16) verdict {
	p := &c.ops[slot]
	c.moved(s, p.total)
	switch {
	case p.phase == phaseNotify:
		return c.cutNotify(s, slot)
	case p.phase != phaseWork || p.finished:
		return ended
	case p.kind == path.Put:
		return c.cutPut(s, slot)
	}
	return c.cutGet(s, slot)
}

func (c *core) cutNotify(s *stream, slot uint16) verdict {
	p, o := &c.ops[slot], &s.out
	if o.fn == flightSize || !o.room(headerSize+len(p.msg), 0) {
		return full
	}
	h := header{typ: framePut, flags: flagNotify, msg: uint16(len(p.msg)), op: p.number(slot), where: p.total,
		imm: p.imm}
	h.typ = frameNotify
	if c.crc {
		h.flags |= flagCRC
		h.crc = vec.CRC32C(0, p.msg)
	}
	b := o.reserve(headerSize + len(p.msg))
	o.header(b, &h)
	copy(b[headerSize:], p.msg)
	o.fly(slot)
	p.flying++
	p.phase = phaseLast
	c.st.NotifySent++
	return ended
}

// span is what one frame takes of an operation.
type span struct {
	blocks int
	bytes  int
}

// measure says how much the next frame takes: blocks of one export, up to the limits of a frame and
// of this batch. Only a block that has a frame for itself is cut, because its frames tell the
// receiver how far the whole block reaches.
func (c *core) measure(o *output, p *op) span {
	limit := c.frame
	most := min(sendBlocks, c.peerBlock)
	if o.scratch != nil {
		most = min(most, cap(o.iov)-len(o.iov)-2)
	}
	var f span
	off := p.off
	for i := p.block; i < len(p.copies) && f.blocks < most; i++ {
		if p.copies[i].Key != p.copies[p.block].Key {
			break
		}
		n := p.copies[i].Local.Len - off
		off = 0
		f.blocks++
		if n > uint64(limit-f.bytes) {
			if f.blocks > 1 {
				f.blocks--
			} else {
				f.bytes = limit
			}
			break
		}
		f.bytes += int(n)
	}
	return f
}

func (c *core) cutPut(s *stream, slot uint16) verdict {
	p, o := &c.ops[slot], &s.out
	if o.fn == flightSize || o.left >= c.batch {
		return full
	}
	f := c.measure(o, p)
	if f.blocks < min(16, len(p.copies)-p.block) && o.left > 0 && f.bytes < c.frame/2 && cap(o.iov)-len(o.iov) < 16 {
		return full // rather a new batch than a small frame
	}
	need := headerSize
	if f.blocks > 1 {
		need += f.blocks * blockSize
	}
	inline := f.bytes <= inlineMax
	if inline {
		need += f.bytes
	}
	// The notification rides in the frame if that is the whole operation: only then nothing else
	// can fail.
	whole := p.block == 0 && p.off == 0 && f.blocks == len(p.copies) && uint64(f.bytes) == p.total
	ride := whole && p.notify
	if f.blocks == 0 || !o.room(need+path.MaxMessage, f.blocks) {
		return full
	}
	k := &p.copies[p.block]
	h := header{typ: framePut, op: p.number(slot), key: k.Key, where: k.RemoteOff + p.off, payload: uint32(f.bytes)}
	if ride {
		h.flags |= flagNotify
		h.imm, h.msg = p.imm, uint16(len(p.msg))
		c.st.NotifySent++
	}
	if rest := k.Local.Len - p.off; f.blocks == 1 && rest > uint64(f.bytes) {
		h.flags |= flagPart
		h.imm = rest
	}
	b := o.reserve(need)
	at := headerSize
	if f.blocks > 1 {
		h.typ = framePutv
		at += f.blocks * blockSize
	}
	left := f.bytes
	var before *path.Copy
	for i := range f.blocks {
		k := &p.copies[p.block]
		n := min(left, int(min(k.Local.Len-p.off, uint64(left))))
		if f.blocks > 1 {
			block{k.RemoteOff + p.off, uint32(n)}.put(b[headerSize+i*blockSize:])
		}
		if n > 0 {
			src := k.Local.Bytes()[p.off : p.off+uint64(n)]
			if c.crc {
				h.crc = vec.CRC32C(h.crc, src)
			}
			if inline {
				at += copy(b[at:], src)
				c.st.BytesCopied += uint64(n)
			} else {
				o.payload(src, before != nil && before.Local.Region == k.Local.Region)
				before = k
			}
		}
		left -= n
		p.off += uint64(n)
		if p.off == k.Local.Len {
			p.block, p.off = p.block+1, 0
		}
	}
	if f.blocks > 1 {
		h.where = uint64(f.blocks)<<32 | uint64(vec.CRC32C(0, b[headerSize:headerSize+f.blocks*blockSize]))
	}
	o.large = o.large || f.bytes >= zeroCopyMin
	if h.msg > 0 {
		copy(o.reserve(len(p.msg)), p.msg)
	}
	if c.crc {
		h.flags |= flagCRC
		if h.msg > 0 {
			h.crc = vec.CRC32C(h.crc, p.msg)
		}
	}
	o.header(b, &h)
	o.fly(slot)
	p.flying++
	if p.block < len(p.copies) {
		return added
	}
	p.finished, p.phase = true, phaseWait
	if ride {
		p.phase = phaseLast
	}
	return ended
}

// cutGet asks for the next blocks of an operation.
func (c *core) cutGet(s *stream, slot uint16) verdict {
	p, o := &c.ops[slot], &s.out
	if p.requests == opRequests {
		return ended // answered enqueues it again
	}
	if c.wanted == maxRequested || c.requests == c.window {
		return later
	}
	base := p.block
	n := min(sendBlocks, c.peerBlock, maxRequested-c.wanted, len(p.copies)-base)
	h := header{typ: frameGet, op: p.number(slot), key: p.copies[base].Key, where: p.off}
	if p.bulk {
		h.flags |= flagBulk
	}
	for _, k := range p.copies[base:][:n] {
		if k.Key != h.key {
			h.flags, h.key = h.flags|flagKeys, path.Key{}
			break
		}
	}
	size := h.entrySize()
	left := scratchSize
	if o.scratch != nil {
		left = cap(o.scratch) - len(o.scratch)
	}
	n = min(n, (left-headerSize)/size)
	if n <= 0 || !o.room(headerSize+n*size, 0) {
		return full
	}
	b := o.reserve(headerSize + n*size)
	for i := range n {
		k := &p.copies[p.block]
		m := min(k.Local.Len-p.off, getPiece)
		h.putWant(b[headerSize+i*size:], want{block{k.RemoteOff + p.off, uint32(m)}, k.Key})
		p.asked += m
		p.off += m
		if p.off < k.Local.Len {
			// A piece of a block can only be the last entry. The table keeps its size: the rest are
			// empty entries at the same place.
			for j := i + 1; j < n; j++ {
				h.putWant(b[headerSize+j*size:], want{block{k.RemoteOff + p.off, 0}, k.Key})
			}
			break
		}
		p.block, p.off = p.block+1, 0
	}
	h.imm = uint64(base)<<32 | uint64(n)
	h.payload = uint32(n * size)
	h.crc = vec.CRC32C(0, b[headerSize:])
	o.header(b, &h)
	p.requests++
	c.requests++
	p.entries += n
	c.wanted += n
	if p.block < len(p.copies) {
		return added
	}
	p.finished, p.phase = true, phaseWait
	return ended
}

// serve adds the next frame of what the peer asked for.
func (c *core) serve(s *stream, q *requests) verdict {
	o, r := &s.out, q.first()
	if r.canceled {
		return c.refuseRequest(o, r, refusedCanceled)
	}
	most := min(sendBlocks, c.peerBlock, r.blocks-r.at)
	if o.scratch != nil {
		most = min(most, cap(o.iov)-len(o.iov)-2)
	}
	if most <= 0 || !o.room(headerSize+inlineMax, most) {
		return full
	}
	limit := uint64(c.frame)
	h := header{typ: frameData, op: r.op, where: r.done, imm: uint64(r.base) + uint64(r.at)}
	if r.at == 0 {
		h.where += r.off
	}
	inline := r.left <= inlineMax
	need := headerSize
	if inline {
		need += int(r.left)
	}
	// Look before anything is written: the first block decides between data and a refusal.
	now := q.block()
	if _, err := c.reach.Resolve(now.key, now.off+r.done, uint64(now.n)-r.done, path.Read); err != nil {
		c.st.Rejected++
		return c.refuseRequest(o, r, reasonOf(err))
	}
	b := o.reserve(need)
	at := headerSize
	from := len(o.iov)
	for range most {
		if uint64(h.payload) == limit {
			break
		}
		k := q.block()
		n := min(uint64(k.n)-r.done, limit-uint64(h.payload))
		src, err := c.reach.Resolve(k.key, k.off+r.done, n, path.Read)
		if err != nil {
			break // the next frame says so
		}
		if c.crc {
			h.crc = vec.CRC32C(h.crc, src)
		}
		if inline {
			at += copy(b[at:], src)
			c.st.BytesCopied += n
		} else {
			o.serve(src, k.key, len(o.iov) > from)
		}
		h.payload += uint32(n)
		r.left -= n
		r.done += n
		if r.done == uint64(k.n) {
			r.at, r.done = r.at+1, 0
		}
	}
	if inline && at < need { // a later block was refused: give back what it would have taken
		o.scratch = o.scratch[:len(o.scratch)-(need-at)]
		o.shorten(need - at)
	}
	c.st.BytesServed += uint64(h.payload)
	c.dirty = true
	if c.crc {
		h.flags |= flagCRC
	}
	v := added
	if r.at == r.blocks {
		h.flags |= flagEnd
		v = ended
	}
	o.header(b, &h)
	return v
}

func (c *core) refuseRequest(o *output, r *request, why reason) verdict {
	if !o.room(headerSize, 0) {
		return full
	}
	o.header(o.reserve(headerSize), &header{typ: frameRefuse, op: r.op, where: r.left, imm: uint64(why)})
	return ended
}
