package transfer

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/path"
)

// ID names a transfer in the whole fleet: the instance of the node that began it and a number that it uses once.
type ID [16]byte

func newID(instance, n uint64) ID {
	var id ID
	binary.BigEndian.PutUint64(id[:], instance)
	binary.BigEndian.PutUint64(id[8:], n)
	return id
}

func (id ID) String() string { return hex.EncodeToString(id[:]) }

func (id ID) instance() uint64 { return binary.BigEndian.Uint64(id[:]) }
func (id ID) number() uint64   { return binary.BigEndian.Uint64(id[8:]) }

// Transfer is a put or get under way: a future. Its methods may be called from any goroutine.
type Transfer struct {
	id      ID
	kind    path.OpKind
	peer    *Peer
	bytes   uint64
	offered bool   // the peer was told of it by an offer
	msg     []byte // header and payload of the notification
	done    chan struct{}

	moved atomic.Uint64 // bytes of completed pieces

	// Guarded by the mutex of the lane, or private to the goroutine that starts the transfer before it has a lane.
	pieces   []piece
	next     int // piece to post next
	inflight int // operations posted and not done
	notified bool
	over     bool // given to complete
	alone    bool // nothing else was outstanding when it was handed over
	firstOp  uint64
	failed   error
	posted   time.Time
	leases   []mem.Lease
	regs     []mem.Registration

	canceled atomic.Bool

	// Room for the usual case, so that beginning a transfer takes few allocations.
	onePiece   [1]piece
	oneExport  [1]path.Desc
	twoLeases  [2]mem.Lease
	twoRegs    [2]mem.Registration
	candidates [4]Candidate
	header     [headerSize]byte

	mu        sync.Mutex // guards what follows; may be taken under the mutex of a lane, not the other way
	lane      *lane
	finished  bool
	err       error
	proof     path.Proof
	callbacks []func(*Transfer)
	stopCtx   func() bool
	abort     func() // ends the choice of a path
	explain   Explanation
}

// piece is a part of a transfer that is one operation of a path.
type piece struct {
	copies []path.Copy
	bytes  uint64
}

// ID is unique in the fleet.
func (t *Transfer) ID() ID { return t.id }

// Bytes is the number of bytes to move.
func (t *Transfer) Bytes() uint64 { return t.bytes }

// Peer is the other side.
func (t *Transfer) Peer() *Peer { return t.peer }

// Done is closed when the transfer has ended.
func (t *Transfer) Done() <-chan struct{} { return t.done }

// Err is nil while the transfer is under way and after success; otherwise why it failed.
func (t *Transfer) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Wait waits for the end and returns Err, or ctx's error when that comes first; the transfer goes on then.
func (t *Transfer) Wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.Err()
	default:
	}
	select {
	case <-t.done:
		return t.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Progress is the share of the bytes that are known to be in place, from 0 to 1; it never decreases. It advances by pieces
// of at most PieceSize bytes.
func (t *Transfer) Progress() float64 {
	if t.bytes == 0 {
		select {
		case <-t.done:
			return 1
		default:
			return 0
		}
	}
	return float64(t.moved.Load()) / float64(t.bytes)
}

// Cancel asks the transfer to end early and returns false when it had ended already. Done is closed when no further byte
// will be written at either end; Err is then path.ErrCanceled, or nil if the last byte was faster.
func (t *Transfer) Cancel() bool {
	select {
	case <-t.done:
		return false
	default:
	}
	if t.canceled.Swap(true) {
		return true
	}
	t.mu.Lock()
	ln, abort := t.lane, t.abort
	t.mu.Unlock()
	switch { // without a lane it has not been posted yet, and will not be
	case ln != nil:
		ln.cancel(t)
	case abort != nil:
		abort()
	}
	return true
}

// OnDone calls f once, on a goroutine of its own, when the transfer has ended; at once if it has.
func (t *Transfer) OnDone(f func(*Transfer)) {
	t.mu.Lock()
	if !t.finished {
		t.callbacks = append(t.callbacks, f)
		t.mu.Unlock()
		return
	}
	t.mu.Unlock()
	go f(t)
}

// Explain says how the transfer went: path, reasons, times, copies. It is complete once the transfer is done.
func (t *Transfer) Explain() Explanation {
	t.mu.Lock()
	ln := t.lane
	t.mu.Unlock()
	var setup []string
	if ln != nil { // in words only when somebody asks: that costs more than a small transfer
		ln.mu.Lock()
		setup = ln.p.Explain()
		ln.mu.Unlock()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.explain
	e.Candidates = slices.Clone(e.Candidates)
	e.Peer, e.Setup = t.peer.String(), setup
	e.Err, e.Moved = t.err, t.moved.Load()
	return e
}

// complete ends the transfer. Only the first call counts. No lock of a lane or peer may be held.
func (t *Transfer) complete(err error) {
	t.mu.Lock()
	if t.finished {
		t.mu.Unlock()
		return
	}
	t.finished = true
	t.err = err
	t.explain.Times.finish(time.Now())
	if err == nil {
		t.moved.Store(t.bytes)
		t.explain.Proof = t.proof
	}
	callbacks := t.callbacks
	t.callbacks = nil
	stop := t.stopCtx
	t.mu.Unlock()
	if stop != nil {
		stop()
	}
	for _, r := range t.regs {
		r.Release()
	}
	for _, l := range t.leases {
		l.Release()
	}
	t.peer.ended(t, err)
	close(t.done)
	for _, f := range callbacks {
		go f(t)
	}
}

// firstError keeps the first of two errors, but prefers a cause over a cancellation that followed from it.
func firstError(have, e error) error {
	if have == nil || errors.Is(have, path.ErrCanceled) && e != nil {
		return e
	}
	return have
}
