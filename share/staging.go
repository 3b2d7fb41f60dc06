package share

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// staging is what lies in the staging directory, and what its disk has.
type staging struct {
	partial     map[string]uint64 // bytes of partial uploads, by their base
	free, total uint64            // bytes of the disk; total is 0 if it has no size
}

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

// batchPrefix begins the names of directories of batches of small files, in the staging directory. Its server has each locked: what no lock is on is of
// a process that was killed, and no peer can go on with it.
const batchPrefix = "batch-"

// lockDir locks the directory at a name, as long as what it returns is open; nil: another process or batch has it, or it is not there.
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

// quota checks the bounds of what uploads may bring the share to: files that are there and partial ones count with their bytes, uploads
// under way with those that were announced. name is that of the partial upload that this one goes on with; "": of none. s.uploads.mu is held.
func (s *Server) quota(st staging, name string, size uint64) error {
	s.mu.Lock()
	files, sum := len(s.files)+len(s.arrived), plus(s.bytes, s.arrivedBytes)
	for _, n := range s.unserved {
		files, sum = files+1, plus(sum, uint64(n))
	}
	s.mu.Unlock()
	want := size - min(size, st.partial[stagedBase(name)]) // of the disk
	delete(st.partial, stagedBase(name))                   // what is resumed, or replaced by this
	for _, u := range s.uploads.active {
		files, sum = files+1, plus(sum, u.size)
		want = plus(want, u.size-min(u.size, u.filled.Load()))
		delete(st.partial, stagedBase(u.name))
	}
	small := &s.uploads.small
	files, sum, want = files+len(small.paths), plus(sum, small.bytes), plus(want, small.bytes)
	for _, n := range st.partial { // a partial file takes its place among the files, too
		files, sum = files+1, plus(sum, n)
	}
	if files >= s.o.MaxFiles {
		return fmt.Errorf("%w: the share holds %d files, the most that it takes", ErrNoSpace, files)
	}
	if most := s.o.MaxBytes; most > 0 && (sum > most || size > most-sum) {
		return fmt.Errorf("%w: %d bytes are taken, with partial uploads and what those under way announced, of %d", ErrNoSpace, sum, most)
	}
	if keep := s.o.keepFree(st.total); st.total > 0 && (want > st.free || st.free-want < keep) {
		return fmt.Errorf("%w: uploads under way and this one need %d bytes more, %d are free, and %d of them are kept free (Options.KeepFree, penstock serve --keep-free)", ErrNoSpace, want, st.free, keep)
	}
	return nil
}

func plus(a, b uint64) uint64 {
	if a+b < a {
		return math.MaxUint64
	}
	return a + b
}

// staged looks at the staging directory. It removes partial uploads that no peer has continued for Options.KeepPartial, and batches of servers that were
// killed.
func (s *Server) staged() (st staging, err error) {
	st.partial = map[string]uint64{}
	dir, err := step(s.root, stagingDir, stagingMode)
	if err != nil {
		return st, err
	}
	defer dir.Close()
	d, err := dir.Open(".")
	if err != nil {
		return st, err
	}
	defer d.Close()
	if st.free, st.total, err = sys.DiskSpace(d); err != nil {
		return st, err
	}
	names, err := d.Readdirnames(-1)
	if err != nil {
		return st, err
	}
	for _, n := range names {
		if strings.HasPrefix(n, batchPrefix) {
			if f, err := lockDir(dir, n); f != nil {
				err = errors.Join(dir.RemoveAll(n), f.Close())
				s.log.Info("files of a batch removed: their server was killed", "directory", n, "error", err)
			} else if err != nil {
				s.log.Warn("files of a batch", "directory", n, "error", err)
			}
			continue
		}
		base, ok := strings.CutSuffix(n, PartialSuffix)
		if !ok {
			continue
		}
		fi, err := dir.Lstat(n)
		if err == nil && s.o.KeepPartial >= 0 && s.expired(dir, base, fi) {
			if err := removePartial(dir, base); err == nil {
				s.log.Info("partial upload removed: nobody went on with it", "file", base, "bytes", fi.Size())
				continue
			} else if !errors.Is(err, ErrBusy) {
				s.log.Warn("partial upload", "file", base, "error", err)
			}
		}
		switch {
		case err == nil:
			st.partial[base] = uint64(max(fi.Size(), 0))
		case !errors.Is(err, fs.ErrNotExist):
			return st, err
		}
	}
	return st, nil
}

// expired reports whether nothing came to a partial upload for long. Writes through the mapping may not show, but records do.
func (s *Server) expired(dir *os.Root, base string, fi os.FileInfo) bool {
	last := fi.ModTime()
	if fi, err := dir.Lstat(base + StateSuffix); err == nil && fi.ModTime().After(last) {
		last = fi.ModTime()
	}
	return time.Since(last) >= s.o.KeepPartial
}

func removePartial(dir *os.Root, base string) error {
	at := place{dir, base, base}
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
