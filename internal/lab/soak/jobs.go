package soak

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/path"
)

// Kinds of jobs: durable transfers over links, which go on across lost sessions and killed
// processes.
const (
	// of what a worker exports with the same content in all its lives, into a file: the job of the
	// next life of this worker goes on where the file ends
	kindDownload = "download"
	kindStore    = "store" // into memory of another worker
)

// partial ends the names of files of downloads that are not complete.
const partial = ".part"

const (
	fixedName = "fixed"   // export with the same content in all lives of a worker
	lifeCall  = "life"    // asks for the name of the node: the one in a certificate is the same in all lives
	checkCall = "check"   // asks for a look at what was stored
	noByte    = "nothing" // answer to that: all bytes are right
)

func jobSize(most uint64) uint64 { return max(most/8, 64<<10) }

func fixedKey(index int) string { return fmt.Sprint("fixed ", index) }

func fixedTag(index int) (t [16]byte) {
	copy(t[:], fixedKey(index))
	return t
}

// let is the memory that another worker writes to. Each life of that worker gets exports of its
// own: the revocation of the ones before waits until nothing of the earlier life, which may have
// been killed with bytes on their way, can be written any more.
type let struct {
	mu      sync.Mutex // guards what follows
	life    [3]int     // to whom: worker, life of the process, node
	in, job *transfer.Export
	memory  [2]*mem.Region
}

func storeName(sender int) string { return fmt.Sprint("store ", sender) }

// serve exports what jobs need, and answers calls.
func (h *host) serve() error {
	for i := range h.w.c.Peers {
		if i == h.w.c.Index {
			continue
		}
		size := uint64(0)
		for _, s := range partShare {
			size += partSize(h.w.c.MaxBytes, s)
		}
		in, err := h.region(inName(i), size)
		if err != nil {
			return err
		}
		job, err := h.region(storeName(i), jobSize(h.w.c.MaxBytes))
		if err != nil {
			return err
		}
		h.lets[i] = &let{memory: [2]*mem.Region{in, job}}
	}
	fixed, err := h.region("fixed", jobSize(h.w.c.MaxBytes))
	if err != nil {
		return err
	}
	label(fixed.All().Bytes(), fixedKey(h.w.c.Index))
	if _, err := h.n.Export(fixed.All(), transfer.ExportOptions{Name: fixedName,
		Tag: fixedTag(h.w.c.Index)}); err != nil {
		return err
	}
	h.n.OnLookup(h.enter)
	if _, err := h.n.Handle(lifeCall, func(context.Context, *transfer.Peer, []byte) ([]byte, error) {
		return []byte(h.name), nil
	}); err != nil {
		return err
	}
	_, err = h.n.Handle(checkCall, h.check)
	return err
}

// askLife asks a peer which life of its worker it is.
func askLife(ctx context.Context, p *transfer.Peer) (string, error) {
	b, err := p.Call(ctx, lifeCall, nil)
	return string(b), err
}

// enter is called when a peer asks for a name. The memory that a worker writes to is withdrawn from
// its earlier life.
func (h *host) enter(ctx context.Context, p *transfer.Peer, name string) {
	if !strings.HasPrefix(name, "in ") && !strings.HasPrefix(name, "store ") {
		return
	}
	who, err := askLife(ctx, p)
	if err != nil {
		return // the peer is gone, and asks again
	}
	var life [3]int
	if _, err := fmt.Sscanf(who, "w%d.%d/%d", &life[0], &life[1], &life[2]); err != nil {
		h.complain("peer %q: %v", who, err)
		return
	}
	l := h.lets[life[0]]
	if l == nil || name != inName(life[0]) && name != storeName(life[0]) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := slices.Compare(life[:], l.life[:]); c < 0 || c == 0 && l.job != nil {
		return // a later life was here already, or this one
	}
	l.life = life
	for _, x := range []**transfer.Export{&l.in, &l.job} {
		if *x != nil {
			if err := (*x).Revoke(ctx); err != nil {
				return // the peer is gone, and asks again
			}
			*x = nil
		}
	}
	o := transfer.ExportOptions{Name: inName(life[0]), Rights: path.Read | path.Write}
	if l.in, err = h.n.Export(l.memory[0].All(), o); err == nil {
		o.Name = storeName(life[0])
		binary.BigEndian.PutUint64(o.Tag[:], seedOf(h.name))
		binary.BigEndian.PutUint64(o.Tag[8:], seedOf(who))
		l.job, err = h.n.Export(l.memory[1].All(), o)
	}
	if err != nil && !errors.Is(err, transfer.ErrClosed) {
		h.complain("export for %s: %v", who, err)
	}
}

// check answers whether what was stored is right.
func (h *host) check(_ context.Context, p *transfer.Peer, body []byte) ([]byte, error) {
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	if text := h.look(&m); text != "" {
		return []byte(text), nil
	}
	return []byte(noByte), nil
}

// work does jobs with another worker, one after the other.
func (h *host) work(i int, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 5))
	addr := h.w.c.Peers[i]
	if r.IntN(2) == 0 {
		addr = h.w.c.Plain[i]
	}
	link := job.NewLink(h.n, addr, job.LinkOptions{Max: 1 + r.IntN(2),
		Retry: job.Retry{First: 5 * time.Millisecond, Max: 300 * time.Millisecond, Attempts: -1}})
	defer link.Close()
	source, err := h.region("store", jobSize(h.w.c.MaxBytes))
	if err != nil {
		h.complain("memory: %v", err)
		return
	}
	target, err := h.region("download", jobSize(h.w.c.MaxBytes))
	if err != nil {
		h.complain("memory: %v", err)
		return
	}
	for h.moving.Err() == nil {
		if r.IntN(2) == 0 {
			h.download(r, link, i, target)
		} else {
			h.store(r, link, i, source)
		}
		pause(h.moving, time.Duration(r.IntN(50))*time.Millisecond)
	}
}

func jobOptions(r *rand.Rand, size uint64) job.Options {
	return job.Options{Piece: max(size/uint64(1+r.IntN(32)), 4096), Window: 1 + r.IntN(3), Stall: 2 * time.Second,
		Transfer: transfer.PutOptions{Priority: transfer.Priority(r.IntN(3)), Digest: r.IntN(8) == 0}}
}

// run waits for a job and reports its end. Some jobs are canceled; those that last until nothing is
// to begin any more, too.
func (h *host) run(r *rand.Rand, key string, j *job.Job, err error) (good bool) {
	if err != nil {
		h.ended(key, "", err)
		return false
	}
	if r.IntN(10) == 0 && pause(h.moving, time.Duration(r.IntN(4000))*time.Microsecond) {
		j.Cancel()
	}
	ended := make(chan error, 2)
	j.OnDone(func(j *job.Job) {
		h.tellEnd(line{T: tEnd, Key: key, Node: h.name, Path: "job", Tries: max(j.Explain().Attempts-1, 0)}, j.Err())
		ended <- j.Err()
	})
	select {
	case err = <-ended:
	case <-h.moving.Done():
		j.Cancel()
		err = <-ended
	}
	return err == nil
}

// download fetches what a worker exports in all its lives, and keeps what has come in a file.
func (h *host) download(r *rand.Rand, link *job.Link, from int, target *mem.Region) {
	name := filepath.Join(h.w.c.Dir, fmt.Sprintf("w%d-%d%s", h.w.c.Index, from, partial))
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		h.complain("%v", err)
		return
	}
	defer f.Close()
	b := target.All().Bytes()
	have, err := io.ReadFull(f, b)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		h.complain("%v", err)
		return
	}
	if have == len(b) { // the process was killed before it looked at it
		have = 0
		if err := f.Truncate(0); err != nil {
			h.complain("%v", err)
			return
		}
	}
	clear(b[have:])
	key := h.w.key()
	o := jobOptions(r, target.All().Len)
	o.From, o.Tag = uint64(have), fixedTag(from)
	last := o.From
	var werr error
	o.OnVerified = func(off uint64) {
		if off > last {
			_, err := f.WriteAt(b[last:off], int64(last))
			werr = errors.Join(werr, err)
		} else {
			werr = errors.Join(werr, f.Truncate(int64(off)))
		}
		last = off
	}
	h.inflight.Add(1)
	h.w.tell(line{T: tBegin, Key: key, Node: h.name, To: workerName(from), Kind: kindDownload, Bytes: target.All().Len,
		From: o.From})
	j, err := link.Fetch(context.Background(), fixedName, target.All(), o)
	good := h.run(r, key, j, err)
	if err != nil {
		return
	}
	if e := j.Explain(); e.Restarts != 0 || e.From != o.From {
		h.complain("%s %s from byte %d on began at byte %d and restarted %d times, although the content is the same "+
			"in all lives",
			kindDownload, key, o.From, e.From, e.Restarts)
	}
	if werr != nil {
		h.complain("%s: %v", name, werr)
	}
	if !good {
		return
	}
	if k, at := readLabel(b); k != fixedKey(from) || at >= 0 {
		h.complain("%s %s, which went on at byte %d: byte %d of %d (%q) is wrong", kindDownload, key, have, at, len(b),
			k)
	}
	for i := range b {
		b[i] = 0xee
	}
	if _, err := f.ReadAt(b, 0); err != nil {
		h.complain("%s: %v", name, err)
	} else if k, at := readLabel(b); k != fixedKey(from) || at >= 0 {
		h.complain("%s %s: byte %d of %d of the file (%q) is wrong", kindDownload, key, at, len(b), k)
	}
	if err := os.Remove(name); err != nil {
		h.complain("%v", err)
	}
}

// store writes into memory of a worker and has it look at the bytes.
func (h *host) store(r *rand.Rand, link *job.Link, to int, source *mem.Region) {
	size := logSize(r, source.All().Len)
	s, err := source.Span(0, size)
	if err != nil {
		h.complain("source: %v", err)
		return
	}
	m := message{Key: h.w.key(), Kind: kindStore, Seed: r.Uint64(), Export: storeName(h.w.c.Index),
		Blocks: [][2]uint64{{0, size}}}
	fill(s.Bytes(), m.Seed)
	before := h.lifeBehind(link, 200*time.Millisecond)
	h.begin(kindStore, m.Key, workerName(to), size)
	j, err := link.Store(context.Background(), m.Export, s, jobOptions(r, size))
	if !h.run(r, m.Key, j, err) {
		return
	}
	ctx, cancel := context.WithTimeout(h.living, 5*time.Second)
	defer cancel()
	p, release, err := link.Acquire(ctx)
	if err != nil {
		return
	}
	defer release()
	if after, err := askLife(ctx, p); err != nil || after != before {
		return // it may have been stored in an earlier life
	}
	body, _ := json.Marshal(m)
	if text, err := p.Call(ctx, checkCall, body); err == nil && string(text) != noByte {
		h.complain("%s %s of %d bytes to %s in %d attempts succeeded, but the receiver finds: %s", kindStore, m.Key,
			size, before, j.Explain().Attempts, text)
	} else if err == nil {
		h.w.tell(line{T: tLooked, Node: h.name})
	}
}

// lifeBehind is which life of a worker answers at a link now; "" if none does in time.
func (h *host) lifeBehind(link *job.Link, d time.Duration) string {
	ctx, cancel := context.WithTimeout(h.living, d)
	defer cancel()
	p, release, err := link.Acquire(ctx)
	if err != nil {
		return ""
	}
	defer release()
	name, err := askLife(ctx, p)
	if err != nil {
		return ""
	}
	return name
}
