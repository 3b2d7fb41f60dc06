package tcp

import "github.com/penstock-io/penstock/transfer/path"

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

// requests are what the peer wants to have, in order, and the blocks of them. The rings are made
// when the first one comes.
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
	msg   []byte
}

// notices holds what arrived until Poll has handed all of it out. Its room is fixed: when it is
// used up the streams are not read, so that a slow consumer pushes back on the sender.
type notices struct {
	v     []notice
	next  int // the first that waits; messages before it may still be in use
	arena []byte
}

const (
	noticeSlots = 256
	noticeArena = 16 << 10
	noticeBegun = maxStreams - 1 // that the other streams may have begun to bring when there is room for one more
)

// room reports whether a notification with the longest message may begin to come.
func (q *notices) room() bool {
	return len(q.v) < noticeSlots && len(q.arena) <= noticeArena-path.MaxMessage
}

func (q *notices) push(imm, bytes uint64, msg []byte) {
	if q.v == nil {
		q.v = make([]notice, 0, noticeSlots+noticeBegun)
	}
	if q.arena == nil && len(msg) > 0 {
		q.arena = make([]byte, 0, noticeArena+noticeBegun*path.MaxMessage)
	}
	at := len(q.arena)
	q.arena = append(q.arena, msg...)
	q.v = append(q.v, notice{imm, bytes, q.arena[at:len(q.arena):len(q.arena)]})
}

// release ends the use of what the last Poll handed out, and makes room if nothing is left.
func (q *notices) release() {
	if !q.waits() {
		q.v, q.next, q.arena = q.v[:0], 0, q.arena[:0]
	}
}

// waits reports whether take has something.
func (q *notices) waits() bool { return q.next < len(q.v) }

// take fills events.
func (q *notices) take(events []path.Event) int {
	k := 0
	for ; k < len(events) && q.waits(); k++ {
		x := &q.v[q.next]
		events[k] = path.Event{Kind: path.EventNotify, Imm: x.imm, Bytes: x.bytes}
		if len(x.msg) > 0 {
			events[k].Msg = x.msg
		}
		q.next++
	}
	return k
}
