package share

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
)

// What a small file takes is round trips and syncs, so many are moved, written and synced in one
// batch.
const (
	smallFile     = 256 << 10 // bytes, at most
	batchFiles    = 256       // of a batch, at most; maxStat or less
	batchBytes    = 4 << 20
	fetchesAtOnce = 8 // batches
	putsAtOnce    = 8 // batches; a server has two rooms for each
	writersAtOnce = 8 // of a batch
)

// ownerMode is what the owner of a file may do with it, whatever the other side says.
const ownerMode fs.FileMode = 0o400

// several calls f with each of todo, so many at once, until ctx ends.
func several[T any](ctx context.Context, todo iter.Seq[T], atOnce int, f func(T)) {
	work := make(chan T)
	var wg sync.WaitGroup
	workers := 0
	for x := range todo {
		if ctx.Err() != nil {
			break
		}
		if workers < atOnce {
			workers++
			wg.Go(func() {
				f(x)
				for x := range work {
					f(x)
				}
			})
			continue
		}
		work <- x
	}
	close(work)
	wg.Wait()
}

// cut cuts todo into batches. size is how many of the first make one.
func cut[T any](todo []T, size func([]T) int) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		for len(todo) > 0 {
			n := size(todo)
			if !yield(todo[:n]) {
				return
			}
			todo = todo[n:]
		}
	}
}

// forWriters are parts of a batch for writersAtOnce.
func forWriters[T any](batch []T) iter.Seq[[]T] {
	return slices.Chunk(batch, max(1, (len(batch)+writersAtOnce-1)/writersAtOnce))
}

// bySize parts small files from large ones.
func bySize[T any](all []T, size func(T) uint64) (small, large []T) {
	for _, x := range all {
		if size(x) <= smallFile {
			small = append(small, x)
		} else {
			large = append(large, x)
		}
	}
	return small, large
}

// batched moves small files by batches, and keeps those that are to be moved by themselves.
type batched[T any] struct {
	off atomic.Bool // the other side knows no batches

	mu     sync.Mutex // guards single
	single []T
}

// alone leaves files to be moved by themselves.
func (b *batched[T]) alone(files ...T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.single = append(b.single, files...)
}

// run calls f with batches, some at once, until ctx ends. Each has memory for its bytes; where
// there is none, its files are left.
func (b *batched[T]) run(ctx context.Context, batches iter.Seq[[]T], atOnce int, f func([]T, *mem.Region)) {
	regions := make(chan *mem.Region, atOnce) // that no batch uses
	several(ctx, batches, atOnce, func(batch []T) {
		var region *mem.Region
		select {
		case region = <-regions:
		default:
			region, _ = mem.Alloc(mem.Options{Name: "small files", Size: batchBytes, Lazy: true})
		}
		if region == nil || b.off.Load() {
			b.alone(batch...)
		} else {
			f(batch, region)
		}
		if region != nil {
			regions <- region
		}
	})
	close(regions)
	for region := range regions {
		region.Close()
	}
}

// ended waits for a transfer that began without an error, and says which path it took. Nothing
// reads or writes the memory any more then.
func ended(ctx context.Context, t *transfer.Transfer, err error) (via string, _ error) {
	if err == nil {
		err = t.Wait(ctx)
		<-t.Done()
	}
	if err != nil {
		return "", err
	}
	return t.Explain().Path, nil
}

// directories opens those of paths below a root one after another, and syncs each once when it is
// left.
type directories struct {
	root  *os.Root
	shown string      // root, for messages
	left  func(error) // is called when a directory was synced, or could not be
	at    place
	dir   *os.File // at.dir
	of    string   // path of at.dir, with a slash
}

// enter gives the place of a path. Directories that are missing are made. The place is good until
// the next call.
func (d *directories) enter(p string) (place, error) {
	in := p[:strings.LastIndexByte(p, '/')+1]
	if d.dir == nil || in != d.of {
		d.leave()
		at, err := placeBelow(d.root, p, d.shown)
		if err != nil {
			return place{}, err
		}
		if d.dir, err = at.dir.Open("."); err != nil {
			at.dir.Close()
			return place{}, err
		}
		d.at, d.of = at, in
	}
	d.at.base, d.at.shown = p[len(in):], filepath.Join(d.shown, filepath.FromSlash(p))
	return d.at, nil
}

// leave syncs the directory that is open, if there is one.
func (d *directories) leave() {
	var err error
	if d.dir != nil {
		err = errors.Join(d.dir.Sync(), d.dir.Close(), d.at.dir.Close())
		d.dir = nil
	}
	d.left(err)
}
