//go:build dpdk

package dpdk

import (
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/cdpdk"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// device is the sink of a queue: the driver.
type device txQueue

// Transmit implements engine.Sink.
func (d *device) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	q := (*txQueue)(d)
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.started {
		return from, time.Now().Add(time.Millisecond) // the port waits for its queues
	}
	for from < to {
		next, again := q.send(b, from, to)
		if from = next; again {
			q.reap()
			q.watch()
			return from, time.Now().Add(sendAgain)
		}
	}
	q.reap()
	if q.tx.Out() > 0 {
		q.pause = sendAgain
		q.watch()
	}
	return to, time.Time{}
}

// refuse gives up one packet.
func (q *txQueue) refuse(b *burst.Burst, i int, why engine.Drop) {
	b.Builder().ReleasePart(i, i+1)
	q.drops.Inc(why)
	q.out.Complete(1)
}

// send gives some packets to the driver. It returns the first that is left, and whether the driver
// takes no more now.
func (q *txQueue) send(b *burst.Burst, from, to int) (next int, again bool) {
	if n, sent := q.sendRun(b, from, min(to, from+sendAtOnce)); n > 0 {
		return q.after(b, from, n, sent, false)
	}
	segs := q.tx.Segs()
	packets, n := 0, 0
	for next = from; next < to && packets < sendAtOnce; next++ {
		k := b.Segments(next)
		if k == 0 {
			if packets > 0 {
				break // give sends packets that follow each other
			}
			from++
			continue
		}
		if n+k > len(segs) || k > len(q.free) {
			again = packets == 0
			break
		}
		if why := q.fit(b, next); why != engine.NumDrops {
			if packets > 0 {
				break // those in front of it go first
			}
			q.refuse(b, next, why)
			from++
			continue
		}
		laid := q.lay(b, next, segs[n:])
		if laid == 0 { // no bounce buffer is free
			again = packets == 0
			break
		}
		n += laid
		packets++
	}
	if packets == 0 {
		return next, again
	}
	return q.give(b, from, packets, n)
}

// sendRun gives the driver packets that are of one segment each in memory of one source, and ask
// for nothing: nearly all. Of n = 0 there are none: the next one takes more thought. sent are those
// of n that the driver took.
func (q *txQueue) sendRun(b *burst.Burst, from, to int) (n, sent int) {
	if !q.port.reads || q.held || b.Builder().Asked() != 0 || b.Segments(from) == 0 {
		return 0, 0
	}
	first := b.Builder().Part(from, 0)
	run := b.Builder().Run(first.Source, from, to)
	ones := q.tx.Ones()[:min(run.Len(), len(q.free))]
	free := q.free[len(q.free)-len(ones):]
	base, most := uint64(address(b.Bytes(from, 0)))-first.Off,
		uint32(min(q.port.can.MaxPacket, q.port.info.MTU+packet.EthernetLen))
	for i := range ones {
		h, off, size := run.At(i)
		if size < packet.EthernetLen || size > most {
			break
		}
		x := free[len(free)-1-i]
		ones[i] = cdpdk.One{Addr: base + off, Index: x, Len: size}
		q.parts[x] = part{first.Source, h, true}
		n++
	}
	if n == 0 {
		return 0, 0
	}
	q.free = q.free[:len(q.free)-n]
	sent = q.tx.Run(n)
	bytes := 0
	for i := range ones[:sent] {
		bytes += int(ones[i].Len)
	}
	b.Builder().ForgetPart(from, from+sent)
	for i := range ones[sent:n] { // the headers that the driver did not take
		q.untake(ones[sent+i].Index)
	}
	q.retireAll(q.tx.Back())
	q.packets.Add(uint64(sent))
	q.bytes.Add(uint64(bytes))
	return n, sent
}

// give gives the driver packets from from on, which are laid out in n segments. It returns what
// send does.
func (q *txQueue) give(b *burst.Burst, from, packets, n int) (next int, again bool) {
	segs := q.tx.Segs()
	taken, refused := q.tx.Burst(n)
	sent, bytes := 0, 0
	for at := 0; at < taken; at += int(segs[at].Segs) {
		bytes += int(segs[at].PktLen)
		if q.from != nil && q.bounced(segs[at].Index) {
			b.Builder().ReleasePart(from+sent, from+sent+1)
			// its memory is free at once, however long the driver keeps the copy: net_virtio until
			// it needs the descriptor
			q.owed++
			q.copied.Add(uint64(segs[at].PktLen))
		}
		sent++
	}
	b.Builder().ForgetPart(from, from+sent)
	q.retireAll(q.tx.Back())
	for at := taken; at < n; at++ { // the headers that the driver did not take
		q.untake(segs[at].Index)
	}
	q.packets.Add(uint64(sent))
	q.bytes.Add(uint64(bytes))
	return q.after(b, from, packets, sent, refused)
}

// after is what send does once the driver took some packets from from on: the first that is left,
// and whether the driver takes no more now. refused says that it can never take the first that it
// did not take.
func (q *txQueue) after(b *burst.Burst, from, packets, sent int, refused bool) (next int, again bool) {
	next = from + sent
	switch {
	case sent == packets:
		return next, false
	case refused:
		q.refuse(b, next, engine.DropRefused)
		return next + 1, false
	case sent == 0 && q.packets.Load() > 0 && q.down(): // a link that has not been up yet may take its time
		for i := from; i < from+packets; i++ {
			q.refuse(b, i, engine.DropDown)
		}
		return from + packets, false
	}
	return next, true
}

// down reports whether the link is down: what a driver does not take then it will not take soon.
func (q *txQueue) down() bool {
	up, _, err := q.port.dev.Link()
	return err == nil && !up
}

// bounced reports whether a header points at a bounce buffer.
func (q *txQueue) bounced(i uint32) bool { return q.from != nil && q.parts[i].src == q.from }

// untake takes a header back that was laid out and not taken. A copy in a bounce buffer goes; the
// packet itself is still in its burst.
func (q *txQueue) untake(i uint32) {
	if q.bounced(i) {
		q.from.Reclaim([]burst.Handle{q.parts[i].h})
	}
	q.parts[i] = part{}
	q.free = append(q.free, i)
}

// fit says why a packet cannot be sent, NumDrops if it can.
func (q *txQueue) fit(b *burst.Burst, i int) engine.Drop {
	n := b.PacketLen(i)
	switch {
	case n > q.port.can.MaxPacket && (b.SegmentSize(i) == 0 || n > longest):
		return engine.DropTooLong
	// a driver may take it never, and none behind it
	case n > q.port.info.MTU+packet.EthernetLen && b.SegmentSize(i) == 0:
		var l packet.Layers
		packet.Parse(b.Bytes(i, 0), &l)
		if n > q.port.info.MTU+packet.EthernetLen+int(l.NumTags)*packet.VLANLen {
			return engine.DropTooLong
		}
	case n < packet.EthernetLen:
		return engine.DropBadFrame
	}
	return engine.NumDrops
}

// lay lays out a packet that fits, and returns the number of its segments: 0 where it needs a
// bounce buffer and none is free.
func (q *txQueue) lay(b *burst.Burst, i int, segs []cdpdk.Seg) int {
	k := b.Segments(i)
	if k > 1 && !q.port.chains || !q.port.reads {
		slot, err := q.bounce.Get()
		if err != nil {
			return 0
		}
		k = 1
		q.lays(&segs[0], slot.Bytes()[:b.CopyTo(slot.Bytes(), i)], part{q.from, slot.Handle(), false})
	} else {
		for s := range k {
			g := b.Builder().Part(i, s)
			q.lays(&segs[s], b.Bytes(i, s), part{g.Source, g.Handle, s == k-1})
		}
	}
	segs[0].PktLen, segs[0].Segs = uint32(b.PacketLen(i)), uint8(k)
	if want := b.Flags(i) & burst.Requests; want != 0 {
		q.ask(b, i, want, &segs[0])
	}
	if q.held {
		if at, ok := b.Time(i); ok {
			segs[0].Time = q.port.clock.ticks(at)
		}
	}
	return k
}

// lays points a header at bytes.
func (q *txQueue) lays(s *cdpdk.Seg, bytes []byte, x part) {
	at := uint64(address(bytes))
	h := q.free[len(q.free)-1]
	q.free = q.free[:len(q.free)-1]
	*s = cdpdk.Seg{Addr: at, Index: h, Len: uint16(len(bytes))}
	q.parts[h] = x
}
