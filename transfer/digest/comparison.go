package digest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"sync"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/bounce"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/state"
)

// step is the number of bytes hashed between two looks at whether that is still wanted: about 0.1
// ms.
const step = 256 << 10

// Work is a transfer whose bytes are compared.
type Work struct {
	ID     observe.ID
	Kind   path.OpKind
	Bytes  uint64
	Copies []path.Copy // as the caller gave them: a failover changes the transfer's own list
	// Offered says that the peer takes a tensor only if it finds the same sum.
	Offered bool
	Staging *bounce.Memory // loads local memory that the CPU cannot reach
}

// Transfer is the transfer of a comparison, which calls its methods with no mutex held.
type Transfer interface {
	// Compared is called once, when Outcome is known; local is the sum of this side.
	Compared(local [32]byte)
	// Released gets the end that Intercept kept: nothing touches the memory any more.
	Released(err error)
}

// Comparison proves a transfer end to end: it hashes the local bytes while the transfer moves them,
// has the peer hash its own, and lets the transfer complete when both are equal. Its goroutine
// lives from Start until then. Its methods may be called from any goroutine, with a mutex of the
// transfer's path held.
type Comparison struct {
	w      Work
	t      Transfer
	asker  *Asker
	ctx    context.Context // ends when the digest is not wanted any more
	cancel context.CancelFunc
	landed chan struct{} // wakes the goroutine that waits for a piece

	mu      sync.Mutex   // guards what follows
	have    state.Ranges // bytes that are in place
	all     bool         // everything is in place
	known   bool         // the digests were compared, or cannot be
	failed  error        // why they could not be compared, or that they differ
	begun   bool
	running bool
	over    bool // the transfer ended meanwhile, with err
	err     error
}

// New makes the comparison of a transfer with what the peer has; Start begins it.
func (a *Asker) New(w Work, t Transfer) *Comparison {
	d := &Comparison{w: w, t: t, asker: a, landed: make(chan struct{}, 1)}
	d.ctx, d.cancel = context.WithCancel(a.ctx)
	return d
}

// Cancel ends the hashing: the digests are not wanted any more.
func (d *Comparison) Cancel() { d.cancel() }

// Outcome says whether it is known what came of the digests, and what: nil if they are equal.
func (d *Comparison) Outcome() (known bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known, d.failed
}

// Place takes note of a part that is in place. It is not called after a failover, since parts have
// other offsets then, and only the end counts.
func (d *Comparison) Place(part state.Segment) {
	d.mu.Lock()
	d.have.Add(part.At.Done, part.At.Done+part.Bytes)
	d.mu.Unlock()
	d.wake()
}

// Finish takes note that everything is in place. The error, if any, is that of the comparison,
// which has ended already.
func (d *Comparison) Finish() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = true
	d.wake()
	return d.failed
}

func (d *Comparison) wake() {
	select {
	case d.landed <- struct{}{}:
	default:
	}
}

// await waits for the bytes before off to be in place.
func (d *Comparison) await(off uint64) error {
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

// Start begins the work, once, when the transfer is about to be handed to a path.
func (d *Comparison) Start() {
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

// Intercept keeps the end of a transfer until the comparison does not touch the memory any more,
// and returns false when there is nothing to wait for.
func (d *Comparison) Intercept(err error) bool {
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

func (d *Comparison) run() {
	local, err := d.compare()
	if errors.Is(err, context.Canceled) || err == path.ErrCanceled { // by Cancel, or because the peer is lost
		if err = path.ErrCanceled; d.asker.ctx.Err() != nil {
			err = context.Cause(d.asker.ctx)
		}
	}
	d.mu.Lock()
	d.known, d.failed = true, err
	d.mu.Unlock()
	d.t.Compared(local)
	d.mu.Lock()
	d.running = false
	over, err := d.over, d.err
	d.mu.Unlock()
	if over {
		d.t.Released(err)
	}
}

// compare hashes on both sides. It returns the local sum, also when the other side's is different.
func (d *Comparison) compare() (local [32]byte, err error) {
	here := make(chan error, 1)
	go func() {
		var err error
		if local, err = d.local(); err != nil {
			d.cancel()
		}
		here <- err
	}()
	there := remote{asker: d.asker, id: d.w.ID}
	rerr := d.remote(&there)
	if rerr != nil {
		d.cancel() // the other half is of no use
	}
	defer there.end()
	if err := <-here; err != nil && (rerr == nil || err != path.ErrCanceled) {
		return local, err
	}
	if rerr == nil && d.w.Offered {
		// the peer hands the tensor out only if it finds the same, and may not say what it finds
		// before
		rerr = there.flush(d.ctx, true, local)
	}
	if rerr != nil {
		return local, rerr
	}
	if there.sum != local {
		return local, control.Errorf(control.Integrity,
			"SHA-256 of the %d bytes is %x here and %x at %s: they were damaged on the way, or changed meanwhile",
			d.w.Bytes, local, there.sum, d.asker.name)
	}
	return local, nil
}

// local hashes this side's bytes: those of a put at once, those of a get as they come.
func (d *Comparison) local() (sum [32]byte, err error) {
	h := sha256.New()
	off := uint64(0)
	before := func(bytes uint64) error {
		off += bytes
		if d.ctx.Err() != nil {
			return path.ErrCanceled
		}
		if d.w.Kind == path.Get {
			return d.await(off)
		}
		return nil
	}
	for _, c := range d.w.Copies {
		err := Hash(d.ctx, d.w.Staging, h, c.Local, before)
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

// Hash adds a span to h in steps, after before returned nil for the bytes of the step. Memory that
// the CPU cannot reach is loaded. Memory that was taken away (a file that was truncated, a hole in
// a memfd) is mem.ErrFault; h is of no use then.
func Hash(ctx context.Context, staging *bounce.Memory, h hash.Hash, s mem.Span, before func(bytes uint64) error) error {
	far := bounce.Mover(s) != nil
	for s.Len > 0 {
		part, _ := s.Sub(0, min(s.Len, step))
		if far {
			part.Len = min(part.Len, staging.SmallSlot())
		}
		err := before(part.Len)
		switch { // Write never fails by itself
		case err != nil:
		case far:
			err = staging.Load(ctx, part, func(b []byte) { h.Write(b) })
		default:
			err = mem.Guard(func() { h.Write(part.Bytes()) })
		}
		if err != nil {
			return err
		}
		s.Off, s.Len = s.Off+part.Len, s.Len-part.Len
	}
	return nil
}

// remote has the peer hash its bytes: those of a get at once, those of a put as they are in place.
func (d *Comparison) remote(r *remote) error {
	r.room = control.DigestRoom(d.asker.body())
	// one request, which leaves nothing open
	single := d.w.Bytes <= MaxBytes && len(d.w.Copies) <= r.room && !d.w.Offered
	if err := r.begin(d.ctx, !single); err != nil {
		return err
	}
	off := uint64(0)
	for _, c := range d.w.Copies {
		for done := uint64(0); done < c.Local.Len; {
			take := min(c.Local.Len-done, MaxBytes-r.bytes)
			off += take
			if d.w.Kind == path.Put {
				if err := d.await(off); err != nil {
					return err
				}
			}
			if err := r.add(d.ctx, c.Key, c.RemoteOff+done, take); err != nil {
				return err
			}
			done += take
			if r.bytes == MaxBytes && off < d.w.Bytes {
				if err := r.flush(d.ctx, false, [32]byte{}); err != nil {
					return err
				}
			}
		}
	}
	if d.w.Offered && len(r.blocks) == 0 { // the last request says what is expected
		return nil
	}
	return r.flush(d.ctx, !d.w.Offered, [32]byte{})
}
