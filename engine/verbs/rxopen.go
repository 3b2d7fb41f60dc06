package verbs

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
)

// AddRxQueue implements engine.Port. A queue that is bound to a connection (RxSpec.Conn) takes it over from any other that is not.
func (p *Port) AddRxQueue(spec engine.RxSpec) (_ engine.RxQueue, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, engine.ErrClosed
	}
	id, err := freeID(spec.ID, p.rx)
	if err != nil {
		return nil, err
	}
	var bound *conn
	if spec.Conn != 0 && p.o.Connect == ByCM {
		return nil, failed(engine.ErrUnsupported, "receive queue %d: a connection by rdma_cm stays with the queue that it began with", id)
	}
	if spec.Conn != 0 {
		if bound = p.conns[spec.Conn]; bound == nil || !bound.met {
			return nil, failed(engine.ErrNotFound, "receive queue %d: connection %d", id, spec.Conn)
		}
		if bound.q != nil && bound.q.conn != 0 {
			return nil, failed(engine.ErrInUse, "receive queue %d: connection %d is bound to queue %d", id, spec.Conn, bound.q.id)
		}
	}
	q := &rxQueue{port: p, id: id, conn: spec.Conn, lanes: map[uint32]*inLane{}, over: make(chan struct{})}
	if err := q.open(spec); err != nil {
		return nil, errors.Join(err, q.shut())
	}
	p.rx = append(p.rx, q)
	if bound != nil {
		p.move(bound, q)
		return q, nil
	}
	for _, c := range p.conns {
		if c.q == nil {
			p.assign(c)
		}
	}
	if p.gone.Load() {
		q.fail(p.cause)
	}
	if p.o.Connect == ByCM {
		if err := p.begin(); err != nil {
			p.rx = p.rx[:len(p.rx)-1]
			return nil, errors.Join(err, q.shut())
		}
	}
	return q, nil
}

// spareCQEs is the room of a completion queue beyond that of its buffers.
const spareCQEs = 16

// open checks a specification and makes what the queue needs.
func (q *rxQueue) open(spec engine.RxSpec) (err error) {
	p := q.port
	var o RxOptions
	switch given := spec.Options.(type) {
	case nil:
	case RxOptions:
		o = given
	default:
		return invalid("receive queue %d: options of type %T: expected verbs.RxOptions", q.id, spec.Options)
	}
	if q.depth = spec.Depth; q.depth == 0 {
		q.depth = defaultDepth
	}
	switch {
	case len(spec.Pools) < 1 || len(spec.Pools) > 2 || slices.Contains(spec.Pools, nil):
		return invalid("receive queue %d has %d pools: expected 1, or 2 for headers and payload", q.id, len(spec.Pools))
	case q.depth < 1 || q.depth > maxDepth:
		return invalid("receive queue %d: Depth is %d: expected 1 to %d messages", q.id, spec.Depth, maxDepth)
	case spec.Timestamps || spec.HardwareTime:
		return failed(engine.ErrUnsupported, "receive queue %d: receive times", q.id)
	case o.GRH && (p.o.Transport != UD || len(spec.Pools) == 2):
		return failed(engine.ErrUnsupported, "receive queue %d: GRH is for datagrams (UD), and one pool", q.id)
	case o.MaxMessage < 0 || o.MaxMessage > maxMessage:
		return invalid("receive queue %d: MaxMessage is %d: expected 0 to %d bytes", q.id, o.MaxMessage, maxMessage)
	}
	if p.attr.MaxSRQ == 0 {
		return failed(engine.ErrUnavailable, "receive queue %d: device %s has no shared receive queues", q.id, p.dev.Name())
	}
	places, banks, skip, err := q.arrange(spec, o)
	if err != nil {
		return err
	}
	n := min(q.depth, p.attr.MaxSRQWR, max(p.attr.MaxCQE-spareCQEs, 1)) // all of them may have completions that nobody has taken
	q.slots = newReceives(n, places, banks, skip, o.GRH)
	q.wc, q.arrived = make([]ibv.WC, pollAtOnce), make([]arrival, n)
	if q.chain, err = ibv.NewRecvChain(refill, refill*len(places)); err != nil {
		return err
	}
	if q.events, err = p.dev.CreateChannel(); err != nil {
		return q.refused("a completion channel", err)
	}
	if q.cq, err = p.dev.CreateCQ(ibv.CQSpec{Entries: min(n+spareCQEs, p.attr.MaxCQE), Channel: q.events}); err != nil {
		return q.refused(fmt.Sprintf("a completion queue of %d", n+spareCQEs), err)
	}
	if q.srq, err = p.pd.CreateSRQ(ibv.SRQSpec{WRs: n, SGEs: len(places)}); err != nil {
		return q.refused(fmt.Sprintf("%d buffers of %d pieces", n, len(places)), err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.post()
}

func (q *rxQueue) refused(what string, err error) error {
	return fmt.Errorf("verbs: receive queue %d: %s: %w: %w", q.id, what, engine.ErrUnavailable, err)
}

// arrange says in which slots the pieces of a message lie.
func (q *rxQueue) arrange(spec engine.RxSpec, o RxOptions) (places []place, banks []*bank, skip uint32, err error) {
	p := q.port
	for _, pool := range spec.Pools {
		if pool.Region().ReadOnly() {
			return nil, nil, 0, failed(engine.ErrUnsupported, "receive queue %d: pool %q is in memory that cannot be written", q.id, pool.Name())
		}
		reg, err := p.registered(pool.Region())
		if err != nil {
			return nil, nil, 0, fmt.Errorf("verbs: receive queue %d: %w", q.id, err)
		}
		if f := reg.Flusher(); f != nil && !slices.Contains(q.flushers, f) {
			q.flushers = append(q.flushers, f)
		}
		banks = append(banks, &bank{pool: pool, src: burst.PoolSource(pool), reg: reg})
	}
	if p.o.Transport == UD {
		skip = grhLen
	}
	body := banks[len(banks)-1]
	size := uint32(min(body.pool.SlotSize(), maxMessage))
	role := burst.Frame
	have := 0
	if len(banks) == 2 {
		if spec.SplitAt < 1 || spec.SplitAt+int(skip) > banks[0].pool.SlotSize() {
			return nil, nil, 0, invalid("receive queue %d: SplitAt is %d: expected 1 to %d, what the slots of pool %q hold; messages have no headers that end by themselves", q.id,
				spec.SplitAt, banks[0].pool.SlotSize()-int(skip), banks[0].pool.Name())
		}
		places = append(places, place{banks[0], uint32(spec.SplitAt) + skip, burst.Header})
		have, role = spec.SplitAt, burst.Payload
	} else if int(size) <= int(skip) {
		return nil, nil, 0, invalid("receive queue %d: slots of %d bytes: expected more than %d", q.id, size, skip)
	} else {
		have = -int(skip)
	}
	want := o.MaxMessage
	if want == 0 {
		want = have + int(size)
	}
	for most := min(p.attr.MaxSRQSGE, burst.MaxSegments); have < want; have += int(size) {
		if len(places) == most {
			return nil, nil, 0, invalid("receive queue %d: messages of %d bytes take more than the %d slots that the device fills for one: expected slots of at least %d bytes, or MaxMessage of at most %d",
				q.id, want, most, (want+int(skip)+most-1)/most, have)
		}
		places = append(places, place{body, size, role})
	}
	return places, banks, skip, nil
}

// freeID is the id that was asked for, or the lowest that is free.
func freeID[Q interface{ ID() int }](ask int, have []Q) (int, error) {
	taken := func(id int) bool { return slices.ContainsFunc(have, func(q Q) bool { return q.ID() == id }) }
	switch {
	case len(have) >= maxQueues:
		return 0, failed(engine.ErrFull, "the port has %d queues, which is the most", maxQueues)
	case ask == engine.Auto:
		for ask = 0; taken(ask); ask++ {
		}
	case ask < 0 || ask >= maxQueues:
		return 0, invalid("queue id %d: expected 0 to %d, or engine.Auto", ask, maxQueues-1)
	case taken(ask):
		return 0, failed(engine.ErrExists, "queue %d", ask)
	}
	return ask, nil
}
