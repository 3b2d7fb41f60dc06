package rdma

import (
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
)

// A queue pair takes receives from the shared receive queue of its receive queue. When it goes into
// error, one may be in the middle of being filled; it comes back flushed, and then the device says
// that the queue pair has taken its last one (IBV_EVENT_QP_LAST_WQE_REACHED). A queue pair that is
// destroyed before may take that receive with it. So a channel waits for the word. Soft-RoCE gives
// none, and it fills a receive in one step: a device that keeps silent the first time is not waited
// for again.

// lastLate is how long a device may take to say that a queue pair has taken its last receive.
const lastLate = 250 * time.Millisecond

// hear takes the device's events. The goroutine acts on them, but for what others wait for.
func (d *driver) hear() {
	d.news.Lock()
	defer d.news.Unlock()
	before := len(d.told)
	for e := range d.port.dev.News() {
		d.port.counts.async.Add(1)
		if e.Type == ibv.EventQPLastWQE {
			d.last[e.QP] = struct{}{}
		} else {
			d.told = append(d.told, e)
		}
	}
	if len(d.told) > before {
		d.port.dev.Waker.Wake()
	}
}

// lastTaken waits until a queue pair in error has taken its last receive. What it took has
// completions by then.
func (d *driver) lastTaken(qp *ibv.QP) {
	for start := time.Now(); ; {
		d.hear()
		d.news.Lock()
		_, told := d.last[qp]
		if told {
			d.mute = false
		} else if time.Since(start) > lastLate {
			d.mute = true
		}
		mute := d.mute
		d.news.Unlock()
		if told || mute {
			return
		}
		if _, err := sys.PollIn(1, d.port.dev.AsyncFD()); err != nil {
			return
		}
	}
}

// gone forgets a queue pair that is closed.
func (d *driver) gone(qp *ibv.QP) {
	d.news.Lock()
	defer d.news.Unlock()
	delete(d.last, qp)
}

// overran ends what used a completion queue that had more completions than room: some are lost, and
// which is not known.
func (p *Port) overran(cq *ibv.CQ) {
	p.mu.Lock()
	for _, q := range p.rx.Live() {
		if q.cq == cq {
			why := failed(engine.ErrDown,
				"receive queue %d: its completion queue overran, so that messages are lost: close it and add "+
					"another one", q.ID())
			q.broken.Store(true)
			q.fail(why)
			for c := range p.conns.All() {
				if c.q == q || c.in != nil && c.in.q == q {
					p.report(c, why)
				}
			}
		}
	}
	p.mu.Unlock()
	p.dev.Notify(cq) // its owner polls, and sees
}
