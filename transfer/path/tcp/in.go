package tcp

import (
	"cmp"
	"fmt"

	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// received takes note that n bytes came to the places that targets named, and acts on them. The
// error, if any, means that the peer broke the protocol.
func (c *core) received(s *stream, n int) error {
	in := &s.in
	switch {
	case in.state == wantTable:
		k := min(n, int(in.tableSize())-len(in.table))
		in.table = in.table[:len(in.table)+k]
		n -= k
	case in.state == wantPayload && in.left > 0:
		k := min(n, in.left)
		c.placed(in, k)
		n -= k
	}
	in.w += n
	return c.process(s)
}

// placed records that k bytes of payload are where they belong, and checksums them while they are
// in the cache.
func (c *core) placed(in *input, k int) {
	in.left -= k
	if in.refused != 0 {
		return
	}
	for k > 0 {
		d := &in.dst[in.di]
		m := min(k, d.Len())
		if in.h.flags&flagCRC != 0 {
			in.crc = vec.CRC32C(in.crc, d.Bytes()[:m])
		}
		if m == d.Len() {
			in.di++
		} else {
			d.Skip(m)
		}
		k -= m
	}
}

// process acts on what the stage holds.
func (c *core) process(s *stream) error {
	in := &s.in
	for {
		avail := in.w - in.r
		switch in.state {
		case wantHeader:
			if avail < headerSize {
				return nil
			}
			if err := in.h.parse(in.stage[in.r:]); err != nil {
				return err
			}
			if in.h.flags&flagNotify != 0 && !c.notes.room() {
				in.paused = true
				return nil
			}
			in.paused = false
			in.r += headerSize
			if in.h.seq != in.seq {
				return errSeq
			}
			in.seq++
			if in.h.flags&flagAck != 0 {
				if err := c.acknowledged(s, s.out.acked+uint32(in.h.ack)); err != nil {
					return err
				}
			}
			if err := c.begin(s); err != nil {
				return err
			}
		case wantTable:
			n := int(in.tableSize())
			k := min(avail, n-len(in.table))
			in.table = append(in.table, in.stage[in.r:in.r+k]...)
			in.r += k
			if len(in.table) < n {
				return nil
			}
			if err := c.table(s); err != nil {
				return err
			}
		case wantPayload:
			if in.left > 0 && avail > 0 {
				c.unstage(in, min(avail, in.left))
			}
			if in.left > 0 {
				return nil
			}
			if in.h.msg > 0 {
				in.state = wantMessage
				continue
			}
			if err := c.end(s, nil); err != nil {
				return err
			}
		case wantMessage:
			if avail < int(in.h.msg) {
				return nil
			}
			msg := in.stage[in.r : in.r+int(in.h.msg)]
			in.r += len(msg)
			if err := c.end(s, msg); err != nil {
				return err
			}
		}
	}
}

// unstage copies payload that was read together with its header.
func (c *core) unstage(in *input, k int) {
	if in.refused == 0 {
		c.st.BytesCopied += uint64(k)
		b := in.stage[in.r : in.r+k]
		for i := in.di; len(b) > 0; i++ {
			b = b[copy(in.dst[i].Bytes(), b):]
		}
	}
	in.r += k
	c.placed(in, k)
}

// begin acts on a header and decides where the rest of the frame goes.
func (c *core) begin(s *stream) error {
	in := &s.in
	h := &in.h
	in.dst, in.di, in.left, in.crc, in.refused = in.dst[:0], 0, int(h.payload), 0, 0
	in.state = wantPayload
	if in.size /= 2; h.payload > 0 && h.typ != frameGet { // a few frames without payload end the guess
		in.size = h.payload
	}
	switch h.typ {
	case framePut, framePutv, frameData:
		c.moved(s, 0)
	case frameNotify:
		c.moved(s, h.where)
	}
	if c.crc && h.flags&flagCRC == 0 && (h.payload > 0 || h.msg > 0) && h.typ != frameGet {
		return errChecksum
	}
	switch h.typ {
	case framePut:
		// All of the block must be permitted before any of it is written.
		n := uint64(h.payload)
		if h.flags&flagPart != 0 {
			n = h.imm
		}
		b, err := c.reach.Resolve(h.key, h.where, n, path.Write)
		if err != nil {
			c.refuse(in, reasonOf(err))
			return nil
		}
		in.addTarget(b[:h.payload], false)
	case framePutv:
		if n := h.where >> 32; n == 0 || n > maxFrameBlocks {
			return errBlocks
		}
		in.ownTable()
		in.state = wantTable
	case frameGet:
		n := h.imm & 0xffffffff
		if n == 0 || n > maxFrameBlocks || n*uint64(h.entrySize()) != uint64(h.payload) ||
			h.payload > maxFrameBlocks*blockSize {
			return errBlocks
		}
		if c.serveSmall.n+c.serveBig.n >= c.window || c.serveSmall.bn+c.serveBig.bn+int(n) > maxRequested {
			return errRequests
		}
		in.left = 0
		in.ownTable()
		in.state = wantTable
	case frameData:
		return c.beginData(in)
	case frameAck:
		in.state = wantHeader
		return c.acknowledged(s, uint32(h.where))
	case frameRefuse:
		in.state = wantHeader
		return c.peerRefused(h)
	case frameCancel:
		in.state = wantHeader
		c.serveSmall.cancel(h.op)
		c.serveBig.cancel(h.op)
	case frameBye:
		in.state = wantHeader
		return errBye
	}
	return nil
}

var errBye = fmt.Errorf("tcp: %w: %w", setup.ErrPeerClosed, path.ErrDown)

func (c *core) refuse(in *input, r reason) {
	in.refused = r
	c.st.Rejected++
}

// table acts on a complete table.
func (c *core) table(s *stream) error {
	in := &s.in
	h := &in.h
	in.last = len(in.table)
	if h.typ == frameGet {
		in.state = wantHeader
		if vec.CRC32C(0, in.table) != h.crc {
			return errTableSum
		}
		return c.addRequest(in)
	}
	in.state = wantPayload
	if vec.CRC32C(0, in.table) != uint32(h.where) {
		c.st.Corrupt++
		in.refused = refusedIntegrity
		return nil
	}
	var sum uint64
	for t := in.table; len(t) > 0; t = t[blockSize:] {
		k := parseBlock(t)
		sum += uint64(k.n)
		if in.refused != 0 {
			continue
		}
		b, err := c.reach.Resolve(h.key, k.off, uint64(k.n), path.Write)
		if err != nil {
			c.refuse(in, reasonOf(err))
			continue
		}
		in.addTarget(b, true)
	}
	if sum != uint64(h.payload) {
		return errShape
	}
	return nil
}

// addRequest queues what the peer asks for. Its size was checked against what both sides agreed.
func (c *core) addRequest(in *input) error {
	h := &in.h
	r := request{op: h.op, base: uint32(h.imm >> 32), off: h.where, blocks: len(in.table) / h.entrySize()}
	for i := range r.blocks {
		r.left += uint64(parseBlock(in.table[i*h.entrySize():]).n)
	}
	q := &c.serveSmall
	if r.left >= stripeMin || h.flags&flagBulk != 0 {
		q = &c.serveBig
	} else {
		c.smallMoved = c.smallMoved || c.data > 1
	}
	q.add(r, h, in.table, c.window)
	return nil
}

// beginData finds the places of an operation's bytes that come in.
func (c *core) beginData(in *input) error {
	h := &in.h
	p, slot := c.lookup(h.op)
	if p == nil || p.kind != path.Get || p.requests == 0 && p.got == p.asked {
		return errUnknownOp
	}
	if uint64(h.payload) > p.asked-p.claimed {
		return errLength
	}
	p.claimed += uint64(h.payload)
	in.slot = slot
	if h.imm > uint64(len(p.copies)) {
		return errShape
	}
	i, off, n := int(h.imm), h.where, uint64(h.payload)
	var before *path.Copy
	for ; n > 0; i++ {
		if i >= len(p.copies) || len(in.dst) == maxFrameBlocks {
			return errShape
		}
		k := &p.copies[i]
		if off > k.Local.Len {
			return errShape
		}
		m := min(n, k.Local.Len-off)
		if m > 0 {
			in.addTarget(k.Local.Bytes()[off:off+m], before != nil && before.Local.Region == k.Local.Region)
			before = k
		}
		n -= m
		off = 0
	}
	return nil
}

// end acts on a complete frame.
func (c *core) end(s *stream, msg []byte) error {
	in := &s.in
	h := &in.h
	in.state = wantHeader
	in.dst = in.dst[:0]
	damaged := false
	if h.flags&flagCRC != 0 && in.refused == 0 {
		damaged = vec.CRC32C(in.crc, msg) != h.crc
		if damaged {
			c.st.Corrupt++
		}
	}
	c.dirty = true
	if h.typ == frameData {
		p := &c.ops[in.slot]
		if damaged {
			p.err = cmp.Or(p.err, errDamagedHere)
		}
		p.got += uint64(h.payload)
		return c.answered(in.slot, h.flags&flagEnd != 0)
	}
	in.ackOwed = true
	in.unacked++
	in.unackedBytes += int(h.payload)
	if damaged {
		in.refused = refusedIntegrity
	}
	if in.refused != 0 {
		if !c.pushControl(s, control{typ: frameRefuse, op: h.op, imm: uint64(in.refused)}) {
			return errRequests
		}
		return nil
	}
	bytes := uint64(h.payload)
	if h.typ == frameNotify {
		bytes = h.where
		if bytes >= promptMin {
			in.unackedBytes += ackBytes // the end of a large operation, which waits for nothing but this
		}
	} else {
		c.st.BytesPlaced += bytes
	}
	if h.flags&flagNotify != 0 {
		c.notes.push(h.imm, bytes, msg)
	}
	return nil
}

// answered moves a Get on after something of it came in, or the end of one of its requests.
func (c *core) answered(slot uint16, end bool) error {
	p := &c.ops[slot]
	if end {
		if p.requests == 0 {
			return errUnknownOp
		}
		p.requests--
		c.requests--
	}
	quiet := p.requests == 0 && p.got == p.asked
	if quiet {
		c.wanted -= p.entries
		p.entries = 0
	}
	if !end && !quiet {
		return nil
	}
	for room := min(maxRequested-c.wanted, c.window-c.requests); room > 0 && c.short.n > 0; room-- {
		c.small.push(c.short.pop())
	}
	c.advance(slot)
	return nil
}

// acknowledged ends the frames that the peer dealt with, up to and including seq.
func (c *core) acknowledged(s *stream, seq uint32) error {
	o := &s.out
	if int32(seq-o.acked) < 0 || int32(seq-o.seq) >= 0 {
		return errAck
	}
	o.acked = seq
	for o.fn > 0 {
		f := o.flight[o.fhead]
		if int32(f.seq-seq) > 0 {
			break
		}
		o.fhead = (o.fhead + 1) % flightSize
		o.fn--
		p := &c.ops[f.op]
		p.flying--
		if p.flying == 0 {
			c.advance(f.op)
		}
	}
	return nil
}

// peerRefused fails an operation of ours.
func (c *core) peerRefused(h *header) error {
	if h.imm == 0 || h.imm >= uint64(reasons) {
		return errReason
	}
	p, slot := c.lookup(h.op)
	if p == nil {
		return errUnknownOp
	}
	p.err = cmp.Or(p.err, reasonErrors[h.imm])
	if p.kind == path.Get && p.phase <= phaseWait {
		if h.where > p.asked-p.claimed {
			return errShape
		}
		p.claimed += h.where
		p.got += h.where
		return c.answered(slot, true)
	}
	if p.flying == 0 {
		return errUnknownOp
	}
	if p.phase == phaseWork {
		c.advance(slot) // no more frames of it
	}
	return nil
}
