package transfer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/account"
	"github.com/penstock-io/penstock/transfer/digest"
	"github.com/penstock-io/penstock/transfer/inbox"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/sched"
	"github.com/penstock-io/penstock/transfer/state"
)

// Transfer is a put or get under way: a future. Its methods may be called from any goroutine.
type Transfer struct {
	request
	proof path.Proof    // guarded by mu
	turn  atomic.Uint32 // in its stream
	end   atomic.Uint32 // endOpen, endBegun, endDone; set under mu
	grant sched.Grant

	moved atomic.Uint64 // bytes of completed pieces

	entry account.Transfer // in the account of the peer

	posting

	part    *stager               // of which this is a piece; nil: a transfer of its own
	devices []*mem.Region         // local regions that the CPU cannot reach
	because atomic.Pointer[error] // why it was canceled, nil if it was not
	digest  *digest.Comparison    // nil unless the digests of both sides are to be compared

	room

	mu sync.Mutex // guards what follows; may be taken under the mutex of a channel, not the other way
	outcome
}

// request is what was asked for. It does not change once the transfer has begun.
type request struct {
	id       observe.ID
	peer     *Peer
	bytes    uint64
	kind     path.OpKind
	offered  bool // this node announced it to the peer by an offer
	priority Priority
	floor    path.Security
	reach    reach
	stream   uint32
	exports  []path.Desc // that it names
	allowed  []string    // paths; nil: all
	msg      []byte      // header and payload of the notification
}

// posting is how far a transfer is on its channel, whose mutex guards it; before that it is private
// to the goroutine that chooses a channel.
type posting struct {
	// Guarded by the mutex of the channel, or private to the goroutine that chooses one.
	m     state.Machine
	ops   int32 // operations handed over
	tries int32 // paths that went down under it
	item  sched.Item[*Transfer]
	flow  sched.Flow[*Transfer] // of a large one
	// if nothing else was outstanding when it was handed over, 1 + what the channel had handed over
	// by then
	sole   uint64
	posted time.Duration // by clock; 0: not yet
	leases []mem.Lease
	regs   []mem.Registration
}

// room is for the usual case, so that beginning a transfer takes few allocations.
type room struct {
	// Room for the usual case, so that beginning a transfer takes few allocations.
	oneExport [1]path.Desc
	oneLease  [1]mem.Lease
	oneReg    [1]mem.Registration
	header    [inbox.HeaderSize]byte
}

// outcome is the end of a transfer and who waits for it. The mutex of the transfer guards it, which
// may be taken under that of a channel, not the other way.
type outcome struct {
	done      chan struct{} // made by Done, unless the transfer has ended by then
	channel   *channel
	err       error
	callbacks []func(*Transfer)
	stopCtx   func() bool
	late      *time.Timer // of a canceled one: closes the path if it does not end
	abort     func()      // ends the choice of a path
	chosen    chosen
	explain   noted
}

// The end of a transfer has two steps: what it holds is given back between them.
const (
	endOpen  = iota
	endBegun // by the first call of finish
	endDone  // and counted
)

func (t *Transfer) ended() bool { return t.end.Load() == endDone }

func (t *Transfer) canceled() bool { return t.because.Load() != nil }

// reach is how the bytes of a transfer get to and from memory of devices.
type reach uint8

const (
	reachHost    reach = iota // no byte is in memory of a device
	reachDirect               // by the path, if there is one that reaches it
	reachStaged               // by bounce buffers: the path that was to reach it does not
	reachCarried              // bounce buffers brought all bytes
)

// ID is unique in the fleet.
func (t *Transfer) ID() observe.ID { return t.id }

// Bytes is the number of bytes to move.
func (t *Transfer) Bytes() uint64 { return t.bytes }

// Peer is the other side.
func (t *Transfer) Peer() *Peer { return t.peer }

// Done is closed when the transfer has ended.
func (t *Transfer) Done() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended() {
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

// Wait waits for the end and returns Err, or ctx's error when that comes first; the transfer goes
// on then.
func (t *Transfer) Wait(ctx context.Context) error {
	if t.ended() { // no channel was needed, and err does not change any more
		return t.err
	}
	if ctx != nil { // WaitFor says so
		t.attend(ctx)
	}
	return WaitFor(ctx, t)
}

// Future is what ends once: a Transfer, and what is made of many.
type Future interface {
	Done() <-chan struct{}
	Err() error
}

// WaitFor waits for the end of x and returns its error, or ctx's when that comes first. What has
// ended is over also when ctx is.
func WaitFor(ctx context.Context, x Future) error {
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

// Progress is the share of the bytes that are known to be in place, from 0 to 1; it never
// decreases. It advances by pieces of at most PieceSize bytes.
func (t *Transfer) Progress() float64 {
	if t.bytes == 0 {
		if t.ended() {
			return 1
		}
		return 0
	}
	return float64(t.moved.Load()) / float64(t.bytes)
}

// Cancel asks the transfer to end early and returns false when it had ended already. Done is closed
// when no further byte will be written at either end; Err then wraps path.ErrCanceled and
// context.Canceled, or is nil if the last byte was faster. A path on which that cannot be had in
// ten seconds, and the time for what is in its buffers, has stalled and is closed; other transfers
// go on by another one.
func (t *Transfer) Cancel() bool { return t.cancel(context.Canceled) }

func (t *Transfer) cancel(because error) bool {
	if t.ended() {
		return false
	}
	if !t.because.CompareAndSwap(nil, &because) {
		return true
	}
	if t.digest != nil {
		t.digest.Cancel()
	}
	t.mu.Lock()
	ch, abort := t.channel, t.abort
	t.mu.Unlock()
	switch { // without a channel it has not been posted yet, and will not be
	case ch != nil:
		ch.cancel(t)
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
	if t.end.Load() == endOpen {
		t.callbacks = append(t.callbacks, f)
		t.mu.Unlock()
		return
	}
	t.mu.Unlock()
	go f(t)
}

// Explain says how the transfer went: path, reasons, times, copies. It is complete once the
// transfer is done.
func (t *Transfer) Explain() Explanation {
	t.mu.Lock()
	ch := t.channel
	t.mu.Unlock()
	var setup []string
	var carrier string
	if ch != nil { // put into words only here, on demand: that costs more than a small transfer
		ch.mu.Lock()
		setup = ch.p.Explain()
		if c, ok := ch.p.(path.Carrier); ok {
			carrier = c.Carrier()
		}
		ch.unlock()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.explain.explanation()
	if t.chosen.way != nil {
		t.chosen.explain(&e, t.bytes, t.floor)
	}
	e.ID, e.Kind, e.Bytes = t.id, account.KindName(t.kind), t.bytes
	e.Peer, e.Setup, e.Carrier = t.peer.String(), setup, carrier
	e.Err, e.Moved = t.err, t.moved.Load()
	return e
}

// complete ends the transfer, and begins the next one of its stream. Only the first call counts. No
// lock of a channel or peer may be held.
func (t *Transfer) complete(err error) {
	if t.part != nil {
		t.endPart(err)
		return
	}
	if t.digest != nil && t.digest.Intercept(err) {
		return // it comes back when the comparison does not touch the memory any more
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
	if t.end.Load() != endOpen {
		t.mu.Unlock()
		return false
	}
	t.end.Store(endBegun)
	if t.m.State() != state.Ended { // it has no channel
		t.m.End()
	}
	t.err = err
	now := t.explain.Times.mark
	if !t.explain.atOnce {
		now = clock()
	}
	t.explain.Times.finish(now)
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
	t.unpin()
	t.peer.ended(t, err)
	t.counted(err)
	t.release()
	for _, f := range callbacks {
		go f(t)
	}
	return true
}

// release lets those go on that wait for the end.
func (t *Transfer) release() {
	t.mu.Lock()
	t.end.Store(endDone)
	if t.done != nil {
		close(t.done)
	}
	t.mu.Unlock()
}

// Via is the path that the transfer took last, and what proves that its bytes are in place; "" if
// it took none.
func (t *Transfer) Via() (string, path.Proof) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.explain.Path, t.explain.Proof
}
