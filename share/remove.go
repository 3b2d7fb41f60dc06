package share

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/job"
)

// A share that is Options.Writable answers by the service "share/remove/2" a peer that asks it to
// remove files. Numbers are big-endian.
//
//	flags u8, then for each of at most 512 names: length u8 and name, tag [16] of the content that the caller has seen, or zeros
//	-> for as many of the first names as it takes some seconds for, one at least: 0, size u64 of the file, which is removed; or code u16 of an
//	   error, length u16 and its text. Nothing was done about the names after them.
//
// Flag 1: only answer what the answer would be. A peer with neither of the rights list and read
// learns only what it has removed: its call has no flag and no tags, which are
// control.NotPermitted, its sizes are 0, and what is not removed because of what it is has
// control.NotFound. The error is control.NotFound where no file is served under the name,
// control.Revoked where it has another content, control.Busy where an upload of the file is under
// way, control.NotPermitted where Options.MayRemove refuses it, and control.BadRequest for a tensor
// and what is no plain file. Without the right write, and without Options.Removable, all of the
// call is control.NotPermitted.
const (
	removeService = "share/remove/2"
	flagRemoveDry = 1

	maxRemoveAnswer = 2 + 2 + maxReason // bytes about one name
)

// Removed is a file that a peer has removed from a share.
type Removed struct {
	Peer *transfer.Peer
	Name string // as peers call it
	Path string // where it was, below Root, with slashes
	Size uint64
}

// RemoveOptions say how Remove removes. The zero value is usual.
type RemoveOptions struct {
	// DryRun only asks whether the other side would remove the files, which needs the right list or
	// read there.
	DryRun bool
	// OnFile, if any, is called once for each file that the other side has removed, or refuses, in
	// their order. The Entry has its size, which is 0 for a peer that may neither list nor read.
	// Remove waits for it.
	OnFile func(e Entry, err error)
}

func parseRemove(b []byte) (dry bool, names []statName, err error) {
	in := fieldsOf(b)
	flags := in.byte()
	names = in.names()
	in.expect(flags&^flagRemoveDry == 0 && len(names) > 0)
	return flags == flagRemoveDry, names, in.err("request to remove files")
}

// removeAnswer is what became of one name.
type removeAnswer struct {
	size uint64
	err  *control.Error // nil: it is removed
}

func (a *removeAnswer) append(b []byte) []byte {
	if a.err == nil {
		return binary.BigEndian.AppendUint64(append(b, 0, 0), a.size)
	}
	text := a.err.Text[:min(len(a.err.Text), maxReason)]
	b = binary.BigEndian.AppendUint16(b, uint16(a.err.Code))
	return append(binary.BigEndian.AppendUint16(b, uint16(len(text))), text...)
}

// parseRemoveAnswers reads answers about the first of n names.
func parseRemoveAnswers(b []byte, n int) (out []removeAnswer, err error) {
	in := fieldsOf(b)
	for len(in.b) > 0 && len(out) < n {
		if code := control.Code(in.num(2)); code == control.OK {
			out = append(out, removeAnswer{size: in.num(8)})
		} else {
			text := in.sized(2)
			in.expect(len(text) <= maxReason)
			out = append(out, removeAnswer{err: &control.Error{Code: code, Text: text, Remote: true}})
		}
	}
	in.expect(len(out) > 0)
	return out, in.err("answer to a request to remove files")
}

// removeAsked answers a call of removeService.
func (s *Server) removeAsked(ctx context.Context, p *transfer.Peer, b []byte) (out []byte, err error) {
	dry, names, err := parseRemove(b)
	switch {
	case err != nil:
		return nil, err
	case !s.o.Removable:
		return nil, control.Errorf(control.NotPermitted,
			"this share takes files and removes none: that needs penstock serve --removable (Options.Removable)")
	}
	sees := p.Rights()&(identity.List|identity.Read) != 0
	if tagged := func(n statName) bool { return n.tag != Tag{} }; !sees && (dry || slices.ContainsFunc(names, tagged)) {
		return nil, control.Errorf(control.NotPermitted,
			"this node's policy lets you neither list nor read, so it does not say what it has: a removal without "+
				"--dry-run, and of no content in particular, needs no other right than to write")
	}
	var left *os.Root // a directory that is not synced yet
	var at string     // its path
	sync := func() {
		if left != nil {
			err = errors.Join(err, syncDir(left), left.Close())
			left = nil
		}
	}
	for end := time.Now().Add(answerTime); len(names) > 0 && ctx.Err() == nil &&
		len(out)+maxRemoveAnswer <= transfer.MaxCall; names = names[1:] {
		if len(out) > 0 && time.Now().After(end) {
			break
		}
		a := removeAnswer{}
		f, dir, dirAt, rerr := s.removeNamed(ctx, p, names[0], dry)
		switch {
		case rerr != nil:
			if a.err = removeRefusal(rerr); !sees &&
				(a.err.Code == control.BadRequest || a.err.Code == control.NotFound) {
				// a tensor, a link, or nothing: with one text
				a.err = control.Errorf(control.NotFound, "no file that you may remove has the name %q",
					Printable(names[0].name))
			}
		case sees:
			a.size = uint64(f.id.size)
		}
		if dir != nil {
			if dirAt != at {
				sync()
			} else if left != nil {
				left.Close()
			}
			left, at = dir, dirAt
		}
		out = a.append(out)
	}
	sync()
	if err != nil {
		return nil, control.Errorf(control.Internal, "what was removed may be there again after a crash: %v", err)
	}
	return out, ctx.Err()
}

// removeNamed removes one file that a peer asks for, and returns the directory that has one entry
// less, with its path; nil in a dry run. The caller syncs and closes it.
func (s *Server) removeNamed(ctx context.Context, p *transfer.Peer, n statName, dry bool) (*served, *os.Root, string,
	error) {
	if s.o.MayRemove != nil {
		if err := s.o.MayRemove(p, n.name); err != nil {
			return nil, nil, "", fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
	s.lookedUp(ctx, n.name)
	f, dir, at, err := s.takeAway(n, dry)
	if err != nil || dry {
		return f, nil, "", err
	}
	s.log.Info("removed", "peer", p.Name(), "path", f.path, "bytes", f.id.size)
	if s.o.OnRemove != nil {
		s.o.OnRemove(Removed{p, n.name, f.path, uint64(f.id.size)})
	}
	return f, dir, at, nil
}

func removeRefusal(err error) *control.Error {
	switch {
	case errors.Is(err, ErrChanged):
		return control.Errorf(control.Revoked, "%v", err)
	case errors.Is(err, fs.ErrNotExist):
		return control.Errorf(control.NotFound, "%v", err)
	case errors.Is(err, fs.ErrPermission):
		return control.Errorf(control.NotPermitted, "the server's user may not remove it: %v", err)
	}
	return control.AsError(refusal(err))
}

// takeAway removes the file that a name stands for, and what exports it. It returns the directory
// that has one entry less, with its path, which the caller syncs and closes; nil in a dry run.
func (s *Server) takeAway(n statName, dry bool) (*served, *os.Root, string, error) {
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock()
	f, tag := s.names[n.name].of, s.names[n.name].tag
	s.mu.Unlock()
	switch {
	case s.ctx.Err() != nil:
		return nil, nil, "", ErrClosed
	case f == nil:
		return nil, nil, "", control.Errorf(control.NotFound, "no file is served under the name %q", Printable(n.name))
	case f.views[0].export.Name() != n.name:
		return nil, nil, "", control.Errorf(control.BadRequest,
			"%q is a tensor in the file %q: only whole files are removed", Printable(n.name),
			Printable(f.views[0].export.Name()))
	case n.tag != (Tag{}) && n.tag != tag:
		return nil, nil, "", fmt.Errorf("%w: %s is another file now", ErrChanged, f.path)
	}
	dir, err := walk(s.root, f.path, 0)
	if err != nil {
		return nil, nil, "", plainOnly(err)
	}
	err = s.unlink(dir, f, n.tag != (Tag{}), dry)
	if err != nil || dry {
		dir.Close()
		return f, nil, "", err
	}
	s.drop(f)
	if s.o.FollowLinks {
		for _, p := range s.pathsOf(f.id) { // they led to it
			s.lookAt(s.ctx, p)
		}
	}
	dir, at := s.tidy(dir, f.path)
	return f, dir, at, nil
}

// plainOnly says of what is no plain file in a plain directory how it can be removed.
func plainOnly(err error) error {
	if errors.Is(err, ErrUnsafe) {
		return fmt.Errorf("%w; a peer removes only plain files, under the names that they have without links: remove "+
			"it on the machine that serves it", err)
	}
	return err
}

// unlink removes the file of dir that is served as f, in a dry run only if it were none; seen:
// another file that has its place stays. s.work is held.
func (s *Server) unlink(dir *os.Root, f *served, seen, dry bool) error {
	base := f.path[strings.LastIndexByte(f.path, '/')+1:]
	up := &s.uploads
	up.mu.Lock() // no upload begins, and none that is under way takes the name
	defer up.mu.Unlock()
	if u := up.active[f.path]; u != nil {
		if up.stuck(u) && !dry {
			u.cancel(ErrBusy)
		}
		return fmt.Errorf("%w: an upload of this name is under way", ErrBusy)
	}
	if _, taken := up.small.paths[f.path]; taken {
		return fmt.Errorf("%w: an upload of this name is under way", ErrBusy)
	}
	fi, err := dir.Lstat(base)
	switch {
	case err != nil:
		return fmt.Errorf("share: %w", err)
	case !fi.Mode().IsRegular():
		return plainOnly(fmt.Errorf("%w: %s is %s", ErrUnsafe, f.path, kind(fi.Mode())))
	case seen && idOf(fi) != f.id:
		return fmt.Errorf("%w: %s is another file now", ErrChanged, f.path)
	case dry:
		return nil
	}
	if err := dir.Remove(base); err != nil {
		return fmt.Errorf("share: %w", err)
	}
	return nil
}

// pathsOf are the paths under which a file is served.
func (s *Server) pathsOf(id fileID) (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, f := range s.files {
		if f.id == id {
			out = append(out, p)
		}
	}
	return out
}

// tidy removes the directories on the way to a path that are empty now, unless an upload is about
// to need one. dir is the lowest of them; tidy returns the one that stays, and its path. s.work is
// held.
func (s *Server) tidy(dir *os.Root, p string) (*os.Root, string) {
	up := &s.uploads
	up.mu.Lock()
	defer up.mu.Unlock()
	for strings.Contains(p, "/") {
		p = p[:strings.LastIndexByte(p, '/')]
		for at := range up.active {
			if strings.HasPrefix(at, p+"/") {
				return dir, p
			}
		}
		for at := range up.small.paths {
			if strings.HasPrefix(at, p+"/") {
				return dir, p
			}
		}
		above, err := walk(s.root, p, 0)
		if err != nil {
			return dir, p
		}
		if above.Remove(p[strings.LastIndexByte(p, '/')+1:]) != nil {
			above.Close()
			return dir, p
		}
		s.goneDir(p)
		dir.Close()
		dir = above
	}
	return dir, ""
}

// Remove removes files at the other side, which must be served with Options.Removable, and the
// directories that are empty then. A file is named by Entry.Name; one with another content than
// Entry.Tag, unless that is zero, stays. Remove asks for many files at a time, and what it has told
// OnFile is gone from the disk there, or stays. The error of a file matches control.NotFound where
// nothing has the name, ErrChanged where it has another content, ErrBusy while a peer uploads it,
// and ErrRefused where it is not permitted. Over a link, a question whose answer was lost is asked
// again: a name that is gone then counts as removed, and without a Tag a file that took the name
// meanwhile is removed, too.
//
// The error is nil if every file is removed. It wraps the first failure otherwise, which does not
// keep the others from being removed, unless the other side is lost or removes no files at all.
func Remove(ctx context.Context, c Conn, files []Entry, o RemoveOptions) error {
	if err := invariants.Context(ctx, "share.Remove"); err != nil {
		return err
	}
	var first error
	failed := 0
	tell := func(e Entry, err error) {
		if err != nil {
			err = fmt.Errorf("share: remove %q: %w", Printable(e.Name), err)
			if failed++; first == nil {
				first = err
			}
		}
		if o.OnFile != nil {
			o.OnFile(e, err)
		}
	}
	var todo []Entry
	var names []statName
	for _, e := range files {
		if len(e.Name) == 0 || len(e.Name) > MaxName || !utf8.ValidString(e.Name) {
			tell(e, fmt.Errorf("%w: expected UTF-8 of 1 to %d bytes", ErrName, MaxName))
			continue
		}
		todo, names = append(todo, e), append(names, statName{e.Name, e.Tag})
	}
	done, asked := 0, 0
	restarted, node := false, uint64(0)
	do := job.DoOptions{
		Again: func(err error) bool {
			switch {
			case errors.Is(err, control.Internal):
				return false
			case errors.Is(err, control.Unsupported): // it listens before it has a share
				return restarted
			}
			return transfer.Retriable(err)
		},
		Progress: func() uint64 { return uint64(done) },
	}
	err := c.do(ctx, do, func(ctx context.Context, p *transfer.Peer) error {
		before := asked // of these an answer may have been lost
		restarted, node = before > 0 && p.Instance() != node, p.Instance()
		for done < len(todo) {
			q := []byte{0}
			if o.DryRun {
				q[0] = flagRemoveDry
			}
			q, n := appendNames(q, names[done:])
			asked = max(asked, done+n)
			b, err := p.Call(ctx, removeService, q)
			if err != nil {
				return err
			}
			answers, err := parseRemoveAnswers(b, n)
			if err != nil {
				return err
			}
			for _, a := range answers {
				e, err := todo[done], error(nil)
				switch {
				case a.err == nil:
					e.Size = a.size
				case done >= before || o.DryRun || a.err.Code != control.NotFound:
					err = removalError(a.err)
				}
				done++
				tell(e, err)
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return fmt.Errorf("share: remove: %w", removalError(stopped(ctx, err)))
	case failed > 1:
		return fmt.Errorf("share: remove: %d of %d files are not removed, the first: %w", failed, len(files), first)
	}
	return first
}

// removalError makes an error from the other side match the errors of this package.
func removalError(err error) error {
	kind := error(nil)
	switch {
	case errors.Is(err, transfer.ErrPeerLost):
	case errors.Is(err, control.Unsupported):
		return fmt.Errorf("%w: it lets no peer remove files: %w", ErrRefused, err)
	case errors.Is(err, control.Revoked):
		kind = ErrChanged
	case errors.Is(err, control.Busy):
		kind = ErrBusy
	case errors.Is(err, control.NotPermitted):
		kind = ErrRefused
	}
	if kind == nil {
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}
