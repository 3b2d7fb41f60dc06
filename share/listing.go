package share

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/job"
)

// A share says by the service "share/listing/1" whether a listing of its node has everything that
// is there. A client that concludes from the absence of a name that a file is gone asks before and
// after it lists; see listing.
//
//	empty, or scan u64 -> lack u8, count u64 that is another one after something could not be looked at, or, of lackScan, scan u64 to ask again with
//
// Numbers are big-endian. While the first scan goes on, one that finds what the kernel has
// reported, or uploaded files are opened, an answer waits for its end, for some seconds. Who asks
// with the number of a scan waits for that one; else for one that begins from then on, if something
// has changed.
const listingService = "share/listing/1"

// lack says what a listing may be without. The zero value is what a node means that does not say.
type lack byte

const (
	lackUnsaid lack = iota
	lackNothing
	lackScan // a scan that finds changed files is not over, or uploaded files are not served yet
	lackSome // something is there that could not be looked at or exported
	lackMore // there are more files than Options.MaxFiles
)

// scanAsks is how often a client asks a server whose scan is not over, which waits answerTime each
// time.
const scanAsks = 20

// firstScan is the number of the scan before which a Server answers nothing.
const firstScan = 1

// ErrIncomplete means that the other side's listing may lack names of files that it has, so that
// nothing was deleted.
var ErrIncomplete = errors.New("share: the listing of the other side is incomplete")

// err says what to do about it; nil of a listing that lacks nothing.
func (l lack) err() error {
	switch l {
	case lackNothing:
		return nil
	case lackScan:
		return fmt.Errorf("%w: the server has not scanned all new or changed files yet: try again later", ErrIncomplete)
	case lackSome:
		return fmt.Errorf("%w: it could not look at all of its files: its log says at which and why (penstock serve "+
			"prints them as left out); "+
			"fix that there and try again", ErrIncomplete)
	case lackMore:
		return fmt.Errorf("%w: the directory has more files than the server exports: raise the limit there with "+
			"penstock serve "+
			"--max-files", ErrIncomplete)
	}
	return fmt.Errorf("%w: the server does not report that its listing is complete, as a share of this version does",
		ErrIncomplete)
}

// awaitScan waits for the end of the first scan.
func (s *Server) awaitScan(ctx context.Context) {
	select {
	case <-s.scanned:
	case <-s.ctx.Done():
	case <-ctx.Done():
	}
}

// upToDate serves what was uploaded, and waits, at most answerTime, for the first scan and for one
// that sees what has changed: see watch.caughtUp.
func (s *Server) upToDate(ctx context.Context, scan uint64, patient bool) (later uint64) {
	short, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	s.awaitScan(short)
	s.serveArrived(ctx)
	if s.only != "" {
		s.lookedUp(ctx, s.only)
	}
	return s.watch.caughtUp(short, scan, patient)
}

// listed answers a call of listingService.
func (s *Server) listed(ctx context.Context, _ *transfer.Peer, b []byte) ([]byte, error) {
	var scan uint64
	if len(b) > 0 {
		in := fieldsOf(b)
		if scan = in.num(8); !in.end() {
			return nil, control.Errorf(control.BadRequest, "a request of %d bytes, expected 8 or none", len(b))
		}
	}
	later := s.upToDate(ctx, scan, true)
	s.mu.Lock()
	defer s.mu.Unlock()
	l, count := s.lack, s.lacked
	if l == lackNothing && (later != 0 || len(s.arrived) > 0) {
		l = lackScan
	}
	if l == lackScan {
		count = later
	}
	return binary.BigEndian.AppendUint64([]byte{byte(l)}, count), nil
}

// leftOut records something that is there and is not served, so that listings lack its names until
// a scan finds otherwise: unless they lack nothing, because it is left out by its nature.
func (s *Server) leftOut(p string, err error, why lack) {
	if why == lackNothing {
		s.skip(p, err.Error())
		return
	}
	s.leaveOut(slog.LevelWarn, p, err.Error())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lack, s.found = why, why
	s.lacked++
}

// omission is a tensor, or all of them, that is left out of a file that is served.
type omission struct {
	path string
	err  error
	why  lack // lackNothing: by its nature
}

func (f *served) omit(tensor string, err error, why lack) {
	f.omitted = append(f.omitted, omission{f.path + "/" + tensor, err, why})
}

// recount counts what is left out of a file: at each scan, until the file changes or goes.
func (s *Server) recount(f *served) {
	for _, o := range f.omitted {
		s.leftOut(o.path, o.err, o.why)
	}
}

// listing is the names of the other node, without tags, and end says what they lack. Unless another
// process has taken the other one's place in between: then something may be lacking.
func listing(ctx context.Context, c Conn, prefix string) (names []Entry, end func(context.Context) (lack, error),
	err error) {
	var before lack
	var count uint64
	err = c.do(ctx, job.DoOptions{}, func(ctx context.Context, p *transfer.Peer) (err error) {
		before, count, err = askListing(ctx, p, 0)
		for n := 1; n < scanAsks && err == nil && before == lackScan; n++ {
			before, count, err = askListing(ctx, p, count)
		}
		if err != nil {
			return err
		}
		rs, err := p.Names(ctx, prefix)
		names = entriesOf(rs)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("share: list: %w", err)
	}
	return names, func(ctx context.Context) (lacks lack, err error) {
		if before != lackNothing {
			return before, nil
		}
		err = c.do(ctx, job.DoOptions{}, func(ctx context.Context, p *transfer.Peer) error {
			after, now, err := askListing(ctx, p, firstScan)
			if lacks = after; after == lackNothing && now != count { // in between
				lacks = lackSome
			}
			return err
		})
		if err != nil {
			return lackSome, fmt.Errorf("share: list: %w", err)
		}
		return lacks, nil
	}, nil
}

// askListing asks what a listing may lack: with 0 one from now on, else after a scan.
func askListing(ctx context.Context, p *transfer.Peer, scan uint64) (lack, uint64, error) {
	var q []byte
	if scan != 0 {
		q = binary.BigEndian.AppendUint64(nil, scan)
	}
	b, err := p.Call(ctx, listingService, q)
	if scan != 0 && errors.Is(err, control.BadRequest) { // it knows no numbers of scans
		return askListing(ctx, p, 0)
	}
	if err != nil && !errors.Is(err, control.Unsupported) {
		return lackUnsaid, 0, err
	}
	in := fieldsOf(b) // nothing from a node that does not know the service
	l, count := lack(in.byte()), in.num(8)
	if !in.end() || l > lackMore {
		return lackUnsaid, 0, nil
	}
	return l, count, nil
}

// absent reports whether an error says that there is no file to serve: nothing of that name, or not
// a file or directory. Every other error says only that it could not be looked at.
func absent(err error) bool {
	return (errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrUnsafe)) && !errors.Is(err, errReplaced)
}

// notServed is why a file that can be looked at is left out.
type notServed struct {
	why  lack
	text string
}

func (e *notServed) Error() string { return e.text }

// isCurrent reports whether nothing is to be done about a path: the file there is served as it is,
// or there is none and none is served.
func (s *Server) isCurrent(p string) bool {
	fi, err := s.look(p)
	s.mu.Lock()
	f := s.files[p]
	s.mu.Unlock()
	if f == nil {
		return err != nil || !fi.Mode().IsRegular()
	}
	return err == nil && fi.Mode().IsRegular() && f.id == idOf(fi)
}

// lookAt makes what is served of a path what is there now. s.work is held.
func (s *Server) lookAt(ctx context.Context, p string) {
	if s.o.FollowLinks {
		s.refresh(ctx, s.root, p, p)
		return
	}
	dir, err := walk(s.root, p, 0)
	if err != nil {
		s.failed(ctx, p, err)
		s.looked(ctx, p)
		return
	}
	defer dir.Close()
	s.refresh(ctx, dir, p[strings.LastIndexByte(p, '/')+1:], p)
}

// failed deals with a path whose file cannot be served as it is now: what was served of it goes if
// there is nothing any more, or the bytes under its mapping are known to have changed, and stays
// else. s.work is held.
func (s *Server) failed(ctx context.Context, p string, err error) {
	s.mu.Lock()
	old := s.files[p]
	s.mu.Unlock()
	if absent(err) {
		s.mu.Lock()
		s.clearUnserved(p)
		s.mu.Unlock()
		if old != nil {
			s.drop(old)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			s.skip(p, err.Error())
		}
		return
	}
	if ctx.Err() != nil { // ctx ended before the look
		return
	}
	fi, lerr := s.lookIn(s.root, p, p)
	if old != nil && lerr == nil && sys.Identity(fi).Inode == old.id.inode && idOf(fi) != old.id {
		s.drop(old) // its tag names bytes that are not there any more
		old = nil
	}
	if old != nil {
		s.skip(p, "still served as it was: "+err.Error())
		s.recount(old)
		return
	}
	why := lackSome
	var left *notServed
	if errors.As(err, &left) {
		why = left.why
	}
	s.leftOut(p, err, why)
	if why != lackMore && lerr == nil && fi.Mode().IsRegular() { // without room for it there is none for uploads
		s.mu.Lock()
		s.clearUnserved(p)
		s.unserved[p] = uint64(fi.Size())
		s.unservedSum += s.unserved[p]
		s.mu.Unlock()
	}
}

// clearUnserved forgets that the file at a path could not be served. s.mu is held.
func (s *Server) clearUnserved(p string) {
	s.unservedSum -= s.unserved[p]
	delete(s.unserved, p)
}
