package engine

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// maxCut is the number of segments that one packet is cut into at most, as with UDP_SEGMENT of
// Linux.
const maxCut = 64

// offload does in software what packets ask for and the device does not do. Checksums of packets in
// one piece it writes where they lie, on the goroutine that sends. All else is done under the
// mutex: packets that are cut, or whose bytes are shared, are copied to slots of the queue.
type offload struct {
	does     burst.Flags                         // of burst.Requests, by the device
	not      func(*burst.Burst, int) burst.Flags // of a packet's requests, not by the device after all; may be nil
	payloads bool                                // packets are payloads, not frames
	source   func() packet.MAC                   // of TxSpec.SourceMAC; nil: none is written
	drops    [NumDrops]atomic.Uint64

	mu    sync.Mutex
	whole []byte       // a packet in one piece
	next  []byte       // one that it becomes
	out   *burst.Burst // what is sent in its place
	done  *burst.Burst // packets whose copies are sent
}

// Offload says which requests of packets the device itself does, and whether packets are payloads,
// which have no headers and whose transport does the checksums. Without it software does them all,
// on frames. Call it before Start.
func (f *TxFront) Offload(device burst.Flags, payloads bool) {
	if payloads {
		device |= burst.ChecksumIPv4 | burst.ChecksumL4 | burst.ChecksumPartial
	}
	f.off.does, f.off.payloads = device&burst.Requests, payloads
}

// Except has software do more for some packets than for others: not is what of a packet's requests
// the device does not do, besides what Offload says of all. Any goroutine that sends calls it. Call
// Except before Start.
func (f *TxFront) Except(not func(b *burst.Burst, i int) burst.Flags) { f.off.not = not }

// todo is what software does of the requests of packet i.
func (o *offload) todo(b *burst.Burst, i int) burst.Flags {
	asked := b.Flags(i) & burst.Requests
	todo := asked &^ o.does
	if o.not != nil && asked&o.does != 0 {
		todo |= asked & o.not(b, i)
	}
	return todo
}

// SourceMAC has the queue write that address into each frame as it is sent, for TxSpec.SourceMAC;
// of a frame whose bytes other bursts share it sends a copy. Call it before Start.
func (f *TxFront) SourceMAC(mac func() packet.MAC) { f.off.source = mac }

// Send implements TxQueue.
func (f *TxFront) Send(b *burst.Burst) error {
	if b != nil {
		if asked := b.Builder().Asked(); f.off.source != nil || asked&^f.off.does != 0 || f.off.not != nil &&
			asked != 0 {
			return f.sendAsked(b)
		}
	}
	return f.box.Send(b)
}

// sendAsked is Send of packets that the queue changes: of which some ask for what the device does
// not do, or all get a source address.
func (f *TxFront) sendAsked(b *burst.Burst) (err error) {
	o := &f.off
	rest := false // packets that are not done where they lie
	for i := range b.Len() {
		todo := o.todo(b, i)
		switch {
		case b.Segments(i) == 0 || todo == 0 && o.source == nil:
		case shared(b, i) || todo != 0 && (todo&burst.Segmented != 0 || b.Segments(i) > 1 || b.Bytes(i, 0) == nil) ||
			!o.address(b, i):
			rest = true
		case todo != 0 && !checksums(b.Bytes(i, 0), todo):
			rest = true
		case todo != 0:
			b.Builder().Answer(i, todo)
		}
	}
	if !rest {
		return f.box.Send(b)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.out == nil {
		o.out, o.done = burst.NewSegmented(maxCut, 4*maxCut), burst.NewSegmented(1, burst.MaxSegments)
	}
	for i := range b.Len() {
		if b.Segments(i) == 0 {
			continue
		}
		if e := f.sendOne(b, i); e != nil && err == nil {
			err = e
		}
	}
	if e := f.box.Send(o.out); e != nil && err == nil {
		err = e
	}
	b.Release() // what was dropped
	return err
}

// sendOne moves packet i of b to what is sent, or puts there what it becomes. A packet that stays
// in b is dropped, and counted.
func (f *TxFront) sendOne(b *burst.Burst, i int) error {
	o := &f.off
	todo := o.todo(b, i)
	shared := shared(b, i)
	change := todo != 0 || shared && o.source != nil
	if !shared && !o.address(b, i) || change && b.Hidden() >= 0 && !reached(b, i) {
		return o.drop(DropRefused,
			fmt.Errorf("%w: packet %d is to be changed, and is in memory that the CPU cannot reach", ErrUnsupported, i))
	}
	if change {
		p := o.view(b, i)
		size := len(p)
		if todo&burst.Segmented != 0 {
			size = b.SegmentSize(i)
		}
		var l packet.Layers
		head := 0
		if todo&burst.ChecksumPartial != 0 {
			if _, _, ok := partial(p); !ok {
				return o.drop(DropBadChecksum,
					fmt.Errorf("%w: packet %d, %d bytes, has a checksum that was left to a device, and is no whole "+
						"packet of TCP or UDP", ErrInvalid, i, len(p)))
			}
		}
		if !o.payloads && todo != 0 {
			if why := packet.Parse(p, &l); why == packet.OK && l.HasPorts && !l.IsFragment() {
				head = int(l.Payload)
				p = p[:l.End] // without padding
			} else if todo&burst.Segmented != 0 {
				return o.drop(DropBadFrame,
					fmt.Errorf("%w: packet %d, %d bytes, has a segment size and is no whole packet of TCP or UDP (%v)",
						ErrInvalid, i, len(p), why))
			}
		}
		switch {
		case len(p)-head > size || shared:
			return f.cut(b, i, p, &l, head, min(size, len(p)-head), b.Flags(i))
		case b.Segments(i) == 1:
			checksums(b.Bytes(i, 0), todo)
		default:
			checksums(p, todo)
			copyBack(b, i, p)
		}
		b.Builder().Answer(i, todo)
	}
	if b.Take(o.out, i) {
		return nil
	}
	err := f.box.Send(o.out)
	if !b.Take(o.out, i) {
		return o.drop(DropTooLong, fmt.Errorf("%w: packet %d has %d segments in more memories than fit", ErrInvalid, i,
			b.Segments(i)))
	}
	return err
}

// cut puts packets in the place of packet i: the headers of p and size bytes of its payload, the
// next ones, and so on, in slots of the queue. Software computes their checksums, also where the
// device could: the bytes are in the cache.
func (f *TxFront) cut(b *burst.Burst, i int, p []byte, l *packet.Layers, head, size int, todo burst.Flags) (err error) {
	o := &f.off
	data := p[head:]
	n := 1
	if len(data) > size {
		n = (len(data) + size - 1) / size
	}
	front := head // bytes in front of the payload in what Alloc calls the length of a packet
	if len(f.slots.pools) > 1 {
		front = 0
	}
	if n > maxCut || front+size > f.slots.most || head > f.slots.pools[0].SlotSize()-f.slots.headroom {
		return o.drop(DropTooLong,
			fmt.Errorf("%w: packet %d, %d bytes, makes %d packets of %d bytes: expected at most %d of %d", ErrInvalid,
				i, len(p), n,
				head+size, maxCut, f.slots.most))
	}
	pieces := f.slots.pieces(front + size)
	if o.out.Len()+n > o.out.Cap() || o.out.SegmentRoom() < n*pieces {
		err = f.box.Send(o.out)
	}
	if o.out.SegmentRoom() < n*pieces {
		o.out = burst.NewSegmented(maxCut, n*pieces)
	}
	if more := f.box.Reserve(n - 1); more < n-1 {
		f.box.Unreserve(more)
		f.slots.CountFull()
		return o.drop(DropRefused, fmt.Errorf("%w: packet %d makes %d packets", ErrFull, i, n))
	} else if more > 0 {
		o.out.Builder().Reserve(f.box, more)
	}
	first := o.out.Len()
	have := f.slots.fill(o.out, n-1, front+size)
	if have == n-1 {
		have += f.slots.fill(o.out, 1, front+len(data)-(n-1)*size)
	}
	if have < n {
		o.out.Truncate(first) // with what was reserved
		f.slots.noBuffers.Add(1)
		return o.drop(DropNoBuffers, fmt.Errorf("%w: packet %d makes %d packets", ErrNoBuffers, i, n))
	}
	for k := range n {
		part := data[min(k*size, len(data)):min((k+1)*size, len(data))]
		o.write(o.out, first+k, p[:head], part, l, k, n, size, todo)
		o.address(o.out, first+k)
		o.out.SetConn(first+k, b.Conn(i))
		if ns, ok := b.Time(i); ok {
			o.out.SetTime(first+k, ns)
		}
	}
	b.Take(o.done, i)
	if k := o.done.Builder().Reserved(f.box); k > 0 { // its descriptor is that of one of the others
		o.done.Builder().Unreserve()
		o.out.Builder().Reserve(f.box, k)
	}
	o.done.Release()
	return err
}

// write makes packet at of out the k-th of n that a packet becomes.
func (o *offload) write(out *burst.Burst, at int, head, data []byte, l *packet.Layers, k, n, size int,
	todo burst.Flags) {
	o.next = append(append(o.next[:0], head...), data...)
	p := o.next
	if len(head) > 0 {
		total := len(p) - int(l.L3)
		if l.IPVersion == 4 {
			ip := packet.IPv4(p[l.L3:])
			ip.SetTotalLen(uint16(total))
			ip.SetID(ip.ID() + uint16(k))
		} else {
			packet.IPv6(p[l.L3:]).SetPayloadLen(uint16(total - packet.IPv6Len))
		}
		if l.Proto == packet.ProtoUDP {
			packet.UDP(p[l.L4:]).SetLength(uint16(len(p) - int(l.L4)))
		} else {
			t := packet.TCP(p[l.L4:])
			t.SetSeq(t.Seq() + uint32(k*size))
			flags := t.Flags()
			if k < n-1 {
				flags &^= packet.TCPFin | packet.TCPPsh
			}
			if k > 0 {
				flags &^= packet.TCPCwr
			}
			t.SetFlags(flags)
		}
		if n > 1 {
			todo |= burst.ChecksumIPv4 | burst.ChecksumL4
		}
	}
	if !o.payloads {
		checksums(p, todo)
	}
	if out.Role(at, 0) == burst.Header {
		out.SetLen(at, 0, len(head))
		out.SetLen(at, 1, len(data))
	}
	copyBack(out, at, p)
}

// address writes the source address of packet i, if the queue does. It is false where the CPU does
// not reach it.
func (o *offload) address(b *burst.Burst, i int) bool {
	return o.source == nil || setSource(b, i, o.source()) || b.PacketLen(i) < packet.EthernetLen
}

// shared reports whether other bursts may refer to bytes of packet i.
func shared(b *burst.Burst, i int) bool {
	for k := range b.Segments(i) {
		if b.Builder().Part(i, k).Source.Shared() {
			return true
		}
	}
	return false
}

// view returns packet i in one piece.
func (o *offload) view(b *burst.Burst, i int) (p []byte) {
	if b.Segments(i) == 1 {
		return b.Bytes(i, 0)
	}
	n := b.PacketLen(i)
	if cap(o.whole) < n {
		o.whole = make([]byte, n)
	}
	return o.whole[:b.CopyTo(o.whole[:n], i)]
}

func (o *offload) drop(why Drop, err error) error {
	o.drops[why].Add(1)
	return err
}

// reached reports whether the CPU reaches all of packet i.
func reached(b *burst.Burst, i int) bool {
	for k := range b.Segments(i) {
		if b.Bytes(i, k) == nil && b.Builder().Part(i, k).Len > 0 {
			return false
		}
	}
	return true
}

// copyBack spreads p over the segments of packet i, which are that long together.
func copyBack(b *burst.Burst, i int, p []byte) {
	for k := range b.Segments(i) {
		p = p[copy(b.Bytes(i, k), p):]
	}
}

// partial finds the checksum in p that was left to a device. ok is also true where the packet has
// the right one by now.
func partial(p []byte) (left packet.Partial, found, ok bool) {
	var l packet.Layers
	if left, found = packet.FindPartial(p, &l); found {
		return left, true, true
	}
	if !l.HasPorts || l.IsFragment() {
		return left, false, false
	}
	body := p[l.L4:l.End]
	if l.Proto == packet.ProtoUDP {
		return left, false, packet.UDP(body).ChecksumOK(l.Src(p), l.Dst(p))
	}
	return left, false, packet.TCP(body).ChecksumOK(l.Src(p), l.Dst(p))
}

// checksums writes those that are asked for into a frame in one piece. What has none, or is
// malformed, stays as it is. It is false where burst.ChecksumPartial is asked for, and there is no
// such checksum and no right one.
func checksums(p []byte, what burst.Flags) bool {
	var l packet.Layers
	if what&burst.ChecksumPartial != 0 {
		left, found, ok := partial(p)
		if !ok {
			return false
		}
		if found {
			left.Complete(p)
		}
	}
	why := packet.Parse(p, &l)
	if l.L4 == 0 {
		return true
	}
	if what&burst.ChecksumIPv4 != 0 && l.IPVersion == 4 {
		packet.IPv4(p[l.L3:]).FillChecksum()
	}
	if what&burst.ChecksumL4 == 0 || why != packet.OK || !l.HasPorts || l.IsFragment() {
		return true
	}
	src, dst := l.Src(p), l.Dst(p)
	switch body := p[l.L4:l.End]; l.Proto {
	case packet.ProtoUDP:
		packet.UDP(body).FillChecksum(src, dst)
	case packet.ProtoTCP:
		packet.TCP(body).FillChecksum(src, dst)
	}
	return true
}
