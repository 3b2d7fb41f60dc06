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

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer/sched"
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
	id       ID
	kind     path.OpKind
	peer     *Peer
	bytes    uint64
	offered  bool // this node announced it to the peer by an offer
	priority Priority
	stream   uint32
	exports  []path.Desc // that it names
	allowed  []string    // paths; nil: all
	floor    path.Security
	grant    sched.Grant
	msg      []byte // header and payload of the notification

	moved atomic.Uint64 // bytes of completed pieces
	ended atomic.Bool   // and counted; set under mu

	prevOpen, nextOpen *Transfer // in the peer's account

	// Guarded by the mutex of the lane, or private to the goroutine that starts the transfer before it has a lane.
	copies   []path.Copy
	at       cursor // next byte to post
	all      bool   // nothing but the notification is left to post
	ops      int    // operations handed over
	inflight int    // of these, not done
	item     sched.Item[*Transfer]
	flow     sched.Flow[*Transfer] // of a large one
	notified bool
	over     bool     // given to complete
	undone   []undone // parts that were handed over to a path that went down
	broken   bool     // an operation ended because its path is down
	leaving  bool     // for another path
	tries    int      // paths that went down under it
	alone    bool     // nothing else was outstanding when it was handed over
	firstOp  uint64
	failed   error
	posted   time.Time
	leases   []mem.Lease
	regs     []mem.Registration

	part    *stager       // of which this is a piece; nil: a transfer of its own
	large   bool          // a piece of a large one
	devices []*mem.Region // local regions that the CPU cannot reach
	staged  bool          // some of its bytes are in memory that a CPU cannot reach
	hollow  bool          // only empty blocks are
	carried bool          // staged pieces brought all its bytes
	missing bool          // its path does not reach its memory, although it was to
	missed  bool          // so it was with an earlier one: the rest is staged

	turn     atomic.Uint32 // in its stream
	canceled atomic.Bool
	because  atomic.Pointer[error] // why it was canceled
	digest   *digester             // nil unless the digests of both sides are to be compared

	// Room for the usual case, so that beginning a transfer takes few allocations.
	oneExport  [1]path.Desc
	twoLeases  [2]mem.Lease
	twoRegs    [2]mem.Registration
	candidates [4]Candidate
	header     [headerSize]byte

	mu        sync.Mutex    // guards what follows; may be taken under the mutex of a lane, not the other way
	done      chan struct{} // made by Done, unless the transfer has ended by then
	lane      *lane
	finished  bool // the first call of finish has it
	err       error
	proof     path.Proof
	callbacks []func(*Transfer)
	stopCtx   func() bool
	late      *time.Timer // of a canceled one: closes the path if it does not end
	abort     func()      // ends the choice of a path
	explain   Explanation
}

// undone is a part of a transfer whose operation ended with its path.
type undone struct {
	at    cursor
	bytes uint64
}

// ID is unique in the fleet.
func (t *Transfer) ID() ID { return t.id }

// Bytes is the number of bytes to move.
func (t *Transfer) Bytes() uint64 { return t.bytes }

// Peer is the other side.
func (t *Transfer) Peer() *Peer { return t.peer }

// Done is closed when the transfer has ended.
func (t *Transfer) Done() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended.Load() {
		return closedChan
	}
	if t.done == nil {
		t.done = make(chan struct{})
	}
	return t.done
}

// closedChan is the channel of everything that has ended before somebody asked for one.
var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Err is nil while the transfer is under way and after success; otherwise why it failed.
func (t *Transfer) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Wait waits for the end and returns Err, or ctx's error when that comes first; the transfer goes on then.
func (t *Transfer) Wait(ctx context.Context) error {
	if t.ended.Load() { // no channel was needed
		return t.Err()
	}
	return waitFor(ctx, t)
}

// waitFor waits for the end of something and returns its error, or ctx's when that comes first. What has ended is over also
// when ctx is.
func waitFor(ctx context.Context, x interface {
	Done() <-chan struct{}
	Err() error
}) error {
	select {
	case <-x.Done():
		return x.Err()
	default:
	}
	if err := invariants.Context(ctx, "transfer: Wait"); err != nil {
		return err
	}
	select {
	case <-x.Done():
		return x.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Progress is the share of the bytes that are known to be in place, from 0 to 1; it never decreases. It advances by pieces
// of at most PieceSize bytes.
func (t *Transfer) Progress() float64 {
	if t.bytes == 0 {
		if t.ended.Load() {
			return 1
		}
		return 0
	}
	return float64(t.moved.Load()) / float64(t.bytes)
}

// Cancel asks the transfer to end early and returns false when it had ended already. Done is closed when no further byte
// will be written at either end; Err then wraps path.ErrCanceled and context.Canceled, or is nil if the last byte was faster. A path on
// which that cannot be had in ten seconds, and the time for what is in its buffers, has stalled and is closed; other transfers go on by
// another one.
func (t *Transfer) Cancel() bool { return t.cancel(context.Canceled) }

func (t *Transfer) cancel(because error) bool {
	if t.ended.Load() {
		return false
	}
	t.because.CompareAndSwap(nil, &because)
	if t.canceled.Swap(true) {
		return true
	}
	if t.digest != nil {
		t.digest.cancel()
	}
	t.mu.Lock()
	ln, abort := t.lane, t.abort
	t.mu.Unlock()
	switch { // without a lane it has not been posted yet, and will not be
	case ln != nil:
		ln.cancel(t)
	case abort != nil:
		abort()
	case t.peer.streams.remove(t): // it waits for the one before it
		t.complete(path.ErrCanceled)
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
	var carrier string
	if ln != nil { // put into words only here, on demand: that costs more than a small transfer
		ln.mu.Lock()
		setup = ln.p.Explain()
		if c, ok := ln.p.(path.Carrier); ok {
			carrier = c.Carrier()
		}
		ln.unlock()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.explain
	e.Candidates = slices.Clone(e.Candidates)
	e.Peer, e.Setup, e.Carrier = t.peer.String(), setup, carrier
	e.Err, e.Moved = t.err, t.moved.Load()
	return e
}

// complete ends the transfer, and begins the next one of its stream. Only the first call counts. No lock of a lane or peer may
// be held.
func (t *Transfer) complete(err error) {
	if t.part != nil {
		t.endPart(err)
		return
	}
	if t.digest != nil && t.digest.intercept(err) {
		return // it comes back when the digester does not touch the memory any more
	}
	if t.finish(err) && t.stream != 0 && !t.turn.CompareAndSwap(turnBegins, turnEnded) {
		t.peer.advance(t)
	}
}

// finish is where every transfer ends, and where its error is made.
func (t *Transfer) finish(err error) bool {
	if err != nil {
		var because error
		if b := t.because.Load(); b != nil {
			because = *b
		}
		var named [4]path.Key
		keys := named[:0]
		for i := range t.exports {
			keys = append(keys, t.exports[i].Key)
		}
		err = t.peer.outcome(err, because, keys...)
	}
	t.mu.Lock()
	if t.finished {
		t.mu.Unlock()
		return false
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
	if t.late != nil {
		t.late.Stop()
	}
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
	t.grant.Release()
	t.peer.ended(t, err)
	t.peer.transferEnded(t, err)
	t.end()
	for _, f := range callbacks {
		go f(t)
	}
	return true
}

// end lets those go on that wait for the end.
func (t *Transfer) end() {
	t.mu.Lock()
	t.ended.Store(true)
	if t.done != nil {
		close(t.done)
	}
	t.mu.Unlock()
}

// firstError keeps the first of two errors, but prefers a cause over a cancellation that followed from it.
func firstError(have, e error) error {
	if have == nil || errors.Is(have, path.ErrCanceled) && e != nil {
		return e
	}
	return have
}
