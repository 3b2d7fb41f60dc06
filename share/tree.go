package share

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
)

// TreeSource is what UploadTree uploads: a file, or a directory with all files below it. A link that Path names is followed.
type TreeSource struct {
	Path string
	Name string // of a file at the other side; of a directory, what its files' names begin with: "" or, say, "run7/"
}

// TreeOptions say how files are uploaded. The zero value uploads all and replaces nothing.
type TreeOptions struct {
	// Overwrite, NoResume and Digest are those of UploadOptions, for each file.
	Overwrite, NoResume, Digest bool
	// Filter, if not nil, is asked for each file by its path below its source, with slashes; of a source that is a file, by the last
	// component of its name.
	Filter   *Filter
	Parallel int  // files uploaded at once, 60 at most; 0 means 4 large ones and, beside them, 16 of up to 256 KiB
	DryRun   bool // only says what would be done, by the listing of the other side, which this node needs the right list for
	// Progress, if any, is called as bytes are verified, by one goroutine at a time. It must not block.
	Progress func(MirrorProgress)
	// OnFile, if any, is called once for each file when it is dealt with, by one goroutine at a time. It must not block.
	OnFile func(MirrorFile)
}

// UploadedTree is the account of an UploadTree. Files that the Filter leaves out are in no count.
type UploadedTree struct {
	Sent, Kept, Failed int
	LeftOut            int    // links, pipes and devices
	Moved              uint64 // bytes moved now
	Failures           []MirrorFile
	Duration           time.Duration
}

const (
	maxUploadsAtOnce   = maxUploadsOfOne - 4 // an upload that has just ended counts for a moment
	smallUploadsAtOnce = 16
)

// UploadTree uploads files and directories, some files at once. It keeps what the other side has already: a file of that name, size and
// content. The other side compares small files with what comes; of a large one both sides compute the SHA-256. A file of that name with another
// content fails with ErrExists, unless Overwrite is set: then each file is uploaded.
//
// Below a directory, UploadTree follows no links: it leaves them out, as it does pipes and devices, and calls OnFile. Files that this package keeps beside its own
// (.penstock-mirror, .penstock-mirror-new, .penstock-uploads, partial files with their state) are passed over. A directory with nothing in it is made at the other side, and is in a count only if that fails.
//
// The error is nil if every file was dealt with; it wraps the first failure otherwise, and the account holds all of them. A file that fails does not
// keep the others from being uploaded, but when the other side is lost for good, or takes no uploads, the rest fails with that. A source that cannot be looked at, or
// two files that would get one name, are an error before anything is uploaded. When ctx ends, files under way are in no count.
func UploadTree(ctx context.Context, c Conn, sources []TreeSource, o TreeOptions) (*UploadedTree, error) {
	if err := invariants.Context(ctx, "share.UploadTree"); err != nil {
		return nil, err
	}
	begin := time.Now()
	if o.Parallel < 0 {
		return nil, fmt.Errorf("share: upload: TreeOptions.Parallel is %d: expected at least 1, or 0", o.Parallel)
	}
	t := &tree{books: newBooks(o.Progress, o.OnFile), c: c, o: o}
	if err := t.find(ctx, sources); err != nil {
		return nil, fmt.Errorf("share: upload: %w", err)
	}
	for _, f := range t.apart {
		t.done(f, true)
	}
	if o.DryRun {
		t.dryRun(ctx)
	} else {
		t.run(ctx)
	}
	u := &UploadedTree{Sent: t.files[MirrorSent], Kept: t.files[MirrorSkipped], Failed: t.files[MirrorFailed], LeftOut: t.files[MirrorLeftOut],
		Moved: t.moved, Failures: t.failures, Duration: time.Since(begin)}
	if err := ctx.Err(); err != nil {
		return u, fmt.Errorf("share: upload: %w", err)
	}
	if n := u.Failed; n > 0 {
		return u, fmt.Errorf("share: upload: %d of %d files failed, the first: %w", n, t.progress.Files, u.Failures[0].Err)
	}
	return u, nil
}

// tree is one call of UploadTree.
type tree struct {
	books
	c     Conn
	o     TreeOptions
	todo  []MirrorFile
	apart []MirrorFile // left out, or failed before anything was uploaded
	empty []MirrorFile // directories with nothing in them
}

// find lists what is to be uploaded.
func (t *tree) find(ctx context.Context, sources []TreeSource) error {
	from := map[string]string{}
	for _, s := range sources {
		fi, err := os.Stat(s.Path)
		switch {
		case err != nil:
			return err
		case fi.IsDir():
			if err := t.walk(ctx, s); err != nil {
				return err
			}
		case !fi.Mode().IsRegular():
			return fmt.Errorf("%w: %s is %s: expected a file or a directory", ErrUnsafe, s.Path, kind(fi.Mode()))
		case t.o.Filter.Takes(path.Base(s.Name)):
			t.todo = append(t.todo, MirrorFile{Name: s.Name, Path: s.Path, Size: uint64(fi.Size())})
		}
	}
	for _, f := range t.todo {
		if other, taken := from[f.Name]; taken {
			return fmt.Errorf("%w: %s and %s would both be %q at the other side: upload one of them under another name", ErrExists, other, f.Path, f.Name)
		}
		from[f.Name] = f.Path
		t.progress.Bytes += f.Size
	}
	t.progress.Files = len(t.todo)
	for _, f := range t.apart {
		if f.Action == MirrorFailed {
			t.progress.Files++
		}
	}
	return nil
}

// walk lists what is below a directory.
func (t *tree) walk(ctx context.Context, s TreeSource) error {
	root := filepath.Clean(s.Path)
	empty := map[string]MirrorFile{}
	err := filepath.WalkDir(root+string(filepath.Separator), func(at string, d fs.DirEntry, err error) error { // behind a slash, a link is followed
		if err := ctx.Err(); err != nil {
			return err
		}
		below, rerr := filepath.Rel(root, at)
		if rerr != nil {
			return rerr
		}
		below = filepath.ToSlash(below)
		f := MirrorFile{Name: s.Name + below, Path: filepath.Join(root, below)}
		apart := func(action MirrorAction, err error) {
			f.Action, f.Err = action, err
			t.apart = append(t.apart, f)
		}
		delete(empty, filepath.Dir(f.Path))
		switch {
		case err != nil && below == ".":
			return err
		case err != nil:
			delete(empty, f.Path)
			apart(MirrorFailed, fmt.Errorf("share: upload: %w", err))
			return nil
		case below == ".":
			if f.Name = strings.TrimSuffix(s.Name, "/"); f.Name != "" {
				empty[f.Path] = f
			}
			return nil
		case d.IsDir() && (below == stagingDir || d.Name() == batchDir || t.o.Filter.prunes(below)):
			return fs.SkipDir
		case d.IsDir():
			if t.o.Filter.Takes(below + insideOfDir) {
				empty[f.Path] = f
			}
			return nil
		case !t.o.Filter.Takes(below), bookkeeping(f.Path):
			return nil
		case !d.Type().IsRegular():
			apart(MirrorLeftOut, fmt.Errorf("%w: it is %s", ErrUnsafe, kind(d.Type())))
			return nil
		}
		fi, err := d.Info()
		if err != nil {
			apart(MirrorFailed, fmt.Errorf("share: upload: %w", err))
			return nil
		}
		f.Size = uint64(fi.Size())
		t.todo = append(t.todo, f)
		return nil
	})
	for _, f := range empty {
		f.Name += "/"
		t.empty = append(t.empty, f)
	}
	return err
}

// bookkeeping reports whether a file is one that this package keeps beside others: a record, or a partial file and its state.
func bookkeeping(file string) bool {
	if filepath.Base(file) == recordName || strings.HasSuffix(file, StateSuffix) {
		return true
	}
	whole, partial := strings.CutSuffix(file, PartialSuffix)
	_, err := os.Lstat(whole + StateSuffix)
	return partial && err == nil
}

func (t *tree) run(ctx context.Context) {
	defer t.directories(ctx)
	if t.o.Parallel > 0 {
		t.each(ctx, t.todo, min(t.o.Parallel, maxUploadsAtOnce))
		return
	}
	small, large := bySize(t.todo, func(f MirrorFile) uint64 { return f.Size })
	var wg sync.WaitGroup
	wg.Go(func() { t.each(ctx, large, largeAtOnce) })
	if t.o.Digest || t.o.NoResume { // for each file by itself
		t.each(ctx, small, smallUploadsAtOnce)
	} else {
		t.small(ctx, small)
	}
	wg.Wait()
}

// each uploads files, some at once.
func (t *tree) each(ctx context.Context, todo []MirrorFile, atOnce int) {
	several(ctx, slices.Values(todo), atOnce, func(f MirrorFile) {
		if f = t.one(ctx, f); f.Err == nil || ctx.Err() == nil { // what ctx cuts off has not failed
			t.done(f, true)
		}
	})
}

// one uploads a file, or finds that the other side has it.
func (t *tree) one(ctx context.Context, f MirrorFile) MirrorFile {
	err := t.gone()
	var sent *Sent
	if err == nil { // else each file would wait as long as the one before
		sent, err = Upload(ctx, t.c, f.Path, f.Name, UploadOptions{Overwrite: t.o.Overwrite, NoResume: t.o.NoResume, Like: true, Digest: t.o.Digest, Progress: t.advance})
	}
	if errors.Is(err, ErrExists) && !t.o.Overwrite {
		same, serr := t.has(ctx, f)
		switch {
		case same:
			f.Action = MirrorSkipped
			return f
		case isAway(serr):
			err = serr
		case serr != nil:
			err = fmt.Errorf("%w; whether its content is the same is not known: %w", err, serr)
		}
	}
	if err != nil {
		if isAway(err) || errors.Is(err, control.Unsupported) {
			t.stop(err)
		}
		f.Action, f.Err = MirrorFailed, err
		return f
	}
	t.mu.Lock()
	t.progress.Bytes += sent.Size - f.Size // it may have changed since it was found
	t.mu.Unlock()
	f.Action, f.Size, f.Moved = MirrorSent, sent.Size, sent.Moved
	return f
}

// dryRun says what run would do, in the order of the files.
func (t *tree) dryRun(ctx context.Context) {
	there, err := t.names(ctx)
	if err != nil {
		t.stop(err)
	}
	files := make([]*MirrorFile, len(t.todo))
	for i := range t.todo {
		files[i] = &t.todo[i]
	}
	several(ctx, slices.Values(files), smallUploadsAtOnce, func(f *MirrorFile) { t.would(ctx, f, there) })
	for _, f := range files {
		if f.Action != "" && (f.Err == nil || ctx.Err() == nil) { // what ctx cuts off has not failed
			t.done(*f, true)
		}
	}
}

// names are those that the other side has, with their sizes, under what all names here begin with. It is an error if that side takes no uploads.
func (t *tree) names(ctx context.Context) (map[string]uint64, error) {
	err := t.c.do(ctx, transfer.DoOptions{}, func(ctx context.Context, p *transfer.Peer) error {
		_, err := p.Call(ctx, uploadService, appendEnd(nil, 0)) // of an upload that is none
		return err
	})
	if err != nil || len(t.todo) == 0 {
		return nil, told(err)
	}
	prefix := t.todo[0].Name
	for _, f := range t.todo {
		for !strings.HasPrefix(f.Name, prefix) {
			prefix = prefix[:len(prefix)-1]
		}
	}
	for len(prefix) > MaxName || !utf8.ValidString(prefix) {
		prefix = prefix[:len(prefix)-1]
	}
	entries, err := Names(ctx, t.c, prefix)
	there := map[string]uint64{}
	for _, e := range entries {
		there[e.Name] = e.Size
	}
	return there, err
}

// would says what became of a file.
func (t *tree) would(ctx context.Context, f *MirrorFile, there map[string]uint64) {
	err := t.gone()
	if err == nil {
		_, err = PathOf(f.Name)
	}
	size, taken := there[f.Name]
	same := false
	switch {
	case err != nil:
	case !taken || t.o.Overwrite:
	case size != f.Size:
		err = fmt.Errorf("%w, with another content", ErrExists)
	default:
		if same, err = t.has(ctx, *f); err == nil && !same {
			err = fmt.Errorf("%w, with another content", ErrExists)
		}
	}
	switch {
	case err != nil:
		f.Action, f.Err = MirrorFailed, err
	case same:
		f.Action = MirrorSkipped
	default:
		f.Action, f.Moved = MirrorSent, f.Size
	}
}

// has reports whether the other side has the content of a file under its name.
func (t *tree) has(ctx context.Context, f MirrorFile) (bool, error) {
	file, err := os.Open(f.Path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	return t.c.holds(ctx, f.Name, file)
}
