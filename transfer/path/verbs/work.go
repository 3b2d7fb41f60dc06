package verbs

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

// work is one operation, from Post until its EventDone was polled.
type work struct {
	op     path.Op
	msg    []byte // room for the message of op
	next   int32  // in its list
	list   *fifo  // where it waits, nil if nowhere
	bulk   bool
	used   bool
	done   bool // its EventDone waits in the queue of events
	err    error
	cancel bool

	checked int    // blocks whose key is known and whose bounds hold
	cur     cursor // what is not posted yet
	pending int    // requests that are posted
	qps     uint16 // that carried any of it
	lost    uint16 // queue pairs that broke with some of it, and whose peer has not told what arrived
	again   bool   // it restarts when nothing of it is under way
	strikes int    // how often it broke a queue pair
	blamed  error  // it did, since it began or restarted
	stuck   int    // how often a queue pair broke without getting past it, and it is not to blame

	foreign bool // it reads into memory of an accelerator of this side
	flushes bool // its writes are seen by the peer's accelerator after a flush
	seen    bool // that is done

	noted    bool   // the peer was notified
	noteQP   int    // lost with this queue pair: its number there
	noteNo   uint32 // of the message
	noteLost bool
}

// fifo is a list of n operations, linked through their slots.
type fifo struct{ head, tail, n int32 }

// lists are where operations wait.
type lists struct {
	small    fifo
	bulk     fifo
	waiting  fifo // for an answer of the peer
	notes    fifo // for a frame that notifies the peer
	unseen   fifo // complete puts that the peer's accelerator does not see before a flush
	flushing fifo // of these, the ones for which the peer was asked, and has not answered
}

func (p *Path) enqueue(l *fifo, k int32) {
	p.works[k].list = l
	if l.n > 0 {
		p.works[l.tail].next = k
	} else {
		l.head = k
	}
	l.tail = k
	l.n++
}

// dequeue takes the first operation of a list out.
func (p *Path) dequeue(l *fifo) int32 {
	k := l.head
	w := &p.works[k]
	l.head, w.list = w.next, nil
	l.n--
	return k
}

// remove takes any operation out of its list.
func (p *Path) remove(k int32) {
	l := p.works[k].list
	if l == nil {
		return
	}
	for n := l.n; n > 0; n-- { // once around
		if j := p.dequeue(l); j != k {
			p.enqueue(l, j)
		}
	}
}

// rotate brings the first of a list to its end.
func (p *Path) rotate(l *fifo) {
	if l.n > 1 {
		p.enqueue(l, p.dequeue(l))
	}
}

const (
	bulkBytes  = 64 << 10 // an operation of more is bulk: what is small goes first
	bulkBlocks = 16
)

// checkOp refuses mistakes of this side at once.
func (p *Path) checkOp(op *path.Op) error {
	switch op.Kind {
	case path.Put, path.Get:
		for i := range op.Copies {
			s := &op.Copies[i].Local
			if !s.Valid() {
				return fmt.Errorf("verbs: block %d of %d: its local span is not inside a region: %w", i, len(op.Copies),
					mem.ErrBounds)
			}
			if s.Len > 0 && s.Bytes() == nil {
				if err := p.dev.memory.Check(s.Region); err != nil {
					return fmt.Errorf("verbs: block %d of %d: %w", i, len(op.Copies), unreachable(err))
				}
			}
			if op.Kind == path.Get && s.Region.ReadOnly() {
				return fmt.Errorf("verbs: block %d of %d: get into region %q, which is read-only: %w", i,
					len(op.Copies), s.Region.Name(), path.ErrRights)
			}
		}
	case path.Notify, path.Fence:
	default:
		return fmt.Errorf("verbs: operation of unknown kind %d", op.Kind)
	}
	if len(op.Msg) > path.MaxMessage {
		return fmt.Errorf("verbs: message of %d bytes, at most %d: %w", len(op.Msg), path.MaxMessage, path.ErrTooLarge)
	}
	return nil
}

// accept puts an operation into a free slot and into the list where it belongs.
func (p *Path) accept(op *path.Op) {
	k := p.freeWorks[len(p.freeWorks)-1]
	p.freeWorks = p.freeWorks[:len(p.freeWorks)-1]
	w := &p.works[k]
	*w = work{op: *op, msg: w.msg, used: true, bulk: op.Bulk || len(op.Copies) > bulkBlocks || op.Bytes() > bulkBytes}
	w.op.Msg = w.msg[:copy(w.msg, op.Msg)]
	p.st.OpsPosted++
	p.dirty = true
	switch op.Kind {
	case path.Put, path.Get:
		p.admit(k)
	case path.Notify:
		p.enqueue(&p.notes, k)
	case path.Fence:
		p.beginFence(k)
	}
}

// admit sends an operation on its way: to the requests if everything that it names is known, else
// to those that wait.
func (p *Path) admit(k int32) {
	w := &p.works[k]
	ok, err := p.check(w)
	switch {
	case err != nil:
		p.finish(k, err)
	case !ok:
		p.enqueue(&p.waiting, k)
	case w.cur.done(w.op.Copies): // nothing to move
		p.proceed(k)
	case w.bulk:
		p.enqueue(&p.bulk, k)
	default:
		p.enqueue(&p.small, k)
	}
}

// owesNote says that the peer is still to be notified.
func (w *work) owesNote() bool { return (w.op.Notify || w.op.Kind == path.Notify) && !w.noted }

// proceed takes the next step of an operation, once none of its requests is under way.
func (p *Path) proceed(k int32) {
	w := &p.works[k]
	if w.done || w.pending > 0 || w.lost != 0 {
		return
	}
	if w.again {
		p.strike(w)
	}
	complete := w.cur.done(w.op.Copies) && !w.again && w.checked == len(w.op.Copies)
	switch {
	case w.err != nil:
		p.remove(k)
		p.finish(k, w.err)
	case w.cancel && (!complete || w.owesNote()):
		p.remove(k)
		p.finish(k, path.ErrCanceled)
	case w.again:
		w.again = false
		w.checked, w.cur, w.qps, w.seen = 0, cursor{}, 0, false
		p.remove(k)
		p.admit(k)
	case !complete:
		if w.list == nil {
			p.admit(k)
		}
	case w.owesNote():
		if w.list == nil {
			p.enqueue(&p.notes, k)
		}
	case w.flushes && !w.seen:
		if w.list == nil {
			p.enqueue(&p.unseen, k)
		}
	default:
		p.finish(k, nil)
	}
}

// finish reports the end of an operation, whose requests are all over.
func (p *Path) finish(k int32, err error) {
	w := &p.works[k]
	if w.done {
		return
	}
	if invariants.Enabled && w.list != nil {
		panic("verbs: an operation ends while it is in a list, which its slot's next one would break")
	}
	w.done = true
	n := w.op.Bytes()
	if err == nil && w.foreign {
		err = flushOwn(w.op.Copies)
	}
	ev := path.Event{Kind: path.EventDone, Token: w.op.Token, Err: err}
	if err != nil {
		p.st.OpsFailed++
	} else {
		p.st.OpsDone++
		ev.Bytes = n
		switch w.op.Kind {
		case path.Put:
			ev.Proof = path.ProofICRC
			p.st.BytesPut += n
		case path.Get:
			ev.Proof = path.ProofICRC
			p.st.BytesGot += n
		}
		if w.op.Kind == path.Notify || w.op.Notify {
			p.st.NotifySent++
		}
	}
	p.dirty = true
	p.queue(queued{Event: ev, work: k, qp: -1, slot: -1})
}

// cancelToken is Cancel without what follows from it.
func (p *Path) cancelToken(token uint64) bool {
	for k := range p.works {
		w := &p.works[k]
		if !w.used || w.op.Token != token {
			continue
		}
		if w.done || w.cancel {
			return true
		}
		if w.op.Kind == path.Fence {
			return true // it is under way, and cannot be called back
		}
		w.cancel = true
		if w.list == &p.notes || w.list == &p.waiting {
			p.remove(int32(k))
		}
		p.proceed(int32(k))
		return true
	}
	return false
}

var errStrikes = errors.New("the peer's adapter refuses the requests again and again, although the peer granted access")
