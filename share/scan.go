package share

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/invariants"
)

// Rescan looks at all files anew: new ones are exported, changed ones exported anew, and removed ones revoked. One that cannot be
// looked at stays as it is served, or is left out, and is in Snapshot.Skipped; the error is only about the root itself, or ctx's.
func (s *Server) Rescan(ctx context.Context) error {
	if err := invariants.Context(ctx, "share.Server.Rescan"); err != nil {
		return err
	}
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	s.skipped, s.skips, s.found = map[string]string{}, 0, lackNothing
	s.mu.Unlock()
	seen := map[string]bool{}
	if s.only != "" {
		seen[s.only] = true
		s.refresh(ctx, s.root, s.only, s.only)
	} else if err := s.scan(ctx, s.root, "", seen); err != nil {
		if ctx.Err() == nil {
			s.leftOut(".", err, lackSome)
		}
		return err
	}
	s.mu.Lock()
	var unseen []string
	for p := range s.files {
		if !seen[p] {
			unseen = append(unseen, p)
		}
	}
	for p := range s.unserved {
		if !seen[p] {
			unseen = append(unseen, p)
		}
	}
	s.mu.Unlock()
	for _, p := range unseen { // that a scan did not see a file does not say that it is gone
		s.lookAt(ctx, p)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	s.scans++
	s.lack, s.left = s.found, s.skips
	s.mu.Unlock()
	if s.o.Writable {
		if _, err := s.staged(); err != nil {
			s.log.Warn("partial uploads", "error", err)
		}
	}
	return nil
}

// scan refreshes everything in a directory. at is its path with a slash, "" for the root.
func (s *Server) scan(ctx context.Context, dir *os.Root, at string, seen map[string]bool) error {
	d, err := dir.Open(".")
	if err != nil {
		return fmt.Errorf("share: scan: %w", err)
	}
	entries, err := d.ReadDir(-1)
	d.Close()
	if err != nil {
		return fmt.Errorf("share: scan: %w", err)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		p := at + e.Name()
		switch {
		case s.hidden(e.Name()):
		case e.IsDir():
			if strings.Count(p, "/") >= maxDepth {
				s.skip(p, fmt.Sprintf("more than %d directories deep", maxDepth))
				continue
			}
			next, err := step(dir, e.Name(), false)
			if err == nil {
				err = s.scan(ctx, next, p+"/", seen)
				next.Close()
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				s.failed(ctx, p, err)
			}
		case !e.Type().IsRegular():
			s.skip(p, "it is "+kind(e.Type()))
		default:
			seen[p] = true
			s.refresh(ctx, dir, e.Name(), p)
		}
	}
	return nil
}

// maxDepth is how deep directories are served: each takes a descriptor while it is scanned.
const maxDepth = 64

// hidden reports whether a component of a path is not served at all: what this package keeps beside its files, and what
// begins with a dot unless that is asked for.
func (s *Server) hidden(component string) bool {
	return strings.HasPrefix(component, ".") && (!s.o.Hidden || component == stagingDir) ||
		strings.HasSuffix(component, PartialSuffix) || strings.HasSuffix(component, StateSuffix)
}

// stagingDir is where uploads are until they are complete, below the root.
const (
	stagingDir  = ".penstock-uploads"
	stagingMode = 0o700 // what is not complete has not the mode of the file that it replaces yet
)

func (s *Server) skip(p, reason string) {
	s.mu.Lock()
	if _, known := s.skipped[p]; !known {
		s.skips++
	}
	if len(s.skipped) < maxSkipped {
		s.skipped[p] = reason
	}
	s.mu.Unlock()
	s.log.Info("left out", "path", p, "reason", reason)
}
