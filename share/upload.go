package share

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/path"
)

// UploadOptions say how a file is uploaded. The zero value is usual.
type UploadOptions struct {
	// Overwrite replaces what the other side has under the name, at the very end and all at once.
	Overwrite bool
	// NoResume starts from the beginning even if the other side has a part of the same file.
	NoResume bool
	// Like gives the file the modification time and the permissions of the local one, less what the
	// other side's umask says. What is replaced keeps its permissions.
	Like bool
	// Digest makes Upload sum up the file first, for Sent.SHA256, and the other side compare its
	// own sum before the file gets its name.
	Digest bool
	// Expect, if not nil, is Digest, and nothing is sent unless the SHA-256 is this one: the error
	// is a *DigestError.
	Expect *[32]byte
	// Progress, if any, is called at the beginning and as bytes are verified, by one goroutine at a
	// time. It must not block.
	Progress func(Progress)
}

// Sent is a file that was uploaded.
type Sent struct {
	Name     string
	Size     uint64        // bytes
	Tag      Tag           // of the local file
	Resumed  uint64        // bytes that an earlier attempt had left there
	Moved    uint64        // bytes that were moved now
	Duration time.Duration // of all of it, syncing at the other side included
	Path     string        // that the bytes took, such as "tcp"; "" if nothing had to be moved
	Proof    path.Proof    // by what the transfer was verified
	SHA256   *[32]byte     // nil if it was not asked for
}

// Upload copies the local file to the other side, under name. It returns when the file is complete
// there, verified, synced and in its place. If it ends early, the other side keeps the part that
// was verified, and the next Upload of the same file goes on from there: the error is a
// *PartialError then. ErrRefused means that the other side does not take it; ErrExists, ErrBusy and
// ErrNoSpace match what it says.
func Upload(ctx context.Context, c Conn, file, name string, o UploadOptions) (*Sent, error) {
	if err := invariants.Context(ctx, "share.Upload"); err != nil {
		return nil, err
	}
	f, err := openNamed(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return uploadFile(ctx, c, f, file, name, o)
}

// UploadFile is Upload of an open file, which need not have a name any more. It uploads all of the
// file, whatever its offset, and leaves it open.
func UploadFile(ctx context.Context, c Conn, f *os.File, name string, o UploadOptions) (*Sent, error) {
	if err := invariants.Context(ctx, "share.UploadFile"); err != nil {
		return nil, err
	}
	return uploadFile(ctx, c, f, f.Name(), name, o)
}

// uploadFile is UploadFile of a file whose path here is file.
func uploadFile(ctx context.Context, c Conn, f *os.File, file, name string, o UploadOptions) (*Sent, error) {
	begin := time.Now()
	if _, err := PathOf(name); err != nil {
		return nil, err
	}
	u := &uploader{c: c, o: o, file: file, f: f, beginRequest: beginRequest{overwrite: o.Overwrite, restart: o.NoResume,
		claim: claim{name: name}}}
	rand.Read(u.token[:]) // never fails
	if err := u.open(); err != nil {
		return nil, err
	}
	defer u.region.Close()
	if o.Digest || o.Expect != nil {
		if err := u.sumUp(ctx); err != nil {
			return nil, err
		}
	}
	if err := u.run(ctx); err != nil {
		err = fmt.Errorf("share: upload %q: %w", Printable(name), peerError(stopped(ctx, err)))
		if u.good > 0 && !errors.Is(err, ErrChanged) {
			return nil, &PartialError{Name: name, Good: u.good, Size: u.size, Err: err}
		}
		return nil, err
	}
	return &Sent{Name: name, Size: u.size, Tag: u.tag, Resumed: u.start, Moved: u.moved.bytes,
		Duration: time.Since(begin), Path: u.moved.path, Proof: u.moved.proof, SHA256: u.sha256}, nil
}

// uploader is one call of Upload.
type uploader struct {
	beginRequest
	c      Conn
	o      UploadOptions
	file   string
	f      *os.File
	id     fileID
	region *mem.Region
	sums   []uint32 // of the chunks of the file here, as far as they were needed
	good   uint64   // what the other side acknowledged last
	start  uint64
	begun  bool
	moved  moved
	sha256 *[32]byte // nil: not asked for
	node   uint64    // instance of the process at the other side that took the upload last
}

func (u *uploader) open() error {
	fi, err := u.f.Stat()
	if err == nil && !fi.Mode().IsRegular() { // it was replaced
		return fmt.Errorf("%w: %s is %s", ErrUnsafe, u.file, kind(fi.Mode()))
	}
	if err == nil {
		u.region, u.id, err = mapFile(u.f)
	}
	if err != nil {
		return fmt.Errorf("share: upload %s: %w", u.file, err)
	}
	u.size, u.tag = uint64(u.id.size), u.id.tag()
	return nil
}

// sumUp makes the SHA-256 of the file here and compares it with the expected one.
func (u *uploader) sumUp(ctx context.Context) error {
	l, err := u.region.Lease()
	if err != nil {
		return err
	}
	defer l.Release()
	if u.sha256, err = sha256Of(ctx, l.Bytes()[:u.size], u.file); err != nil {
		if _, cerr := u.unchanged(); errors.Is(cerr, ErrChanged) {
			err = cerr
		}
		return err
	}
	if u.o.Expect != nil && *u.sha256 != *u.o.Expect {
		return &DigestError{Name: u.file, Want: *u.o.Expect, Got: *u.sha256}
	}
	return nil
}

// run brings the file to the other side, over as many sessions as the link's Retry allows.
func (u *uploader) run(ctx context.Context) error {
	restarted := false
	far := uint64(0)
	o := job.DoOptions{
		Again: func(err error) bool {
			switch {
			case errors.Is(err, ErrChanged), errors.Is(err, control.Busy), errors.Is(err, control.Internal),
				errors.Is(err, control.Integrity):
				return false
			case errors.Is(err, control.Unsupported): // it listens before it takes uploads
				return restarted
			}
			return transfer.Retriable(err)
		},
		Progress: func() uint64 { far = max(far, u.good); return far },
	}
	return u.c.do(ctx, o, func(ctx context.Context, p *transfer.Peer) error {
		restarted = u.begun && u.node != p.Instance()
		u.restart = u.restart && !u.begun // what this upload has put there itself is good
		return u.once(ctx, p)
	})
}

// unchanged checks that the file here is what it was when it was opened.
func (u *uploader) unchanged() (os.FileInfo, error) {
	fi, err := u.f.Stat()
	if err == nil && idOf(fi) != u.id {
		err = fmt.Errorf("%w: %s", ErrChanged, u.file)
	}
	return fi, err
}

// once tries with one session. The error is ErrChanged if the file changed: bytes that are no
// longer there show as an error of a path, which another attempt would meet again.
func (u *uploader) once(ctx context.Context, p *transfer.Peer) (err error) {
	defer func() {
		if _, cerr := u.unchanged(); err != nil && errors.Is(cerr, ErrChanged) {
			err = cerr
		}
	}()
	a, err := u.prepare(ctx, p)
	if err != nil || a.state == stateComplete {
		return err
	}
	err = u.bring(ctx, p, a)
	if err != nil && p.Err() == nil { // so that the other side does not wait for more
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
		defer cancel()
		p.Call(short, uploadService, appendEnd(nil, a.id))
	}
	return err
}

// bring moves what is missing of a file, and has it put in its place.
func (u *uploader) bring(ctx context.Context, p *transfer.Peer, a beginAnswer) error {
	if !u.begun {
		u.begun, u.start = true, a.good
	}
	u.node = p.Instance()
	u.good = a.good
	u.report()
	if u.size > u.good {
		var r *transfer.Remote // of the step that is being filled
		at := uint64(0)
		n, most := windowOf(p)
		err := pipeline(ctx, n, most, u.good, u.size, &u.moved,
			func(ctx context.Context, off, n uint64) (*transfer.Transfer, error) {
				if step := off / stepSize; r == nil || step != at {
					var err error
					if r, err = u.ask(ctx, p, a.id, step); err != nil {
						return nil, err
					}
					at = step
				}
				return p.Put(ctx, []path.Copy{r.At(off-at*stepSize, mem.Span{Region: u.region, Off: off, Len: n})},
					transfer.PutOptions{})
			}, func(upTo uint64) error { return u.vouch(ctx, p, a.id, upTo) })
		if err != nil {
			return err
		}
	}
	fi, err := u.unchanged()
	if err != nil {
		return err
	}
	if err := u.checksums(chunksOf(u.size)); err != nil {
		return err
	}
	commit := commitRequest{id: a.id, digest: digestOf(u.sums), sha256: u.sha256, via: u.moved.path}
	if u.o.Like {
		commit.like = &like{fi.ModTime(), fi.Mode().Perm()}
	}
	if len(commit.via) > maxVia {
		commit.via = ""
	}
	for {
		b, err := p.Call(ctx, uploadService, commit.append(nil))
		if err != nil {
			return err
		}
		if len(b) == 1 && b[0] == 1 {
			return nil
		}
		if len(b) != 1 || b[0] != 0 {
			return fmt.Errorf("malformed answer to commit: %w", path.ErrProtocol)
		}
	}
}

// ask asks for room for a step of the file.
func (u *uploader) ask(ctx context.Context, p *transfer.Peer, id, step uint64) (*transfer.Remote, error) {
	var b []byte
	for len(b) == 0 { // not yet
		var err error
		if b, err = p.Call(ctx, uploadService, appendRoom(nil, id, step)); err != nil {
			return nil, err
		}
	}
	d, ok := parseRoomAnswer(b)
	if !ok || d.Size != u.stepLen(step) {
		return nil, fmt.Errorf("malformed answer to room: %w", path.ErrProtocol)
	}
	return p.Import(d), nil
}

// prepare begins the upload at the other side and finds out how much of the file is there.
func (u *uploader) prepare(ctx context.Context, p *transfer.Peer) (beginAnswer, error) {
	for {
		b, err := p.Call(ctx, uploadService, u.append(nil))
		if err != nil {
			return beginAnswer{}, err
		}
		a, ok := parseBeginAnswer(b)
		switch {
		case !ok, a.state == stateReady && (a.good > u.size || a.good%chunkSize != 0 && a.good != u.size):
			return a, fmt.Errorf("malformed answer to begin: %w", path.ErrProtocol)
		case a.state == statePending:
			continue
		case a.state == stateComplete:
			return a, nil
		}
		// The tag says that it is a part of the same file; the bytes have to say so as well.
		n := chunksOf(a.good)
		if err := u.checksums(n); err != nil {
			return a, err
		}
		if digestOf(u.sums[:n]) == a.digest {
			return a, nil
		}
		if u.restart {
			return a, fmt.Errorf("the partial file there has other content although the upload began from the start: %w", path.ErrProtocol)
		}
		u.restart = true
	}
}

// checksums sums up the first n chunks of the file here.
func (u *uploader) checksums(n uint64) error {
	l, err := u.region.Lease()
	if err != nil {
		return err
	}
	defer l.Release()
	for i := uint64(len(u.sums)); i < n; i++ {
		sum, err := u.sum(l.Bytes(), i, u.file)
		if err != nil {
			return err
		}
		u.sums = append(u.sums, sum)
	}
	return nil
}

// vouch tells the other side how much is in place.
func (u *uploader) vouch(ctx context.Context, p *transfer.Peer, id, upTo uint64) error {
	b, err := p.Call(ctx, uploadService, appendVerified(nil, id, upTo))
	if err != nil {
		return err
	}
	if len(b) != 8 || binary.BigEndian.Uint64(b) > upTo {
		return fmt.Errorf("malformed answer to verified: %w", path.ErrProtocol)
	}
	u.good = binary.BigEndian.Uint64(b)
	u.report()
	return nil
}

func (u *uploader) report() {
	if u.o.Progress != nil {
		u.o.Progress(Progress{Name: u.name, File: u.file, Bytes: u.good, Size: u.size, Start: u.start,
			Via: u.moved.path})
	}
}

// peerError makes an error from the other side match the errors of this package.
func peerError(err error) error {
	if errors.Is(err, control.Unsupported) {
		return fmt.Errorf("%w: it takes no uploads: %w", ErrRefused, err)
	}
	for _, k := range refusals {
		if k.err != ErrClosed && k.code != control.BadRequest && errors.Is(err, k.code) &&
			!errors.Is(err, transfer.ErrPeerLost) {
			return fmt.Errorf("%w: %w", k.err, err)
		}
	}
	return err
}
