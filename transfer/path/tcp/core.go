package tcp

import (
	"cmp"
	"fmt"

	"github.com/penstock-io/penstock/transfer/path"
)

// core is the protocol: operations in, bytes out, bytes in, events out. It knows no sockets and no
// clock, so that tests can feed it whatever they like.
type core struct {
	reach     path.Reach // of the peer
	window    int
	crc       bool
	sealed    bool // everything travels in records that are authenticated
	peerBlock int  // blocks that the peer takes in one frame
	frame     int  // payload of one frame, at most
	batch     int  // payload of one send, about

	streams []*stream
	data    int // streams

	ops   []op
	free  []uint16
	small fifo // operations with frames to send, on stream 0
	big   fifo // operations with frames to send, on any stream for what is large
	short fifo // gets that wait until fewer blocks are requested
	done  fifo // ended, not reported yet

	wanted   int // blocks requested from the peer and not there yet
	requests int // open ones

	serveSmall requests // the peer's, on stream 0
	serveBig   requests // the peer's, on any stream for what is large
	serveTurn  bool     // operations and requests take turns
	smallMoved bool     // something small came or went on a first stream that carries nothing large

	notes notices

	err      error // why the path is down
	downSent bool
	dirty    bool // Stats changed

	trash []byte
	st    path.Stats

	// unused, when set, keeps an operation from ending while it is false (MSG_ZEROCOPY: the kernel
	// still reads the memory).
	unused func(slot uint16) bool
	held   fifo // operations kept by it

	tallies []tally // of verify
}

// Sizes in bytes by which operations are cut; docs/measurements/tcp.md says why.
const (
	frameBytes = 512 << 10 // payload of one frame
	batchBytes = 1 << 20   // one send
	crcBytes   = 512 << 10 // both, with checksums: the receiver works on a frame while the next one is summed up
	promptMin  = 256 << 10 // the end of an operation from here on is acknowledged without waiting for others
	stripeMin  = 1 << 20   // operations from here on are large: they use the streams after the first, if there are any
	sendBlocks = 512       // blocks of one frame; the receiver takes more
	getPiece   = 1 << 30   // one entry of a request
	opRequests = 64        // open requests of one operation
)

type phase uint8

const (
	phaseFree   phase = iota
	phaseWork         // frames of the operation are still to be sent
	phaseWait         // all were sent
	phaseNotify       // the notification is still to be sent
	phaseLast         // the notification was sent
	phaseHeld         // all is done, but unused is false
	phaseDone         // ended, not reported yet
)

// op is an operation of this node.
type op struct {
	gen    uint32 // counts the uses of the slot; part of the number on the wire
	phase  phase
	kind   path.OpKind
	notify bool
	queued bool // in small, big or short
	bulk   bool // large, whatever its size
	cancel bool
	token  uint64
	imm    uint64
	msg    []byte // keeps its capacity from use to use
	copies []path.Copy
	total  uint64
	err    error

	block  int    // next to be sent or requested
	off    uint64 // in that block
	flying int    // frames not acknowledged

	asked    uint64 // Get: bytes requested
	claimed  uint64 // Get: bytes of which a frame began to come; no byte is written once claimed ones are all there
	got      uint64 // Get: bytes that came or were refused
	entries  int    // Get: blocks requested since nothing was under way
	requests int    // Get: open ones
	finished bool   // all was sent or requested
}

// request is what the peer wants to have.
type request struct {
	op       uint64
	base     uint32 // its number for the first block
	off      uint64 // where in the first block the request starts
	blocks   int
	at       int    // current block
	done     uint64 // bytes of the current block already served
	left     uint64 // bytes
	canceled bool
}

func newCore(x path.Reach, window, streams int, crc bool, peerFrame, peerBlock int) *core {
	c := &core{
		reach: x, window: window, crc: crc, data: streams,
		frame: min(peerFrame, frameBytes), batch: batchBytes, peerBlock: min(peerBlock, maxFrameBlocks),
		ops: make([]op, window), free: make([]uint16, window),
		small: newFifo(window), big: newFifo(window), short: newFifo(window), done: newFifo(window),
	}
	if crc {
		c.frame, c.batch = min(c.frame, crcBytes), crcBytes
	}
	for i := range c.free {
		c.free[i] = uint16(window - 1 - i)
	}
	for i := range streams {
		c.streams = append(c.streams, &stream{index: i})
	}
	return c
}

// check refuses what is wrong with an operation by itself.
func (c *core) check(o *path.Op) error {
	if len(o.Msg) > path.MaxMessage {
		return fmt.Errorf("tcp: message of %d bytes, at most %d are possible: %w", len(o.Msg), path.MaxMessage,
			path.ErrTooLarge)
	}
	switch o.Kind {
	case path.Put, path.Get:
	case path.Notify, path.Fence:
		if len(o.Copies) > 0 {
			return fmt.Errorf("tcp: operation kind %d with %d blocks: expected none", o.Kind, len(o.Copies))
		}
		return nil
	default:
		return fmt.Errorf("tcp: unknown operation kind %d: expected put, get, notify or fence", o.Kind)
	}
	for i := range o.Copies {
		k := &o.Copies[i]
		if !k.Local.Valid() {
			return fmt.Errorf("tcp: block %d: local offset %d + %d bytes lies outside its region: %w", i, k.Local.Off,
				k.Local.Len, path.ErrBounds)
		}
		if k.RemoteOff+k.Local.Len < k.RemoteOff {
			return fmt.Errorf("tcp: block %d: remote offset %d + %d bytes overflows: %w", i, k.RemoteOff, k.Local.Len,
				path.ErrBounds)
		}
		if k.Local.Len > 0 && k.Local.Bytes() == nil {
			return fmt.Errorf("tcp: block %d: the CPU cannot reach region %q (%s): %w", i, k.Local.Region.Name(),
				k.Local.Region.Kind(), path.ErrUnreachable)
		}
		if o.Kind == path.Get && k.Local.Region.ReadOnly() {
			return fmt.Errorf("tcp: block %d: region %q is read-only: %w", i, k.Local.Region.Name(), path.ErrRights)
		}
	}
	return nil
}

// post takes operations in; nothing is sent yet.
func (c *core) post(ops []path.Op) (int, error) {
	for i := range ops {
		if c.err != nil {
			return i, c.err
		}
		if len(c.free) == 0 {
			c.st.WindowFull++
			return i, path.ErrFull
		}
		if err := c.check(&ops[i]); err != nil {
			return i, err
		}
		c.take(&ops[i])
	}
	return len(ops), nil
}

func (c *core) take(o *path.Op) {
	slot := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.st.OpsPosted++
	p := &c.ops[slot]
	*p = op{gen: p.gen + 1, msg: append(p.msg[:0], o.Msg...), kind: o.Kind, notify: o.Notify, token: o.Token,
		imm: o.Imm, copies: o.Copies, bulk: o.Bulk}
	switch o.Kind {
	case path.Fence:
		c.fence(o.Key)
		p.phase = phaseLast
		c.finish(slot, nil)
		return
	case path.Notify:
		p.phase = phaseNotify
		c.enqueue(slot)
		return
	}
	p.total = o.Bytes()
	p.phase = phaseWork
	if len(o.Copies) == 0 {
		p.finished = true
		c.advance(slot)
		return
	}
	c.enqueue(slot)
}

func (c *core) enqueue(slot uint16) {
	p := &c.ops[slot]
	if p.queued {
		return
	}
	p.queued = true
	if p.phase == phaseWork && p.kind == path.Put && (p.bulk || p.total >= stripeMin) {
		c.big.push(slot)
	} else {
		c.small.push(slot)
	}
}

func (c *core) dequeue(slot uint16) {
	if p := &c.ops[slot]; p.queued {
		p.queued = false
		c.small.remove(slot)
		c.big.remove(slot)
		c.short.remove(slot)
	}
}

// advance moves an operation on when nothing of its phase is outstanding any more.
func (c *core) advance(slot uint16) {
	p := &c.ops[slot]
	switch p.phase {
	case phaseWork, phaseWait:
		if p.err != nil && !p.finished {
			p.finished = true
			c.dequeue(slot)
		}
		if !p.finished && p.kind == path.Get && p.requests < opRequests {
			c.enqueue(slot) // the next request
		}
		if p.flying > 0 || p.requests > 0 || p.got != p.asked || !p.finished {
			return
		}
		if p.err == nil && p.notify {
			p.phase = phaseNotify
			c.enqueue(slot)
			return
		}
	case phaseLast:
		if p.flying > 0 {
			return
		}
	default:
		return
	}
	c.conclude(slot)
}

// conclude finishes an operation as soon as nothing holds its memory any more.
func (c *core) conclude(slot uint16) {
	p := &c.ops[slot]
	if c.unused != nil && !c.unused(slot) {
		if c.held.v == nil {
			c.held = newFifo(c.window)
		}
		c.dequeue(slot)
		p.phase = phaseHeld
		c.held.push(slot)
		return
	}
	c.finish(slot, p.err)
}

// finish ends an operation; its event waits for Poll.
func (c *core) finish(slot uint16, err error) {
	p := &c.ops[slot]
	if p.phase == phaseDone || p.phase == phaseFree {
		return
	}
	c.dequeue(slot)
	p.phase, p.err, p.copies = phaseDone, err, nil
	c.done.push(slot)
}

// cancel ends operations early.
func (c *core) cancelToken(token uint64) bool {
	found := false
	for i := range c.ops {
		p := &c.ops[i]
		if p.phase == phaseFree || p.token != token {
			continue
		}
		found = true
		if p.phase == phaseDone || p.cancel {
			continue
		}
		p.cancel = true
		if p.requests > 0 { // what a Get still waits for, the peer need not send
			c.pushControl(c.streams[0], control{typ: frameCancel, op: p.number(uint16(i))})
		}
		switch p.phase {
		case phaseWork:
			p.err = cmp.Or(p.err, errCanceledHere)
			c.advance(uint16(i))
		case phaseWait: // a Put whose frames are all sent completes or fails by itself
		case phaseNotify:
			// The bytes are in place; only the notification has not gone out.
			p.err = errCanceledHere
			c.conclude(uint16(i))
		}
	}
	return found
}

var errCanceledHere = fmt.Errorf("tcp: %w", path.ErrCanceled)

// number is what the operation is called on the wire.
func (p *op) number(slot uint16) uint64 { return uint64(p.gen)<<16 | uint64(slot) }

// lookup finds an operation by its number; nil when there is none such any more.
func (c *core) lookup(n uint64) (*op, uint16) {
	slot := uint16(n)
	if int(slot) >= len(c.ops) || n>>16 != uint64(c.ops[slot].gen) {
		return nil, 0
	}
	p := &c.ops[slot]
	if p.phase == phaseFree || p.phase == phaseDone {
		return nil, 0
	}
	return p, slot
}

func (c *core) pushControl(s *stream, k control) bool {
	if len(s.out.ctl) >= ctlMax {
		return false
	}
	s.out.ctl = append(s.out.ctl, k)
	return true
}

// fence ends every use of an export by this path: a frame being received is thrown away from here
// on, what is left of one being sent is copied. Frames that begin later are refused by Resolve.
func (c *core) fence(key path.Key) {
	for _, s := range c.streams {
		in := &s.in
		if (in.state == wantPayload || in.state == wantMessage) && in.h.key == key &&
			(in.h.typ == framePut || in.h.typ == framePutv) && in.refused == 0 {
			in.refused = refusedRevoked
			in.dst = in.dst[:0]
			c.st.Rejected++
		}
		s.out.spill(key)
	}
}

// fail takes the path down.
func (c *core) fail(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	for i := range c.ops {
		if p := &c.ops[i]; p.phase != phaseFree && p.phase != phaseDone {
			c.finish(uint16(i), err)
		}
	}
	c.held.n = 0
	for _, s := range c.streams {
		s.out.ctl = nil
		s.out.reset()
		s.in.dst, s.in.paused = s.in.dst[:0], false
	}
	c.serveSmall.clear()
	c.serveBig.clear()
	c.dirty = true
}

// report fills events with what is there, and returns how many.
func (c *core) report(events []path.Event) int {
	n := c.notes.take(events)
	c.st.NotifyReceived += uint64(n)
	for n < len(events) && c.done.n > 0 {
		slot := c.done.pop()
		p := &c.ops[slot]
		e := &events[n]
		*e = path.Event{Kind: path.EventDone, Token: p.token, Err: p.err}
		if p.err == nil {
			e.Bytes = p.total
			switch {
			case p.total > 0 && c.sealed:
				e.Proof = path.ProofAEAD
			case p.total > 0 && c.crc:
				e.Proof = path.ProofCRC32C
			}
			c.st.OpsDone++
			switch p.kind {
			case path.Put:
				c.st.BytesPut += p.total
			case path.Get:
				c.st.BytesGot += p.total
			}
		} else {
			c.st.OpsFailed++
		}
		p.phase, p.err = phaseFree, nil
		c.free = append(c.free, slot)
		n++
	}
	if c.err != nil && !c.downSent && n < len(events) {
		c.downSent = true
		events[n] = path.Event{Kind: path.EventDown, Err: c.err}
		n++
	}
	if n > 0 {
		c.dirty = true
	}
	return n
}

// pending reports whether report would have something.
func (c *core) pending() bool {
	return c.done.n > 0 || c.notes.waits() || c.err != nil && !c.downSent
}
