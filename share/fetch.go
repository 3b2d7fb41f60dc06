package share

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/path"
)

// FetchOptions say where a file goes. Only Output is required.
type FetchOptions struct {
	// Output is the path of the file to make. What the other side calls it plays no role here.
	Output string
	// Overwrite replaces a file that is there, at the very end and all at once. Without it, that is
	// ErrExists.
	Overwrite bool
	// NoResume starts from the beginning even if a partial file is there.
	NoResume bool
	// Restarts is how often to restart when the content changed while it was fetched; 0: never,
	// which is ErrChanged then. For what changes all the time, such as a tensor that a stream fills
	// again and again, a few are enough: each attempt takes what is there when it begins.
	Restarts int
	// Like gives the file the modification time and the permissions that it has at the other side,
	// minus the umask, as far as that side says so. What is replaced keeps its
	// permissions.
	Like bool
	// Header, if any, says what the file begins with, before the bytes of the other side: they move
	// up when all of them are there. It is called once an attempt, before anything comes, and an
	// error of it ends the Fetch. Sizes and sums are those of the bytes alone.
	Header func(Entry) ([]byte, error)
	// Digest makes Fetch read the whole file once more when everything is there, for
	// Fetched.SHA256.
	Digest bool
	// Expect, if not nil, is the SHA-256 that the file must have before it gets its name. If it has
	// another one, Output stays as it was, the file is kept as Output with MismatchSuffix, and the
	// error is a *DigestError.
	Expect *[32]byte
	// Progress, if any, is called at the beginning and as bytes are verified, by one goroutine at a
	// time. It must not block.
	Progress func(Progress)
}

// MismatchSuffix is what the name of a file ends with that does not have the SHA-256 that was
// expected. A name that is too long for it is shortened before it, as it is before PartialSuffix.
const MismatchSuffix = ".mismatch"

// Fetched is a file that was fetched.
type Fetched struct {
	Entry
	Output   string        // "" for a Stream
	Resumed  uint64        // bytes that an earlier attempt had left
	Moved    uint64        // bytes that were moved now
	Duration time.Duration // of all of it, syncing to the disk included
	Path     string        // that the bytes took, such as "tcp"; "" if nothing had to be moved
	Proof    path.Proof    // by what the transfer was verified
	SHA256   *[32]byte     // nil if it was not asked for
	like     *like         // of the file at the other side; nil: not known
}

// Fetch copies what the other side has under name into the file Output. It returns when the file is
// complete, verified and synced. If it ends early, for whatever reason, Output is as it was before,
// and the partial file says how far it got: the error is a *PartialError then, and the next Fetch
// goes on from there if the content is still the same. Without a single good chunk nothing is left
// behind. At most 32 MiB are in flight at once.
func Fetch(ctx context.Context, c Conn, name string, o FetchOptions) (*Fetched, error) {
	if err := invariants.Context(ctx, "share.Fetch"); err != nil {
		return nil, err
	}
	at, err := outputPlace(o.Output)
	if err != nil {
		return nil, err
	}
	defer at.dir.Close()
	for n := 0; ; n++ {
		f, err := fetch(ctx, c, name, at, o, nil)
		if !errors.Is(err, ErrChanged) || n >= o.Restarts || ctx.Err() != nil {
			return f, err
		}
	}
}

// fetch is Fetch to a place. may, if any, is asked last whether the file may take it, by a caller
// that has looked at what is there.
func fetch(ctx context.Context, c Conn, name string, at place, o FetchOptions, may func() error) (*Fetched, error) {
	began := time.Now()
	if may == nil {
		if err := writable(at, o.Overwrite); err != nil {
			return nil, err
		}
	}
	var r *transfer.Remote
	var w *whole
	err := c.find(ctx, nil, func(ctx context.Context, p *transfer.Peer) (err error) {
		r, w, err = c.look(ctx, p, name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("share: fetch %q: %w", Printable(name), err)
	}
	if w == nil && !r.Peer.SameHost() {
		// the path is set up meanwhile; on one machine that takes no time, and files come by
		// another one than memory
		defer c.ready(ctx)()
	}
	var header []byte
	if o.Header != nil {
		if header, err = o.Header(entryOf(r)); err != nil {
			return nil, fmt.Errorf("share: fetch %q: %w", Printable(name), err)
		}
	}
	p, err := openPartial(ctx, at, claim{name, r.Size(), r.Tag}, !o.NoResume, true)
	if err != nil {
		return nil, err
	}
	p.header = header
	var tell *readReporter
	f := &Fetched{Entry: entryOf(r), Output: at.shown, Resumed: p.start}
	report := func() {
		if o.Progress != nil {
			o.Progress(Progress{Name: p.name, File: f.Output, Bytes: p.good(), Size: p.size, Start: p.start})
		}
	}
	report()
	if w != nil { // which the server has counted
		f.like = &w.like
		if err = f.take(ctx, p, w); err == nil {
			report()
			err = ctx.Err()
		}
	} else {
		tell = newReadReporter(ctx, name, p.size, p.start)
		err = f.bring(ctx, c, r, p, o.Like, tell, report)
	}
	if err == nil && o.Like && f.like != nil {
		var umask fs.FileMode
		if umask, err = sys.Umask(); err == nil {
			p.like = f.like.less(umask)
		}
	}
	if err == nil && (o.Digest || o.Expect != nil) {
		f.SHA256, err = p.sha256(ctx)
	}
	if err == nil && may != nil {
		err = may()
	}
	if err == nil {
		err = f.commit(p, at, o)
	} else {
		err = giveUp(p, stopped(ctx, err))
	}
	if tell != nil {
		// whole, if not what was expected
		tell.close(err == nil || errors.Is(err, ErrDigest) && p.good() == p.size, f.Path)
	}
	if err != nil {
		return nil, err
	}
	f.Duration = time.Since(began)
	return f, nil
}

// bring moves what is missing into the partial file by a path, checks that it is one content, and
// asks what the file is like.
func (f *Fetched) bring(ctx context.Context, c Conn, r *transfer.Remote, p *partial, like bool, tell *readReporter,
	report func()) (err error) {
	if p.good() < p.size {
		var m moved
		m, err = c.get(ctx, r, p.region, p.good(), tell.session, p.room, func(upTo uint64) error {
			if err := p.record(upTo); err != nil {
				return err
			}
			tell.far(p.good())
			report()
			return nil
		})
		f.Moved, f.Path, f.Proof = m.bytes, m.path, m.proof
	} else { // the server gets reports all the same
		err = c.do(ctx, job.DoOptions{}, func(_ context.Context, p *transfer.Peer) error {
			tell.session(p)
			return nil
		})
	}
	if err == nil {
		var wg sync.WaitGroup
		var lerr error
		if like {
			wg.Go(func() { f.like, lerr = c.like(ctx, r.Name, r.Tag) })
		}
		err = c.unchanged(ctx, r)
		if wg.Wait(); err == nil {
			err = lerr
		}
	} else if !errors.Is(err, ErrChanged) && ctx.Err() == nil {
		short, cancel := context.WithTimeout(ctx, askTime)
		if cerr := c.unchanged(short, r); errors.Is(cerr, ErrChanged) { // that is why it failed, then
			err = fmt.Errorf("%w (%w)", cerr, err)
		}
		cancel()
	}
	if err == nil && p.good() < p.size { // cannot happen while OnVerified keeps its promise
		err = fmt.Errorf("share: only %d of %d bytes were verified", p.good(), p.size)
	}
	return err
}

// commit gives the file its name, unless it is not what was expected.
func (f *Fetched) commit(p *partial, at place, o FetchOptions) error {
	var wrong *DigestError
	overwrite := o.Overwrite
	if o.Expect != nil && *f.SHA256 != *o.Expect {
		at.base, at.shown = stem(at.base)+MismatchSuffix, stem(at.shown)+MismatchSuffix
		wrong, overwrite = &DigestError{p.name, at.shown, *o.Expect, *f.SHA256}, true
	}
	if err := p.commit(at, overwrite); err != nil {
		if wrong != nil {
			wrong.Kept = ""
			err = errors.Join(wrong, err)
		}
		return &PartialError{p.name, partialOf(p.shown), p.good(), p.size, err}
	}
	if wrong != nil {
		return wrong
	}
	return nil
}

// giveUp ends an attempt and says what it leaves.
func giveUp(p *partial, err error) error {
	if p.good() == 0 || errors.Is(err, ErrChanged) {
		if derr := p.discard(); derr != nil {
			err = errors.Join(err, derr)
		}
		return fmt.Errorf("share: fetch %q: %w", Printable(p.name), err)
	}
	e := &PartialError{p.name, partialOf(p.shown), p.good(), p.size, err}
	if cerr := p.close(); cerr != nil {
		e.Err = errors.Join(err, cerr)
	}
	return e
}

// writable says whether a file may be made at a place.
func writable(at place, overwrite bool) error {
	fi, err := at.dir.Lstat(at.base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("share: %w", err)
	case fi.IsDir():
		return fmt.Errorf("%w: %s is a directory", ErrExists, at.shown)
	case !overwrite:
		return fmt.Errorf("%w: %s", ErrExists, at.shown)
	case !fi.Mode().IsRegular():
		return fmt.Errorf("%w: %s is %s", ErrUnsafe, at.shown, kind(fi.Mode()))
	}
	return nil
}
