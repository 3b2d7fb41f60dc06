package share

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ErrReplaced is the error of a server whose directory was removed, renamed, or replaced by another
// one: it goes on with the one that it opened.
var ErrReplaced = errors.New("the served directory was replaced or removed: start the server again")

// Err says why the files that peers get are not those that Options.Root names now; nil if they are.
func (s *Server) Err() error {
	dir := s.o.Root
	if s.only != "" {
		dir = filepath.Dir(dir)
	}
	here, err := s.root.Stat(".")
	if err != nil {
		return fmt.Errorf("share: %s: %w", dir, err)
	}
	there, err := os.Stat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("share: %w: %w", err, ErrReplaced)
	case !os.SameFile(here, there):
		return fmt.Errorf("share: %s: %w", dir, ErrReplaced)
	}
	return nil
}
