package rdma

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/internal/ibv"
)

// owner takes the completions of a completion queue that has something. That may happen once more
// after disown.
type owner interface{ event() }

// driver is what the goroutine of a port's device does for the port.
type driver struct {
	port *Port
	end  <-chan struct{} // closed when the port closes

	mu       sync.Mutex
	tasks    []func()
	draining map[*rxQueue]struct{} // closed receive queues that senders still send to

	news sync.Mutex           // of what comes from the device, whichever goroutine takes it
	told []ibv.AsyncEvent     // for the goroutine
	last map[*ibv.QP]struct{} // queue pairs that have taken their last receive
	mute bool                 // the device does not tell of that
}

func newDriver(p *Port) *driver {
	return &driver{port: p, end: p.dev.End, draining: map[*rxQueue]struct{}{}, last: map[*ibv.QP]struct{}{}}
}

func (d *driver) own(cq *ibv.CQ, o owner) { d.port.dev.Own(cq, o.event) }
func (d *driver) disown(cq *ibv.CQ)       { d.port.dev.Disown(cq) }

// drain leaves a closed receive queue to the goroutine, until drained.
func (d *driver) drain(q *rxQueue) {
	d.mu.Lock()
	d.draining[q] = struct{}{}
	d.mu.Unlock()
	d.port.dev.Waker.Wake()
}

func (d *driver) drained(q *rxQueue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.draining, q)
}

// do leaves something to the goroutine, which can take all locks for it.
func (d *driver) do(task func()) {
	d.mu.Lock()
	d.tasks = append(d.tasks, task)
	d.mu.Unlock()
	d.port.dev.Waker.Wake()
}

// report ends a connection that has failed.
func (d *driver) report(c *conn, err error) { d.do(func() { d.port.finish(c, err) }) }

// work does what is left to the goroutine.
func (d *driver) work() {
	d.news.Lock()
	told := d.told
	d.told = nil
	d.news.Unlock()
	for _, e := range told {
		d.port.happened(e)
	}
	d.mu.Lock()
	tasks := d.tasks
	d.tasks = nil
	draining := slices.Collect(maps.Keys(d.draining))
	d.mu.Unlock()
	for _, q := range draining {
		q.drain(d.port.dev.Waker)
	}
	for _, task := range tasks {
		task()
	}
}

// happened does what an event of the device asks for.
func (p *Port) happened(e ibv.AsyncEvent) {
	switch e.Type {
	case ibv.EventDeviceFatal:
		for _, c := range p.conns.List() {
			p.finish(c, fmt.Errorf("device %s has failed: close the port and open it again", p.dev.Name()))
		}
	case ibv.EventCQErr:
		p.overran(e.CQ)
	case ibv.EventQPFatal, ibv.EventQPReqErr, ibv.EventQPAccessErr:
		p.broke(e)
	}
}

// broke ends the connection of a queue pair that went into error by itself.
func (p *Port) broke(e ibv.AsyncEvent) {
	if e.QP == nil {
		return
	}
	for _, c := range p.conns.List() {
		p.mu.Lock()
		hit := c.in != nil && c.in.x.qp == e.QP
		p.mu.Unlock()
		c.mu.Lock()
		hit = hit || c.out != nil && c.out.x.qp == e.QP
		c.mu.Unlock()
		if hit {
			p.finish(c, fmt.Errorf("%v", e))
			return
		}
	}
}
