package share

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
)

// A share that is Options.Writable answers by the service "share/remove/1" a peer that asks it to remove a file.
//
//	flags u8, length u8 and name, then nothing, or the tag [16] of the content that the caller has seen -> empty
//
// Flag 1: only answer what the answer would be. The error is control.NotFound where no file is served under the name, control.Revoked
// where it has another content, control.Busy where an upload of the file is under way, control.NotPermitted without the right write
// and without Options.Removable, and control.BadRequest for a tensor and what is no plain file.
const (
	removeService = "share/remove/1"
	flagRemoveDry = 1
)

// Removed is a file that a peer has removed from a share.
type Removed struct {
	Peer *transfer.Peer
	Name string // as peers call it
	Path string // where it was, below Root, with slashes
	Size uint64
}

// RemoveOptions say what Remove removes. The zero value removes whatever has the name.
type RemoveOptions struct {
	// Tag, unless it is zero, is that of the content that the caller has seen. A file with another content stays: ErrChanged.
	Tag Tag
	// DryRun only asks whether the other side would remove the file.
	DryRun bool
}

type removeRequest struct {
	dry  bool
	name string
	tag  Tag // zero: any
}

func (r *removeRequest) append(b []byte) []byte {
	flags := byte(0)
	if r.dry {
		flags = flagRemoveDry
	}
	b = append(append(b, flags, byte(len(r.name))), r.name...)
	if r.tag != (Tag{}) {
		b = append(b, r.tag[:]...)
	}
	return b
}

func parseRemove(b []byte) (r removeRequest, err error) {
	bad := control.Errorf(control.BadRequest, "removal of a file: %d bytes that are not one", len(b))
	if len(b) < 2 || b[0]&^flagRemoveDry != 0 {
		return r, bad
	}
	n, rest := int(b[1]), b[2:]
	if n == 0 || len(rest) < n || !utf8.Valid(rest[:n]) {
		return r, bad
	}
	r.dry, r.name = b[0]&flagRemoveDry != 0, string(rest[:n])
	switch rest = rest[n:]; len(rest) {
	case 0:
	case len(Tag{}):
		if r.tag = Tag(rest); r.tag == (Tag{}) {
			return r, bad
		}
	default:
		return r, bad
	}
	return r, nil
}

// removeAsked answers a call of removeService.
func (s *Server) removeAsked(ctx context.Context, p *transfer.Peer, b []byte) ([]byte, error) {
	r, err := parseRemove(b)
	if err == nil {
		err = s.mayRemove(p, r.name)
	}
	if err != nil {
		return nil, refusal(err)
	}
	s.lookedUp(ctx, p, r.name)
	f, dir, err := s.takeAway(r)
	if err != nil {
		return nil, removeRefusal(err)
	}
	if r.dry {
		return nil, nil
	}
	defer dir.Close()
	size := uint64(f.id.size)
	s.log.Info("removed", "peer", p.Name(), "path", f.path, "bytes", size)
	if s.o.OnRemove != nil {
		s.o.OnRemove(Removed{p, r.name, f.path, size})
	}
	if err := syncDir(dir); err != nil {
		return nil, removeRefusal(fmt.Errorf("%s is removed, and may be there again after a crash: %w", f.path, err))
	}
	return nil, nil
}

func removeRefusal(err error) error {
	switch {
	case errors.Is(err, ErrChanged):
		return control.Errorf(control.Revoked, "%v", err)
	case errors.Is(err, fs.ErrNotExist):
		return control.Errorf(control.NotFound, "%v", err)
	case errors.Is(err, fs.ErrPermission):
		return control.Errorf(control.NotPermitted, "the server's user may not remove it: %v", err)
	}
	return refusal(err)
}

func (s *Server) mayRemove(p *transfer.Peer, name string) error {
	switch {
	case p.Rights()&identity.Write == 0:
		return fmt.Errorf("%w: this node's policy does not let you write", ErrRefused)
	case !s.o.Removable:
		return fmt.Errorf("%w: this share takes files and removes none: that needs Options.Removable (penstock serve --removable)", ErrRefused)
	}
	if s.o.MayRemove != nil {
		if err := s.o.MayRemove(p, name); err != nil {
			return fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
	return nil
}

// takeAway removes the file that a name stands for, and what exports it. It returns the directory that has one entry less, which the
// caller syncs and closes; nil in a dry run.
func (s *Server) takeAway(r removeRequest) (*served, *os.Root, error) {
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock()
	f, tag, closed := s.names[r.name].of, s.names[r.name].tag, s.closed
	s.mu.Unlock()
	switch {
	case closed:
		return nil, nil, ErrClosed
	case f == nil:
		return nil, nil, control.Errorf(control.NotFound, "no file is served under the name %q", Printable(r.name))
	case f.views[0].export.Name() != r.name:
		return nil, nil, control.Errorf(control.BadRequest, "%q is a tensor in the file %q: only whole files are removed", Printable(r.name), Printable(f.views[0].export.Name()))
	case r.tag != (Tag{}) && r.tag != tag:
		return nil, nil, fmt.Errorf("%w: %s is another file now", ErrChanged, f.path)
	}
	dir, err := walk(s.root, f.path, false)
	if err != nil {
		return nil, nil, plainOnly(err)
	}
	err = s.unlink(dir, f, r)
	if err != nil || r.dry {
		dir.Close()
		return f, nil, err
	}
	s.drop(f)
	if s.o.FollowLinks {
		for _, p := range s.pathsOf(f.id) { // they led to it
			s.lookAt(s.ctx, p)
		}
	}
	return f, s.tidy(dir, f.path), nil
}

// plainOnly says of what is no plain file in a plain directory how it can be removed.
func plainOnly(err error) error {
	if errors.Is(err, ErrUnsafe) {
		return fmt.Errorf("%w; a peer removes only plain files, under the names that they have without links: remove it on the machine that serves it", err)
	}
	return err
}

// unlink removes the file of dir that is served as f, unless r only asks. s.work is held.
func (s *Server) unlink(dir *os.Root, f *served, r removeRequest) error {
	base := f.path[strings.LastIndexByte(f.path, '/')+1:]
	up := &s.uploads
	up.mu.Lock() // no upload begins, and none that is under way takes the name
	defer up.mu.Unlock()
	if u := up.active[f.path]; u != nil {
		if up.stuck(u) && !r.dry {
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
	case r.tag != (Tag{}) && idOf(fi) != f.id:
		return fmt.Errorf("%w: %s is another file now", ErrChanged, f.path)
	case r.dry:
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

// tidy removes the directories on the way to a path that are empty now, unless an upload is about to need one. dir is the lowest of them;
// tidy returns the one that stays. s.work is held.
func (s *Server) tidy(dir *os.Root, p string) *os.Root {
	up := &s.uploads
	up.mu.Lock()
	defer up.mu.Unlock()
	for strings.Contains(p, "/") {
		p = p[:strings.LastIndexByte(p, '/')]
		for at := range up.active {
			if strings.HasPrefix(at, p+"/") {
				return dir
			}
		}
		for at := range up.small.paths {
			if strings.HasPrefix(at, p+"/") {
				return dir
			}
		}
		above, err := walk(s.root, p, false)
		if err != nil {
			return dir
		}
		if above.Remove(p[strings.LastIndexByte(p, '/')+1:]) != nil {
			above.Close()
			return dir
		}
		dir.Close()
		dir = above
	}
	return dir
}

// Remove removes a file at the other side, which must be served with Options.Removable, and the directories that are empty then. It is
// gone from the disk there when Remove returns. The error matches control.NotFound where nothing has the name, ErrChanged where it has
// another content than o.Tag, ErrBusy while a peer uploads it, and ErrRefused where it is not permitted. Over a link, an attempt whose answer
// was lost is made again: a name that is gone then counts as removed, and without o.Tag a file that took the name meanwhile is removed, too.
func Remove(ctx context.Context, c Conn, name string, o RemoveOptions) error {
	if err := invariants.Context(ctx, "share.Remove"); err != nil {
		return err
	}
	if len(name) == 0 || len(name) > MaxName || !utf8.ValidString(name) {
		return fmt.Errorf("%w: %q: expected UTF-8 of 1 to %d bytes", ErrName, Printable(name), MaxName)
	}
	r := removeRequest{o.DryRun, name, o.Tag}
	again, restarted := false, false
	node := uint64(0)
	do := transfer.DoOptions{Again: func(err error) bool {
		switch {
		case errors.Is(err, control.Busy), errors.Is(err, control.Revoked), errors.Is(err, control.Internal):
			return false
		case errors.Is(err, control.Unsupported): // it listens before it has a share
			return restarted
		}
		return transfer.Retriable(err)
	}}
	err := c.do(ctx, do, func(ctx context.Context, p *transfer.Peer) error {
		before := again
		restarted = before && p.Instance() != node
		again, node = true, p.Instance()
		_, err := p.Call(ctx, removeService, r.append(nil))
		if before && !o.DryRun && errors.Is(err, control.NotFound) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("share: remove %q: %w", Printable(name), toldOfRemoval(stopped(ctx, err)))
	}
	return nil
}

// toldOfRemoval makes an error from the other side match the errors of this package.
func toldOfRemoval(err error) error {
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
