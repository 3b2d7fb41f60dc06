package share

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/transfer"
)

// The server opens, maps and exports an uploaded file when a peer asks for its name or for a list,
// or when a scan sees it: not while other files come, whose arrival that would slow down. The file
// counts from its arrival on.

// came counts and logs a file that a peer has uploaded. What replaces a file that is served is
// served at once.
func (s *Server) came(from *transfer.Peer, p string, size uint64) {
	s.mu.Lock()
	_, unserved := s.unserved[p]
	later := s.files[p] == nil && !unserved
	if later {
		s.arrivedBytes += size - s.arrived[p]
		s.arrived[p] = size
	}
	s.mu.Unlock()
	if !later {
		s.lookNow(s.ctx, p)
	}
	s.log.Info("uploaded", "peer", from.Name(), "path", p, "bytes", size)
}

// looked takes a path out of s.arrived: the server has looked at its file.
func (s *Server) looked(ctx context.Context, p string) {
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	s.arrivedBytes -= s.arrived[p]
	delete(s.arrived, p)
	s.mu.Unlock()
}

// serveArrived exports the files of s.arrived, for answerTime at most.
func (s *Server) serveArrived(ctx context.Context) {
	s.mu.Lock()
	paths := slices.Sorted(maps.Keys(s.arrived))
	s.mu.Unlock()
	if len(paths) == 0 {
		return
	}
	var dir *os.Root // files that follow each other are mostly in one directory, which is looked for once
	var at string    // of dir, with a slash
	defer func() {
		if dir != nil {
			dir.Close()
		}
	}()
	for end := time.Now().Add(answerTime); len(paths) > 0 && time.Now().Before(end) &&
		ctx.Err() == nil; paths = paths[1:] {
		p := paths[0]
		cut := strings.LastIndexByte(p, '/') + 1
		if dir != nil && p[:cut] != at {
			dir.Close()
			dir = nil
		}
		if dir == nil && !s.o.FollowLinks {
			at = p[:cut]
			dir, _ = walk(s.root, p, 0) // lookNow says why not
		}
		if dir == nil {
			s.lookNow(ctx, p)
			continue
		}
		s.work.Lock()
		s.mu.Lock()
		_, waits := s.arrived[p] // else another request has had it looked at
		s.mu.Unlock()
		if waits && s.ctx.Err() == nil {
			s.refresh(ctx, dir, p[cut:], p)
		}
		s.work.Unlock()
	}
}
