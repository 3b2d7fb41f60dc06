package share

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/path"
)

// streamWindow is how many bytes are fetched at once for a writer; one window is written while the
// next comes.
const streamWindow = 8 << 20

// StreamOptions modify a Stream. The zero value is usual.
type StreamOptions struct {
	// Digest makes Stream sum up what it writes, for Fetched.SHA256.
	Digest bool
	// Expect, if not nil, is the SHA-256 that the content must have: the error is a *DigestError
	// otherwise, after all was written.
	Expect *[32]byte
	// Progress, if any, is called at the beginning and when bytes were written. It must not block.
	Progress func(Progress)
}

// Stream writes what the other side has under name to w, in order. When a session is lost it goes
// on over the next one of its link where it was, if the content is still the same (ErrChanged); it
// cannot restart, for what was written is written. It keeps 16 MiB of memory.
func Stream(ctx context.Context, c Conn, name string, w io.Writer, o StreamOptions) (*Fetched, error) {
	if err := invariants.Context(ctx, "share.Stream"); err != nil {
		return nil, err
	}
	begin := time.Now()
	m, err := mem.Alloc(mem.Options{Name: "stream", Size: 2 * streamWindow, Lazy: true})
	if err != nil {
		return nil, fmt.Errorf("share: stream %q: %w", Printable(name), err)
	}
	defer m.Close()
	x := &streamer{c: c, w: w, name: name, o: o, memory: m}
	if o.Digest || o.Expect != nil {
		x.digest = sha256.New()
	}
	do := job.DoOptions{Progress: func() uint64 { return x.far }, Again: func(err error) bool {
		return !errors.Is(err, errWriter) && (transfer.Retriable(err) || x.restarted &&
			errors.Is(err, control.NotFound))
	}}
	err = c.do(ctx, do, x.once)
	if x.tell != nil {
		x.tell.close(err == nil, x.moved.path)
	}
	if err != nil {
		err = stopped(ctx, err)
		if x.far > 0 {
			err = fmt.Errorf("after %d of %d bytes: %w", x.far, x.was.Size(), err)
		}
		return nil, fmt.Errorf("share: stream %q: %w", Printable(name), err)
	}
	f := &Fetched{Entry: entryOf(x.was), Moved: x.far, Duration: time.Since(begin), Path: x.moved.path,
		Proof: x.moved.proof}
	if x.digest != nil {
		f.SHA256 = new([32]byte)
		x.digest.Sum(f.SHA256[:0])
		if o.Expect != nil && *f.SHA256 != *o.Expect {
			return nil, &DigestError{Name: name, Want: *o.Expect, Got: *f.SHA256}
		}
	}
	return f, nil
}

// errWriter marks errors of the writer: they are not the other side's.
var errWriter = errors.New("share: writing")

// streamer writes what a peer serves to a writer, in order.
type streamer struct {
	c         Conn
	w         io.Writer
	name      string
	o         StreamOptions
	digest    hash.Hash // nil if it is not asked for
	memory    *mem.Region
	far       uint64           // bytes written
	was       *transfer.Remote // what the first of them were of; nil: nothing was found yet
	moved     moved
	restarted bool // the other side's process is another one since
	tell      *readReporter
}

// once goes on over one session.
func (x *streamer) once(ctx context.Context, p *transfer.Peer) error {
	x.restarted = x.was != nil && x.was.Peer.Instance() != p.Instance()
	if x.was == nil {
		r, small, err := x.c.look(ctx, p, x.name)
		if err != nil {
			return err
		}
		if x.was = r; small != nil {
			x.moved.path, x.moved.proof = viaControl, path.ProofCRC32C
			x.report()
			if len(small.bytes) == 0 {
				return nil
			}
			return x.write(small.bytes)
		}
		x.tell = newReadReporter(ctx, x.name, x.was.Size(), 0)
		x.report()
	} else if err := x.look(ctx, p); err != nil {
		return err
	}
	x.tell.session(p)
	return x.run(ctx, p)
}

// look asks for the name and checks that its content is what the first bytes were of.
func (x *streamer) look(ctx context.Context, p *transfer.Peer) error {
	r, err := p.Lookup(ctx, x.name)
	if err != nil {
		return err
	}
	if !sameContent(x.was, r) {
		return ErrChanged
	}
	x.was = r
	return nil
}

// run fetches and writes what is missing.
func (x *streamer) run(ctx context.Context, p *transfer.Peer) error {
	lease, err := x.memory.Lease()
	if err != nil {
		return err
	}
	defer lease.Release()
	n, _ := windowOf(p)
	window := min(streamWindow, n)
	at := func(off uint64) uint64 { return off/window%2*streamWindow + off%window } // in the memory
	err = pipeline(ctx, window, 2, x.far, x.was.Size(), &x.moved,
		func(ctx context.Context, off, n uint64) (*transfer.Transfer, error) {
			return p.Get(ctx, []path.Copy{x.was.At(off, mem.Span{Region: x.memory, Off: at(off), Len: n})},
				transfer.PutOptions{})
		}, func(upTo uint64) error {
			return x.write(lease.Bytes()[at(x.far):][:upTo-x.far])
		})
	if err != nil {
		return err
	}
	return x.look(ctx, p)
}

func (x *streamer) write(b []byte) error {
	n, err := x.w.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if x.digest != nil {
		x.digest.Write(b[:n])
	}
	x.far += uint64(n)
	if x.tell != nil {
		x.tell.far(x.far)
	}
	x.report()
	if err != nil {
		return fmt.Errorf("%w: %w", errWriter, err)
	}
	return nil
}

func (x *streamer) report() {
	if x.o.Progress != nil {
		x.o.Progress(Progress{Name: x.name, Bytes: x.far, Size: x.was.Size(), Via: x.moved.path})
	}
}
