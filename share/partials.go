package share

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"iter"
	"os"
	"strings"
	"time"

	"github.com/penstock-io/penstock/transfer"
)

// maxPartialsOfOne is how many partial uploads of one peer are kept: the one that nothing came to
// for longest makes room for the next.
const maxPartialsOfOne = 256

// partials are the partial uploads that lie in the staging directory and that no upload under way
// writes to. An upload takes its own out when it begins, and adds what it leaves; only a Rescan
// reads the directory. uploads.mu guards it.
type partials struct {
	of     map[string]map[string]leftPartial // by ownerOf their base, then by base
	n      int
	bytes  uint64
	oldest time.Time // none of them is older
}

// leftPartial is a partial upload that a peer has left.
type leftPartial struct {
	size uint64    // that it has of the disk
	last time.Time // something came to it
}

// A partial upload belongs to the peer that began it (transfer.Peer.Principal): another one that
// uploads the same name has a partial upload of its own, so it neither goes on with that of the
// first, nor learns of it, nor removes it.

// partialBase is what the partial upload of a peer is called: any name becomes one short component.
func partialBase(p *transfer.Peer, name string) string {
	return shortHash(p.Principal()) + "-" + shortHash(name)
}

// ownerOf stands for the peer whose partial upload is called base.
func ownerOf(base string) string {
	owner, _, _ := strings.Cut(base, "-")
	return owner
}

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16])
}

func (ps *partials) get(base string) (leftPartial, bool) {
	x, ok := ps.of[ownerOf(base)][base]
	return x, ok
}

func (ps *partials) add(base string, x leftPartial) {
	owner := ownerOf(base)
	if ps.of == nil {
		ps.of = map[string]map[string]leftPartial{}
	}
	if ps.of[owner] == nil {
		ps.of[owner] = map[string]leftPartial{}
	}
	if ps.n == 0 || x.last.Before(ps.oldest) {
		ps.oldest = x.last
	}
	ps.of[owner][base] = x
	ps.n++
	ps.bytes += x.size
}

func (ps *partials) remove(base string) {
	x, ok := ps.get(base)
	if !ok {
		return
	}
	owner := ownerOf(base)
	delete(ps.of[owner], base)
	if len(ps.of[owner]) == 0 {
		delete(ps.of, owner)
	}
	ps.n--
	ps.bytes -= x.size
}

func (ps *partials) all() iter.Seq2[string, leftPartial] {
	return func(yield func(string, leftPartial) bool) {
		for _, of := range ps.of {
			for base, x := range of {
				if !yield(base, x) {
					return
				}
			}
		}
	}
}

// writes reports whether an upload under way has the partial file that is called base. The mutex is
// held.
func (up *uploads) writes(base string) bool {
	for _, u := range up.active {
		if u.base == base {
			return true
		}
	}
	return false
}

// countPartial counts a partial upload as it lies in the staging directory, if it does. Writes
// through the mapping may not show in its times, but records do. up.mu is held.
func (s *Server) countPartial(dir *os.Root, base string) {
	data, err := dir.Lstat(base + PartialSuffix)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("partial upload", "file", base, "error", err)
		return
	}
	ps := &s.uploads.partials
	ps.remove(base)
	if err != nil {
		return
	}
	x := leftPartial{uint64(max(data.Size(), 0)), data.ModTime()}
	if state, err := dir.Lstat(base + StateSuffix); err == nil && state.ModTime().After(x.last) {
		x.last = state.ModTime()
	}
	ps.add(base, x)
}

// leavePartial counts what an upload that is over has left. up.mu is held.
func (s *Server) leavePartial(base string) {
	dir, err := step(s.root, stagingDir, 0)
	if err != nil {
		s.log.Warn("partial uploads", "error", err)
		return
	}
	defer dir.Close()
	s.countPartial(dir, base)
	s.trimPartials(dir, ownerOf(base))
}

// trimPartials removes the oldest partial uploads of a peer that has more than are kept. up.mu is
// held.
func (s *Server) trimPartials(dir *os.Root, owner string) {
	up := &s.uploads
	for len(up.partials.of[owner]) > up.keep {
		oldest, last := "", time.Time{}
		for base, x := range up.partials.of[owner] {
			if oldest == "" || x.last.Before(last) {
				oldest, last = base, x.last
			}
		}
		s.removePartial(dir, oldest, "its peer has left more than are kept")
	}
}

// expirePartials removes partial uploads that no peer has continued for Options.KeepPartial. up.mu
// is held.
func (s *Server) expirePartials() {
	ps := &s.uploads.partials
	if s.o.KeepPartial < 0 || ps.n == 0 || time.Since(ps.oldest) < s.o.KeepPartial {
		return
	}
	dir, err := step(s.root, stagingDir, 0)
	if err != nil {
		s.log.Warn("partial uploads", "error", err)
		return
	}
	defer dir.Close()
	var old []string
	for base, x := range ps.all() {
		if time.Since(x.last) >= s.o.KeepPartial {
			old = append(old, base)
		}
	}
	for _, base := range old {
		s.countPartial(dir, base) // another process may have gone on with it
		if x, ok := ps.get(base); ok && time.Since(x.last) >= s.o.KeepPartial {
			s.removePartial(dir, base, "no upload went on with it")
		}
	}
	ps.oldest = time.Now()
	for _, x := range ps.all() {
		if x.last.Before(ps.oldest) {
			ps.oldest = x.last
		}
	}
}

// removePartial removes a partial upload, unless another process writes to it: a Rescan counts it
// again then. up.mu is held.
func (s *Server) removePartial(dir *os.Root, base, why string) {
	s.uploads.partials.remove(base)
	at := place{dir, base, base}
	f, err := lockPartial(at)
	if err == nil {
		err = (&partial{place: at, data: f}).discard()
	}
	switch {
	case err == nil:
		s.log.Info("partial upload removed", "file", base, "reason", why)
	case !errors.Is(err, ErrBusy):
		s.log.Warn("partial upload", "file", base, "error", err)
	}
}
