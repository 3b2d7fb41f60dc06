package share

import (
	"errors"
	"math"
	"sync"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/job"
)

// tally are those of a Mirror or an UploadTree: what became of each file, and how far they are.
type tally struct {
	onProgress func(MirrorProgress) // may be nil
	onFile     func(MirrorFile)     // may be nil

	mu       sync.Mutex // guards what follows
	progress MirrorProgress
	inFlight map[string]uint64 // bytes that are in progress.BytesDone of files under way
	files    map[MirrorAction]int
	moved    uint64
	failures []MirrorFile
	away     error // why the other side is taken to be gone; nil: it is not
}

func newTally(progress func(MirrorProgress), file func(MirrorFile)) tally {
	return tally{onProgress: progress, onFile: file, inFlight: map[string]uint64{}, files: map[MirrorAction]int{}}
}

// isAway reports whether an error says that there is no other side any more, and that it was waited
// for long enough.
func isAway(err error) bool {
	return errors.Is(err, transfer.ErrPeerLost) || errors.Is(err, job.ErrNoSession)
}

// lost notes that the other side is taken to be gone, if an error says so.
func (b *tally) lost(err error) {
	if isAway(err) {
		b.stop(err)
	}
}

// stop has files that are not begun fail with an error.
func (b *tally) stop(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away = err
}

// gone is why the other side is taken to be gone.
func (b *tally) gone() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.away
}

// advance takes the progress of one file.
func (b *tally) advance(p Progress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.progress.Current = p
	b.progress.BytesDone += p.Bytes - b.inFlight[p.Name] // it may be less than before
	b.inFlight[p.Name] = p.Bytes
	b.report()
}

// done accounts for one file. Unless it is to be moved, it is not in the progress.
func (b *tally) done(f MirrorFile, move bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.files[f.Action]++
	b.moved += f.Moved
	if f.Action == MirrorFailed {
		b.failures = append(b.failures, f)
	}
	if move {
		b.progress.BytesDone -= b.inFlight[f.Name]
		delete(b.inFlight, f.Name)
		switch f.Action {
		case MirrorFetched, MirrorSent:
			b.progress.FilesDone++
			b.progress.BytesDone += f.Size
		case MirrorSkipped:
			b.progress.FilesDone++
			b.less(f.Size)
		case MirrorFailed:
			b.progress.FilesFailed++
			b.less(f.Size)
		}
	}
	if b.onFile != nil {
		b.onFile(f)
	}
	b.report()
}

// less takes bytes that are not moved out of the sum.
func (b *tally) less(n uint64) {
	if b.progress.Bytes < math.MaxUint64 { // which the other side's sizes may come to
		b.progress.Bytes -= n
	}
}

func (b *tally) report() {
	if b.onProgress != nil {
		b.onProgress(b.progress)
	}
}
