package transfer

import (
	"context"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/account"
	"github.com/penstock-io/penstock/transfer/inbox"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/sched"
	"github.com/penstock-io/penstock/transfer/state"
)

// fewBlocks is how many blocks are checked in less time than it takes to measure it.
const fewBlocks = 16

// MaxPayload is the largest message in bytes that can travel with a transfer.
const MaxPayload = path.MaxMessage - inbox.HeaderSize

// PutOptions modify a Put or Get. The zero value is usual.
type PutOptions struct {
	Msg   []byte   // delivered to the peer with the completion, at most MaxPayload bytes
	Tag   uint32   // who gets it there: the handler of Node.OnTag; 0, or without a handler: OnTransfer
	Paths []string // restricts the choice to these; nil allows all
	// Digest proves the bytes end to end: their SHA-256 (FIPS 180-4) is taken on both sides, and
	// the transfer succeeds only if it is the same. The other side reads its memory again for that,
	// so its export must permit reading, also for a put. Otherwise the error matches
	// path.ErrIntegrity and control.Integrity, as it does when a process changes the bytes on
	// either side before the transfer is done. The hashing goes on beside the transfer and costs a
	// core on both sides for as long as it takes; see docs/measurements/sharing.md.
	Digest bool
	// Security is the least that the path must give, also after a failover; see Options.Security.
	Security path.Security
	// Priority says how the transfer shares a path with others of the same peer.
	Priority Priority
	// Stream, if not 0, gives an order to the transfers of this peer that have the same one: each
	// is begun when the one before it has ended, whatever their sizes, kinds and paths, and also
	// when that one failed. Streams do not wait for each other. Transfers without a stream have no
	// order: a small one does not wait for a large one that was begun before.
	Stream uint32

	id    observe.ID  // of an offer; zero for a new one
	grant sched.Grant // of an offer
}

// Put copies local spans into memory that the peer exports. It returns once the transfer has begun:
// invalid requests fail here, everything later by the transfer. The spans and the slice belong to
// the transfer until it is done. When ctx ends before the transfer does, the transfer is canceled:
// a caller that returns, and with it ends its context, leaves no transfer behind that uses its
// memory. So ctx has to live as long as the transfer; PutWait does both in one call. This is the
// rule of every call that begins something; the ctx of Wait bounds the wait alone.
//
// Over a path that is path.Immediate (shared memory) a put of up to 4 MiB is done when Put returns,
// unless others want the path at that moment. It takes one Go object then, Queue none.
func (p *Peer) Put(ctx context.Context, copies []path.Copy, o PutOptions) (*Transfer, error) {
	return p.begin(ctx, path.Put, copies, o)
}

// PutWait is Put, and returns when the bytes are in place, or why they are not. When ctx ends
// first, the transfer is canceled; PutWait returns when nothing uses the spans any more.
func (p *Peer) PutWait(ctx context.Context, copies []path.Copy, o PutOptions) error {
	t, err := p.Put(ctx, copies, o)
	if err != nil {
		return err
	}
	if !t.ended() {
		t.attend(ctx)
		<-t.Done()
	}
	return t.Err()
}

// Get copies memory that the peer exports into local spans; otherwise it is like Put.
func (p *Peer) Get(ctx context.Context, copies []path.Copy, o PutOptions) (*Transfer, error) {
	return p.begin(ctx, path.Get, copies, o)
}

// Notify delivers a message to the peer, as PutOptions.Tag says. It has no order with transfers
// that are still under way: wait for the ones it is about, or let the message travel with them
// (PutOptions.Msg). A message may have MaxNotify bytes; one of more than MaxPayload goes by the
// control connection, whatever PutOptions.Paths says. The peer refuses it with control.Busy while
// its application has not taken 4 MiB of such messages.
func (p *Peer) Notify(ctx context.Context, msg []byte, o PutOptions) (*Transfer, error) {
	o.Msg = msg
	return p.begin(ctx, path.Notify, nil, o)
}

func (p *Peer) begin(ctx context.Context, kind path.OpKind, copies []path.Copy, o PutOptions) (*Transfer, error) {
	t, err := p.tryBegin(ctx, kind, copies, o)
	if err != nil {
		p.account.Rejected(kind, err)
	}
	return t, err
}

func (p *Peer) tryBegin(ctx context.Context, kind path.OpKind, copies []path.Copy, o PutOptions) (*Transfer, error) {
	now := clock()
	err := may(ctx, kind, &o)
	if err != nil {
		o.grant.Release()
		return nil, err
	}
	t := &Transfer{request: request{kind: kind, peer: p, id: o.id, priority: o.Priority, stream: o.Stream}}
	if t.id == (observe.ID{}) {
		t.id = p.node.nextID()
	}
	t.explain.Times.start(now)
	if err := p.make(t, copies, &o); err != nil {
		o.grant.Release()
		return nil, err
	}
	t.msg = append(inbox.Header{Kind: kind, Tag: o.Tag, Number: t.id.Number(), Bytes: t.bytes}.Append(t.header[:0]),
		o.Msg...)
	if err := p.take(t, o.grant); err != nil {
		return nil, err
	}
	if x := &t.explain; len(copies) > fewBlocks {
		x.Times.lap(&x.Times.Parse, clock())
	}
	t.leases, t.regs = t.oneLease[:0], t.oneReg[:0]
	if err := p.pin(t, kind, copies); err != nil {
		t.unpin()
		if lost := p.Err(); lost != nil { // the node is closing, and what pins memory is closed already
			return nil, lost
		}
		return nil, err
	}
	if err := p.set(ctx, t); err != nil {
		return nil, err
	}
	return t, nil
}

// may checks what does not depend on the blocks.
func may(ctx context.Context, kind path.OpKind, o *PutOptions) error {
	most := MaxPayload
	if kind == path.Notify {
		most = MaxNotify
	}
	if len(o.Msg) > most {
		return fmt.Errorf("transfer: message of %d bytes: expected at most %d: %w", len(o.Msg), most, path.ErrTooLarge)
	}
	if o.Priority >= priorities {
		return fmt.Errorf("transfer: priority %d: expected PriorityNormal, PriorityHigh or PriorityLow", o.Priority)
	}
	if err := invariants.Context(ctx, "transfer.Peer"); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return CanceledBy(ctx)
	}
	return nil
}

// make checks the blocks of a transfer and gives it its state.
func (p *Peer) make(t *Transfer, copies []path.Copy, o *PutOptions) error {
	t.offered, t.allowed, t.floor = o.id != (observe.ID{}), o.Paths, p.floor(o.Security)
	exports, emptyAway, err := p.check(t, t.kind, copies, o.Digest)
	if err != nil {
		return err
	}
	list := copies
	if emptyAway {
		list, exports = leaveOut(copies, exports)
	}
	t.m = state.New(t.kind, list, t.bytes, o.Digest && t.kind != path.Notify, false)
	t.exports, t.explain.Blocks = exports, int32(len(copies))
	return nil
}

// take takes what the transfer needs of the limits, unless it has it.
func (p *Peer) take(t *Transfer, has sched.Grant) (err error) {
	if t.grant = has; !has.Held() {
		if t.grant, err = p.limits.Out.Admit(t.bytes, tensor.Invalid); err != nil {
			return fmt.Errorf("transfer: %s to %s: %w", account.KindName(t.kind), p, err)
		}
	}
	return nil
}

// set enters a transfer that has all that it needs, and begins it. By an error it gives that back.
func (p *Peer) set(ctx context.Context, t *Transfer) error {
	x := &t.explain
	x.Times.lap(&x.Times.Register, clock())
	err := p.Err()
	if err == nil {
		err = t.entered()
	}
	if err != nil {
		t.unpin()
		return err
	}
	if t.m.Asked() {
		t.digest = newComparison(t)
	}
	if t.stream == 0 || p.streams.enter(t) {
		p.start(t)
	}
	if ctx.Done() != nil {
		t.endWith(ctx)
	}
	return nil
}

// endWith cancels the transfer when ctx ends, unless it has ended already.
func (t *Transfer) endWith(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.end.Load() == endOpen {
		t.stopCtx = context.AfterFunc(ctx, func() { t.cancel(endOf(ctx)) })
	}
}

// start chooses a path for a transfer whose turn in its stream has come, and hands it over.
func (p *Peer) start(t *Transfer) {
	if len(t.msg) > inbox.HeaderSize+MaxPayload {
		p.notifyLong(t)
		return
	}
	if t.reach == reachDirect {
		p.stage(t)
		return
	}
	lost := p.hasLostSessions()
	if !lost {
		if ch := p.quick(t); ch != nil {
			p.launch(t, ch)
			return
		}
	}
	// A path has to be set up first, or an earlier session ended: that takes messages, so it must
	// not hold the caller.
	ctx, abort := t.abortable(context.Background()) // the caller's context cancels the transfer
	go func() {
		defer abort()
		var ch *channel
		var err error
		if lost {
			err = p.endLostSessions(ctx)
		}
		if err == nil {
			ch, err = p.choose(ctx, t, t.exports, t.allowed)
		}
		if ctx.Err() != nil {
			err = path.ErrCanceled
		}
		if err != nil {
			t.complete(err)
			return
		}
		p.launch(t, ch)
	}()
}

// abortable is a context for what a transfer waits for without a channel. It ends also when the
// transfer is canceled.
func (t *Transfer) abortable(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, abort := context.WithCancel(parent)
	t.mu.Lock()
	t.abort = abort
	t.mu.Unlock()
	if t.canceled() { // before it could be aborted
		abort()
	}
	return ctx, abort
}

func (p *Peer) launch(t *Transfer, ch *channel) {
	if t.digest != nil {
		t.digest.Start()
	}
	t.m.Route()
	now := clock()
	t.mu.Lock()
	t.explain.Times.lap(&t.explain.Times.Open, now)
	t.channel = ch
	t.mu.Unlock()
	ch.submit(t, now)
}

// quick chooses among the paths that are open already; it returns nil when one has to be opened or
// asked.
func (p *Peer) quick(t *Transfer) *channel {
	if len(t.exports) <= 1 && t.part == nil && t.reach != reachCarried {
		if w := p.way(t); w != nil {
			now := t.explain.Times.mark
			if t.stream != 0 { // it has waited since
				now = clock()
			}
			return w.choose(t, now)
		}
	}
	cs := p.candidates(t.bytes, t.exports, t.allowed, t.floor)
	if len(cs) == 0 || !cs[0].Usable {
		return nil
	}
	ch, _ := p.openedChannel(cs[0].Path)
	if ch != nil {
		t.recordChoice(ch, cs, 0)
	}
	return ch
}

// check validates a request and returns the exports it names. emptyAway: empty blocks are in memory
// of devices, and no others.
func (p *Peer) check(t *Transfer, kind path.OpKind, copies []path.Copy, digest bool) (exports []path.Desc,
	emptyAway bool,
	err error) {
	if kind == path.Notify {
		return nil, false, nil
	}
	need := path.Write
	if kind == path.Get {
		need = path.Read
	} else if digest && !t.offered {
		need |= path.Read
	}
	exports = t.oneExport[:0]
	var cur path.Desc
	var known bool
	for i := range copies {
		c := &copies[i]
		if !c.Local.Valid() {
			return nil, false, fmt.Errorf("transfer: block %d: local offset %d + %d bytes is not inside its region: %w",
				i, c.Local.Off, c.Local.Len, mem.ErrBounds)
		}
		if kind == path.Get && c.Local.Region.ReadOnly() {
			return nil, false, fmt.Errorf("transfer: block %d: region %q is read-only and cannot receive: %w", i,
				c.Local.Region.Name(), path.ErrRights)
		}
		device := c.Local.Bytes() == nil
		if device && c.Local.Region.Mover() == nil {
			return nil, false, fmt.Errorf("transfer: block %d: the CPU cannot reach region %q, and nothing moves its "+
				"bytes: %w", i, c.Local.Region.Name(), path.ErrUnreachable)
		}
		if !known || cur.Key != c.Key {
			r, err := p.remote(c.Key)
			if err != nil {
				return nil, false, fmt.Errorf("transfer: block %d: %w", i, err)
			}
			if r.Rights&need != need {
				return nil, false, fmt.Errorf("transfer: block %d: the export permits %v, this needs %v: %w", i,
					r.Rights, need, path.ErrRights)
			}
			cur, known = r, true
			exports = append(exports, cur)
		}
		if c.RemoteOff > cur.Size || c.Local.Len > cur.Size-c.RemoteOff {
			return nil, false, fmt.Errorf("transfer: block %d: remote offset %d + %d bytes of an export of %d: %w", i,
				c.RemoteOff, c.Local.Len, cur.Size, path.ErrBounds)
		}
		if device && c.Local.Len > 0 && !slices.Contains(t.devices, c.Local.Region) {
			t.devices = append(t.devices, c.Local.Region)
		}
		if device || cur.Device {
			if c.Local.Len > 0 {
				t.reach = reachDirect
			}
			emptyAway = emptyAway || c.Local.Len == 0
		}
		sum := t.bytes + c.Local.Len
		if sum < t.bytes {
			return nil, false, fmt.Errorf("transfer: block %d: the total overflows 64 bits: %w", i, path.ErrBounds)
		}
		t.bytes = sum
	}
	return exports, emptyAway && t.reach == reachHost, nil
}

// leaveOut takes empty blocks from a transfer, some of which are in memory that no path reaches,
// and their exports.
func leaveOut(copies []path.Copy, exports []path.Desc) ([]path.Copy, []path.Desc) {
	copies = slices.DeleteFunc(slices.Clone(copies), func(c path.Copy) bool { return c.Local.Len == 0 })
	return copies, appendNamed(exports[:0], exports, copies)
}

// appendNamed appends those of the exports that blocks name.
func appendNamed(out, exports []path.Desc, copies []path.Copy) []path.Desc {
	for _, e := range exports {
		if slices.ContainsFunc(copies, func(c path.Copy) bool { return c.Key == e.Key }) {
			out = append(out, e)
		}
	}
	return out
}

// pin takes leases on the local regions and registers what is used of them.
func (p *Peer) pin(t *Transfer, kind path.OpKind, copies []path.Copy) error {
	var last *mem.Region
next:
	for i := range copies {
		r := copies[i].Local.Region
		if r == last {
			continue
		}
		last = r
		for _, l := range t.leases {
			if l.Region() == r {
				continue next
			}
		}
		l, err := r.Lease()
		if err != nil {
			return fmt.Errorf("transfer: block %d: %w", i, err)
		}
		t.leases = append(t.leases, l)
	}
	return p.node.register(t, kind, copies)
}

func (t *Transfer) unpin() {
	for _, r := range t.regs {
		r.Release()
	}
	for _, l := range t.leases {
		l.Release()
	}
	t.regs, t.leases = nil, nil
	t.grant.Release()
}
