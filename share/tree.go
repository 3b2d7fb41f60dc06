package share

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/job"
)

// TreeSource is what UploadTree uploads: a file, or a directory with all files below it. A link
// that Path names is followed.
type TreeSource struct {
	Path string
	Name string // of a file at the other side; of a directory, what its files' names begin with: "" or, say, "run7/"
}

// TreeOptions say how files are uploaded. The zero value uploads all and replaces nothing.
type TreeOptions struct {
	// Overwrite, NoResume and Digest are those of UploadOptions, for each file.
	Overwrite, NoResume, Digest bool
	// Filter, if not nil, is asked for each file by its path below its source, with slashes; of a
	// source that is a file, by the last component of its name.
	Filter   *Filter
	Parallel int // files uploaded at once, 60 at most; 0 means 4 large ones and, beside them, 16 of up to 256 KiB
	// only says what would be done, by the listing of the other side, which this node needs the
	// right list for
	DryRun bool
	// Progress, if any, is called as bytes are verified, by one goroutine at a time. It must not
	// block.
	Progress func(MirrorProgress)
	// OnFile, if any, is called once for each file when it is dealt with, by one goroutine at a
	// time. It must not block.
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

// UploadTree uploads files and directories, some files at once. It keeps what the other side has
// already: a file of that name, size and content. The other side compares small files with what
// comes; of a large one both sides compute the SHA-256. A file of that name with another content
// fails with ErrExists, unless Overwrite is set: then each file is uploaded.
//
// Below a directory, UploadTree follows no links: it leaves them out, as it does pipes and devices,
// and calls OnFile. It opens each file below the directory that it has walked, so a link that takes
// the place of a file or a directory while it runs leads nowhere: the files behind it fail. Files
// that this package keeps beside its own (.penstock-mirror, .penstock-mirror-new,
// .penstock-uploads, partial files with their state) are passed over. A directory with nothing in
// it is made at the other side, and is in a count only if that fails.
//
// The error is nil if every file was dealt with; it wraps the first failure otherwise, and the
// account holds all of them. A file that fails does not keep the others from being uploaded, but
// when the other side is lost for good, or takes no uploads, the rest fails with that. A source
// that cannot be looked at, or two files that would get one name, are an error before anything is
// uploaded. When ctx ends, files under way are in no count.
func UploadTree(ctx context.Context, c Conn, sources []TreeSource, o TreeOptions) (*UploadedTree, error) {
	if err := invariants.Context(ctx, "share.UploadTree"); err != nil {
		return nil, err
	}
	begin := time.Now()
	if o.Parallel < 0 {
		return nil, fmt.Errorf("share: upload: TreeOptions.Parallel is %d: expected at least 1, or 0", o.Parallel)
	}
	t := &tree{tally: newTally(o.Progress, o.OnFile), c: c, o: o}
	defer t.close()
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
	u := &UploadedTree{Sent: t.files[MirrorSent], Kept: t.files[MirrorSkipped], Failed: t.files[MirrorFailed],
		LeftOut: t.files[MirrorLeftOut],
		Moved:   t.moved, Failures: t.failures, Duration: time.Since(begin)}
	if err := ctx.Err(); err != nil {
		return u, fmt.Errorf("share: upload: %w", err)
	}
	if n := u.Failed; n > 0 {
		return u, fmt.Errorf("share: upload: %d of %d files failed, the first: %w", n, t.progress.Files,
			u.Failures[0].Err)
	}
	return u, nil
}

// tree is one call of UploadTree.
type tree struct {
	tally
	c     Conn
	o     TreeOptions
	todo  []sourceFile
	dirs  []*sourceDir
	apart []MirrorFile // left out, or failed before anything was uploaded
	empty []MirrorFile // directories with nothing in them
}

func (t *tree) run(ctx context.Context) {
	defer t.directories(ctx)
	if t.o.Parallel > 0 {
		t.each(ctx, t.todo, min(t.o.Parallel, maxUploadsAtOnce))
		return
	}
	small, large := bySize(t.todo, func(f sourceFile) uint64 { return f.Size })
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
func (t *tree) each(ctx context.Context, todo []sourceFile, atOnce int) {
	several(ctx, slices.Values(todo), atOnce, func(from sourceFile) {
		if f := t.one(ctx, from); f.Err == nil || ctx.Err() == nil { // what ctx cuts off has not failed
			t.done(f, true)
		}
	})
}

// one uploads a file, or finds that the other side has it.
func (t *tree) one(ctx context.Context, from sourceFile) MirrorFile {
	f := from.MirrorFile
	err := t.gone()
	var sent *Sent
	if err == nil { // else each file would wait as long as the one before
		sent, err = from.upload(ctx, t.c, UploadOptions{Overwrite: t.o.Overwrite, NoResume: t.o.NoResume, Like: true,
			Digest: t.o.Digest, Progress: t.advance})
	}
	if errors.Is(err, ErrExists) && !t.o.Overwrite {
		same, serr := t.has(ctx, from)
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
	files := make([]*sourceFile, len(t.todo))
	for i := range t.todo {
		files[i] = &t.todo[i]
	}
	several(ctx, slices.Values(files), smallUploadsAtOnce, func(f *sourceFile) { t.would(ctx, f, there) })
	for _, f := range files {
		if f.Action != "" && (f.Err == nil || ctx.Err() == nil) { // what ctx cuts off has not failed
			t.done(f.MirrorFile, true)
		}
	}
}

// names are those that the other side has, with their sizes, under what all names here begin with.
// It is an error if that side takes no uploads.
func (t *tree) names(ctx context.Context) (map[string]uint64, error) {
	err := t.c.do(ctx, job.DoOptions{}, func(ctx context.Context, p *transfer.Peer) error {
		_, err := p.Call(ctx, uploadService, appendEnd(nil, 0)) // of an upload that is none
		return err
	})
	if err != nil || len(t.todo) == 0 {
		return nil, peerError(err)
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
func (t *tree) would(ctx context.Context, f *sourceFile, there map[string]uint64) {
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
func (t *tree) has(ctx context.Context, f sourceFile) (bool, error) {
	file, err := f.open()
	if err != nil {
		return false, err
	}
	defer file.Close()
	return t.c.holds(ctx, f.Name, file)
}
