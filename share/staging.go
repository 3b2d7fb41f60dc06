package share

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

// quota checks the bounds of what uploads may bring the share to. s.uploads.mu is held.
func (s *Server) quota(staged map[string]uint64, r *beginRequest) error {
	s.mu.Lock()
	files, sum := len(s.files), s.bytes
	s.mu.Unlock()
	delete(staged, stagedBase(r.name)) // what is resumed, or replaced by this
	for _, u := range s.uploads.active {
		files++
		sum += u.size
		delete(staged, stagedBase(u.name))
	}
	for _, n := range staged { // a partial file takes its place among the files, too
		files++
		sum += n
	}
	if files >= s.o.MaxFiles {
		return fmt.Errorf("%w: the share holds %d files, the most that it takes", ErrNoSpace, files)
	}
	if most := s.o.MaxBytes; most > 0 && (sum > most || r.size > most-sum) {
		return fmt.Errorf("%w: %d bytes are taken, with partial uploads, of %d", ErrNoSpace, sum, most)
	}
	return nil
}

// staged are the sizes of the partial uploads, by their base.
func (s *Server) staged() (map[string]uint64, error) {
	out := map[string]uint64{}
	dir, err := step(s.root, stagingDir, true)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	d, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if base, ok := strings.CutSuffix(n, PartialSuffix); ok {
			if fi, err := dir.Lstat(n); err == nil {
				out[base] = uint64(max(fi.Size(), 0))
			}
		}
	}
	return out, nil
}

// removePartials removes partial uploads that nobody has gone on with for so long.
func (s *Server) removePartials(old time.Duration) {
	staged, err := s.staged()
	if err != nil {
		s.log.Warn("partial uploads", "error", err)
		return
	}
	for base := range staged {
		if err := s.removePartial(base, old); err != nil && !errors.Is(err, ErrBusy) {
			s.log.Warn("partial upload", "file", base, "error", err)
		}
	}
}

func (s *Server) removePartial(base string, old time.Duration) error {
	dir, err := step(s.root, stagingDir, false)
	if err != nil {
		return err
	}
	at := place{dir, base, base}
	defer dir.Close()
	var last time.Time
	for _, suffix := range []string{PartialSuffix, StateSuffix} { // writes through the mapping may not show, but records do
		if fi, err := dir.Lstat(base + suffix); err == nil && fi.ModTime().After(last) {
			last = fi.ModTime()
		}
	}
	if time.Since(last) < old {
		return nil
	}
	f, err := lockPartial(at)
	if err != nil {
		return err
	}
	p := &partial{place: at, data: f}
	return p.discard()
}

// stagedBase is what the partial file of a name is called: any name becomes one short component.
func stagedBase(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}
