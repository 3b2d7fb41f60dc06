package share

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/sched"
)

// Conn is the other side: where files are listed, fetched from and uploaded to. The zero value is
// not usable.
type Conn struct {
	peer *transfer.Peer
	link *job.Link
	path bool // see ByPath
}

// Over makes a Conn of a connected peer. What is under way when the peer is lost ends with an
// error.
func Over(p *transfer.Peer) Conn { return Conn{peer: p} }

// OverLink makes a Conn of a link: what is under way when a session is lost goes on with the next
// one, as the link's Retry says, also after a restart of the other process.
func OverLink(l *job.Link) Conn { return Conn{link: l} }

// ByPath is the Conn that moves the bytes of small files by paths, too. Else they come in the
// answer of a call, where no limit of the nodes is against it.
func (c Conn) ByPath() Conn {
	c.path = true
	return c
}

// askTime is how long is waited for what nothing depends on: what only makes an error clearer, or
// tells the other side something.
const askTime = 2 * time.Second

// do calls f with a session, over a link also with the next ones, as the link's Retry says.
func (c Conn) do(ctx context.Context, o job.DoOptions, f func(ctx context.Context, p *transfer.Peer) error) error {
	if err := invariants.Context(ctx, "share.Conn"); err != nil {
		return err
	}
	switch {
	case c.link != nil:
		return c.link.Do(ctx, o, f)
	case c.peer != nil:
		return f(ctx, c.peer)
	}
	return errors.New("share: Conn is the zero value: use Over or OverLink")
}

// ready begins to set up the path that bytes are going to take, and returns what ends the wait for
// it. What goes wrong is for the bytes to say.
func (c Conn) ready(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		c.do(ctx, job.DoOptions{}, func(ctx context.Context, p *transfer.Peer) error {
			p.Ready(ctx, "")
			return nil
		})
	}()
	return func() {
		cancel()
		<-over
	}
}

// List is the catalog of the other node: what begins with prefix, in the order of the names' bytes.
// The names are whatever the other side says: see PathOf and Printable.
func List(ctx context.Context, c Conn, prefix string) ([]Entry, error) {
	return list(ctx, c, func(ctx context.Context, p *transfer.Peer) ([]*transfer.Remote, error) {
		return p.List(ctx, prefix)
	})
}

// Names is List without tags and generations, which takes far fewer bytes.
func Names(ctx context.Context, c Conn, prefix string) ([]Entry, error) {
	return list(ctx, c, func(ctx context.Context, p *transfer.Peer) ([]*transfer.Remote, error) {
		return p.Names(ctx, prefix)
	})
}

func list(ctx context.Context, c Conn, ask func(context.Context, *transfer.Peer) ([]*transfer.Remote,
	error)) (out []Entry, err error) {
	err = c.do(ctx, job.DoOptions{}, func(ctx context.Context, p *transfer.Peer) error {
		rs, err := ask(ctx, p)
		out = entriesOf(rs)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("share: list: %w", err)
	}
	return out, nil
}

// Find asks the other node for one name. The error matches control.NotFound when there is none.
func Find(ctx context.Context, c Conn, name string) (Entry, error) {
	r, err := c.lookup(ctx, name, nil)
	if err != nil {
		return Entry{}, fmt.Errorf("share: %w", err)
	}
	return entryOf(r), nil
}

// lookup asks for a name. was, if any, is what was found before: then the name may be missing for a
// while at a process that was restarted.
func (c Conn) lookup(ctx context.Context, name string, was *transfer.Remote) (r *transfer.Remote, err error) {
	err = c.find(ctx, was, func(ctx context.Context, p *transfer.Peer) (err error) {
		r, err = p.Lookup(ctx, name)
		return err
	})
	return r, err
}

// find calls f, which looks for a name, until it may not succeed any more.
func (c Conn) find(ctx context.Context, was *transfer.Remote, f func(context.Context, *transfer.Peer) error) error {
	restarted := false
	o := job.DoOptions{Again: func(err error) bool {
		return transfer.Retriable(err) || restarted && errors.Is(err, control.NotFound)
	}}
	return c.do(ctx, o, func(ctx context.Context, p *transfer.Peer) error {
		restarted = was != nil && was.Peer.Instance() != p.Instance()
		return f(ctx, p)
	})
}

func entriesOf(rs []*transfer.Remote) []Entry {
	out := make([]Entry, len(rs))
	for i, r := range rs {
		out[i] = entryOf(r)
	}
	return out
}

func entryOf(r *transfer.Remote) Entry {
	return Entry{Name: r.Name, Size: r.Size(), Tensor: r.Tensor, Tag: r.Tag, Generation: r.Generation}
}

// window is how many bytes are moved at once over a peer, and inFlight how many of them are in
// flight at most: a connection that lost packets, or that probes the round trip, holds back those
// that it has begun, and the other connections go on with the rest.
const (
	window   = 8 << 20
	inFlight = 8
)

// windowOf is window, or less where limits of this node hold transfers with the peer to a low rate:
// progress shows earlier, and less is moved again after an early end. It is a multiple of
// chunkSize. most is inFlight, or less.
func windowOf(p *transfer.Peer) (n uint64, most int) {
	if r := p.Rate(); r > 0 && r < inFlight*window { // which would take more than a second
		return chunkSize, 2
	}
	return window, inFlight
}

// moved says by what bytes came.
type moved struct {
	bytes uint64
	path  string
	proof path.Proof
}

func (m *moved) add(n uint64, e transfer.Explanation) {
	m.bytes += n
	if e.Path != "" {
		m.path, m.proof = e.Path, e.Proof
	}
}

// get brings the rest of a region, from offset from on, from the export r, and calls room with each
// part before that may come, verified with how far it is, and session with each session that it
// uses.
func (c Conn) get(ctx context.Context, r *transfer.Remote, region *mem.Region, from uint64,
	session func(*transfer.Peer), room func(ctx context.Context, from, to uint64) error,
	verified func(upTo uint64) error) (moved, error) {
	if c.link == nil {
		session(c.peer)
		var m moved
		n, most := windowOf(c.peer)
		err := pipeline(ctx, n, most, from, region.Len(), &m,
			func(ctx context.Context, off, n uint64) (*transfer.Transfer, error) {
				if err := room(ctx, off, off+n); err != nil {
					return nil, err
				}
				return c.peer.Get(ctx, []path.Copy{r.At(off, mem.Span{Region: region, Off: off, Len: n})},
					transfer.PutOptions{})
			}, verified)
		return m, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// In large pieces, few at a time: what counts is how much is there without a gap.
	n, most := windowOf(r.Peer)
	o := job.Options{Piece: n, Window: most, From: from, Tag: r.Tag, Restarts: -1, Found: r,
		OnSession: session, BeforePiece: room, OnVerified: func(upTo uint64) {
			if err := verified(upTo); err != nil {
				cancel(err)
			}
		}}
	j, err := c.link.Fetch(ctx, r.Name, region.All(), o)
	if err != nil {
		return moved{}, err
	}
	<-j.Done() // nothing writes to the memory any more
	m := moved{bytes: j.Verified() - min(from, j.Verified())}
	e := j.Explain()
	for _, a := range e.History {
		if len(a.Paths) > 0 {
			m.path, m.proof = a.Paths[len(a.Paths)-1], a.Proof
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return m, cause
	}
	if err := j.Err(); err != nil {
		if errors.Is(err, transfer.ErrChanged) {
			err = fmt.Errorf("%w: %w", ErrChanged, err)
		}
		return m, err
	}
	if j.Bytes() != region.Len() {
		return m, fmt.Errorf("%w: it has %d bytes instead of %d", ErrChanged, j.Bytes(), region.Len())
	}
	return m, nil
}

// pipeline moves the bytes from offset from to size in order, most windows at once, calls verified
// with how far they are, and adds them to m before.
func pipeline(ctx context.Context, window uint64, most int, from, size uint64, m *moved,
	move func(ctx context.Context, off, n uint64) (*transfer.Transfer, error), verified func(upTo uint64) error) error {
	type part struct {
		t     *transfer.Transfer
		end   uint64
		began time.Time
	}
	depth := sched.Depth{Most: most}
	var parts []part
	ctx, cancel := context.WithCancel(ctx) // ends what is in flight
	defer func() {
		cancel()
		for _, x := range parts { // nothing writes to the memory any more
			<-x.t.Done()
		}
	}()
	var failed error
	for next := from; failed == nil && next < size || len(parts) > 0; {
		if failed == nil && next < size && len(parts) < depth.Parts() {
			n := min(window-next%window, size-next)
			t, err := move(ctx, next, n)
			if err != nil && ctx.Err() == nil { // what is in flight may still come
				failed = err
				continue
			}
			if err != nil {
				return err
			}
			next += n
			parts = append(parts, part{t, next, time.Now()})
			continue
		}
		x := parts[0]
		<-x.t.Done()
		parts = parts[1:]
		if err := x.t.Err(); err != nil {
			return cmp.Or(failed, err)
		}
		depth.Ended(time.Since(x.began))
		m.add(x.t.Bytes(), x.t.Explain())
		if err := verified(x.end); err != nil {
			return err
		}
	}
	return cmp.Or(failed, ctx.Err())
}

// stopped is err, or why ctx ended if that came first: what was under way only says that it was
// canceled.
func stopped(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	return ctx.Err()
}

// unchanged checks that a name still has the content that was looked up before: then all bytes were
// of that one content.
func (c Conn) unchanged(ctx context.Context, was *transfer.Remote) error {
	now, err := c.lookup(ctx, was.Name, was)
	if err != nil {
		return err
	}
	if !sameContent(was, now) {
		return ErrChanged
	}
	return nil
}

// sameContent reports whether a name stands for the content that it stood for before.
func sameContent(was, now *transfer.Remote) bool {
	same := now.Generation == was.Generation
	if was.Tag != ([16]byte{}) { // generations restart with the other process
		same = now.Tag == was.Tag
	}
	return same && now.Size() == was.Size()
}
