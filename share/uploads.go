package share

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

const (
	// answerTime is how long a call waits for what takes long before it answers "not yet". It is
	// well below the time after which a request is given up.
	answerTime = 3 * time.Second
	// maxUploads bounds the uploads under way at once, maxUploadsOfOne those of one peer, so that
	// it cannot keep all others out; maxRecent is how many are remembered after their end.
	maxUploads      = 256
	maxUploadsOfOne = 64
	maxRecent       = 256
	// idleUpload is how long an upload may not come on before it has to give way to others that
	// want its name or its room. A peer says how far it is after each window.
	idleUpload = 5 * time.Minute
)

// uploads are those of a Server.
type uploads struct {
	idle     time.Duration // see idleUpload
	patience time.Duration // see answerTime; of room
	keep     int           // see maxPartialsOfOne
	disk     sync.Mutex    // held while blocks are counted and allocated

	mu     sync.Mutex // guards what follows
	active map[string]*upload
	small  smalls
	recent []*upload // that are over, the latest last

	partials partials
}

// upload is a file that a peer is putting here. A goroutine of its own owns it from beginning to
// end.
type upload struct {
	beginRequest
	s      *Server
	id     uint64
	peer   *transfer.Peer
	path   string // of the destination below the root
	base   string // of the partial file
	ctx    context.Context
	cancel context.CancelCauseFunc
	commit chan commitRequest // buffered
	ready  chan struct{}      // closed when it was opened, or could not be
	over   chan struct{}      // closed when nothing of it is left
	heard  time.Time          // when it last came on; guarded by the mutex of uploads
	fences sync.WaitGroup     // of steps that were taken back
	filled atomic.Uint64      // bytes that it has of the disk

	mu       sync.Mutex             // guards what follows
	p        *partial               // nil before it is ready and when it ends
	steps    map[uint64]*uploadStep // by number; nil when they were taken back
	unfenced error                  // why it is not sure that the peer cannot write any more
	err      error                  // why it could not begin, or how it ended; fixed when ready, then when over
	done     bool                   // the file is in its place
}

var errEnded = fmt.Errorf("%w: the upload has ended", ErrBusy)

// called answers a call of a peer.
func (s *Server) called(ctx context.Context, p *transfer.Peer, b []byte) ([]byte, error) {
	answer, err := s.answer(ctx, p, b)
	if err != nil {
		return nil, refusal(err)
	}
	return answer, nil
}

// refusal is the error that the peer gets.
func refusal(err error) error {
	for _, k := range refusals {
		if errors.Is(err, k.err) {
			return control.Errorf(k.code, "%v", err)
		}
	}
	return control.AsError(err)
}

var refusals = []struct {
	err  error
	code control.Code
}{
	{ErrExists, control.Exists}, {ErrBusy, control.Busy}, {ErrNoSpace, control.OverBudget}, {ErrRefused, control.NotPermitted},
	{ErrUnsafe, control.BadRequest}, {ErrName, control.BadRequest}, {ErrClosed, control.Shutdown}, {ErrDigest, control.Integrity},
}

func (s *Server) answer(ctx context.Context, p *transfer.Peer, b []byte) ([]byte, error) {
	in := fieldsOf(b)
	op, id := in.byte(), in.num(8)
	switch op {
	case opBegin:
		r, err := parseBegin(b)
		if err != nil {
			return nil, err
		}
		a, err := s.begin(ctx, p, r)
		if err != nil {
			return nil, err
		}
		return a.append(nil), nil
	case opRoom, opVerified:
		n := in.num(8)
		if !in.end() {
			break
		}
		u, err := s.uploadOf(p, id)
		if err != nil {
			return nil, err
		}
		if op == opVerified {
			good, err := u.verified(n)
			return binary.BigEndian.AppendUint64(nil, good), err
		}
		d, err := u.room(n)
		if err != nil || d.Key == (path.Key{}) {
			return nil, err
		}
		return appendRoomAnswer(nil, d), nil
	case opCommit:
		r, err := parseCommit(b)
		if err != nil {
			return nil, err
		}
		u, err := s.uploadOf(p, r.id)
		if err != nil {
			return nil, err
		}
		u.cameOn()
		select {
		case u.commit <- r:
		default: // asked before
		}
		return u.outcome(ctx)
	case opEnd:
		if !in.end() {
			break
		}
		if u, err := s.uploadOf(p, id); err == nil {
			u.cancel(ErrGaveUp)
			if _, err := u.outcome(ctx); !errors.Is(err, ErrGaveUp) {
				return nil, err
			}
		}
		return nil, nil
	}
	return nil, control.Errorf(control.BadRequest, "malformed upload request (%d bytes)", len(b))
}

// uploadOf finds an upload of a peer by its id.
func (s *Server) uploadOf(p *transfer.Peer, id uint64) (*upload, error) {
	up := &s.uploads
	up.mu.Lock()
	defer up.mu.Unlock()
	is := func(u *upload) bool { return u.id == id && u.peer == p }
	for _, u := range up.active {
		if is(u) {
			return u, nil
		}
	}
	if i := slices.IndexFunc(up.recent, is); i >= 0 {
		return up.recent[i], nil
	}
	return nil, control.Errorf(control.NotFound, "no such upload")
}

// cameOn keeps an upload from giving way.
func (u *upload) cameOn() {
	u.s.uploads.mu.Lock()
	u.heard = time.Now()
	u.s.uploads.mu.Unlock()
}

// permitted checks what can be checked of a request by itself.
func (s *Server) permitted(p *transfer.Peer, name string, size uint64) error {
	if err := p.Require(identity.Write); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	most := uint64(math.MaxInt64 - chunkSize)
	if s.o.MaxBytes > 0 {
		most = min(most, s.o.MaxBytes)
	}
	if size > most {
		return fmt.Errorf("%w: %d bytes: a file of at most %d is taken", ErrNoSpace, size, most)
	}
	if s.o.MayUpload != nil {
		if err := s.o.MayUpload(p, name, size); err != nil {
			return fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
	return nil
}

// uploadPath is the path that a file of a name gets, where it is served and counted.
func (s *Server) uploadPath(name string) (string, error) {
	at, err := PathOf(name)
	if err != nil {
		return "", err
	}
	if n := strings.Count(at, "/"); n > maxDepth {
		return "", fmt.Errorf("%w: %d directories deep, expected at most %d", ErrName, n, maxDepth)
	}
	if slices.ContainsFunc(strings.Split(at, "/"), s.hidden) {
		return "", fmt.Errorf("%w: %q: a part of it begins with a dot, and this share has no hidden files: that "+
			"needs penstock serve --hidden (Options.Hidden)", ErrName, Printable(name))
	}
	return at, nil
}

// begin prepares an upload, or finds the one that the same call began before.
func (s *Server) begin(ctx context.Context, p *transfer.Peer, r beginRequest) (*beginAnswer, error) {
	if err := s.permitted(p, r.name, r.size); err != nil {
		return nil, err
	}
	at, err := s.uploadPath(r.name)
	if err != nil {
		return nil, err
	}
	end := time.NewTimer(answerTime)
	defer end.Stop()
	for {
		u, before, err := s.enter(p, at, r)
		if err != nil {
			return nil, err
		}
		if u == nil {
			return &beginAnswer{state: stateComplete}, nil
		}
		wait := u.ready
		var living <-chan struct{}
		if before { // it has to end first: nothing of it may write when the next one begins
			if wait = u.over; u.yields(p) {
				u.cancel(ErrBusy)
			} else {
				living = u.peer.Gone()
			}
		}
		select {
		case <-wait:
			if before {
				continue
			}
			return u.answer()
		case <-living:
		case <-end.C:
			if living != nil {
				return nil, fmt.Errorf("%w: another peer is uploading the same file", ErrBusy)
			}
			return &beginAnswer{state: statePending}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// enter returns the upload of this request, which it makes unless it is there; or, with before, one
// that has to give way: of the same file, or of a peer that is stuck. Nil means that the upload of
// this token is complete.
func (s *Server) enter(p *transfer.Peer, at string, r beginRequest) (u *upload, before bool, err error) {
	disk, err := s.disk()
	if err != nil {
		return nil, false, err
	}
	base := partialBase(p, r.name)
	taken := s.free(at, r.overwrite)
	up := &s.uploads
	up.mu.Lock()
	defer up.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, false, ErrClosed
	}
	if slices.ContainsFunc(up.recent, func(u *upload) bool { return u.token == r.token && u.done }) {
		return nil, false, nil
	}
	if taken != nil {
		return nil, false, taken
	}
	if u := up.active[at]; u != nil {
		switch {
		case u.peer == p && u.token == r.token && u.restart == r.restart && !u.ended():
			select {
			case <-u.ready: // then only what comes counts
			default:
				u.heard = time.Now()
			}
			return u, false, nil
		// perhaps the same one, after its connection was lost
		case u.peer == p || u.peer.Err() != nil || u.claim == r.claim || u.ended() || up.stuck(u):
			return u, true, nil
		}
		return nil, false, fmt.Errorf("%w: another peer is uploading this name", ErrBusy)
	}
	if _, small := up.small.paths[at]; small {
		return nil, false, fmt.Errorf("%w: a batch of small files has this name", ErrBusy)
	}
	if len(up.active) >= maxUploads {
		for _, u := range up.active {
			if up.stuck(u) {
				return u, true, nil
			}
		}
		return nil, false, fmt.Errorf("%w: %d uploads are under way", ErrBusy, maxUploads)
	}
	own := 0
	var idle *upload
	for _, u := range up.active {
		if u.peer.Name() == p.Name() { // the proven name, where one was proven
			own++
			if up.stuck(u) {
				idle = u
			}
		}
	}
	if own >= maxUploadsOfOne {
		if idle != nil {
			return idle, true, nil
		}
		return nil, false, fmt.Errorf("%w: %d uploads of this peer are under way", ErrBusy, own)
	}
	s.expirePartials()
	if err := s.quota(disk, at, 1, r.size, base); err != nil {
		for _, u := range up.active {
			if up.stuck(u) {
				return u, true, nil
			}
		}
		return nil, false, err
	}
	var id [8]byte
	rand.Read(id[:]) // never fails
	u = &upload{beginRequest: r, s: s, id: binary.BigEndian.Uint64(id[:]), peer: p, path: at, base: base,
		heard:  time.Now(),
		commit: make(chan commitRequest, 1), ready: make(chan struct{}), over: make(chan struct{}),
		steps: map[uint64]*uploadStep{}}
	u.ctx, u.cancel = context.WithCancelCause(s.ctx)
	up.active[at] = u
	up.partials.remove(base)
	s.needDirs(at)
	s.wg.Go(u.run)
	return u, false, nil
}

// stuck reports whether an upload has not come on for so long that it has to give way. The mutex is
// held.
func (up *uploads) stuck(u *upload) bool { return time.Since(u.heard) >= up.idle }

// free says whether a file may be made at a path below the root.
func (s *Server) free(at string, overwrite bool) error {
	dir, err := walk(s.root, at, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return writable(place{dir, at[strings.LastIndexByte(at, '/')+1:], at}, overwrite)
}

// run is the life of an upload.
func (u *upload) run() {
	s := u.s
	err := u.open()
	var acc *access
	if err == nil {
		acc = newAccess(Access{Peer: u.peer, Name: u.name, Upload: true, Size: u.size, From: u.p.start,
			Good: u.p.start})
		s.begins(acc)
	}
	u.mu.Lock()
	u.err = err
	u.mu.Unlock()
	close(u.ready)
	if err == nil {
		select {
		case c := <-u.commit:
			acc.Path = c.via
			err = u.finish(c)
		case <-u.ctx.Done():
			err = context.Cause(u.ctx)
		case <-u.peer.Gone():
			err = u.peer.Err()
		}
	}
	// Nothing writes to the memory any more when the partial file is closed, and so its lock given
	// up. The node gives up peers that do not confirm, so this ends.
	p, rerr := u.fence()
	if rerr != nil {
		s.log.Warn("upload not fenced", "path", u.path, "error", rerr)
	}
	u.mu.Lock()
	u.err, u.done = err, err == nil
	u.mu.Unlock()
	if acc != nil {
		if acc.Good = u.size; p != nil { // else it was committed, or could not be
			acc.Good = p.good()
		}
	}
	if p != nil {
		var cerr error
		if p.good() == 0 || errors.Is(err, ErrChanged) || errors.Is(err, ErrDigest) {
			cerr = p.discard()
		} else {
			cerr = p.close()
		}
		if cerr != nil {
			s.log.Warn("partial upload", "path", u.path, "error", cerr)
		}
		p.dir.Close()
	}
	if err != nil {
		s.log.Info("upload ended", "peer", u.peer.Name(), "path", u.path, "error", err)
	}
	u.cancel(nil)
	s.uploads.mu.Lock()
	delete(s.uploads.active, u.path)
	s.doneDirs(u.path)
	if err != nil {
		s.leavePartial(u.base)
	}
	s.uploads.recent = append(s.uploads.recent, u)
	if n := len(s.uploads.recent); n > maxRecent {
		s.uploads.recent = slices.Clone(s.uploads.recent[n-maxRecent:])
	}
	s.uploads.mu.Unlock()
	if acc != nil {
		s.ends(acc, err)
	}
	close(u.over)
}

// yields reports whether an upload makes way for one that a peer begins: its own, or that of a node
// of the same name, which may have lost the connection. That of another living node does so only
// after a long silence.
func (u *upload) yields(to *transfer.Peer) bool {
	up := &u.s.uploads
	up.mu.Lock()
	defer up.mu.Unlock()
	return up.stuck(u) || u.peer.Err() != nil || u.ofSame(to) || u.ended()
}

// ofSame reports whether a peer is the one that began an upload, or a node of the same principal
// and name.
func (u *upload) ofSame(p *transfer.Peer) bool {
	return u.peer.Name() == p.Name() && u.peer.Principal() == p.Principal()
}

func (u *upload) ended() bool { return u.ctx.Err() != nil }

// open prepares the memory that the peer puts into.
func (u *upload) open() error {
	dir, err := step(u.s.root, stagingDir, stagingMode)
	if err != nil {
		return err
	}
	p, err := openPartial(u.ctx, place{dir, u.base, u.path}, u.claim, !u.restart, false)
	if err != nil {
		dir.Close()
		return err
	}
	u.filled.Store(p.filled)
	u.mu.Lock()
	u.p = p
	u.mu.Unlock()
	return nil
}

// answer is what the peer needs to go on.
func (u *upload) answer() (*beginAnswer, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.err != nil {
		return nil, u.err
	}
	if u.p == nil {
		return nil, errEnded
	}
	return &beginAnswer{state: stateReady, id: u.id, good: u.p.good(), digest: digestOf(u.p.sums)}, nil
}

// verified vouches for what the peer put: its checksums are those of the bytes that are here.
func (u *upload) verified(upTo uint64) (uint64, error) {
	u.mu.Lock()
	if u.p == nil {
		u.mu.Unlock()
		return 0, errEnded
	}
	was := u.p.good()
	// Not more than the peer puts at once, so that a call does not take long.
	err := u.p.record(min(upTo, was+stepSize, u.p.filled))
	good := u.p.good()
	u.mu.Unlock()
	if good > was {
		u.cameOn()
	}
	return good, err
}

// finish makes the file out of the partial one.
func (u *upload) finish(c commitRequest) error {
	// The peer must not be able to write once the file is in its place, nor when its place is free
	// for another upload.
	p, err := u.fence()
	keep := func(err error) error {
		u.mu.Lock()
		u.p = p
		u.mu.Unlock()
		return err
	}
	if err != nil {
		return keep(err)
	}
	if p.good() < p.size {
		return keep(fmt.Errorf("%w: commit of an upload of which %d of %d bytes are there", ErrRefused, p.good(),
			p.size))
	}
	if u.ended() {
		return keep(context.Cause(u.ctx))
	}
	if digestOf(p.sums) != c.digest {
		return keep(fmt.Errorf("%w: the bytes that arrived are not those of the file", ErrChanged))
	}
	if c.sha256 != nil {
		got, err := p.sha256(u.ctx)
		if err == nil && *got != *c.sha256 {
			// which one would tell a peer that may not read what others uploaded
			err = fmt.Errorf("%w: the bytes that arrived have another", ErrDigest)
		}
		if err != nil {
			return keep(err)
		}
	}
	to, err := placeBelow(u.s.root, u.path, "")
	u.s.madeDirs(u.path, err)
	if err != nil {
		return keep(err)
	}
	defer to.dir.Close()
	if c.like != nil {
		p.like = c.like.less(u.s.umask)
	}
	if err := p.commit(to, u.overwrite); err != nil { // closes it in any case
		p.dir.Close()
		return err
	}
	p.dir.Close()
	u.s.came(u.peer, u.path, u.size)
	return nil
}

// outcome waits for the end of an upload and says whether it came.
func (u *upload) outcome(ctx context.Context) ([]byte, error) {
	t := time.NewTimer(answerTime)
	defer t.Stop()
	select {
	case <-u.over:
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.err != nil {
			return nil, u.err
		}
		return []byte{1}, nil
	case <-t.C:
		return []byte{0}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// UploadSnapshot is an upload under way.
type UploadSnapshot struct {
	Peer string `json:"peer"`
	Name string `json:"name"`
	Size uint64 `json:"size"` // bytes
	Good uint64 `json:"good"` // bytes from the beginning that are verified
}

func (s *Server) uploadSnapshots() []UploadSnapshot {
	s.uploads.mu.Lock()
	defer s.uploads.mu.Unlock()
	var out []UploadSnapshot
	for _, u := range s.uploads.active {
		x := UploadSnapshot{Peer: u.peer.Name(), Name: u.name, Size: u.size}
		u.mu.Lock()
		if u.p != nil {
			x.Good = u.p.good()
		}
		u.mu.Unlock()
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b UploadSnapshot) int { return strings.Compare(a.Name, b.Name) })
	return out
}
