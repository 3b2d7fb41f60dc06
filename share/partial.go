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
	"runtime/debug"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/vec"
)

// partial is a file that is being written: mapped, locked, with its blocks allocated. One goroutine uses it.
type partial struct {
	place
	claim
	data, state *os.File
	head        uint32
	headLen     int
	fresh       bool        // nothing in it was vouched for when it was opened
	sums        []uint32    // of the chunks that are good, from the first on
	start       uint64      // good bytes that were there when it was opened
	region      *mem.Region // nil if the file is empty
	lease       mem.Lease
}

// openPartial locks the partial file of a place, makes it what the claim says, and finds out how much of it is good
// already: nothing unless resume is set and its state claims the same name, size and tag, and the bytes are as it says.
func openPartial(ctx context.Context, at place, c claim, resume bool) (*partial, error) {
	if c.size > math.MaxInt64-chunkSize {
		return nil, fmt.Errorf("share: %s: %d bytes are more than a file can have: %w", at.shown, c.size, ErrNoSpace)
	}
	f, err := lockPartial(at)
	if err != nil {
		return nil, err
	}
	p := &partial{place: at, claim: c, data: f}
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

// lockPartial opens the partial file and locks it. Whoever held the lock before may have renamed the file.
func lockPartial(at place) (*os.File, error) {
	for range 100 {
		f, err := openPlain(at.dir, at.base+PartialSuffix, os.O_RDWR|os.O_CREATE, true)
		if errors.Is(err, fs.ErrExist) { // it came into being this moment
			continue
		}
		if err != nil {
			return nil, err
		}
		ok, err := sys.TryFileLock(f)
		if err == nil && !ok {
			err = fmt.Errorf("%w: %s", ErrBusy, at.shown+PartialSuffix)
		}
		var mine, there os.FileInfo
		if err == nil {
			mine, err = f.Stat()
		}
		if err == nil {
			if there, err = at.dir.Lstat(at.base + PartialSuffix); err == nil && os.SameFile(mine, there) {
				return f, nil
			}
		}
		f.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("share: %w", err)
		}
	}
	return nil, fmt.Errorf("%w: %s is made and renamed all the time", ErrBusy, at.shown+PartialSuffix)
}

func (p *partial) prepare(ctx context.Context, resume bool) error {
	var err error
	if p.state, err = openPlain(p.dir, p.base+StateSuffix, os.O_RDWR|os.O_CREATE, true); err != nil {
		return err
	}
	head, crc := p.appendHead(nil)
	p.head, p.headLen = crc, len(head)
	var sums []uint32
	if resume && p.tag != (Tag{}) {
		limit := int64(maxHead + recordSize*p.chunks())
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
	if err := p.allocate(ctx); err != nil {
		return err
	}
	if err := p.mapData(); err != nil {
		return err
	}
	if err := p.believe(ctx, sums); err != nil {
		return err
	}
	p.start = p.good()
	// What the state says beyond the good chunks goes; what it says is then true.
	if err := p.state.Truncate(int64(p.headLen + recordSize*len(p.sums))); err != nil {
		return fmt.Errorf("share: %w", err)
	}
	if p.fresh {
		if _, err := p.state.WriteAt(head, 0); err != nil {
			return spaceError(p.shown+StateSuffix, err)
		}
	}
	return nil
}

// allocate gives the file its size and all its blocks.
func (p *partial) allocate(ctx context.Context) error {
	fi, err := p.data.Stat()
	if err != nil {
		return fmt.Errorf("share: %w", err)
	}
	size := int64(p.size)
	if fi.Size() > size {
		if err := p.data.Truncate(size); err != nil {
			return fmt.Errorf("share: %w", err)
		}
	}
	// A size that cannot be is refused before a file system takes all that it has for it. One that says that it has no size at
	// all (ramfs) is not asked.
	if free, err := sys.FreeSpace(p.data); err == nil && free > 0 && p.size > free && p.size-free > sys.Allocated(fi) {
		return fmt.Errorf("%w: %s: %d bytes, of which %d are there, and %d are free", ErrNoSpace, p.shown, p.size, sys.Allocated(fi), free)
	}
	err = sys.Fallocate(p.data, size)
	if !sys.IsErrno(err, sys.EOPNOTSUPP) && !sys.IsErrno(err, sys.ENOSYS) {
		return spaceError(p.shown, err)
	}
	// A file system without fallocate: zeros are written, from the present end on, for a block that was never written can
	// be missing when the mapping needs it.
	zeros := make([]byte, 1<<20)
	for at := min(fi.Size(), size); at < size; at += int64(len(zeros)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := p.data.WriteAt(zeros[:min(int64(len(zeros)), size-at)], at); err != nil {
			return spaceError(p.shown, err)
		}
	}
	return nil
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
	b, err := sys.Mmap(int(p.data.Fd()), 0, int(p.size), sys.ProtRead|sys.ProtWrite, sys.MapShared)
	if err != nil {
		return fmt.Errorf("share: %s: %w", p.shown, err)
	}
	if p.region, err = mem.Adopt(p.base+PartialSuffix, b, func() error { return sys.Munmap(b) }); err == nil {
		p.lease, err = p.region.Lease()
	}
	return err
}

// believe checks the chunks that the state vouches for, from the first on, and keeps the sums of those that are good.
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
func (p *partial) sum(i uint64) (crc uint32, err error) {
	err = guard(p.shown+PartialSuffix, func() { crc = vec.CRC32C(0, p.lease.Bytes()[i*chunkSize:p.end(i)]) })
	return crc, err
}

// sha256 is that of the whole file as it lies in the memory.
func (p *partial) sha256(ctx context.Context) (*[32]byte, error) {
	h := sha256.New()
	for at := uint64(0); at < p.size; at += chunkSize {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := guard(p.shown+PartialSuffix, func() { h.Write(p.lease.Bytes()[at:min(at+chunkSize, p.size)]) }); err != nil {
			return nil, err
		}
	}
	return (*[32]byte)(h.Sum(nil)), nil
}

// guard calls f, which touches the mapping of a file, and makes an error of it when bytes are gone from under it.
func guard(shown string, f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			if _, fault := v.(interface{ Addr() uintptr }); !fault {
				panic(v)
			}
			err = fmt.Errorf("share: %s was truncated by somebody else: %w", shown, mem.ErrFault)
		}
	}()
	f()
	return nil
}

// good is how many bytes from the beginning are vouched for.
func (p *partial) good() uint64 {
	if len(p.sums) == 0 {
		return 0
	}
	return p.end(uint64(len(p.sums) - 1))
}

// record vouches for all chunks that end at or before upTo: their bytes are in place, verified by the transfer.
func (p *partial) record(upTo uint64) error {
	at := int64(p.headLen + recordSize*len(p.sums))
	var b []byte
	for i := uint64(len(p.sums)); i < p.chunks() && p.end(i) <= upTo; i++ {
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
	_, err := p.state.WriteAt(b, at)
	return spaceError(p.shown+StateSuffix, err)
}

// unmap ends the mapping, once nobody else has a lease on it.
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
	for _, base := range []string{p.base + StateSuffix, p.base + PartialSuffix} {
		if rerr := p.dir.Remove(base); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return errors.Join(err, p.close())
}

// commit makes the complete file durable and gives it its name, at a place on the same file system. After an error the
// partial file is still there.
func (p *partial) commit(to place, overwrite bool) error {
	err := p.unmap()
	if err == nil {
		err = spaceError(p.shown, p.data.Sync())
	}
	if err == nil {
		if fi, serr := p.data.Stat(); serr != nil || fi.Size() != int64(p.size) {
			err = fmt.Errorf("%w: %s was truncated by somebody else", ErrChanged, p.shown+PartialSuffix)
		}
	}
	if err == nil {
		err = p.rename(to, overwrite)
	}
	if err != nil {
		return errors.Join(err, p.close())
	}
	if rerr := p.dir.Remove(p.base + StateSuffix); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = rerr
	}
	return errors.Join(err, syncDir(to.dir), p.close())
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
	err = sys.Rename(from, p.base+PartialSuffix, dir, to.base, overwrite)
	if !overwrite && (sys.IsErrno(err, sys.EINVAL) || sys.IsErrno(err, sys.ENOSYS)) { // the file system cannot: look first, then rename
		if _, lerr := to.dir.Lstat(to.base); lerr == nil {
			return fmt.Errorf("%w: %s", ErrExists, to.shown)
		}
		err = sys.Rename(from, p.base+PartialSuffix, dir, to.base, true)
	}
	if sys.IsErrno(err, sys.EEXIST) {
		return fmt.Errorf("%w: %s", ErrExists, to.shown)
	}
	return err
}
