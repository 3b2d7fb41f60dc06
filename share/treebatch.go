package share

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/vec"
)

// putBatches uploads small files by batches, and keeps those that are to be uploaded by themselves.
type putBatches struct {
	t   *tree
	off atomic.Bool // the other side takes no batches

	mu     sync.Mutex // guards single
	single []MirrorFile
}

// small uploads small files.
func (t *tree) small(ctx context.Context, todo []MirrorFile) {
	b := &putBatches{t: t}
	inBatches(ctx, cut(todo, putBatchOf), putsAtOnce, func(fs []MirrorFile, region *mem.Region) {
		if region == nil || b.off.Load() {
			b.alone(fs...)
		} else {
			b.put(ctx, fs, region)
		}
	})
	t.each(ctx, b.single, smallUploadsAtOnce)
}

// putBatchOf is how many of the first files make a batch.
func putBatchOf(files []MirrorFile) (n int) {
	sum, call := uint64(0), smallFixed+1+maxVia+path.KeySize
	for ; n < min(len(files), batchFiles); n++ {
		sum += files[n].Size
		call += 1 + len(files[n].Name) + smallEntry
		if n > 0 && (sum > batchBytes || call > transfer.MaxCall) {
			break
		}
	}
	return n
}

func (b *putBatches) alone(files ...MirrorFile) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.single = append(b.single, files...)
}

// put uploads one batch, whose bytes go through a region.
func (b *putBatches) put(ctx context.Context, files []MirrorFile, region *mem.Region) {
	lease, err := region.Lease()
	if err != nil {
		b.alone(files...)
		return
	}
	defer lease.Release()
	r := smallRequest{overwrite: b.t.o.Overwrite}
	rand.Read(r.token[:]) // never fails
	var taken []MirrorFile
	size := uint64(0)
	for _, f := range files {
		p := smallPut{name: f.Name, size: uint32(f.Size)}
		to := lease.Bytes()[size:][:f.Size]
		if f.Name == "" || len(f.Name) > MaxName || !utf8.ValidString(f.Name) || p.read(f.Path, to) != nil { // an upload of it alone says why, or takes it as it is now
			b.alone(f)
			continue
		}
		p.crc = vec.CRC32C(0, to)
		size += f.Size
		r.files, taken = append(r.files, p), append(taken, f)
	}
	if len(taken) == 0 {
		return
	}
	verdicts, err := b.send(ctx, &r, mem.Span{Region: region, Len: size})
	switch {
	case ctx.Err() != nil:
		return
	case isAway(err):
		b.t.lost(err)
	case errors.Is(err, control.Unsupported):
		b.off.Store(true)
	}
	for i, f := range taken {
		if err != nil || verdicts[i] == smallNot {
			b.alone(f)
			continue
		}
		b.t.advance(Progress{Name: f.Name, File: f.Path, Bytes: f.Size, Size: f.Size})
		if f.Action = MirrorSkipped; verdicts[i] == smallDone {
			f.Action, f.Moved = MirrorSent, f.Size
		}
		b.t.done(f, true)
	}
}

// read reads a file of a size that is known.
func (p *smallPut) read(file string, to []byte) error {
	was, now, err := sys.ReadWhole(file, to)
	if err == nil && (!was.Regular || was.Size != int64(len(to)) || idOfStat(now) != idOfStat(was)) {
		err = ErrChanged
	}
	p.modified, p.mode = time.Unix(0, was.ModifiedNs), was.Perm
	return err
}

// send moves a batch to the other side, which says what became of each file.
func (b *putBatches) send(ctx context.Context, r *smallRequest, bytes mem.Span) (verdicts []byte, err error) {
	again := func(err error) bool { return errors.Is(err, transfer.ErrPeerLost) }
	err = b.t.c.do(ctx, transfer.DoOptions{Again: again}, func(ctx context.Context, p *transfer.Peer) error {
		answer, err := p.Call(ctx, smallService, []byte{opSmallRoom})
		if err != nil {
			return err
		}
		room, ok := parseRoomAnswer(answer)
		if !ok || room.Size < bytes.Len {
			return errNoAnswer
		}
		r.key, r.via = room.Key, viaControl // of files without bytes
		if bytes.Len > 0 {
			t, err := p.Put(ctx, []path.Copy{p.Import(room).At(0, bytes)}, transfer.PutOptions{})
			if err == nil {
				err = t.Wait(ctx)
				<-t.Done() // nothing reads the memory any more
			}
			if err != nil {
				return err
			}
			if r.via = t.Explain().Path; len(r.via) > maxVia {
				r.via = ""
			}
		}
		if verdicts, err = p.Call(ctx, smallService, r.append(nil)); err == nil && (len(verdicts) != len(r.files) || slices.Max(verdicts) > smallSame) {
			err = errNoAnswer
		}
		return err
	})
	return verdicts, err
}

var errNoAnswer = control.Errorf(control.BadRequest, "an answer about small files that is none")
