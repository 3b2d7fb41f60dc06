package share

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/vec"
)

// partial is a file that is being written: mapped and locked. One goroutine uses it; room may be
// called by another one.
//
// A write through a mapping into a block that the disk has no room for kills the process. So what
// may be written to has its blocks before: what room was called for, where it is opened whole, with
// a mapping for writing, else what fallocate or zero was called for, and the mapping is for
// reading. A file that is opened whole has its length from the beginning, so that a truncation by
// another process shows.
type partial struct {
	place
	claim
	data, state *os.File
	head        uint32
	headLen     int
	whole       bool        // opened whole
	filled      uint64      // bytes from the beginning that have their blocks
	fresh       bool        // nothing in it was acknowledged when it was opened
	sums        []uint32    // of the chunks that are good, from the first on
	like        *like       // of the complete file; nil: of none
	header      []byte      // that the complete file begins with, before its bytes
	inserted    int64       // bytes of it that are in the file
	start       uint64      // good bytes that were there when it was opened
	region      *mem.Region // nil if the file is empty
	lease       mem.Lease
}

// openPartial locks the partial file of a place, makes it what the claim says, and finds out how
// much of it is good already: nothing unless resume is set and its state claims the same name, size
// and tag, and the bytes are as it says. If whole is set the disk has room for all of it now, and
// room takes it.
func openPartial(ctx context.Context, at place, c claim, resume, whole bool) (*partial, error) {
	if c.size > math.MaxInt64-chunkSize {
		return nil, fmt.Errorf("share: %s: %d bytes are more than a file can have: %w", at.shown, c.size, ErrNoSpace)
	}
	f, err := lockPartial(at)
	if err != nil {
		return nil, err
	}
	p := &partial{place: at, claim: c, data: f, whole: whole}
	err = p.prepare(ctx, resume)
	if err != nil {
		if p.fresh {
			p.discard()
		} else {
			p.close()
		}
		return nil, err
	}
	return p, nil
}

// lockPartial opens the partial file and locks it. The previous holder of the lock may have renamed
// the file.
func lockPartial(at place) (*os.File, error) {
	opened := false
	for range 100 {
		f, err := openPlain(at.dir, partialOf(at.base), os.O_RDWR|os.O_CREATE, true)
		if errors.Is(err, fs.ErrExist) { // it came into being this moment
			continue
		}
		if errors.Is(err, fs.ErrPermission) && !opened {
			if opened = true; readWritable(at) == nil {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		ok, err := sys.TryFileLock(f)
		if err == nil && !ok {
			err = fmt.Errorf("%w: %s", ErrBusy, partialOf(at.shown))
		}
		var mine, there os.FileInfo
		if err == nil {
			mine, err = f.Stat()
		}
		if err == nil {
			if there, err = at.dir.Lstat(partialOf(at.base)); err == nil && os.SameFile(mine, there) {
				return f, nil
			}
		}
		f.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("share: %w", err)
		}
	}
	return nil, fmt.Errorf("%w: %s keeps being created and renamed", ErrBusy, partialOf(at.shown))
}

// readWritable lets the owner open a complete partial file again that has the permissions of the
// file that it was about to become: the process was killed before it had its name.
func readWritable(at place) error {
	if _, err := at.dir.Lstat(stateOf(at.base)); err != nil {
		return err
	}
	f, err := openPlain(at.dir, partialOf(at.base), os.O_RDONLY, true)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o600), f.Close())
}

func (p *partial) prepare(ctx context.Context, resume bool) error {
	fi, err := p.data.Stat()
	if err != nil {
		return fmt.Errorf("share: %w", err)
	}
	if _, err := p.dir.Lstat(stateOf(p.base)); p.whole && fi.Size() > 0 && errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s, which is not of a fetch, for there is no %s: move or remove it", ErrExists,
			partialOf(p.shown), stateOf(p.base))
	}
	if p.state, err = openPlain(p.dir, stateOf(p.base), os.O_RDWR|os.O_CREATE, true); err != nil {
		return err
	}
	head, crc := p.appendHead(nil)
	p.head, p.headLen = crc, len(head)
	var sums []uint32
	if resume && p.tag != (Tag{}) {
		limit := int64(maxHead + recordSize*chunksOf(p.size))
		b, err := io.ReadAll(io.LimitReader(p.state, limit))
		if err != nil {
			return fmt.Errorf("share: %w", err)
		}
		if was, s, _, ok := parseState(b); ok && was == p.claim {
			sums = s
		}
	}
	if p.fresh = len(sums) == 0; p.fresh {
		if err := errors.Join(p.state.Truncate(0), p.data.Truncate(0)); err != nil {
			return fmt.Errorf("share: %w", err)
		}
	}
	if fi, err = p.data.Stat(); err != nil {
		return fmt.Errorf("share: %w", err)
	}
	p.filled = min(uint64(fi.Size()), p.size)
	if uint64(fi.Size()) > p.size {
		if err := p.data.Truncate(int64(p.size)); err != nil {
			return fmt.Errorf("share: %w", err)
		}
	}
	if p.whole {
		if _, err := p.dir.Lstat(p.base); err == nil { // users who may not read the old file must not read this one
			if err := p.data.Chmod(0o600); err != nil {
				return fmt.Errorf("share: %w", err)
			}
		}
	}
	for len(sums) > 0 && p.end(uint64(len(sums)-1)) > p.filled { // the file is shorter than its state says
		sums = sums[:len(sums)-1]
	}
	if p.whole {
		if err := p.reserve(); err != nil {
			return err
		}
	}
	if err := p.mapData(); err != nil {
		return err
	}
	if err := p.believe(ctx, sums); err != nil {
		return err
	}
	if p.start = p.good(); p.whole {
		p.filled = p.start // what is behind may have holes
	}
	// What the state says beyond the good chunks goes; what it says is then true.
	if err := p.state.Truncate(int64(p.headLen + recordSize*len(p.sums))); err != nil {
		return fmt.Errorf("share: %w", err)
	}
	if p.fresh {
		if _, err := p.state.WriteAt(head, 0); err != nil {
			return spaceError(stateOf(p.shown), err)
		}
	}
	return nil
}

// reserve gives the file its length, and says whether the disk has room for it: blocks for
// gigabytes take their time, and are taken by room.
func (p *partial) reserve() error {
	has, err := sys.AllocatedSize(int(p.data.Fd()))
	if err == nil {
		err = roomFor(p.data, p.shown, p.size-min(has, p.size), &Options{KeepFree: KeepNoneFree})
	}
	if err == nil {
		err = spaceError(p.shown, p.data.Truncate(int64(p.size)))
	}
	return err
}

// room gives a part of the file its blocks. Parts come in order, from the first that is not good
// on.
func (p *partial) room(ctx context.Context, from, to uint64) error {
	done, err := p.fallocate(min(from, p.filled), to)
	if err == nil && !done {
		if err = p.long(); err == nil {
			err = p.zero(ctx, to)
		}
	}
	return err
}

// long checks that the file has its length.
func (p *partial) long() error {
	if fi, err := p.data.Stat(); err != nil || fi.Size() != int64(p.size)+p.inserted {
		return fmt.Errorf("%w: %s was truncated by another process", ErrChanged, partialOf(p.shown))
	}
	return nil
}

// fallocate gives the file all its blocks from one offset to another, on a file system that can do
// it at once.
func (p *partial) fallocate(from, to uint64) (done bool, err error) {
	err = sys.Fallocate(p.data, int64(from), int64(to-from), !p.whole)
	if sys.IsErrno(err, sys.EOPNOTSUPP) || sys.IsErrno(err, sys.ENOSYS) {
		return false, nil
	}
	if err == nil {
		p.filled = max(p.filled, to)
	}
	return true, spaceError(p.shown, err)
}

// zero is fallocate on one that cannot: zeros are written, from the present end on, for a block
// that was never written can be missing when the mapping needs it.
func (p *partial) zero(ctx context.Context, to uint64) error {
	zeros := make([]byte, 1<<20)
	for p.filled < to { // repeated attempts get there
		n := min(uint64(len(zeros)), to-p.filled)
		if _, err := p.data.WriteAt(zeros[:n], int64(p.filled)); err != nil {
			return spaceError(p.shown, err)
		}
		p.filled += n
		if err := ctx.Err(); err != nil && p.filled < to {
			return err
		}
	}
	return nil
}

// roomFor refuses to take so many bytes more of the disk that holds f that it would have less left
// than uploads leave free: before a file system takes all that it has for a size that cannot be.
// One that says that it has no size at all (ramfs) is not asked.
func roomFor(f *os.File, shown string, bytes uint64, o *Options) error {
	free, total, err := sys.DiskSpace(f)
	keep := o.keepFree(total)
	if err != nil || total == 0 || bytes == 0 || bytes <= free && free-bytes >= keep {
		return nil
	}
	if keep > 0 {
		return fmt.Errorf("%w: %s: it needs %d bytes more, %d are free, and %d of them are kept free "+
			"(penstock serve --keep-free, Options.KeepFree)", ErrNoSpace, shown, bytes, free, keep)
	}
	return fmt.Errorf("%w: %s: it needs %d bytes more, and %d are free", ErrNoSpace, shown, bytes, free)
}

func spaceError(shown string, err error) error {
	switch {
	case err == nil:
		return nil
	case sys.IsErrno(err, sys.ENOSPC), sys.IsErrno(err, sys.EDQUOT), sys.IsErrno(err, sys.EFBIG):
		return fmt.Errorf("%w: %s: %w", ErrNoSpace, shown, err)
	}
	return fmt.Errorf("share: %s: %w", shown, err)
}

func (p *partial) mapData() error {
	if p.size == 0 {
		return nil
	}
	prot := sys.ProtRead
	if p.whole {
		prot |= sys.ProtWrite
	}
	b, err := sys.Mmap(int(p.data.Fd()), 0, int(p.size), prot, sys.MapShared)
	if err != nil {
		return fmt.Errorf("share: %s: %w", p.shown, err)
	}
	if p.region, err = mem.Adopt(partialOf(p.base), b, func() error { return sys.Munmap(b) }); err == nil {
		p.lease, err = p.region.Lease()
	}
	return err
}

// believe checks the chunks that the state vouches for, from the first on, and keeps the sums of
// those that are good.
func (p *partial) believe(ctx context.Context, sums []uint32) error {
	for i, want := range sums {
		if err := ctx.Err(); err != nil {
			return err
		}
		got, err := p.sum(uint64(i))
		if err != nil {
			return err
		}
		if got != want {
			return nil
		}
		p.sums = append(p.sums, got)
	}
	return nil
}

// sum is the checksum of chunk i as it lies in the file.
func (p *partial) sum(i uint64) (uint32, error) {
	return p.claim.sum(p.lease.Bytes(), i, partialOf(p.shown))
}

// sha256 is that of the whole file as it lies in the memory.
func (p *partial) sha256(ctx context.Context) (*[32]byte, error) {
	return sha256Of(ctx, p.lease.Bytes(), partialOf(p.shown))
}

// sum is the checksum of chunk i of a file that is mapped.
func (c *claim) sum(b []byte, i uint64, shown string) (crc uint32, err error) {
	err = guard(shown, func() { crc = vec.CRC32C(0, b[i*chunkSize:c.end(i)]) })
	return crc, err
}

// sha256Of is that of a file that is mapped.
func sha256Of(ctx context.Context, b []byte, shown string) (*[32]byte, error) {
	h := sha256.New()
	for chunk := range slices.Chunk(b, chunkSize) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := guard(shown, func() { h.Write(chunk) }); err != nil {
			return nil, err
		}
	}
	return (*[32]byte)(h.Sum(nil)), nil
}

// guard calls f, which touches the mapping of a file, and makes an error of it when bytes are gone
// from under it.
func guard(shown string, f func()) error {
	if err := mem.Guard(f); err != nil {
		return fmt.Errorf("share: %s was truncated while it was read or written: %w", shown, err)
	}
	return nil
}

// good is how many bytes from the beginning are acknowledged.
func (p *partial) good() uint64 {
	if len(p.sums) == 0 {
		return 0
	}
	return p.end(uint64(len(p.sums) - 1))
}

// record vouches for all chunks that end at or before upTo: their bytes are in place, verified by
// the transfer.
func (p *partial) record(upTo uint64) error {
	at, from := int64(p.headLen+recordSize*len(p.sums)), p.good()
	var b []byte
	for i := uint64(len(p.sums)); i < chunksOf(p.size) && p.end(i) <= upTo; i++ {
		sum, err := p.sum(i)
		if err != nil {
			return err
		}
		b = appendRecord(b, p.head, i, sum)
		p.sums = append(p.sums, sum)
	}
	if len(b) == 0 {
		return nil
	}
	sys.WriteBack(p.data, int64(from), int64(p.good()-from)) // while more comes, so that commit has less to wait for
	_, err := p.state.WriteAt(b, at)
	return spaceError(stateOf(p.shown), err)
}

// unmap ends the mapping once all other leases on it are released.
func (p *partial) unmap() error {
	if p.region == nil {
		return nil
	}
	p.lease.Release()
	err := p.region.Close()
	p.region = nil
	return err
}

// close leaves the partial file for another attempt. Nothing may write to the memory any more.
func (p *partial) close() error {
	err := p.unmap()
	if p.state != nil {
		err = errors.Join(err, p.state.Close())
	}
	return errors.Join(err, p.data.Close()) // ends the lock
}

// discard removes the partial file: nothing in it is worth keeping.
func (p *partial) discard() error {
	err := p.unmap()
	// Under the lock, so that it is this file that goes.
	for _, base := range []string{stateOf(p.base), partialOf(p.base)} {
		if rerr := p.dir.Remove(base); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return errors.Join(err, p.close())
}

// takeMode gives the file the permissions of the one that it replaces at a place, if there is one.
// When it is in its place, own gives it the owner as well, where this process may. A group that it
// does not belong to gets no more than all other users.
func (p *partial) takeMode(to place) (own func(), err error) {
	own = func() {}
	fi, err := to.dir.Lstat(to.base)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !fi.Mode().IsRegular() {
		return own, nil
	}
	now, serr := p.data.Stat()
	if err = errors.Join(err, serr); err != nil {
		return own, fmt.Errorf("share: %w", err)
	}
	mode, was, mine := fi.Mode().Perm(), sys.Identity(fi), sys.Identity(now)
	narrow, uid := mode, -1
	if was.GID != mine.GID {
		narrow &^= 0o070 &^ (mode & 0o007 << 3)
	}
	if sys.EffectiveUID() == 0 {
		uid = int(was.UID)
	}
	if err := p.data.Chmod(narrow); err != nil {
		return own, fmt.Errorf("share: %w", err)
	}
	return func() {
		if p.data.Chown(uid, int(was.GID)) == nil {
			p.data.Chmod(mode)
		}
	}, nil
}

// become gives the file the time of another one and, if it replaces none at a place, its
// permissions.
func (p *partial) become(to place) error {
	if _, err := to.dir.Lstat(to.base); errors.Is(err, fs.ErrNotExist) {
		if err := p.data.Chmod(p.like.mode); err != nil {
			return fmt.Errorf("share: %w", err)
		}
	}
	if err := p.dir.Chtimes(partialOf(p.base), p.like.modified, p.like.modified); err != nil {
		return fmt.Errorf("share: %w", err)
	}
	return nil
}

// commit makes the complete file durable and gives it its name, at a place on the same file system,
// with the permissions of the file that it replaces. After an error the partial file is still
// there.
func (p *partial) commit(to place, overwrite bool) error {
	err := p.unmap()
	if err == nil && len(p.header) > 0 {
		if err = p.long(); err == nil {
			err = spaceError(p.shown, p.insert())
		}
	}
	own := func() {}
	if err == nil && overwrite {
		own, err = p.takeMode(to)
	}
	if err == nil && p.like != nil {
		err = p.become(to)
	}
	if err == nil {
		err = spaceError(p.shown, p.data.Sync())
	}
	if err == nil {
		err = p.long()
	}
	if err == nil {
		err = p.rename(to, overwrite)
	}
	if err != nil {
		return errors.Join(err, p.data.Chmod(0o600), p.close()) // to be opened again
	}
	own()
	if rerr := p.dir.Remove(stateOf(p.base)); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = rerr
	}
	return errors.Join(err, syncDir(to.dir), p.close())
}

// insert moves the bytes of a file up and puts the header before them. What ends early leaves
// chunks that do not fit their checksums.
func (p *partial) insert() error {
	n := int64(len(p.header))
	b := make([]byte, min(uint64(1<<20), p.size))
	for end := int64(p.size); end > 0; {
		part := b[:min(int64(len(b)), end)]
		end -= int64(len(part))
		if _, err := p.data.ReadAt(part, end); err != nil {
			return err
		}
		if _, err := p.data.WriteAt(part, end+n); err != nil {
			return err
		}
	}
	_, err := p.data.WriteAt(p.header, 0)
	p.inserted = n
	return err
}

func (p *partial) rename(to place, overwrite bool) error {
	from, err := p.dir.Open(".")
	if err != nil {
		return err
	}
	defer from.Close()
	dir, err := to.dir.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	return rename(from, partialOf(p.base), to, dir, overwrite)
}

// rename gives the file base of a directory its name at a place on the same file system, whose
// directory is open as dir.
func rename(from *os.File, base string, to place, dir *os.File, overwrite bool) error {
	err := sys.Rename(from, base, dir, to.base, overwrite)
	if !overwrite && (sys.IsErrno(err, sys.EINVAL) || sys.IsErrno(err, sys.ENOSYS)) {
		// the file system cannot: look first, then rename
		if _, lerr := to.dir.Lstat(to.base); lerr == nil {
			return fmt.Errorf("%w: %s", ErrExists, to.shown)
		}
		err = sys.Rename(from, base, dir, to.base, true)
	}
	if sys.IsErrno(err, sys.EEXIST) {
		return fmt.Errorf("%w: %s", ErrExists, to.shown)
	}
	return err
}
