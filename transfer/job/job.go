package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/state"
)

// Errors of jobs; match them with errors.Is.
var (
	ErrGaveUp = errors.New("transfer: gave up after retries") // the limits of Retry were reached
)

// Options modify a Fetch or Store. The zero value is usual.
type Options struct {
	// From is how many bytes from the start are in place already, verified by an earlier process:
	// the caller vouches for them.
	From uint64
	// Tag is what those bytes were a part of (Remote.Tag): unless the export has the same tag now,
	// the job begins at 0. It must not be zero if From is not, except where the caller knows by
	// other means that the content is the same.
	Tag [16]byte
	// Off is where in the export the range begins. A Fetch moves as much as dst takes, but at most
	// to the end of the export.
	Off uint64

	Retry Retry // what is 0 is taken from the link's
	// Restarts is how often the job may begin again at 0 because the content behind the name
	// changed: 0 means 3 times, a negative number never: then it fails with ErrChanged.
	Restarts int
	// OnVerified gets how many bytes from the start are in place without a gap, each time that
	// there are more: in order, one call at a time, the last one before Done is closed. Steps may
	// be left out when a call takes long. A smaller number than before means that the job begins
	// again; nothing is written then until the call has returned.
	OnVerified func(off uint64)

	// OnSession, if any, is called in each attempt that has found the name, with the session that
	// it is going to use. It must not block.
	OnSession func(*transfer.Peer)

	// Found is what the caller has found under the name, if anything: an attempt with its session
	// does not ask for the name again.
	Found *transfer.Remote
	// BeforePiece, if any, is called before each piece is moved, with the bytes of the range that
	// it has: one call at a time, while other pieces move. It may block until its context ends. Its
	// error ends the job.
	BeforePiece func(ctx context.Context, from, to uint64) error

	Piece  uint64 // bytes that are verified at a time; 0 means 8 MiB
	Window int    // pieces under way at the same time, at most: fewer where pieces take long; 0 means 4
	// Stall ends an attempt in which no piece was completed for so long, although the peer answers;
	// 0 means never.
	Stall time.Duration
	// Transfer holds the options of each transfer that the job makes. Msg must be empty.
	Transfer transfer.PutOptions
}

const (
	defaultPiece    = 8 << 20
	defaultWindow   = 4
	maxJobWindow    = 256
	defaultRestarts = 3
)

// Job moves a range of bytes from or to an export by its name, in pieces, over as many sessions as
// it takes: a future. Its methods may be called from any goroutine.
//
// A piece that was verified is not moved again, unless the content changes. Which errors are tried
// again says [transfer.Retriable]; how often, [Retry]. Each piece is a transfer of its own for the
// other node's OnTransfer, and has its own ID.
type Job struct {
	link  *Link
	kind  path.OpKind
	name  string
	local mem.Span
	o     Options
	retry Retry
	lease mem.Lease

	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}
	begin  time.Time

	mu sync.Mutex // guards what follows
	progress
	trials
	finished  bool
	err       error
	callbacks []func(*Job)

	notify notifier
}

// progress is what a job knows of the content and of the bytes that are in place. The mutex of the
// job guards it.
type progress struct {
	expect transfer.Content // what the verified bytes are a part of
	known  bool             // expect is
	remote uint64           // instance of the node that had the name last
	bytes  uint64           // to be moved; local.Len until the export is known
	have   state.Ranges
	high   uint64 // most that was ever in have
	fresh  uint64 // pieces verified so far, also ones that were given up again
}

// trials are the attempts of a job. The mutex of the job guards them.
type trials struct {
	attempts int
	restarts int
	history  []Attempt
	now      *Attempt // under way
	times    Times
}

// Fetch copies the export of that name into dst: as many bytes as both have. It returns at once,
// with an error only for what is wrong here; all else is in the job. The memory is the job's until
// it is done. When ctx ends before, the job is canceled.
func (l *Link) Fetch(ctx context.Context, name string, dst mem.Span, o Options) (*Job, error) {
	return l.start(ctx, path.Get, name, dst, o)
}

// Store copies src into the export of that name, which must permit writing and hold all of it;
// otherwise it is like Fetch.
//
// After the other process was restarted, or the name was given to other memory, the job goes on
// where it was only if the exports have the same tag: it says here that the memory still holds what
// was stored in it.
func (l *Link) Store(ctx context.Context, name string, src mem.Span, o Options) (*Job, error) {
	return l.start(ctx, path.Put, name, src, o)
}

func (l *Link) start(ctx context.Context, kind path.OpKind, name string, local mem.Span, o Options) (*Job, error) {
	if err := invariants.Context(ctx, "job.Link"); err != nil {
		return nil, err
	}
	if l.err != nil {
		return nil, l.err
	}
	j := &Job{link: l, kind: kind, name: name, local: local, o: o, done: make(chan struct{}), begin: time.Now(),
		progress: progress{bytes: local.Len}}
	if err := j.check(); err != nil {
		return nil, fmt.Errorf("transfer: %s %q: %w", j.verb(), name, err)
	}
	if ctx.Err() != nil {
		return nil, transfer.CanceledBy(ctx)
	}
	j.have.Add(0, o.From)
	j.high = o.From
	j.expect.Tag = o.Tag
	j.notify.call, j.notify.last = o.OnVerified, o.From
	lease, err := local.Region.Lease()
	if err != nil {
		return nil, fmt.Errorf("transfer: %s %q: %w", j.verb(), name, err)
	}
	j.lease = lease
	j.ctx, j.cancel = context.WithCancelCause(l.ctx)
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		lease.Release()
		j.cancel(transfer.ErrClosed)
		return nil, transfer.ErrClosed
	}
	l.jobs[j] = true
	l.counts.Jobs++
	l.wg.Add(1)
	l.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { j.cancel(transfer.CanceledBy(ctx)) })
	go func() {
		err := j.run()
		stop()
		j.finish(err)
		l.wg.Done()
	}()
	return j, nil
}

func (j *Job) check() error {
	o := &j.o
	if j.name == "" || len(j.name) > transfer.MaxName {
		return fmt.Errorf("a name of %d bytes: expected 1 to %d", len(j.name), transfer.MaxName)
	}
	if !j.local.Valid() {
		return fmt.Errorf("local offset %d + %d bytes is not inside its region: %w", j.local.Off, j.local.Len,
			mem.ErrBounds)
	}
	if j.kind == path.Get && j.local.Region.ReadOnly() {
		return fmt.Errorf("region %q is read-only and cannot receive: %w", j.local.Region.Name(), path.ErrRights)
	}
	if o.From > j.local.Len {
		return fmt.Errorf("option From is %d: expected at most the %d bytes of the span: %w", o.From, j.local.Len,
			mem.ErrBounds)
	}
	if len(o.Transfer.Msg) > 0 {
		return errors.New("option Transfer.Msg: a job has many transfers: send a message with Notify when it is done")
	}
	if o.Window < 0 || o.Window > maxJobWindow {
		return fmt.Errorf("option Window is %d: expected 1 to %d", o.Window, maxJobWindow)
	}
	if o.Stall < 0 {
		return fmt.Errorf("option Stall is %v: expected no negative time", o.Stall)
	}
	o.Piece = cmp.Or(o.Piece, defaultPiece)
	o.Window = cmp.Or(o.Window, defaultWindow)
	o.Restarts = max(cmp.Or(o.Restarts, defaultRestarts), 0)
	var err error
	j.retry, err = o.Retry.complete(j.link.retry)
	return err
}

func (j *Job) verb() string {
	if j.kind == path.Get {
		return "fetch"
	}
	return "store"
}

// Bytes is the number of bytes to move, those of From included. A Fetch knows it once it has found
// the name; until then it is the length of dst.
func (j *Job) Bytes() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.bytes
}

// Verified is how many bytes from the start are in place without a gap, checked as the paths check
// them. It falls to 0 when the job begins again.
func (j *Job) Verified() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.have.Prefix()
}

// Progress is the share of the bytes that are in place, from 0 to 1; it never decreases, also not
// when the job begins again.
func (j *Job) Progress() float64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.bytes == 0 {
		if j.finished && j.err == nil {
			return 1
		}
		return 0
	}
	return min(float64(j.high)/float64(j.bytes), 1)
}

// Done is closed when the job has ended, and no further byte will be written at either end on its
// behalf.
func (j *Job) Done() <-chan struct{} { return j.done }

// Err is nil while the job is under way and after success. Otherwise it is a *Error, which
// matches what ended the job: path.ErrCanceled, ErrClosed, ErrGaveUp and the error of the last
// attempt, or an error that is not retried.
func (j *Job) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}

// Wait waits for the end and returns Err, or ctx's error when that comes first; the job goes on
// then.
func (j *Job) Wait(ctx context.Context) error { return transfer.WaitFor(ctx, j) }

// Cancel asks the job to end and returns false when it had ended already. Err wraps
// path.ErrCanceled then, or is nil if the last byte was faster. What was verified stays verified:
// Verified says how much a later job may take as its From.
func (j *Job) Cancel() bool {
	select {
	case <-j.done:
		return false
	default:
	}
	j.cancel(fmt.Errorf("%w: %w", path.ErrCanceled, context.Canceled))
	return true
}

// OnDone calls f once, on a goroutine of its own, when the job has ended; at once if it has.
func (j *Job) OnDone(f func(*Job)) {
	j.mu.Lock()
	select {
	case <-j.done:
		j.mu.Unlock()
		go f(j)
	default:
		j.callbacks = append(j.callbacks, f)
		j.mu.Unlock()
	}
}

// finish ends the job, once, when nothing of it moves any more.
func (j *Job) finish(err error) {
	j.lease.Release()
	j.mu.Lock()
	j.finished = true
	j.times.Total = time.Since(j.begin)
	if err != nil {
		err = &Error{j.explain(err)}
	}
	j.err = err
	j.mu.Unlock()
	l := j.link
	l.mu.Lock()
	delete(l.jobs, j)
	if err == nil {
		l.counts.Done++
	} else {
		l.counts.Failed++
	}
	l.mu.Unlock()
	j.cancel(nil)
	idle := j.notify.idle()
	select {
	case <-idle:
		j.end()
	default:
		go func() { // OnVerified may wait for the end of this one
			<-idle
			j.end()
		}()
	}
}

// end tells everyone that the job is over.
func (j *Job) end() {
	j.mu.Lock()
	callbacks := j.callbacks
	j.callbacks = nil
	close(j.done)
	j.mu.Unlock()
	for _, f := range callbacks {
		go f(j)
	}
}

// notifier calls a function with the latest of the numbers it is given, one call at a time, on a
// goroutine that lives only while there is something to say. So no goroutine that moves bytes waits
// for the caller's code.
type notifier struct {
	call func(uint64)

	mu      sync.Mutex    // guards what follows
	last    uint64        // given
	pending bool          // call has not got it
	done    chan struct{} // closed when the goroutine ends; nil: there is none
}

func (n *notifier) set(v uint64) {
	if n.call == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if v == n.last {
		return
	}
	n.last, n.pending = v, true
	if n.done == nil {
		n.done = make(chan struct{})
		go n.run()
	}
}

func (n *notifier) run() {
	n.mu.Lock()
	for n.pending {
		v := n.last
		n.pending = false
		n.mu.Unlock()
		n.call(v)
		n.mu.Lock()
	}
	close(n.done)
	n.done = nil
	n.mu.Unlock()
}

// idle is closed when call has returned from the last number.
func (n *notifier) idle() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.done == nil {
		over := make(chan struct{})
		close(over)
		return over
	}
	return n.done
}

// wait waits until call has returned from the last number, or ctx ends.
func (n *notifier) wait(ctx context.Context) {
	select {
	case <-n.idle():
	case <-ctx.Done():
	}
}
