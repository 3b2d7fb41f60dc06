package share

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
)

// keepFree is how many bytes of a disk of that size uploads leave free.
func (o *Options) keepFree(total uint64) uint64 {
	switch o.KeepFree {
	case 0:
		return min(defaultKeepFree, total/20)
	case KeepNoneFree:
		return 0
	}
	return o.KeepFree
}

// batchPrefix begins the names of directories of batches of small files, in the staging directory.
// Its server has each locked: what no lock is on is of a process that was killed, and no peer can
// go on with it.
const batchPrefix = "batch-"

// lockDir locks the directory at a name, as long as what it returns is open; nil: another process
// or batch has it, or it is not there.
func lockDir(dir *os.Root, base string) (*os.File, error) {
	f, err := dir.OpenFile(base, os.O_RDONLY|sys.ONonblock, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ok, err := sys.TryFileLock(f)
	if ok {
		mine, merr := f.Stat()
		there, terr := dir.Lstat(base)
		ok, err = merr == nil && terr == nil && os.SameFile(mine, there), merr
	}
	if !ok {
		f.Close()
		f = nil
	}
	return f, err
}

// disk is what the disk of a share has in bytes; total is 0 if it has no size.
type disk struct{ free, total uint64 }

func (s *Server) disk() (d disk, err error) {
	d.free, d.total, err = sys.DiskSpace(s.dir)
	return d, err
}

// quota checks the bounds of what uploads may bring the share to: files and directories that are
// there and partial uploads count with their bytes, uploads under way with those that were
// announced. What comes is so many files, one or none, at a path whose missing directories come,
// too; it goes on with the partial upload that is called base. s.uploads.mu is held.
func (s *Server) quota(d disk, at string, files int, size uint64, base string) error {
	up := &s.uploads
	small, partials := &up.small, &up.partials
	s.mu.Lock()
	n := len(s.files) + len(s.arrived) + len(s.unserved) + len(s.dirCount.there)
	sum := plus(plus(s.bytes, s.arrivedBytes), plus(s.unservedSum, dirBytes*uint64(len(s.dirCount.there))))
	coming, missing := len(s.dirCount.coming), s.missing(at)
	s.mu.Unlock()
	n += coming + len(small.paths) + partials.n
	sum = plus(sum, plus(plus(dirBytes*uint64(coming), small.bytes), partials.bytes))
	more := plus(size, dirBytes*uint64(missing))
	resumed, isResumed := partials.get(base)
	if isResumed { // it is a part of what comes
		n, sum = n-1, sum-resumed.size
	}
	want := plus(dirBytes*uint64(coming+missing), plus(small.bytes, size-min(size, resumed.size))) // of the disk
	for _, u := range up.active {
		n, sum = n+1, plus(sum, u.size)
		want = plus(want, u.size-min(u.size, u.filled.Load()))
	}
	if n+missing+files > s.o.MaxFiles {
		return fmt.Errorf("%w: the share has %d files and directories of at most %d, and this is %d more", ErrNoSpace,
			n, s.o.MaxFiles, missing+files)
	}
	if most := s.o.MaxBytes; most > 0 && (sum > most || more > most-sum) {
		return fmt.Errorf("%w: %d bytes are taken, with partial uploads and what those under way announced, of %d",
			ErrNoSpace, sum, most)
	}
	if keep := s.o.keepFree(d.total); d.total > 0 && (want > d.free || d.free-want < keep) {
		return fmt.Errorf("%w: uploads under way and this one need %d bytes more, %d are free, and %d of them are "+
			"kept free (penstock serve --keep-free, Options.KeepFree)", ErrNoSpace, want, d.free, keep)
	}
	return nil
}

func plus(a, b uint64) uint64 {
	if a+b < a {
		return math.MaxUint64
	}
	return a + b
}

// lookAtStaging counts what lies in the staging directory. It removes partial uploads that are kept
// no longer, and batches of servers that were killed.
func (s *Server) lookAtStaging() error {
	dir, err := step(s.root, stagingDir, stagingMode)
	if err != nil {
		return err
	}
	defer dir.Close()
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	d.Close()
	if err != nil {
		return err
	}
	up := &s.uploads
	bases := map[string]bool{}
	for _, n := range names {
		if base, ok := strings.CutSuffix(n, PartialSuffix); ok {
			bases[base] = true
		} else if strings.HasPrefix(n, batchPrefix) {
			if f, err := lockDir(dir, n); f != nil {
				err = errors.Join(dir.RemoveAll(n), f.Close())
				s.log.Info("files of a batch removed: their server was killed", "directory", n, "error", err)
			} else if err != nil {
				s.log.Warn("files of a batch", "directory", n, "error", err)
			}
		}
	}
	up.mu.Lock()
	for base := range up.partials.all() { // that the directory does not have any more
		bases[base] = true
	}
	up.mu.Unlock()
	for base := range bases {
		up.mu.Lock()
		if !up.writes(base) {
			s.countPartial(dir, base)
			s.trimPartials(dir, ownerOf(base))
		}
		up.mu.Unlock()
	}
	up.mu.Lock()
	defer up.mu.Unlock()
	s.expirePartials()
	return nil
}
