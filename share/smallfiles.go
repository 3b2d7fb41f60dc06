package share

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/mem"
)

// What a small file takes is round trips and syncs, so many are moved, written and synced in one batch.
const (
	smallFile     = 256 << 10 // bytes, at most
	batchFiles    = 256       // of a batch, at most; maxStat or less
	batchBytes    = 4 << 20
	batchesAtOnce = 8
	writersAtOnce = 8 // of a batch
)

// ownerMode is what the owner of a file may do with it, whatever the other side says.
const ownerMode fs.FileMode = 0o400

// several calls f with each of todo, so many at once, until ctx ends.
func several[T any](ctx context.Context, todo []T, atOnce int, f func(T)) {
	work := make(chan T)
	var wg sync.WaitGroup
	for range min(atOnce, len(todo)) {
		wg.Go(func() {
			for x := range work {
				f(x)
			}
		})
	}
	for _, x := range todo {
		if ctx.Err() != nil {
			break
		}
		work <- x
	}
	close(work)
	wg.Wait()
}

// inBatches calls f with batches of todo, some at once, until ctx ends. size is how many of the first make a batch. Each has memory for its bytes,
// or none if there is no memory.
func inBatches[T any](ctx context.Context, todo []T, size func([]T) int, f func([]T, *mem.Region)) {
	work := make(chan []T)
	var wg sync.WaitGroup
	for range batchesAtOnce {
		wg.Go(func() {
			region, err := mem.Alloc(mem.Options{Name: "small files", Size: batchBytes, Lazy: true})
			if err == nil {
				defer region.Close()
			}
			for batch := range work {
				f(batch, region)
			}
		})
	}
	for len(todo) > 0 && ctx.Err() == nil {
		n := size(todo)
		work <- todo[:n]
		todo = todo[n:]
	}
	close(work)
	wg.Wait()
}

// writeSmall makes a new file, synced, with permissions less what the umask says, or exactly those.
func writeSmall(dir *os.Root, base string, bytes []byte, mode fs.FileMode, exact bool, modified time.Time) error {
	f, err := dir.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(bytes)
	if err == nil && exact {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = dir.Chtimes(base, modified, modified)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// directories opens those of paths below a root one after another, and syncs each once when it is left.
type directories struct {
	root  *os.Root
	shown string      // root, for messages
	left  func(error) // is called when a directory was synced, or could not be
	at    place
	dir   *os.File // at.dir
	of    string   // path of at.dir, with a slash
}

// enter gives the place of a path. Directories that are missing are made. The place is good until the next call.
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
