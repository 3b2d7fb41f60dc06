package share

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
)

// sourceDir is a directory that UploadTree uploads. It stays open from the walk to the last upload,
// and every file is opened below it without following a link: a link that takes the place of a
// directory meanwhile leads nowhere.
type sourceDir struct {
	root *os.Root
	dir  *os.File // root
}

// sourceFile is a file to be uploaded.
type sourceFile struct {
	MirrorFile
	in    *sourceDir // nil: the user named the file by its path, and links on the way are the user's own
	below string     // its path below in
}

// open opens the file for reading.
func (f *sourceFile) open() (*os.File, error) {
	if f.in == nil {
		return openNamed(f.Path)
	}
	return f.in.open(f.below)
}

func (f *sourceFile) upload(ctx context.Context, c Conn, o UploadOptions) (*Sent, error) {
	file, err := f.open()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return uploadFile(ctx, c, file, f.Path, f.Name, o)
}

// open opens a regular file of the directory.
func (d *sourceDir) open(below string) (*os.File, error) {
	f, err := sys.OpenBelow(d.dir, below)
	if err == nil {
		var fi os.FileInfo
		if fi, err = f.Stat(); err == nil && fi.Mode().IsRegular() {
			return f, nil
		}
		f.Close()
	}
	in, err := walk(d.root, below, 0) // which says what is wrong, and works with older kernels
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return openPlain(in, path.Base(below), os.O_RDONLY, false)
}

// openNamed opens a regular file at a path that the user chose, for reading.
func openNamed(file string) (*os.File, error) {
	fi, err := os.Stat(file) // a link is the user's own
	if err != nil {
		return nil, fmt.Errorf("share: upload: %w", err)
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is %s", ErrUnsafe, file, kind(fi.Mode()))
	}
	f, err := os.OpenFile(file, os.O_RDONLY|sys.ONonblock, 0)
	if err != nil {
		return nil, fmt.Errorf("share: upload: %w", err)
	}
	now, err := f.Stat()
	if err == nil && !now.Mode().IsRegular() {
		err = fmt.Errorf("%w: %s %w", ErrUnsafe, file, errReplaced)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
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
			if err := t.walkSource(ctx, s); err != nil {
				return err
			}
		case !fi.Mode().IsRegular():
			return fmt.Errorf("%w: %s is %s: expected a file or a directory", ErrUnsafe, s.Path, kind(fi.Mode()))
		case t.o.Filter.Takes(path.Base(s.Name)):
			t.todo = append(t.todo, sourceFile{MirrorFile: MirrorFile{Name: s.Name, Path: s.Path,
				Size: uint64(fi.Size())}})
		}
	}
	for _, f := range t.todo {
		if other, taken := from[f.Name]; taken {
			return fmt.Errorf("%w: %s and %s would both be %q at the other side: upload one of them under another name",
				ErrExists, other, f.Path, f.Name)
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

// walkSource opens a directory, and lists what is below it.
func (t *tree) walkSource(ctx context.Context, s TreeSource) error {
	root, err := os.OpenRoot(s.Path) // a link is the user's own
	if err != nil {
		return err
	}
	dir, err := root.Open(".")
	if err != nil {
		return errors.Join(err, root.Close())
	}
	w := &sourceWalk{tree: t, in: &sourceDir{root, dir}, source: s, shown: filepath.Clean(s.Path)}
	t.dirs = append(t.dirs, w.in)
	return w.list(ctx, root, "")
}

// close closes the directories of the sources.
func (t *tree) close() {
	for _, d := range t.dirs { // nothing was written to them
		d.dir.Close()
		d.root.Close()
	}
}

// sourceWalk lists what is below one source.
type sourceWalk struct {
	*tree
	in     *sourceDir
	source TreeSource
	shown  string // its path, for messages
}

// file is what is said of the path below the source.
func (w *sourceWalk) file(below string) MirrorFile {
	return MirrorFile{Name: w.source.Name + below, Path: filepath.Join(w.shown, below)}
}

func (w *sourceWalk) leave(below string, action MirrorAction, err error) {
	f := w.file(below)
	f.Action, f.Err = action, err
	w.apart = append(w.apart, f)
}

// list lists what is in the open directory dir. at is its path below the source with a slash behind
// it, "" for the source itself. Only an error of ctx, or one that keeps the source itself from
// being listed, ends the walk.
func (w *sourceWalk) list(ctx context.Context, dir *os.Root, at string) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	entries, err := d.ReadDir(-1)
	d.Close()
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		w.isEmpty(at)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		below := at + e.Name()
		fi, err := dir.Lstat(e.Name()) // that of e would be by a path
		switch {
		case err != nil:
			w.leave(below, MirrorFailed, fmt.Errorf("share: upload: %w", err))
		case fi.IsDir() && (below == stagingDir || e.Name() == batchDir || w.o.Filter.prunes(below)):
		case fi.IsDir():
			if err := w.enter(ctx, dir, e.Name(), below); ctx.Err() != nil {
				return ctx.Err()
			} else if err != nil {
				w.leave(below, MirrorFailed, err)
			}
		case !w.o.Filter.Takes(below), bookkeeping(dir, e.Name()):
		case !fi.Mode().IsRegular():
			w.leave(below, MirrorLeftOut, fmt.Errorf("%w: it is %s", ErrUnsafe, kind(fi.Mode())))
		default:
			f := sourceFile{w.file(below), w.in, below}
			f.Size = uint64(fi.Size())
			w.todo = append(w.todo, f)
		}
	}
	return nil
}

// enter lists the directory base of dir, whose path is below.
func (w *sourceWalk) enter(ctx context.Context, dir *os.Root, base, below string) error {
	if strings.Count(below, "/") >= maxDepth {
		// a share takes nothing from deeper down, and each level takes a descriptor
		return fmt.Errorf("%w: %s is more than %d directories deep", ErrName, below, maxDepth)
	}
	next, err := step(dir, base, 0)
	if err != nil {
		return err
	}
	defer next.Close()
	if err := w.list(ctx, next, below+"/"); err != nil {
		return fmt.Errorf("share: upload: %w", err)
	}
	return nil
}

// isEmpty notes a directory with nothing in it.
func (w *sourceWalk) isEmpty(at string) {
	f := w.file(at)
	if f.Name = strings.TrimSuffix(f.Name, "/") + "/"; f.Name == "/" || at != "" &&
		!w.o.Filter.Takes(strings.TrimSuffix(at, "/")+insideOfDir) {
		return
	}
	w.empty = append(w.empty, f)
}

// bookkeeping reports whether the file base of a directory is one that this package keeps beside
// others: a record, or a partial file and its state.
func bookkeeping(dir *os.Root, base string) bool {
	if base == recordName || strings.HasSuffix(base, StateSuffix) {
		return true
	}
	whole, partial := strings.CutSuffix(base, PartialSuffix)
	if !partial {
		return false
	}
	_, err := dir.Lstat(whole + StateSuffix)
	return err == nil
}
