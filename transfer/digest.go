package transfer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"sync"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/bounce"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/state"
)

const (
	// digestMax is the number of bytes that one request may have hashed: little enough that many
	// requests before it, on a busy machine, do not make it time out, and enough that the round
	// trips between do not matter (6 ms of hashing each).
	digestMax = 8 << 20
	// digestsAsked is the number of requests for digests that wait for one peer's answer at once. A
	// node refuses more.
	digestsAsked = 8
	// digestsOpen is the number of digests of more than one request that a node has open at one
	// peer. Peers keep more.
	digestsOpen = 128
	// digestStep is the number of bytes hashed between two looks at whether that is still wanted:
	// about 0.1 ms.
	digestStep = 256 << 10
)

// Digest is the SHA-256 (FIPS 180-4) of n bytes of the export from off, as the peer that holds them
// computes it; nothing else of them travels. The export must permit reading. It says what the peer
// has, not that the peer is honest.
func (r *Remote) Digest(ctx context.Context, off, n uint64) ([32]byte, error) {
	if err := invariants.Context(ctx, "transfer.Remote.Digest"); err != nil {
		return [32]byte{}, err
	}
	if off > r.Desc.Size || n > r.Desc.Size-off {
		return [32]byte{}, fmt.Errorf("transfer: digest: remote offset %d + %d bytes of an export of %d: %w", off, n,
			r.Desc.Size, path.ErrBounds)
	}
	d := remoteDigest{peer: r.Peer, id: r.Peer.node.nextID()}
	if err := d.begin(ctx, n > digestMax); err != nil {
		return [32]byte{}, err
	}
	defer d.end()
	if err := d.add(ctx, r.Desc.Key, off, n); err != nil {
		return [32]byte{}, err
	}
	if err := d.flush(ctx, true, [32]byte{}); err != nil {
		return [32]byte{}, err
	}
	return d.sum, nil
}

// remoteDigest asks a peer to hash blocks of its memory, in as many requests as it takes.
type remoteDigest struct {
	peer   *Peer
	id     observe.ID
	room   int    // blocks per request
	at     uint64 // bytes that were answered
	blocks []control.Block
	bytes  uint64 // in blocks
	sum    [32]byte
	open   bool // counts as one of digestsOpen
}

// begin waits for its turn; long says that it may take more than one request.
func (d *remoteDigest) begin(ctx context.Context, long bool) error {
	d.room = control.DigestRoom(d.peer.maxBody())
	if !long {
		return nil
	}
	select {
	case d.peer.digests.opened <- struct{}{}:
		d.open = true
		return nil
	case <-d.peer.ctx.Done():
		return d.peer.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *remoteDigest) end() {
	if d.open {
		<-d.peer.digests.opened
		d.open = false
	}
}

// add takes another block, and asks for those it has when they are as many as one request takes.
func (d *remoteDigest) add(ctx context.Context, key path.Key, off, n uint64) error {
	for n > 0 {
		last := len(d.blocks) - 1
		adjacent := last >= 0 && d.blocks[last].Key == key && d.blocks[last].Off+d.blocks[last].Len == off
		if d.bytes == digestMax || len(d.blocks) == d.room && !adjacent {
			if err := d.flush(ctx, false, [32]byte{}); err != nil {
				return err
			}
			continue
		}
		take := min(n, digestMax-d.bytes)
		if adjacent {
			d.blocks[last].Len += take
		} else {
			d.blocks = append(d.blocks, control.Block{Key: key, Off: off, Len: take})
		}
		d.bytes += take
		off, n = off+take, n-take
	}
	return nil
}

// flush asks for the blocks added since the last time.
func (d *remoteDigest) flush(ctx context.Context, last bool, expect [32]byte) error {
	p := d.peer
	select {
	case p.digests.asked <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	type answer struct {
		r   *control.Response
		err error
	}
	c := make(chan answer, 1)
	q := &control.Digest{ID: d.id, At: d.at, Last: last, Expect: expect, Blocks: d.blocks}
	go func() { // the peer works on it until it answers, even when this call has ended
		r, err := p.request(p.ctx, q)
		<-p.digests.asked
		c <- answer{r, err}
	}()
	var x answer
	select {
	case x = <-c:
	case <-ctx.Done():
		d.blocks = nil // they belong to the request
		return ctx.Err()
	}
	if x.err != nil {
		return x.err
	}
	a, err := control.Parse[control.DigestSum](x.r.Body)
	if err == nil && a.Bytes != d.at+d.bytes {
		err = fmt.Errorf("transfer: digest of %s: it hashed %d bytes of %d: %w", p, a.Bytes, d.at+d.bytes,
			path.ErrProtocol)
	}
	if err != nil {
		return err
	}
	d.at, d.sum = a.Bytes, a.Sum
	d.blocks, d.bytes = d.blocks[:0], 0
	return nil
}

// digester proves a transfer end to end: it hashes the local bytes while the transfer moves them,
// has the peer hash its own, and lets the transfer complete when both are equal. Its goroutine
// lives from the hand-over to a channel until then.
type digester struct {
	t      *Transfer
	ctx    context.Context // ends when the digest is not wanted any more
	cancel context.CancelFunc
	landed chan struct{} // wakes the goroutine that waits for a piece

	copies []path.Copy // as the caller gave them: a failover changes the transfer's own list

	mu      sync.Mutex   // guards what follows
	have    state.Ranges // bytes that are in place
	all     bool         // everything is in place
	known   bool         // the digests were compared, or cannot be
	failed  error        // why they could not be compared, or that they differ
	begun   bool
	running bool
	over    bool // the transfer ended while the digester was at work
	err     error
}

func newDigester(t *Transfer) *digester {
	d := &digester{t: t, landed: make(chan struct{}, 1), copies: t.m.Copies()}
	d.ctx, d.cancel = context.WithCancel(t.peer.ctx)
	return d
}

// outcome says whether it is known what came of the digests, and what: nil if they are equal.
func (d *digester) outcome() (known bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known, d.failed
}

// place takes note of a part that is in place. After a failover parts have other offsets, and only
// the end counts. The channel's mutex is held.
func (d *digester) place(part state.Segment) {
	if d.t.tries > 0 {
		return
	}
	d.mu.Lock()
	d.have.Add(part.At.Done, part.At.Done+part.Bytes)
	d.mu.Unlock()
	d.wake()
}

// finish takes note that everything is in place. The error, if any, is that of the digester, which
// has ended already. The channel's mutex is held.
func (d *digester) finish() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = true
	d.wake()
	return d.failed
}

func (d *digester) wake() {
	select {
	case d.landed <- struct{}{}:
	default:
	}
}

// await waits for the bytes before off to be in place.
func (d *digester) await(off uint64) error {
	for {
		d.mu.Lock()
		ok := d.all || d.have.Prefix() >= off && off > 0
		d.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-d.landed:
		case <-d.ctx.Done():
			return path.ErrCanceled
		}
	}
}

// start begins the work when the transfer is about to be handed to its first channel.
func (d *digester) start() {
	d.mu.Lock()
	begun := d.begun
	if !begun {
		d.begun, d.running = true, true
	}
	d.mu.Unlock()
	if !begun {
		go d.run()
	}
}

// intercept keeps the end of a transfer until its digester does not touch the memory any more, and
// returns false when there is nothing to wait for.
func (d *digester) intercept(err error) bool {
	d.cancel()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.running {
		return false
	}
	if !d.over {
		d.over, d.err = true, err
	}
	return true
}

func (d *digester) run() {
	t := d.t
	local, err := d.compare()
	if errors.Is(err, context.Canceled) || err == path.ErrCanceled { // by Cancel, or because the peer is lost
		if err = t.peer.Err(); err == nil {
			err = path.ErrCanceled
		}
	}
	d.mu.Lock()
	d.known, d.failed = true, err
	d.mu.Unlock()
	t.mu.Lock()
	t.explain.more().Digest = local
	ch := t.channel // nil before it has a path, and while it changes it: the next one asks for the outcome
	t.mu.Unlock()
	if ch != nil {
		ch.prove(t)
	}
	d.mu.Lock()
	d.running = false
	over, err := d.over, d.err
	d.mu.Unlock()
	if over {
		t.complete(err)
	}
}

// compare hashes on both sides. It returns the local sum, also when the other side's is different.
func (d *digester) compare() (local [32]byte, err error) {
	t := d.t
	here := make(chan error, 1)
	go func() {
		var err error
		if local, err = d.local(); err != nil {
			d.cancel()
		}
		here <- err
	}()
	remote := remoteDigest{peer: t.peer, id: t.id}
	rerr := d.remote(&remote)
	if rerr != nil {
		d.cancel() // the other half is of no use
	}
	defer remote.end()
	if err := <-here; err != nil && (rerr == nil || err != path.ErrCanceled) {
		return local, err
	}
	if rerr == nil && t.offered {
		// the peer hands the tensor out only if it finds the same, and may not say what it finds
		// before
		rerr = remote.flush(d.ctx, true, local)
	}
	if rerr != nil {
		return local, rerr
	}
	if remote.sum != local {
		return local, control.Errorf(control.Integrity,
			"SHA-256 of the %d bytes is %x here and %x at %s: they were damaged on the way, or changed meanwhile",
			t.bytes, local, remote.sum, t.peer)
	}
	return local, nil
}

// local hashes this side's bytes: those of a put at once, those of a get as they come.
func (d *digester) local() (sum [32]byte, err error) {
	h := sha256.New()
	off := uint64(0)
	before := func(bytes uint64) error {
		off += bytes
		if d.ctx.Err() != nil {
			return path.ErrCanceled
		}
		if d.t.kind == path.Get {
			return d.await(off)
		}
		return nil
	}
	for _, c := range d.copies {
		err := d.t.peer.node.hash(d.ctx, h, c.Local, before)
		if err == path.ErrCanceled {
			return sum, err
		}
		if err != nil {
			return sum, fmt.Errorf("transfer: digest: region %q: %w", c.Local.Region.Name(), err)
		}
	}
	h.Sum(sum[:0])
	return sum, nil
}

// hash adds a span to h in steps, after before returned nil for the bytes of the step. Memory that
// the CPU cannot reach is loaded. Memory that was taken away (a file that was truncated, a hole in
// a memfd) is mem.ErrFault; h is of no use then.
func (n *Node) hash(ctx context.Context, h hash.Hash, s mem.Span, before func(bytes uint64) error) error {
	far := bounce.Mover(s) != nil
	for s.Len > 0 {
		step, _ := s.Sub(0, min(s.Len, digestStep))
		if far {
			step.Len = min(step.Len, n.staging.SmallSlot())
		}
		err := before(step.Len)
		switch { // Write never fails by itself
		case err != nil:
		case far:
			err = n.staging.Load(ctx, step, func(b []byte) { h.Write(b) })
		default:
			err = mem.Guard(func() { h.Write(step.Bytes()) })
		}
		if err != nil {
			return err
		}
		s.Off, s.Len = s.Off+step.Len, s.Len-step.Len
	}
	return nil
}

// remote has the peer hash its bytes: those of a get at once, those of a put as they are in place.
func (d *digester) remote(r *remoteDigest) error {
	t := d.t
	r.room = control.DigestRoom(t.peer.maxBody())
	single := t.bytes <= digestMax && len(d.copies) <= r.room && !t.offered // one request, which leaves nothing open
	if err := r.begin(d.ctx, !single); err != nil {
		return err
	}
	off := uint64(0)
	for _, c := range d.copies {
		for done := uint64(0); done < c.Local.Len; {
			take := min(c.Local.Len-done, digestMax-r.bytes)
			off += take
			if t.kind == path.Put {
				if err := d.await(off); err != nil {
					return err
				}
			}
			if err := r.add(d.ctx, c.Key, c.RemoteOff+done, take); err != nil {
				return err
			}
			done += take
			if r.bytes == digestMax && off < t.bytes {
				if err := r.flush(d.ctx, false, [32]byte{}); err != nil {
					return err
				}
			}
		}
	}
	if t.offered && len(r.blocks) == 0 { // the last request says what is expected
		return nil
	}
	return r.flush(d.ctx, !t.offered, [32]byte{})
}

// prove is called by the digester of a transfer when its outcome is known, once.
func (ch *channel) prove(t *Transfer) {
	var end ending
	ch.mu.Lock()
	t.mu.Lock()
	here := t.channel == ch // otherwise it has left for another path meanwhile
	t.mu.Unlock()
	_, err := t.digest.outcome()
	if here { // otherwise the goroutine that takes it up asks for the outcome
		t.m.Proved(err)
		switch step := t.m.Next(); {
		case step == state.Queue && ch.down != nil:
			t.m.Fence()
			ch.interrupted(t, &end)
		case step == state.Queue:
			ch.enqueue(t)
			ch.pump(&end)
		default:
			ch.act(t, step, &end)
		}
	}
	ch.mu.Unlock()
	end.run(ch)
	ch.peer.node.loop.Kick(ch)
}
