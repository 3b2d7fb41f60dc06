package share

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/sys"
)

// Rescan looks at all files again: new ones are exported, changed ones exported again, and removed
// ones revoked. One that cannot be looked at stays as it is served, or is left out, and is in
// Snapshot.Skipped; the error is only about the root itself, or ctx's.
func (s *Server) Rescan(ctx context.Context) error {
	if err := invariants.Context(ctx, "share.Server.Rescan"); err != nil {
		return err
	}
	s.work.Lock()
	defer s.work.Unlock()
	if s.ctx.Err() != nil {
		return ErrClosed
	}
	s.mu.Lock()
	s.skipping, s.skips, s.found = map[string]string{}, 0, lackNothing
	s.emptying, s.linking = map[string]bool{}, nil
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.skipped, s.skipping = s.skipping, nil
		s.empty, s.emptying = s.emptying, nil
		s.links, s.linking = sortLinks(s.linking), nil
		s.mu.Unlock()
	}()
	seen := map[string]bool{}
	if s.only != "" {
		seen[s.only] = true
		s.refresh(ctx, s.root, s.only, s.only)
	} else if err := s.scan(ctx, s.root, "", nil, seen); err != nil {
		if ctx.Err() == nil {
			s.leftOut(".", err, lackSome)
		}
		return err
	}
	s.mu.Lock()
	var unseen []string
	for _, paths := range []iter.Seq[string]{maps.Keys(s.files), maps.Keys(s.unserved), maps.Keys(s.arrived)} {
		for p := range paths {
			if !seen[p] {
				unseen = append(unseen, p)
			}
		}
	}
	s.mu.Unlock()
	for _, p := range unseen { // that a scan did not see a file does not say that it is gone
		s.lookAt(ctx, p)
	}
	s.goneDirs(seen)
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	s.scans++
	s.lack, s.left = s.found, s.skips
	s.mu.Unlock()
	if s.o.Writable {
		if err := s.lookAtStaging(); err != nil {
			s.log.Warn("partial uploads", "error", err)
		}
	}
	return nil
}

// scan refreshes everything in a directory. at is its path with a slash, "" for the root; seen
// takes the paths of files and, with a slash behind, of directories; above are the directories that
// lead there, where links are followed.
func (s *Server) scan(ctx context.Context, dir *os.Root, at string, above []os.FileInfo, seen map[string]bool) error {
	d, err := dir.Open(".")
	if err != nil {
		return fmt.Errorf("share: scan: %w", err)
	}
	s.watch.dir(d) // before it is read: what comes later is reported
	if s.o.FollowLinks {
		fi, err := d.Stat()
		switch {
		case err != nil:
			d.Close()
			return fmt.Errorf("share: scan: %w", err)
		case slices.ContainsFunc(above, func(x os.FileInfo) bool { return os.SameFile(x, fi) }):
			d.Close()
			return fmt.Errorf("%w: the link leads to a directory that contains it", ErrUnsafe)
		}
		above = append(slices.Clip(above), fi)
	}
	entries, err := d.ReadDir(-1)
	d.Close()
	if err != nil {
		return fmt.Errorf("share: scan: %w", err)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	if at != "" && !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return !s.hidden(e.Name()) }) {
		s.isEmpty(strings.TrimSuffix(at, "/"))
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		p, mode := at+e.Name(), e.Type()
		linked := mode&fs.ModeSymlink != 0 && s.o.FollowLinks && !s.hidden(e.Name())
		if linked {
			fi, err := s.look(p)
			if err != nil {
				s.skip(p, linkedNowhere)
				continue
			}
			mode = fi.Mode().Type()
		}
		switch {
		case s.hidden(e.Name()):
			if mode.IsRegular() && s.foreign(e.Name(), entries) {
				s.skip(p, "its name is that of a file that is not complete")
			}
		case mode.IsDir():
			if strings.Count(p, "/") >= maxDepth {
				s.skip(p, fmt.Sprintf("more than %d directories deep", maxDepth))
				continue
			}
			if s.o.Writable {
				seen[p+"/"] = true
				s.mu.Lock()
				s.dirCount.there[p] = true
				s.mu.Unlock()
			}
			var next *os.Root
			if linked {
				next, err = s.root.OpenRoot(p)
			} else {
				next, err = step(dir, e.Name(), 0)
			}
			if err == nil {
				err = s.scan(ctx, next, p+"/", above, seen)
				next.Close()
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				s.failed(ctx, p, err)
			}
		case mode&fs.ModeSymlink != 0:
			s.isLink(ctx, dir, e.Name(), p)
		case !mode.IsRegular():
			s.skip(p, "it is "+kind(mode))
		default:
			seen[p] = true
			s.refresh(ctx, dir, e.Name(), p)
		}
	}
	return nil
}

const linkedNowhere = "it is a symbolic link that leads to nothing below the directory that is served"

// look is what is at a path, without following links unless that is asked for.
func (s *Server) look(p string) (os.FileInfo, error) {
	if s.o.FollowLinks {
		if s.loops(p) {
			return nil, fmt.Errorf("share: %s: it leads through one directory twice: %w", p, fs.ErrNotExist)
		}
		return s.lookIn(s.root, p, p)
	}
	return lookBelow(s.root, s.dir, p)
}

// loops reports whether links lead the way to a path through one directory twice. No scan goes
// there: by such paths peers could have one file served under any number of names.
func (s *Server) loops(p string) bool {
	fi, err := s.dir.Stat()
	for above, end := []os.FileInfo(nil), 0; err == nil; fi, err = s.root.Stat(p[:end]) {
		if slices.ContainsFunc(above, func(x os.FileInfo) bool { return os.SameFile(x, fi) }) {
			return true
		}
		above = append(above, fi)
		n := strings.IndexByte(p[min(end+1, len(p)):], '/')
		if n < 0 {
			break
		}
		end += 1 + n
	}
	return false
}

// lookIn is look at the path p, which is the file base of dir.
func (s *Server) lookIn(dir *os.Root, base, p string) (os.FileInfo, error) {
	if !s.o.FollowLinks {
		return dir.Lstat(base)
	}
	fi, err := s.root.Stat(p) // which follows no link out of the root
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		if l, lerr := s.root.Lstat(p); lerr == nil && l.Mode()&fs.ModeSymlink != 0 {
			return nil, fmt.Errorf("%w: %s: %s (%w)", ErrUnsafe, p, linkedNowhere, err)
		}
	}
	return fi, err
}

// openIn opens the regular file at the path p, which is the file base of dir.
func (s *Server) openIn(dir *os.Root, base, p string) (*os.File, os.FileInfo, error) {
	if !s.o.FollowLinks {
		return openPlainInfo(dir, base, os.O_RDONLY, false)
	}
	was, err := s.lookIn(dir, base, p)
	if err == nil && !was.Mode().IsRegular() {
		err = fmt.Errorf("%w: %s is %s", ErrUnsafe, p, kind(was.Mode()))
	}
	if err != nil {
		return nil, nil, err
	}
	f, err := s.root.OpenFile(p, os.O_RDONLY|sys.ONonblock, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("share: %w", err)
	}
	now, err := f.Stat()
	if err == nil && !os.SameFile(was, now) {
		err = fmt.Errorf("%w: %s %w", ErrUnsafe, p, errReplaced)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, now, nil
}

// maxDepth is how deep directories are served: each takes a descriptor while it is scanned.
const maxDepth = 64

// hidden reports whether a component of a path is not served at all: what this package keeps beside
// its files, and what begins with a dot unless that is asked for.
func (s *Server) hidden(component string) bool {
	return strings.HasPrefix(component, ".") && (!s.o.Hidden || component == stagingDir || component == batchDir) ||
		strings.HasSuffix(component, PartialSuffix) || strings.HasSuffix(component, StateSuffix)
}

// foreign reports whether a hidden file, of these in its directory, is hidden by its suffix and yet
// none of this package: its files come in pairs.
func (s *Server) foreign(name string, entries []fs.DirEntry) bool {
	whole, ok := strings.CutSuffix(name, PartialSuffix)
	other := whole + StateSuffix
	if !ok {
		if whole, ok = strings.CutSuffix(name, StateSuffix); !ok {
			return false
		}
		other = whole + PartialSuffix
	}
	_, paired := slices.BinarySearchFunc(entries, other, func(e fs.DirEntry, n string) int {
		return strings.Compare(e.Name(), n)
	})
	return !paired && (s.o.Hidden || !strings.HasPrefix(name, "."))
}

// stagingDir is where uploads are until they are complete, below the root.
const (
	stagingDir  = ownPrefix + "uploads"
	stagingMode = 0o700 // what is not complete has not the mode of the file that it replaces yet
)

// skip records something that is left out by its nature.
func (s *Server) skip(p, reason string) { s.leaveOut(slog.LevelInfo, p, reason) }

// leaveOut counts and logs what is not served. What the last scan has found is not logged again.
func (s *Server) leaveOut(l slog.Level, p, reason string) {
	s.mu.Lock()
	before, logged := s.skipped[p]
	skipped := s.skipped
	if s.skipping != nil {
		skipped = s.skipping
	}
	if _, known := skipped[p]; !known {
		s.skips++
	}
	if len(skipped) < maxSkipped {
		skipped[p] = reason
	}
	s.mu.Unlock()
	if !logged || before != reason {
		s.log.Log(s.ctx, l, "left out", "path", p, "reason", reason)
	}
}
