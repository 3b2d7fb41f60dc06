package share

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/path"
)

// A mirror fetches many small files in one exchange: one Get of all their bytes, one call that asks
// whether they are still those of the listing, their files written and synced at a time, one sync
// of each directory. A file that this does not work for is fetched by itself.
const (
	// batchDir is where the files of batches are until they are complete, in the directory of a
	// mirror: PathOf gives no path to it.
	batchDir  = ownPrefix + "mirror-new"
	batchMode = 0o700
)

// batches fetches small files, and returns those that are to be fetched by themselves.
type batches struct {
	batched[listed]
	m      *mirror
	stage  *os.Root // batchDir
	from   *os.File // stage
	staged atomic.Uint64
}

// small brings names of small files up to date.
func (m *mirror) small(ctx context.Context, todo *pages) {
	b := &batches{m: m}
	if err := b.open(); err != nil { // then each file says why it cannot be written
		m.each(ctx, todo.one(ctx), smallAtOnce)
		return
	}
	defer b.close()
	b.run(ctx, todo.batches(ctx), fetchesAtOnce, func(es []listed, region *mem.Region) { b.bring(ctx, es, region) })
	m.each(ctx, slices.Values(b.single), smallAtOnce)
}

// batchOf is how many of the first entries make a batch.
func batchOf(es []listed) (n int) {
	for sum := uint64(0); n < min(len(es), batchFiles); n++ {
		if sum += es[n].Size; sum > batchBytes && n > 0 {
			break
		}
	}
	return n
}

func (b *batches) open() error {
	root := b.m.root
	err := root.RemoveAll(batchDir) // of a mirror that was killed
	if err == nil {
		err = root.Mkdir(batchDir, batchMode)
	}
	if err == nil {
		b.stage, err = step(root, batchDir, 0)
	}
	if err == nil {
		if b.from, err = b.stage.Open("."); err != nil {
			b.stage.Close()
		}
	}
	return err
}

func (b *batches) close() {
	b.from.Close()
	b.stage.Close()
	b.m.root.RemoveAll(batchDir)
}

// unmade leaves files that were begun, and not made, to be fetched by themselves. Until then, and
// if that does not come, a file of the user's under such a name is not taken for one that a mirror
// made.
func (b *batches) unmade(items ...*item) {
	for _, x := range items {
		b.m.notMade(x.e.Name, x.Path) // an error says that nothing can be recorded any more: the fetch says so, too
		b.alone(x.e)
	}
}

// item is a file of a batch.
type item struct {
	*task
	span  mem.Span
	moved bool
	base  string // in batchDir
	stat  stat
}

// bring brings the names of one batch up to date, with memory for their bytes.
func (b *batches) bring(ctx context.Context, es []listed, region *mem.Region) {
	var items []*item
	off := uint64(0)
	for _, e := range es {
		t, fetch := b.m.assess(e)
		switch {
		case !fetch:
			b.m.done(t.MirrorFile, true)
		// there may be a partial file; it may have changed without a sign
		case t.cut || t.look || e.remote == nil || e.Tag == (Tag{}):
			b.alone(e)
		default:
			items = append(items, &item{task: t, span: mem.Span{Region: region, Off: off, Len: e.Size}})
			off += e.Size
		}
	}
	if len(items) == 0 {
		return
	}
	fetched, err := b.fetch(ctx, items)
	if err = cmp.Or(err, ctx.Err()); err != nil {
		b.m.lost(err)
		if errors.Is(err, control.Unsupported) {
			b.off.Store(true)
		}
		b.unmade(items...)
		return
	}
	for _, x := range items {
		if !x.stat.same { // or it is gone
			b.unmade(x)
		}
	}
	lease, err := region.Lease()
	if err == nil {
		b.write(fetched, lease.Bytes())
		lease.Release()
	}
	b.place(fetched, err)
}

// fetch moves the bytes of a batch into memory, and returns the items whose bytes are those of the
// listing.
func (b *batches) fetch(ctx context.Context, items []*item) (fetched []*item, err error) {
	entries := make([]Entry, len(items))
	names := make([]statName, len(items))
	for i, x := range items {
		entries[i], names[i] = x.e.Entry, statName{x.e.Name, x.e.Tag}
	}
	if err := b.m.begin(entries...); err != nil {
		return nil, err
	}
	again := func(err error) bool { return errors.Is(err, transfer.ErrPeerLost) }
	err = b.m.c.do(ctx, job.DoOptions{Again: again}, func(ctx context.Context, p *transfer.Peer) error {
		remotes, err := b.in(ctx, p, items)
		if err != nil {
			return err
		}
		var copies []path.Copy
		for i, x := range items {
			r := remotes[i]
			x.moved = x.span.Len == 0 || r != nil && r.Tag == x.e.Tag
			if x.moved && x.span.Len > 0 {
				copies = append(copies, r.At(0, x.span))
			}
		}
		via := "control" // of files without bytes
		if len(copies) > 0 {
			t, err := p.Get(ctx, copies, transfer.PutOptions{})
			if via, err = ended(ctx, t, err); err != nil {
				return err
			}
		}
		stats, err := askStat(ctx, p, via, names)
		if err != nil {
			return err
		}
		fetched = fetched[:0]
		for i, x := range items {
			x.stat = stats[i]
			if x.stat.same = x.stat.same && x.moved; x.stat.same {
				fetched = append(fetched, x)
			}
		}
		return nil
	})
	return fetched, err
}

// in is what the names of a batch stand for in a session: another one than that of the listing asks
// again.
func (b *batches) in(ctx context.Context, p *transfer.Peer, items []*item) ([]*transfer.Remote, error) {
	es := make([]listed, len(items))
	for i, x := range items {
		es[i] = x.e
	}
	if es[0].remote.Peer != p {
		if err := b.m.describe(ctx, p, es); err != nil {
			return nil, err
		}
	}
	remotes := make([]*transfer.Remote, len(es))
	for i, e := range es {
		remotes[i] = e.remote
	}
	return remotes, nil
}

// write makes the files of a batch below batchDir, synced. What goes wrong is in task.err.
func (b *batches) write(items []*item, memory []byte) {
	several(context.Background(), forWriters(items), writersAtOnce, func(items []*item) {
		for _, x := range items {
			x.base = strconv.FormatUint(b.staged.Add(1), 10)
			x.err = spaceError(x.Path, sys.WriteNew(b.from, x.base, memory[x.span.Off:x.span.Off+x.span.Len],
				x.stat.mode|ownerMode, false, x.stat.modified))
		}
	})
}

// place gives the files of a batch their names, and accounts for them. unread is why there were no
// bytes to write.
func (b *batches) place(items []*item, unread error) {
	var placed []*item // in the directory that is open
	dirs := directories{root: b.m.root, shown: b.m.dir, left: func(err error) {
		for _, x := range placed {
			x.err = errors.Join(x.err, err)
		}
		b.finish(placed)
		placed = nil
	}}
	for _, x := range items {
		x.err = errors.Join(x.err, unread)
		if x.err == nil {
			var at place
			if at, x.err = dirs.enter(x.Path); x.err == nil {
				x.err = b.rename(x, at, dirs.dir)
			}
		}
		if sys.IsErrno(x.err, sys.EXDEV) { // another file system is mounted there
			b.unmade(x)
			continue
		}
		placed = append(placed, x)
	}
	dirs.leave()
}

// rename puts a file where nothing is, or what an earlier mirror made.
func (b *batches) rename(x *item, at place, dir *os.File) error {
	b.m.advance(Progress{Name: x.e.Name, File: at.shown, Bytes: x.span.Len, Size: x.span.Len})
	if err := x.undisturbed(at); err != nil {
		return err
	}
	from, base := b.from, x.base
	if x.e.to != "" {
		from, base = dir, newLink
		at.dir.Remove(newLink) // of a mirror that was killed
		if err := at.dir.Symlink(x.e.to, newLink); err != nil {
			return err
		}
	}
	if err := rename(from, base, at, dir, x.ours); err != nil {
		if x.e.to != "" {
			at.dir.Remove(newLink)
		}
		return err
	}
	now, err := sys.StatIn(dir, at.base)
	x.is = idOfStat(now)
	return err
}

// finish records files and accounts for them.
func (b *batches) finish(items []*item) {
	var files []made
	for _, x := range items {
		if x.err == nil {
			files = append(files, made{x.e.Name, mirrored{x.e.Size, x.e.Tag, x.is}})
		}
	}
	var unrecorded error
	if len(files) > 0 {
		unrecorded = b.m.note(files...)
	}
	for _, x := range items {
		f := x.MirrorFile
		err := unrecorded
		if x.err == nil {
			f.Moved = x.span.Len
		} else {
			if x.base != "" {
				b.stage.Remove(x.base)
			}
			err = errors.Join(x.err, b.m.notMade(x.e.Name, x.Path))
		}
		if err != nil {
			f = x.fail(err)
		}
		b.m.done(f, true)
	}
}

// like gives a file that was fetched the time and the permissions that it has at the other side, as
// far as that says so.
func (m *mirror) like(ctx context.Context, f *Fetched, at place) (err error) {
	l := f.like
	if l == nil {
		if l, err = m.c.like(ctx, f.Name, f.Tag); l == nil {
			return err
		}
	}
	err = at.dir.Chmod(at.base, l.less(m.umask).mode)
	if err == nil {
		err = at.dir.Chtimes(at.base, l.modified, l.modified)
	}
	if err != nil {
		return fmt.Errorf("share: the times and permissions of %s: %w", at.shown, err)
	}
	return nil
}
