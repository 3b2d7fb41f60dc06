package share

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/path"
)

// putBatches uploads small files by batches, and keeps those that are to be uploaded by themselves.
type putBatches struct {
	batched[sourceFile]
	t *tree

	// The mutex of batched guards what follows.
	waiting int        // batches that are not begun
	rooms   []heldRoom // that take the next batch
	kept    int        // of rooms, and of those that will be when the batch that they have is dealt with
}

// heldRoom is memory at the other side for the bytes of a batch.
type heldRoom struct {
	peer *transfer.Peer
	path.Desc
}

// small uploads small files.
func (t *tree) small(ctx context.Context, todo []sourceFile) {
	batches := slices.Collect(cut(todo, putBatchOf))
	b := &putBatches{t: t, waiting: len(batches)}
	if len(batches) > 0 {
		defer t.c.ready(ctx)()
	}
	b.run(ctx, slices.Values(batches), putsAtOnce, func(fs []sourceFile, region *mem.Region) { b.put(ctx, fs, region) })
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { b.endRooms(ctx) })
	t.each(ctx, b.single, smallUploadsAtOnce)
}

// room gives a room of the other side that a batch was in, or asks for one.
func (b *putBatches) room(ctx context.Context, p *transfer.Peer) (room heldRoom, err error) {
	b.mu.Lock()
	for n := len(b.rooms) - 1; n >= 0 && room.peer != p; n-- { // those of a session that is lost are gone
		room, b.rooms, b.kept = b.rooms[n], b.rooms[:n], b.kept-1
	}
	b.mu.Unlock()
	if room.peer == p {
		return room, nil
	}
	answer, err := p.Call(ctx, smallService, []byte{opSmallRoom})
	if err != nil {
		return heldRoom{}, err
	}
	d, ok := parseRoomAnswer(answer)
	if !ok {
		err = errNoAnswer
	}
	return heldRoom{p, d}, err
}

// keep reports whether a batch that is not begun will want the room of one that is.
func (b *putBatches) keep() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting <= b.kept {
		return false
	}
	b.kept++
	return true
}

// dealt takes the room of a batch that was to be kept; not kept: it has ended.
func (b *putBatches) dealt(room heldRoom, kept bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if kept {
		b.rooms = append(b.rooms, room)
	} else {
		b.kept--
	}
}

// endRooms gives back what no batch has taken.
func (b *putBatches) endRooms(ctx context.Context) {
	if len(b.rooms) == 0 {
		return
	}
	p := b.rooms[len(b.rooms)-1].peer
	end := []byte{opSmallEnd}
	for _, r := range b.rooms {
		if r.peer == p {
			end = r.Key.Append(end)
		}
	}
	p.Call(ctx, smallService, end) // an error says that the session is lost, and the rooms with it
}

// putBatchOf is how many of the first files make a batch.
func putBatchOf(files []sourceFile) (n int) {
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

// put uploads one batch, whose bytes go through a region.
func (b *putBatches) put(ctx context.Context, files []sourceFile, region *mem.Region) {
	b.mu.Lock()
	b.waiting--
	b.mu.Unlock()
	lease, err := region.Lease()
	if err != nil {
		b.alone(files...)
		return
	}
	defer lease.Release()
	r := smallRequest{overwrite: b.t.o.Overwrite}
	rand.Read(r.token[:]) // never fails
	var taken []sourceFile
	size := uint64(0)
	for _, f := range files {
		p := smallPut{name: f.Name, size: uint32(f.Size)}
		to := lease.Bytes()[size:][:f.Size]
		if f.Name == "" || len(f.Name) > MaxName || !utf8.ValidString(f.Name) || p.read(f, to) != nil {
			// an upload of it alone says why, or takes it as it is now
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
	if ctx.Err() != nil {
		return
	}
	b.t.lost(err)
	if errors.Is(err, control.Unsupported) {
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
		b.t.done(f.MirrorFile, true)
	}
}

// read reads a file of a size that is known.
func (p *smallPut) read(file sourceFile, to []byte) error {
	f, err := file.open()
	if err != nil {
		return err
	}
	defer f.Close()
	was, now, err := sys.ReadWhole(f, to)
	if err == nil && (!was.Regular || was.Size != int64(len(to)) || idOfStat(now) != idOfStat(was)) {
		err = ErrChanged
	}
	p.modified, p.mode = time.Unix(0, was.ModifiedNs), was.Perm
	return err
}

// send moves a batch to the other side, which says what became of each file.
func (b *putBatches) send(ctx context.Context, r *smallRequest, bytes mem.Span) (verdicts []byte, err error) {
	again := func(err error) bool { return errors.Is(err, transfer.ErrPeerLost) }
	err = b.t.c.do(ctx, job.DoOptions{Again: again}, func(ctx context.Context, p *transfer.Peer) error {
		room, err := b.room(ctx, p)
		if err != nil {
			return err
		}
		if room.Size < bytes.Len {
			return errNoAnswer
		}
		r.key, r.via = room.Key, viaControl // of files without bytes
		if bytes.Len > 0 {
			t, err := p.Put(ctx, []path.Copy{p.Import(room.Desc).At(0, bytes)}, transfer.PutOptions{})
			if r.via, err = ended(ctx, t, err); err != nil {
				return err
			}
			if len(r.via) > maxVia {
				r.via = ""
			}
		}
		r.keep = b.keep()
		verdicts, err = p.Call(ctx, smallService, r.append(nil))
		if r.keep {
			b.dealt(room, err == nil)
		}
		if err == nil && (len(verdicts) != len(r.files) || slices.Max(verdicts) > smallSame) {
			err = errNoAnswer
		}
		return err
	})
	return verdicts, err
}

var errNoAnswer = control.Errorf(control.BadRequest, "malformed answer about small files")
