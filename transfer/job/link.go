package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/pool"
)

// ErrNoSession means that a Link has no session with its address; the error wraps why.
var ErrNoSession = errors.New("transfer: no session")

// Link is a lasting connection to the node at one address: it dials, and dials again when a session
// is lost, until it is closed. Jobs begun on it ([Link.Fetch], [Link.Store]) survive the loss of
// sessions and the restart of the other process. Its methods may be called from any goroutine.
type Link struct {
	node   *transfer.Node
	addr   string
	retry  Retry
	pool   *pool.Pool[*transfer.Peer]
	err    error  // why it can do nothing
	remove func() // the node forgets it

	onRetry func(LinkFailure) // nil: no call

	ctx    context.Context // of its jobs
	cancel context.CancelCauseFunc
	ending sync.Once

	mu     sync.Mutex // guards what follows
	closed bool
	jobs   map[*Job]bool
	wg     sync.WaitGroup // of what jobs run; added to under the mutex
	counts LinkCounts
	warm   []string // paths that jobs moved something by, the latest first: they are set up again at once
	told   []uint64 // sessions whose loss onRetry got
}

// LinkOptions describe a link. The zero value keeps one session.
type LinkOptions struct {
	// Min is the number of sessions that are kept alive in the background: 0 means 1, a negative
	// number none, so that it is dialed when there is demand.
	Min int
	// Max is the largest number of sessions: 0 means Min, but at least 1. Sessions are shared; one
	// more is dialed when all have a user.
	Max  int
	Idle time.Duration // after which an unused session above Min is closed; 0 means one minute, a negative time never
	// Retry is for jobs that bring none of their own, and its First, Max and Factor are for dials
	// as well.
	Retry Retry
	// DialTimeout bounds one attempt to connect, the handshake included; 0 means 10 s.
	DialTimeout time.Duration
	// OnRetry, if any, is called with each failure that does not end what is under way on the link.
	// It may be called by several goroutines at a time and must not block.
	OnRetry func(LinkFailure)
}

// LinkFailure is something that failed on a link and is tried again: a dial, a session that was
// lost (reported once, whatever moved on it), or else an attempt of a Job or of Do on a session
// that lives.
type LinkFailure struct {
	Dial bool
	Lost bool
	Err  error
}

// LinkCounts only grow.
type LinkCounts struct {
	Jobs     uint64 // begun
	Done     uint64 // ended without an error
	Failed   uint64 // ended with one, also canceled ones
	Attempts uint64 // of jobs that are over and under way
	Retries  uint64 // attempts that were not the first of their job
	Restarts uint64 // begun again at 0 because the content had changed
}

// LinkSnapshot is a link at one moment.
type LinkSnapshot struct {
	Addr     string
	Jobs     int // under way
	Counts   LinkCounts
	Sessions pool.Snapshot
}

const defaultLinkIdle = time.Minute

// NewLink makes a link of a node to the node at an address, in the form that Dial takes. It returns
// at once; an address that cannot be used is reported by whatever is called first. The caller
// closes the link, or the node does when it is closed.
func NewLink(n *transfer.Node, addr string, o LinkOptions) *Link {
	l := &Link{node: n, addr: addr, onRetry: o.OnRetry, jobs: map[*Job]bool{}, remove: func() {}}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	if l.err = l.open(o); l.err != nil {
		l.cancel(l.err)
		return l
	}
	remove, err := n.OnClose(l.shut)
	if err != nil {
		l.err = err
		l.shut()
		return l
	}
	l.remove = remove
	return l
}

func (l *Link) open(o LinkOptions) error {
	err := transfer.CheckAddress(l.addr)
	if err != nil {
		return err
	}
	if l.retry, err = o.Retry.complete(Retry{}); err != nil {
		return err
	}
	l.pool, err = pool.New(pool.Options[*transfer.Peer]{
		Dial:  l.dial,
		Close: func(p *transfer.Peer) error { return p.Close() },
		Done:  func(p *transfer.Peer) <-chan struct{} { return p.Gone() },
		Min:   max(cmp.Or(o.Min, 1), 0), Max: o.Max, Users: -1, Spread: 1,
		Idle:        max(cmp.Or(o.Idle, defaultLinkIdle), 0),
		DialTimeout: o.DialTimeout,
		Backoff:     l.retry.backoff(),
		Permanent:   func(err error) bool { return !transfer.Retriable(err) },
	})
	if err != nil {
		return fmt.Errorf("transfer: link to %s: %w", l.addr, err)
	}
	return nil
}

// dial makes a session. The node names the sessions that it lost to the other side, which ends them
// before it answers.
func (l *Link) dial(ctx context.Context) (*transfer.Peer, error) {
	p, err := l.node.Dial(ctx, l.addr)
	if err != nil {
		if transfer.Retriable(err) && l.ctx.Err() == nil {
			l.retrying(nil, err)
		}
		return nil, err
	}
	// What a job is going to need takes its round trips while the job asks for the name.
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range l.warm {
		if !l.closed {
			l.wg.Go(func() { p.Ready(l.ctx, name) })
		}
	}
	return p, nil
}

const maxWarm = 2

// used notes by which path a job moves its bytes.
func (l *Link) used(driver string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.warm) > 0 && l.warm[0] == driver {
		return
	}
	l.warm = slices.DeleteFunc(l.warm, func(s string) bool { return s == driver })
	l.warm = slices.Insert(l.warm, 0, driver)
	l.warm = l.warm[:min(len(l.warm), maxWarm)]
}

// Peer waits for a living session and returns it. The link may close a session above its minimum
// that no job uses; Acquire keeps it. The error is ctx's, ErrClosed, or what failed for good; while
// dials fail otherwise, Peer waits.
func (l *Link) Peer(ctx context.Context) (*transfer.Peer, error) {
	p, release, err := l.Acquire(ctx)
	if err == nil {
		release()
	}
	return p, err
}

// Acquire is Peer for a session that the link keeps, unless it is lost, until release is called;
// once or more often.
func (l *Link) Acquire(ctx context.Context) (p *transfer.Peer, release func(), err error) {
	s, err := l.lease(ctx, 0)
	if err != nil {
		return nil, nil, err
	}
	return s.Conn(), s.Release, nil
}

// lease waits for a session, and gives up when so many dials have failed; 0 means never.
func (l *Link) lease(ctx context.Context, fails int) (*pool.Lease[*transfer.Peer], error) {
	if err := invariants.Context(ctx, "job.Link"); err != nil {
		return nil, err
	}
	if l.err != nil {
		return nil, l.err
	}
	for {
		s, err := l.pool.Get(ctx, fails)
		if errors.Is(err, pool.ErrClosed) {
			err = transfer.ErrClosed
		}
		if err != nil {
			return nil, fmt.Errorf("%w with %s: %w", ErrNoSession, l.addr, err)
		}
		p := s.Conn()
		if p.Err() == nil {
			return s, nil
		}
		// nothing waits for the peer in that; then the node knows the session as lost, and the next
		// dial names it
		<-p.Gone()
		s.Discard()
	}
}

// Close ends the jobs and the sessions of the link, and waits until nothing of them is left; a job
// whose OnVerified is running ends when that returns. Jobs that were under way fail with ErrClosed.
// It may be called from callbacks, and more than once.
func (l *Link) Close() error {
	err := l.shut()
	l.remove()
	return err
}

func (l *Link) shut() (err error) {
	if l.pool == nil {
		return nil
	}
	l.ending.Do(func() {
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		l.cancel(transfer.ErrClosed)
		l.wg.Wait()
		ended, cancel := context.WithCancel(context.Background())
		cancel() // callers that hold a session without a job have it closed under them
		err = l.pool.Close(ended)
	})
	return err
}

// Snapshot says what the link has and did.
func (l *Link) Snapshot() LinkSnapshot {
	l.mu.Lock()
	s := LinkSnapshot{Addr: l.addr, Jobs: len(l.jobs), Counts: l.counts}
	l.mu.Unlock()
	if l.pool != nil {
		s.Sessions = l.pool.Snapshot()
	}
	return s
}
