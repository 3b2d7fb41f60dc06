package share

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"github.com/penstock-io/penstock/transfer"
)

// readReporter tells the other side what a fetch does, for its Options.OnAccess. It never holds
// bytes up: its calls are made on a goroutine of their own. A side that does not want to know says
// so once per session, and nothing depends on it. Its methods are called by one goroutine at a
// time.
type readReporter struct {
	name string
	size uint64
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu   sync.Mutex // guards what follows
	good uint64
	now  *readSession // nil: no session yet
}

// readSession is one session of a readReporter.
type readSession struct {
	t    *readReporter
	peer *transfer.Peer
	id   uint64
	wake chan struct{}    // buffered: there are more good bytes
	end  chan readRequest // buffered
	over chan struct{}    // closed when nothing more is said
}

func newReadReporter(ctx context.Context, name string, size, good uint64) *readReporter {
	t := &readReporter{name: name, size: size, good: good}
	// the server gets the end of an interrupted fetch as well
	t.ctx, t.stop = context.WithCancel(context.WithoutCancel(ctx))
	return t
}

// session says over which session the bytes go from now on.
func (t *readReporter) session(p *transfer.Peer) {
	var id [8]byte
	rand.Read(id[:]) // never fails
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now != nil && t.now.peer == p {
		return
	}
	x := &readSession{t, p, binary.BigEndian.Uint64(id[:]), make(chan struct{}, 1), make(chan readRequest, 1),
		make(chan struct{})}
	t.now = x
	from := t.good
	t.wg.Go(func() {
		defer close(x.over)
		x.run(from)
	})
}

// far says that so many bytes from the beginning are good.
func (t *readReporter) far(good uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.good = good
	if t.now != nil {
		select {
		case t.now.wake <- struct{}{}:
		default:
		}
	}
}

// close tells the end, waits for that a moment, and frees what the readReporter has.
func (t *readReporter) close(whole bool, path string) {
	t.mu.Lock()
	x, good := t.now, t.good
	t.mu.Unlock()
	if x != nil {
		if len(path) > maxVia {
			path = ""
		}
		x.end <- readRequest{op: opReadEnd, id: x.id, good: good, whole: whole, text: path}
		patience := time.NewTimer(askTime)
		select {
		case <-x.over:
		case <-patience.C:
		}
		patience.Stop()
	}
	t.stop()
	t.wg.Wait()
}

func (x *readSession) call(r readRequest) bool {
	_, err := x.peer.Call(x.t.ctx, readService, r.append(nil))
	return err == nil
}

func (x *readSession) run(from uint64) {
	if !x.call(readRequest{op: opReadBegin, id: x.id, good: from, text: x.t.name}) {
		return
	}
	step := max(window, x.t.size/64) // often enough for an observer
	for said := from; ; {
		select {
		case r := <-x.end:
			x.call(r)
			return
		case <-x.wake:
			x.t.mu.Lock()
			good := x.t.good
			x.t.mu.Unlock()
			if good < said+step {
				continue
			}
			if said = good; !x.call(readRequest{op: opReadSoFar, id: x.id, good: good}) {
				return
			}
		case <-x.peer.Gone():
			return
		case <-x.t.ctx.Done():
			return
		}
	}
}
