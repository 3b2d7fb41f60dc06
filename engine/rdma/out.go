package rdma

import (
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/rdmadev"
	"github.com/penstock-io/penstock/packet/burst"
)

// txChannel is a channel of a connection at its sender's end. The connection's mutex guards it.
type txChannel struct {
	c       *conn
	id      uint32
	x       *pair
	chain   *ibv.SendChain
	credits *ibv.RecvChain // of one receive
	w       window
	longest uint64 // bytes of a message
	ready   bool   // the receiver says so
	leaving bool   // the receiver takes it back
	closed  bool
	armed   bool // there will be an event
	dry     bool // it waits for the receiver's word that more may come
	broken  bool
	flushed error // why it is broken, until more is known
	watch   rdmadev.Watch

	depth, sges int
	inline      int
	posts       []posted // requests that the device has, a ring
	pieces      []piece  // their memory, a ring
	head, tail  uint64   // of posts
	first, last uint64   // of pieces
	unsignaled  int
	wc          [32]ibv.WC
	chosen      [postAtOnce]int
	sge         []ibv.SGE
	reclaim     []burst.Handle
}

// posted is a request that the device has: a packet of a transmit queue.
type posted struct {
	s      *txSink
	pieces uint32
	bytes  uint32
}

// piece is memory that goes back when the device has done with it.
type piece struct {
	src *burst.Source
	h   burst.Handle
}

const (
	postAtOnce  = 32
	creditReads = controlSend + 4 // receives for what the receiver tells
	creditID    = 1 << 63         // a request with that id is such a receive
)

// offered takes a channel that the peer offers: makes a queue pair of this side and connects it.
func (c *conn) offered(r *record) error {
	p := c.port
	o := p.newOut(c)
	o.id, o.longest = r.channel, r.longest
	if err := o.make(ibv.QPSpec{RecvWRs: creditReads, RecvSGEs: 1}, creditReads); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := o.open(&r.pair); err != nil || c.dead {
		o.close()
		return err
	}
	if p.o.Transport == UD {
		o.longest = min(o.longest, uint64(min(p.o.MTU, int(r.pair.mtu))))
	}
	if c.out != nil { // the peer has forgotten to take it back
		o.close()
		return errOrder
	}
	c.out = o
	c.ch.send(&record{kind: kindAccept, channel: o.id, pair: o.x.mine})
	return nil
}

// newOut makes a channel that has no queue pair yet.
func (p *Port) newOut(c *conn) *txChannel {
	depth := min(p.o.SendDepth, p.attr.MaxQPWR-1) // and one to see whether the device is still at work
	sges := min(p.o.Segments, p.attr.MaxSGE, burst.MaxSegments)
	return &txChannel{c: c, depth: depth, sges: sges, inline: p.o.Inline, posts: make([]posted, depth+1),
		pieces: make([]piece, depth*sges),
		sge:    make([]ibv.SGE, 0, sges), reclaim: make([]burst.Handle, 0, 64)}
}

// make makes the queue pair. spec says where it receives, and reads is how many receives complete
// with what is sent.
func (o *txChannel) make(spec ibv.QPSpec, reads int) (err error) {
	p := o.c.port
	spec.SendWRs, spec.SendSGEs, spec.Inline = o.depth+1, o.sges, o.inline
	if o.x, err = p.newPair(spec, o.depth+reads+2); err != nil && o.inline > 0 {
		// How many bytes of inline data a device takes it does not tell.
		spec.Inline, o.inline = 0, 0
		o.x, err = p.newPair(spec, o.depth+reads+2)
	}
	if err == nil {
		p.control.own(o.x.cq, o)
	}
	return err
}

// open connects the queue pair and lets credits come.
func (o *txChannel) open(peer *pairInfo) (err error) {
	if o.chain, err = ibv.NewSendChain(postAtOnce, postAtOnce*max(o.sges, 1)); err != nil {
		return err
	}
	if o.credits, err = ibv.NewRecvChain(creditReads, creditReads); err != nil {
		return err
	}
	for range creditReads {
		if err := o.addCredit(); err != nil {
			return err
		}
	}
	if _, err := o.x.qp.PostRecv(o.credits); err != nil {
		return err
	}
	o.credits.Reset()
	if err := o.x.connect(o.c.port, peer); err != nil {
		return err
	}
	o.armed = true
	return o.x.cq.Arm(false)
}

// addCredit adds a receive for a credit, which has no bytes; a datagram has its routing header.
func (o *txChannel) addCredit() error {
	p := o.c.port
	if p.o.Transport != UD {
		o.credits.Recv(creditID)
		return nil
	}
	s, err := p.scratch()
	if err == nil {
		o.credits.Recv(creditID, s)
	}
	return err
}

// ready takes the receiver's word that the channel can be used.
func (c *conn) ready(r *record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.out
	if o == nil || o.id != r.channel {
		return nil // it was taken back meanwhile
	}
	if o.ready {
		return errOrder
	}
	// Credits come by the queue pair and may be here first: they have said more than this.
	o.ready, o.w.limit = true, max(o.w.limit, r.count)
	c.flush()
	c.watch(o) // the event of an early credit is gone
	return nil
}

// withdrawn takes the receiver's word that the channel must not be used any more. When everything
// on it is done the sender says so.
func (c *conn) withdrawn(r *record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.out
	if o == nil || o.id != r.channel {
		return failed(engine.ErrConnect, "channel %d: %v", r.channel, errOrder)
	}
	c.out, o.leaving = nil, true
	o.reap()
	c.gone = append(c.gone, o)
	c.endWithdrawn(o)
	return nil
}

// endWithdrawn closes a channel that the receiver withdrew, once the device is done with it.
func (c *conn) endWithdrawn(o *txChannel) {
	if !o.leaving || o.closed {
		return
	}
	if o.flying() > 0 {
		o.rearm()
		if o.flying() > 0 {
			return
		}
	}
	for i, x := range c.gone {
		if x == o {
			c.gone = append(c.gone[:i], c.gone[i+1:]...)
			break
		}
	}
	c.ch.send(&record{kind: kindDrained, channel: o.id, count: o.w.sent})
	o.close()
}

// flying is the number of requests that the device has.
func (o *txChannel) flying() int { return int(o.tail - o.head) }

// room is the number of messages that the device and the receiver take now.
func (o *txChannel) room() int { return min(o.w.room(), o.depth-o.flying()) }

// post gives packets from to to-1 of b to the device, as many as it and the receiver take, and
// returns the first that they did not.
func (o *txChannel) post(s *txSink, b *burst.Burst, from, to int) int {
	for from < to && !o.broken {
		// First those that can be sent; the last of them has a completion.
		n, next := 0, from
		for most := min(o.room(), postAtOnce); next < to && n < most; next++ {
			switch k := b.Segments(next); {
			case k == 0:
			case uint64(b.PacketLen(next)) > o.longest:
				s.refuse(b, next, engine.DropTooLong)
			case k > o.sges:
				s.refuse(b, next, engine.DropRefused)
			case !o.reaches(b, next, k):
				s.refuse(b, next, engine.DropRefused)
			default:
				o.chosen[n] = next
				n++
			}
		}
		if n == 0 {
			for next < to && b.Segments(next) == 0 {
				next++
			}
			if next == from || next < to {
				o.starve()
				return next
			}
			from = next
			continue
		}
		done := o.give(s, b, n)
		for _, i := range o.chosen[:done] {
			b.Builder().ForgetPart(i, i+1)
		}
		if done < n {
			return o.chosen[done]
		}
		from = next
	}
	return from
}

// starve notes that the sender waits for the receiver's word.
func (o *txChannel) starve() {
	if o.w.room() > 0 || o.dry {
		return
	}
	o.dry = true
	o.c.port.counts.waits.Add(1)
	o.c.ask()
}

// reaches reports whether the device can reach all of a packet.
func (o *txChannel) reaches(b *burst.Burst, i, segments int) bool {
	for k := range segments {
		if _, err := o.c.port.registered(b.Segment(i, k).Region); err != nil {
			return false
		}
	}
	return true
}

// give posts the n packets that were chosen in one call, and returns how many the device took.
func (o *txChannel) give(s *txSink, b *burst.Burst, n int) int {
	p := o.c.port
	o.chain.Reset()
	last := o.last
	for k, i := range o.chosen[:n] {
		o.sge = o.sge[:0]
		total, pieces, far := uint32(0), uint32(0), false
		for m := range b.Segments(i) {
			g := b.Builder().Part(i, m)
			if g.Handle != burst.NoHandle {
				o.pieces[last%uint64(len(o.pieces))] = piece{g.Source, g.Handle}
				last++
				pieces++
			}
			if g.Len == 0 {
				continue
			}
			r, _ := p.registered(g.Source.Region())
			o.sge = append(o.sge, r.SGE(g.Off, g.Len))
			total += g.Len
			far = far || r.Hidden()
		}
		at := o.tail + uint64(k)
		var flags ibv.SendFlags
		if o.unsignaled++; o.unsignaled >= p.o.SignalEvery || k == n-1 {
			flags, o.unsignaled = ibv.Signaled, 0
		}
		if int(total) <= o.inline && !far { // the processor copies what goes inline
			flags |= ibv.Inline
		}
		switch {
		case p.o.Transport == RC || o.c.plain && p.o.Transport == UC:
			o.chain.Send(at, flags, o.sge...)
		case o.c.plain:
			o.chain.SendImm(at, flags, o.x.mine.qpn, o.sge...)
			o.x.to(o.chain)
		default:
			o.chain.SendImm(at, flags, uint32(o.w.sent)+uint32(k), o.sge...)
			o.x.to(o.chain)
		}
		o.posts[at%uint64(len(o.posts))] = posted{s: s, pieces: pieces, bytes: total}
	}
	done, err := o.x.qp.PostSend(o.chain)
	if err != nil {
		o.fail(err)
	}
	for k := range done {
		o.last += uint64(o.posts[(o.tail+uint64(k))%uint64(len(o.posts))].pieces)
	}
	o.tail += uint64(done)
	o.w.sent += uint64(done)
	o.c.guard()
	s.flying.Add(int64(done))
	return done
}

// fail has the driver end the connection.
func (o *txChannel) fail(err error) {
	if !o.broken {
		o.broken = true
		o.c.port.report(o.c, err)
	}
}

// reap takes what the device has done, and reports whether that changed anything.
func (o *txChannel) reap() bool {
	some := false
	for !o.closed {
		n, err := o.x.cq.Poll(o.wc[:])
		if err != nil {
			o.fail(err)
			return some
		}
		for i := range n {
			o.take(&o.wc[i])
		}
		if n > 0 {
			some = true
		}
		if n < len(o.wc) {
			break
		}
	}
	if o.credits != nil && o.credits.Len() > 0 && !o.broken {
		if _, err := o.x.qp.PostRecv(o.credits); err != nil {
			o.fail(err)
		}
		o.credits.Reset()
	}
	return some
}

// take takes one completion.
func (o *txChannel) take(wc *ibv.WC) {
	id := wc.ID()
	if s := wc.Status(); s != ibv.Success {
		if s != ibv.WRFlushErr {
			o.fail(wc.Err())
		} else if !o.broken {
			// what failed comes before, or an event of the device says it; the watchdog sees to it
			// if neither does
			o.broken, o.flushed = true, wc.Err()
			o.c.guard()
		}
		if id&creditID == 0 {
			o.done(id, 1, false) // those before it have arrived
		}
		return
	}
	if id&creditID != 0 {
		if wc.Flags()&ibv.FlagImm != 0 && o.w.raise(wc.Imm()) {
			o.dry = false
		}
		if o.addCredit() != nil {
			o.fail(engine.ErrInternal)
		}
		return
	}
	o.done(id+1, 0, true)
}

// done gives back what requests before the one with that number had, which have left; and of failed
// ones, it and those behind it, which have not.
func (o *txChannel) done(until uint64, failed int, left bool) {
	if until < o.head || until > o.tail {
		return
	}
	o.retire(until, true)
	if failed > 0 {
		o.retire(o.tail, false)
	}
}

// retire gives back the memory and the descriptors of requests before the one with that number.
func (o *txChannel) retire(until uint64, left bool) {
	var s *txSink
	var src *burst.Source
	n, bytes := 0, 0
	count := func() {
		if s != nil && n > 0 {
			s.done(n, bytes, left)
		}
		n, bytes = 0, 0
	}
	for ; o.head < until; o.head++ {
		at := o.head % uint64(len(o.posts))
		x := &o.posts[at]
		for range x.pieces {
			g := &o.pieces[o.first%uint64(len(o.pieces))]
			if g.src != src || len(o.reclaim) == cap(o.reclaim) {
				if len(o.reclaim) > 0 {
					src.Reclaim(o.reclaim)
				}
				src, o.reclaim = g.src, o.reclaim[:0]
			}
			o.reclaim = append(o.reclaim, g.h)
			g.src = nil
			o.first++
		}
		if x.s != s {
			if len(o.reclaim) > 0 { // memory first: an Alloc that sees the descriptors free may look for it
				src.Reclaim(o.reclaim)
				o.reclaim = o.reclaim[:0]
			}
			count()
			s = x.s
		}
		n++
		bytes += int(x.bytes)
		x.s = nil
	}
	if len(o.reclaim) > 0 {
		src.Reclaim(o.reclaim)
		o.reclaim = o.reclaim[:0]
	}
	count()
}

// rearm asks for an event, and takes what came before it.
func (o *txChannel) rearm() {
	if o.armed || o.closed || o.broken {
		return
	}
	o.armed = true
	if err := o.x.cq.Arm(false); err != nil {
		o.fail(err)
	}
	o.reap()
}

// event implements owner.
func (o *txChannel) event() {
	c := o.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.closed {
		return
	}
	o.armed = false
	o.x.cq.Ack()
	o.reap()
	c.flush()
	if o.flying() > 0 || c.held.First() != nil {
		o.rearm()
		c.flush()
	}
	c.endWithdrawn(o)
}

// close ends the channel. What the device still had counts as not sent.
func (o *txChannel) close() {
	if o.closed {
		return
	}
	if o.chain != nil {
		o.reap()
	}
	o.closed = true
	o.c.port.control.disown(o.x.cq)
	o.x.close()
	o.retire(o.tail, false)
	if o.chain != nil {
		o.chain.Close()
	}
	if o.credits != nil {
		o.credits.Close()
	}
}
