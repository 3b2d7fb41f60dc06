package tcp

import "github.com/penstock-io/penstock/path"

// fifo is a bounded queue of slot numbers.
type fifo struct {
	v    []uint16
	head int
	n    int
}

func newFifo(size int) fifo { return fifo{v: make([]uint16, size)} }

func (q *fifo) push(x uint16) {
	q.v[(q.head+q.n)%len(q.v)] = x
	q.n++
}

func (q *fifo) peek() uint16 { return q.v[q.head] }

func (q *fifo) pop() uint16 {
	x := q.v[q.head]
	q.head = (q.head + 1) % len(q.v)
	q.n--
	return x
}

// remove takes x out wherever it is.
func (q *fifo) remove(x uint16) {
	k := 0
	for i := range q.n {
		y := q.v[(q.head+i)%len(q.v)]
		if y != x {
			q.v[(q.head+k)%len(q.v)] = y
			k++
		}
	}
	q.n = k
}

// requests are what the peer wants to have, in order, and the blocks of them. The rings are made when the first one comes.
type requests struct {
	v       []request
	head, n int
	blocks  []want
	bhead   int
	bn      int
}

// add appends a request with its table. The caller has checked that there is room.
func (q *requests) add(r request, h *header, table []byte, window int) {
	if q.v == nil {
		q.v, q.blocks = make([]request, window), make([]want, maxRequested)
	}
	for i := range r.blocks {
		q.blocks[(q.bhead+q.bn+i)%maxRequested] = h.parseWant(table[i*h.entrySize():])
	}
	q.bn += r.blocks
	q.v[(q.head+q.n)%len(q.v)] = r
	q.n++
}

// first is the request that is being served.
func (q *requests) first() *request { return &q.v[q.head] }

// block is the one that the first request has come to.
func (q *requests) block() want { return q.blocks[(q.bhead+q.v[q.head].at)%maxRequested] }

// drop ends the first request.
func (q *requests) drop() {
	r := q.first()
	q.bhead = (q.bhead + r.blocks) % maxRequested
	q.bn -= r.blocks
	q.head = (q.head + 1) % len(q.v)
	q.n--
}

// cancel marks the requests of an operation.
func (q *requests) cancel(op uint64) {
	for i := range q.n {
		if r := &q.v[(q.head+i)%len(q.v)]; r.op == op {
			r.canceled = true
		}
	}
}

func (q *requests) clear() { q.n, q.bn = 0, 0 }

// notice is a notification that arrived. Its message lies in the notices' arena.
type notice struct {
	imm   uint64
	bytes uint64
	off   uint32
	n     uint16
}

// notices holds what arrived until Poll hands it out. Its room is fixed: when it is used up the streams are not read, so
// that a slow consumer pushes back on the sender.
type notices struct {
	v     []notice
	head  int
	n     int // waiting
	out   int // handed out by the last Poll; their messages are still in use
	arena []byte
	from  int // first byte in use
	used  int // bytes in use, including what wrapping around skipped
}

const (
	noticeSlots = 256
	noticeArena = 16 << 10
)

// room reports whether a notification with the longest message fits. Half of the arena may be lost by wrapping around.
func (q *notices) room() bool {
	if q.v == nil {
		return true
	}
	return q.n+q.out < len(q.v) && noticeArena-q.used >= 2*path.MaxMessage
}

func (q *notices) push(imm, bytes uint64, msg []byte) {
	if q.v == nil {
		q.v = make([]notice, noticeSlots)
	}
	var off int
	if len(msg) > 0 {
		if q.arena == nil {
			q.arena = make([]byte, noticeArena)
		}
		off = (q.from + q.used) % len(q.arena)
		if off+len(msg) > len(q.arena) { // messages stay in one piece
			q.used += len(q.arena) - off
			off = 0
		}
		copy(q.arena[off:], msg)
		q.used += len(msg)
	}
	q.v[(q.head+q.out+q.n)%len(q.v)] = notice{imm, bytes, uint32(off), uint16(len(msg))}
	q.n++
}

// release ends the use of what the last Poll handed out.
func (q *notices) release() {
	if q.out == 0 {
		return
	}
	for ; q.out > 0; q.out-- {
		x := &q.v[q.head]
		q.head = (q.head + 1) % len(q.v)
		if x.n > 0 {
			if int(x.off) < q.from { // it was put after wrapping around
				q.used -= len(q.arena) - q.from
				q.from = 0
			}
			q.used -= int(x.off) - q.from + int(x.n)
			q.from = (int(x.off) + int(x.n)) % len(q.arena)
		}
	}
	if q.n == 0 {
		q.from, q.used = 0, 0
	}
}

// take fills events.
func (q *notices) take(events []path.Event) int {
	k := 0
	for ; k < len(events) && q.n > 0; k++ {
		x := &q.v[(q.head+q.out)%len(q.v)]
		events[k] = path.Event{Kind: path.EventNotify, Imm: x.imm, Bytes: x.bytes}
		if x.n > 0 {
			end := x.off + uint32(x.n)
			events[k].Msg = q.arena[x.off:end:end]
		}
		q.out++
		q.n--
	}
	return k
}
