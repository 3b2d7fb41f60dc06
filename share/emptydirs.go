package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/job"
)

// Files have names and directories have none, so a directory without files is known by the service
// "share/dirs/1" only.
//
//	list  1, length u8 and name after which the answer begins, prefix of names -> more u8 (1: ask again, after the last name), then for each
//	      directory, in the order of the names: length u8 and name
//	make  2, name -> empty; a directory that is there is made already. Only a share that is Options.Writable takes it.
const (
	dirsService = "share/dirs/1"

	opDirsList = 1
	opDirsMake = 2

	dirsAtOnce  = 16
	insideOfDir = "/." // behind a name: what Filter takes for a file in it
)

type dirsRequest struct {
	op           byte
	after        string
	prefixOrName string
}

func parseDirs(b []byte) (r dirsRequest, err error) {
	in := fieldsOf(b)
	r.op = in.byte()
	in.expect(r.op == opDirsList || r.op == opDirsMake)
	if r.op == opDirsList {
		r.after = in.text()
	}
	r.prefixOrName = in.rest(0, MaxName)
	return r, in.err("directory request")
}

// dirs answers a call of dirsService.
func (s *Server) dirs(_ context.Context, p *transfer.Peer, b []byte) ([]byte, error) {
	r, err := parseDirs(b)
	switch {
	case err != nil:
		return nil, err
	case r.op == opDirsList:
		if err := p.Require(identity.List); err != nil {
			return nil, err
		}
		return s.listDirs(r), nil
	case !s.o.Writable:
		return nil, control.Errorf(control.NotPermitted,
			"this share takes no files and no directories: that needs penstock serve --writable (Options.Writable)")
	}
	if err := s.permitted(p, r.prefixOrName, 0); err != nil {
		return nil, refusal(err)
	}
	if err := s.makeDir(p, r.prefixOrName); err != nil {
		return nil, refusal(err)
	}
	return nil, nil
}

func (s *Server) listDirs(r dirsRequest) []byte {
	var dirs []link
	s.mu.Lock()
	for name := range s.empty {
		if name > r.after && strings.HasPrefix(name+"/", r.prefixOrName) {
			dirs = append(dirs, link{name: name})
		}
	}
	s.mu.Unlock()
	return linkPage(sortLinks(dirs), false)
}

// makeDir makes a directory that a peer asks for, durably.
func (s *Server) makeDir(p *transfer.Peer, name string) error {
	at, err := s.uploadPath(name)
	if err != nil {
		return err
	}
	s.work.Lock()
	defer s.work.Unlock()
	if s.ctx.Err() != nil {
		return ErrClosed
	}
	if fi, err := lookBelow(s.root, s.dir, at); err == nil && fi.IsDir() {
		return nil
	}
	disk, err := s.disk()
	if err != nil {
		return err
	}
	within, up := at+insideOfDir, &s.uploads
	up.mu.Lock()
	if err = s.quota(disk, within, 0, 0, ""); err == nil {
		s.needDirs(within)
	}
	up.mu.Unlock()
	if err != nil {
		return err
	}
	defer s.doneDirs(within)
	above, err := walk(s.root, at, dirMode)
	if err == nil {
		defer above.Close()
		var dir *os.Root
		if dir, err = step(above, at[strings.LastIndexByte(at, '/')+1:], dirMode); err == nil {
			dir.Close()
		}
	}
	s.madeDirs(within, err)
	if err != nil {
		return err
	}
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
		s.skip(p, fmt.Sprintf("more than %d empty directories: raise --max-files (Options.MaxFiles)", s.o.MaxFiles))
	}
}

// emptyDirs are the names of the other side's directories without files, under a prefix. A node
// that does not know the service has none.
func emptyDirs(ctx context.Context, c Conn, prefix string) (names []string, err error) {
	dirs, err := c.allPages(ctx, dirsService, string([]byte{opDirsList}), prefix, false)
	if err != nil && !errors.Is(err, control.Unsupported) {
		return nil, fmt.Errorf("share: empty directories: %w", err)
	}
	for _, d := range dirs {
		names = append(names, d.name)
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
			if dir, err = walk(m.root, at+insideOfDir, dirMode); err == nil {
				err = dir.Close()
			}
		}
		if err != nil {
			m.done(MirrorFile{Name: name + "/", Path: at, Action: MirrorFailed,
				Err: fmt.Errorf("share: mirror %q: %w", Printable(name+"/"), err)}, false)
		}
	}
}

// directories makes directories that have no files at the other side.
func (t *tree) directories(ctx context.Context) {
	several(ctx, slices.Values(t.empty), dirsAtOnce, func(f MirrorFile) {
		err := t.gone()
		if err == nil {
			err = t.c.do(ctx, job.DoOptions{}, func(ctx context.Context, p *transfer.Peer) error {
				_, err := p.Call(ctx, dirsService, append([]byte{opDirsMake}, strings.TrimSuffix(f.Name, "/")...))
				return err
			})
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		t.lost(err)
		f.Action, f.Err = MirrorFailed, fmt.Errorf("share: make the directory %q: %w", Printable(f.Name), err)
		t.mu.Lock()
		t.progress.Files++
		t.mu.Unlock()
		t.done(f, true)
	})
}
