package tcp

import (
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
)

const (
	stageSize   = 32 << 10 // received bytes whose place is not known yet
	scratchSize = 16 << 10
	inlineMax   = 256 // payload up to this size travels in the scratch buffer, next to its header
	flightSize  = 1024
	// bulk is the payload size from which a read goes no further than the next header: what is read
	// beyond it has to be copied, which takes longer than a read of its own
	// (docs/measurements/tcp.md).
	bulk = 16 << 10
	// ctlMax bounds the short frames that wait: one refusal for each frame that the peer may have
	// unacknowledged, one request to cancel for each operation.
	ctlMax = flightSize + maxWindow
)

// stream is one connection without its socket: what goes out and what comes in.
type stream struct {
	index int
	in    input
	out   output
	tx    *recordOut // nil: what goes out is not sealed here
	rx    *recordIn  // nil: what comes in is not opened here

	kernelOut, kernelIn bool   // the kernel seals, opens
	kernelUsed          uint64 // blocks that the kernel sealed
}

// sent is a frame that the peer has not acknowledged yet.
type sent struct {
	seq uint32
	op  uint16 // slot
}

// control is a short frame that waits to be sent.
type control struct {
	typ   frameType
	op    uint64
	where uint64
	imm   uint64
}

// output is a batch of whole frames on its way, and what the peer still has to acknowledge.
type output struct {
	seq     uint32
	scratch []byte      // headers, tables, messages and small payloads of the batch; never reallocated while in use
	iov     []sys.Iovec // the batch
	first   int         // the first that is not gone completely
	left    int         // bytes that are not gone
	large   bool        // the batch has payload that is worth MSG_ZEROCOPY
	zcSent  uint32      // sends with MSG_ZEROCOPY
	zcDone  uint32      // of those, the kernel is through with

	inScratch bool // the last piece is scratch

	served []servedRange // payload in the batch that is memory exported by this node

	flight    [flightSize]sent
	fhead, fn int
	acked     uint32 // the last frame that the peer acknowledged

	ack     uint32 // how many more of the peer's frames were dealt with
	ackNext bool   // the next header says so

	ctl []control // waiting to be sent; bounded by ctlMax
}

// servedRange says which pieces of a batch belong to an export; a Fence copies what is left of
// them.
type servedRange struct {
	first, end int
	key        path.Key
}

func (o *output) init() {
	if o.scratch == nil {
		o.scratch = make([]byte, 0, scratchSize)
		o.iov = make([]sys.Iovec, 0, sys.MaxIovecs)
	}
}

// room reports whether a frame with n bytes of header, table, message and inlined payload and k
// further pieces fits.
func (o *output) room(n, k int) bool {
	return o.scratch == nil || cap(o.scratch)-len(o.scratch) >= n && cap(o.iov)-len(o.iov) >= k+2
}

// reset starts a new batch; the old one must be gone completely.
func (o *output) reset() {
	o.scratch = o.scratch[:0]
	o.iov = o.iov[:0]
	o.served = o.served[:0]
	o.first, o.left, o.large, o.inScratch = 0, 0, false, false
}

// reserve takes n bytes of scratch into the batch and returns them to be filled.
func (o *output) reserve(n int) []byte {
	o.init()
	at := len(o.scratch)
	o.scratch = o.scratch[:at+n]
	b := o.scratch[at : at+n : at+n]
	o.add(b, o.inScratch)
	o.inScratch = true
	return b
}

// payload appends memory that is sent from where it is. sameAs says that it belongs to the same
// allocation as the piece before it, so that both may become one.
func (o *output) payload(b []byte, sameAs bool) {
	o.add(b, sameAs)
	o.inScratch = false
}

func (o *output) add(b []byte, same bool) {
	if len(b) == 0 {
		return
	}
	o.left += len(b)
	if k := len(o.iov); same && k > 0 && o.iov[k-1].Grow(b) {
		return
	}
	o.iov = o.iov[:len(o.iov)+1]
	o.iov[len(o.iov)-1].Set(b)
}

// batch is what remains to be sent.
func (o *output) batch() []sys.Iovec { return o.iov[o.first:] }

// gone records that the socket took n bytes of the batch.
func (o *output) gone(n int) {
	o.left -= n
	for n > 0 {
		v := &o.iov[o.first]
		if l := v.Len(); n >= l {
			n -= l
			o.first++
			continue
		}
		v.Skip(n)
		return
	}
}

// header writes a frame's header into b, which was reserved, and counts it.
func (o *output) header(b []byte, h *header) {
	if o.ackNext {
		o.ackNext = false
		h.flags |= flagAck
		h.ack = uint16(o.ack)
	}
	h.seq = o.seq
	o.seq++
	h.put(b)
}

// fly remembers that the frame just written has to be acknowledged.
func (o *output) fly(slot uint16) {
	o.flight[(o.fhead+o.fn)%flightSize] = sent{o.seq - 1, slot}
	o.fn++
}

// serve appends exported memory. same says that the piece before it is exported memory of the same
// frame.
func (o *output) serve(b []byte, key path.Key, same bool) {
	if k := len(o.served); same && o.served[k-1].key == key {
		o.payload(b, true)
		o.served[k-1].end = len(o.iov)
		return
	}
	first := len(o.iov)
	o.payload(b, false)
	o.served = append(o.served, servedRange{first, len(o.iov), key})
}

// spill replaces what is left of exported memory in the batch by copies, so that the export can go.
func (o *output) spill(key path.Key) {
	for _, r := range o.served {
		if r.key != key {
			continue
		}
		for i := max(r.first, o.first); i < r.end; i++ {
			o.iov[i].Set(append([]byte(nil), o.iov[i].Bytes()...))
		}
	}
}

type inputState uint8

const (
	wantHeader inputState = iota
	wantTable
	wantPayload
	wantMessage
)

// input takes one direction of a stream apart. Payload goes from the socket to its final place;
// headers, tables and messages pass through the stage.
type input struct {
	seq     uint32 // expected next
	state   inputState
	h       header
	stage   []byte
	r, w    int
	table   []byte // the table's bytes so far; capacity maxFrameBlocks entries once one came
	dst     []sys.Iovec
	di      int    // the piece being filled
	left    int    // payload bytes that did not come yet
	crc     uint32 // of the payload so far
	refused reason // the payload is thrown away, for this reason; 0: it is placed
	slot    uint16 // Data: the operation
	size    uint32 // payload of the last frame that had any, the best guess for the next one
	last    int    // size of the last table, the same
	paused  bool   // no room for what the next frame brings

	ackOwed      bool
	ackSent      uint32 // what this side told the peer last
	unackedBytes int
	unacked      int // frames
}

// targets appends the places for the bytes that come next. An empty result means that nothing can
// be taken in now.
func (in *input) targets(v []sys.Iovec, trash []byte) []sys.Iovec {
	v = v[:0]
	if in.stage == nil {
		in.stage = make([]byte, stageSize)
	}
	if in.r == in.w {
		in.r, in.w = 0, 0
	} else if in.r > 0 && (in.w == stageSize || in.state != wantHeader) {
		in.w = copy(in.stage, in.stage[in.r:in.w])
		in.r = 0
	}
	ahead := in.stage[in.w:]
	switch in.state {
	case wantTable:
		n := int(in.tableSize())
		v = v[:1]
		v[0].Set(in.table[len(in.table):n])
		if in.h.typ == framePutv && in.left >= bulk {
			return v // what follows has its place only once the table is known
		}
	case wantPayload:
		if in.left > 0 {
			if in.refused != 0 {
				for n := in.left; n > 0 && len(v) < 16; n -= len(trash) {
					v = v[:len(v)+1]
					v[len(v)-1].Set(trash[:min(n, len(trash))])
				}
				if len(v) == 16 {
					return v
				}
			} else {
				k := min(len(in.dst)-in.di, sys.MaxIovecs-1)
				v = append(v, in.dst[in.di:in.di+k]...)
				if in.di+k < len(in.dst) {
					return v
				}
			}
		}
	}
	if in.size >= bulk {
		ahead = ahead[:min(len(ahead), headerSize+in.last+int(in.h.msg))]
	}
	if len(ahead) > 0 && !in.paused {
		v = v[:len(v)+1]
		v[len(v)-1].Set(ahead)
	}
	return v
}

func (in *input) tableSize() uint32 {
	if in.h.typ == frameGet {
		return in.h.payload
	}
	return uint32(in.h.where>>32) * blockSize
}

// ownTable makes room for a table.
func (in *input) ownTable() {
	if in.table == nil {
		in.table = make([]byte, 0, maxFrameBlocks*blockSize)
	}
	in.table = in.table[:0]
}

// addTarget appends a place for payload; same as for output.payload.
func (in *input) addTarget(b []byte, same bool) {
	if len(b) == 0 {
		return
	}
	if k := len(in.dst); same && k > 0 && in.dst[k-1].Grow(b) {
		return
	}
	if in.dst == nil {
		in.dst = make([]sys.Iovec, 0, 1)
	}
	if len(in.dst) == cap(in.dst) && cap(in.dst) < maxFrameBlocks {
		d := make([]sys.Iovec, len(in.dst), maxFrameBlocks)
		copy(d, in.dst)
		in.dst = d
	}
	in.dst = in.dst[:len(in.dst)+1]
	in.dst[len(in.dst)-1].Set(b)
}

// shorten takes the last n bytes of scratch back out of the batch.
func (o *output) shorten(n int) {
	v := &o.iov[len(o.iov)-1]
	v.Set(v.Bytes()[:v.Len()-n])
	o.left -= n
}
