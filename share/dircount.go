package share

import (
	"errors"
	"io/fs"
	"iter"
)

// dirBytes is what a directory counts against Options.MaxBytes and KeepFree: the block that it
// takes on most disks.
const dirBytes = 4096

// dirCount counts the directories below the root of a share that takes uploads: each takes a place
// among the files. Server.mu guards it.
type dirCount struct {
	there  map[string]bool // paths
	coming map[string]int  // paths of those that are to be made, with how many uploads under way need each
}

// dirsOf are the directories on the way to a path below the root, from the first on.
func dirsOf(p string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range len(p) {
			if p[i] == '/' && !yield(p[:i]) {
				return
			}
		}
	}
}

// missing is how many directories a path needs that are neither there nor counted for another one.
// s.mu is held.
func (s *Server) missing(p string) (n int) {
	for d := range dirsOf(p) {
		if !s.dirCount.there[d] && s.dirCount.coming[d] == 0 {
			n++
		}
	}
	return n
}

// needDirs counts the directories on the way to a path that are not there yet, until doneDirs.
func (s *Server) needDirs(p string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := range dirsOf(p) {
		if !s.dirCount.there[d] {
			s.dirCount.coming[d]++
		}
	}
}

func (s *Server) doneDirs(p string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := range dirsOf(p) {
		if s.dirCount.coming[d]--; s.dirCount.coming[d] <= 0 { // another one has made it
			delete(s.dirCount.coming, d)
		}
	}
}

// madeDirs counts the directories on the way to a path that are there now. failed is why not all of
// them are; nil: they are.
func (s *Server) madeDirs(p string, failed error) {
	var made []string
	for d := range dirsOf(p) {
		if failed != nil {
			if fi, err := s.look(d); err != nil || !fi.IsDir() {
				break
			}
		}
		made = append(made, d)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range made {
		s.dirCount.there[d] = true
		delete(s.dirCount.coming, d)
	}
}

// goneDirs forgets directories that a scan has not seen, and that are not there.
func (s *Server) goneDirs(seen map[string]bool) {
	s.mu.Lock()
	var unseen []string
	for d := range s.dirCount.there {
		if !seen[d+"/"] {
			unseen = append(unseen, d)
		}
	}
	s.mu.Unlock()
	for _, d := range unseen { // one that was made while the scan went on stays
		if fi, err := s.look(d); errors.Is(err, fs.ErrNotExist) || err == nil && !fi.IsDir() {
			s.goneDir(d)
		}
	}
}

func (s *Server) goneDir(d string) {
	s.mu.Lock()
	delete(s.dirCount.there, d)
	delete(s.empty, d)
	s.mu.Unlock()
}
