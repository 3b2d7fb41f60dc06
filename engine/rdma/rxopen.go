package rdma

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/rdmadev"
	"github.com/penstock-io/penstock/packet/burst"
)

// AddRxQueue implements engine.Port. A queue that is bound to a connection (RxSpec.Conn) takes it
// over from any other that is not.
func (p *Port) AddRxQueue(spec engine.RxSpec) (_ engine.RxQueue, err error) {
	var o RxOptions
	if err = Spec.RxDefaults(p.a.text, &spec); err == nil {
		o, err = engine.Given[RxOptions](spec.Options)
	}
	if err != nil {
		return nil, fmt.Errorf("rdma: receive queue of %s: %w", p.name, err)
	}
	spec.Options = nil
	can := p.Capabilities()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.rx.Admit(&spec, &can); err != nil {
		return nil, fmt.Errorf("rdma: %s: %w", p.name, err)
	}
	bound, err := p.bound(&spec)
	if err != nil {
		return nil, err
	}
	q := &rxQueue{port: p, channels: map[uint32]*rxChannel{}, over: make(chan struct{})}
	q.Start(spec, q)
	if err := q.open(o); err != nil {
		return nil, errors.Join(err, q.Shut())
	}
	p.rx.Add(q)
	if bound != nil {
		p.move(bound, q)
		return q, nil
	}
	for c := range p.conns.All() {
		if c.q == nil {
			(*host)(p).Assign(c)
		}
	}
	if err := p.conns.Gone(); err != nil {
		q.fail(err)
	}
	if p.o.Connect == ByCM {
		if err := p.begin(); err != nil {
			_, e := p.rx.Remove(q)
			return nil, errors.Join(err, e)
		}
	}
	return q, nil
}

// bound is the connection that a queue is bound to, nil for none.
func (p *Port) bound(spec *engine.RxSpec) (*conn, error) {
	if spec.Conn == 0 {
		return nil, nil
	}
	if p.o.Connect == ByCM {
		return nil, failed(engine.ErrUnsupported,
			"receive queue %v: a connection by rdma_cm stays with the queue that it began with", spec.ID)
	}
	c := p.conns.Get(spec.Conn)
	if c == nil || !c.Met {
		return nil, failed(engine.ErrNotFound, "receive queue %v: connection %d", spec.ID, spec.Conn)
	}
	if c.q != nil && c.q.Spec().Conn != 0 {
		return nil, failed(engine.ErrInUse, "receive queue %v: connection %d is bound to queue %d", spec.ID, spec.Conn,
			c.q.ID())
	}
	return c, nil
}

// spareCQEs is the room of a completion queue beyond that of its buffers.
const spareCQEs = 16

// open makes what the queue needs.
func (q *rxQueue) open(o RxOptions) (err error) {
	p := q.port
	switch {
	case o.GRH && (p.o.Transport != UD || len(q.Spec().Pools) == 2):
		return failed(engine.ErrUnsupported, "receive queue %d: GRH is for datagrams (UD), and one pool", q.ID())
	case o.MaxMessage < 0 || o.MaxMessage > maxMessage:
		return invalid("receive queue %d: MaxMessage is %d: expected 0 to %d bytes", q.ID(), o.MaxMessage, maxMessage)
	}
	if p.attr.MaxSRQ == 0 {
		return failed(engine.ErrUnavailable, "receive queue %d: device %s has no shared receive queues", q.ID(),
			p.dev.Name())
	}
	pools, places, err := q.arrange(o)
	if err != nil {
		return err
	}
	// all of them may have completions that were not taken
	n := min(q.Spec().Depth, p.attr.MaxSRQWR, max(p.attr.MaxCQE-spareCQEs, 1))
	q.wc, q.arrived = make([]ibv.WC, pollAtOnce), make([]arrival, n)
	if q.recvs, err = rdmadev.NewReceives(n, pools, places); err != nil {
		return err
	}
	if q.events, err = p.dev.CreateChannel(); err != nil {
		return q.refused("a completion channel", err)
	}
	if q.cq, err = p.dev.CreateCQ(ibv.CQSpec{Entries: min(n+spareCQEs, p.attr.MaxCQE), Channel: q.events}); err != nil {
		return q.refused(fmt.Sprintf("a completion queue of %d", n+spareCQEs), err)
	}
	if q.srq, err = p.dev.PD.CreateSRQ(ibv.SRQSpec{WRs: n, SGEs: len(places)}); err != nil {
		return q.refused(fmt.Sprintf("%d buffers of %d pieces", n, len(places)), err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.post()
}

func (q *rxQueue) refused(what string, err error) error {
	return fmt.Errorf("rdma: receive queue %d: %s: %w: %w", q.ID(), what, engine.ErrUnavailable, err)
}

// longest is the longest message that a buffer holds, in bytes.
func (q *rxQueue) longest() uint64 { return q.recvs.Size() - uint64(q.skip) }

// arrange says in which slots the pieces of a message lie.
func (q *rxQueue) arrange(o RxOptions) (pools []rdmadev.Pool, places []rdmadev.Place, err error) {
	p, spec := q.port, q.Spec()
	if pools, q.flushers, err = p.dev.Pools(spec.Pools); err != nil {
		return nil, nil, fmt.Errorf("rdma: receive queue %d: %w", q.ID(), err)
	}
	if q.grh = o.GRH; p.o.Transport == UD {
		q.skip = grhLen
	}
	skip, body := q.skip, len(pools)-1
	size := uint32(min(pools[body].Slots.SlotSize(), maxMessage))
	role := burst.Frame
	have := 0
	if len(pools) == 2 {
		if spec.SplitAt < 1 || spec.SplitAt+int(skip) > pools[0].Slots.SlotSize() {
			return nil, nil, invalid("receive queue %d: SplitAt is %d: expected 1 to %d, what the slots of pool %q "+
				"hold; messages have no headers that end by themselves", q.ID(),
				spec.SplitAt, pools[0].Slots.SlotSize()-int(skip), pools[0].Slots.Name())
		}
		places = append(places, rdmadev.Place{Size: uint32(spec.SplitAt) + skip, Role: burst.Header})
		have, role = spec.SplitAt, burst.Payload
	} else if int(size) <= int(skip) {
		return nil, nil, invalid("receive queue %d: slots of %d bytes: expected more than %d", q.ID(), size, skip)
	} else {
		have = -int(skip)
	}
	want := o.MaxMessage
	if want == 0 {
		want = have + int(size)
	}
	for most := min(p.attr.MaxSRQSGE, burst.MaxSegments); have < want; have += int(size) {
		if len(places) == most {
			return nil, nil, invalid("receive queue %d: messages of %d bytes take more than the %d slots that the "+
				"device fills for one: expected slots of at least %d bytes, or MaxMessage of at most %d",
				q.ID(), want, most, (want+int(skip)+most-1)/most, have)
		}
		places = append(places, rdmadev.Place{Pool: body, Size: size, Role: role})
	}
	return pools, places, nil
}
