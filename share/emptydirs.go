package share

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
)

// Files have names and directories have none, so a directory without files is known by the service "share/dirs/1" only.
//
//	list  1, length u8 and name after which the answer begins, prefix of names -> more u8 (1: ask again, after the last name), then for each
//	      directory, in the order of the names: length u8 and name
//	make  2, name -> empty; a directory that is there is made already. Only a share that is Options.Writable takes it.
const (
	dirsService = "share/dirs/1"

	opDirsList = 1
	opDirsMake = 2

	maxDirs     = 1 << 20 // that a client takes from a server, as transfer.Peer.List takes names
	dirsAtOnce  = 16
	insideOfDir = "/." // behind a name: what Filter takes for a file in it
)

type dirsRequest struct {
	op           byte
	after        string
	prefixOrName string
}

func (r *dirsRequest) append(b []byte) []byte {
	b = append(b, r.op)
	if r.op == opDirsList {
		b = append(append(b, byte(len(r.after))), r.after...)
	}
	return append(b, r.prefixOrName...)
}

func parseDirs(b []byte) (r dirsRequest, err error) {
	bad := control.Errorf(control.BadRequest, "a request about directories of %d bytes that is none", len(b))
	if len(b) == 0 || b[0] != opDirsList && b[0] != opDirsMake {
		return r, bad
	}
	r.op, b = b[0], b[1:]
	if r.op == opDirsList {
		if len(b) == 0 || len(b)-1 < int(b[0]) {
			return r, bad
		}
		r.after, b = string(b[1:][:int(b[0])]), b[1+int(b[0]):]
	}
	if r.prefixOrName = string(b); len(b) > MaxName || !utf8.ValidString(r.after) || !utf8.Valid(b) {
		return r, bad
	}
	return r, nil
}

// parseDirsAnswer reads names that rise from after.
func parseDirsAnswer(b []byte, after string) (names []string, more, ok bool) {
	if len(b) == 0 || b[0] > 1 {
		return nil, false, false
	}
	more, b = b[0] == 1, b[1:]
	for len(b) > 0 {
		n := int(b[0])
		if b = b[1:]; n == 0 || len(b) < n {
			return nil, false, false
		}
		name := string(b[:n])
		if b = b[n:]; name <= after || !utf8.ValidString(name) {
			return nil, false, false
		}
		names, after = append(names, name), name
	}
	return names, more, !more || len(names) > 0
}

// dirs answers a call of dirsService.
func (s *Server) dirs(_ context.Context, p *transfer.Peer, b []byte) ([]byte, error) {
	r, err := parseDirs(b)
	switch {
	case err != nil:
		return nil, err
	case r.op == opDirsList && p.Rights()&identity.List == 0:
		return nil, control.Errorf(control.NotPermitted, "this node's policy does not let you list")
	case r.op == opDirsList:
		return s.listDirs(r), nil
	case !s.o.Writable:
		return nil, control.Errorf(control.NotPermitted, "this share takes no files and no directories: that needs Options.Writable (penstock serve --writable)")
	}
	if err := s.permitted(p, &beginRequest{claim: claim{name: r.prefixOrName}}); err != nil {
		return nil, refusal(err)
	}
	if err := s.makeDir(p, r.prefixOrName); err != nil {
		return nil, refusal(err)
	}
	return nil, nil
}

func (s *Server) listDirs(r dirsRequest) []byte {
	s.mu.Lock()
	empty := maps.Clone(s.empty)
	s.mu.Unlock()
	maps.DeleteFunc(empty, func(name string, _ bool) bool {
		return name <= r.after || !strings.HasPrefix(name+"/", r.prefixOrName)
	})
	out := []byte{0}
	for _, name := range slices.Sorted(maps.Keys(empty)) {
		if len(out)+1+len(name) > transfer.MaxCall {
			out[0] = 1
			break
		}
		out = append(append(out, byte(len(name))), name...)
	}
	return out
}

// makeDir makes a directory that a peer asks for, durably.
func (s *Server) makeDir(p *transfer.Peer, name string) error {
	at, err := s.uploadPath(name)
	if err != nil {
		return err
	}
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock()
	n, closed := len(s.empty), s.closed
	s.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if fi, err := lookBelow(s.root, s.dir, at); err == nil && fi.IsDir() {
		return nil
	}
	if n >= s.o.MaxFiles {
		return fmt.Errorf("%w: %d empty directories, at most %d are taken", ErrNoSpace, n, s.o.MaxFiles)
	}
	above, err := walk(s.root, at, true)
	if err != nil {
		return err
	}
	defer above.Close()
	dir, err := step(above, at[strings.LastIndexByte(at, '/')+1:], true)
	if err != nil {
		return err
	}
	defer dir.Close()
	s.mu.Lock()
	s.empty[name] = true
	s.mu.Unlock()
	s.log.Info("directory made", "peer", p.Name(), "path", at)
	return syncDir(above)
}

// isEmpty notes, for the scan under way, that there is nothing in the directory at a path.
func (s *Server) isEmpty(p string) {
	if why := unfit(p); why != "" {
		s.skip(p, why)
		return
	}
	s.mu.Lock()
	full := len(s.emptying) >= s.o.MaxFiles
	if !full {
		s.emptying[p] = true
	}
	s.mu.Unlock()
	if full {
		s.skip(p, fmt.Sprintf("more than %d empty directories: see Options.MaxFiles", s.o.MaxFiles))
	}
}

// emptyDirs are the names of the other side's directories without files, under a prefix. A node that does not know the service has none.
func emptyDirs(ctx context.Context, c Conn, prefix string) (names []string, err error) {
	err = c.do(ctx, transfer.DoOptions{}, func(ctx context.Context, p *transfer.Peer) error {
		names = nil
		for after, more := "", true; more; after = names[len(names)-1] {
			r := dirsRequest{opDirsList, after, prefix}
			b, err := p.Call(ctx, dirsService, r.append(nil))
			if errors.Is(err, control.Unsupported) {
				return nil
			}
			if err != nil {
				return err
			}
			page, m, ok := parseDirsAnswer(b, after)
			if !ok {
				return control.Errorf(control.BadRequest, "an answer of %d bytes about directories that is none", len(b))
			}
			if names, more = append(names, page...), m; !more {
				break
			}
			if len(names) > maxDirs {
				return control.Errorf(control.OverBudget, "more than %d empty directories", maxDirs)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("share: empty directories: %w", err)
	}
	return names, nil
}

// directories makes the empty directories of the other side.
func (m *mirror) directories() {
	for _, name := range m.empty {
		if !m.o.Filter.Takes(name + insideOfDir) {
			continue
		}
		at, err := PathOf(name)
		if err == nil {
			var dir *os.Root
			if dir, err = walk(m.root, at+insideOfDir, true); err == nil {
				err = dir.Close()
			}
		}
		if err != nil {
			m.done(MirrorFile{Name: name + "/", Path: at, Action: MirrorFailed, Err: fmt.Errorf("share: mirror %q: %w", Printable(name+"/"), err)}, false)
		}
	}
}

// directories makes directories that have no files at the other side.
func (t *tree) directories(ctx context.Context) {
	several(ctx, slices.Values(t.empty), dirsAtOnce, func(f MirrorFile) {
		err := t.gone()
		if err == nil {
			err = t.c.do(ctx, transfer.DoOptions{}, func(ctx context.Context, p *transfer.Peer) error {
				r := dirsRequest{op: opDirsMake, prefixOrName: strings.TrimSuffix(f.Name, "/")}
				_, err := p.Call(ctx, dirsService, r.append(nil))
				return err
			})
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		if isAway(err) {
			t.lost(err)
		}
		f.Action, f.Err = MirrorFailed, fmt.Errorf("share: make the directory %q: %w", Printable(f.Name), err)
		t.mu.Lock()
		t.progress.Files++
		t.mu.Unlock()
		t.done(f, true)
	})
}
