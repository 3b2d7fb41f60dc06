package reopen

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/netif"
	"github.com/penstock-io/penstock/mem"
)

// Options are the choices for a Port. The zero value is good.
type Options struct {
	Least, Most time.Duration // pauses between attempts; 0: 50 milliseconds and 2 seconds
	// Failed is called with the error of each attempt that fails; nil: the Port drops these errors.
	Failed func(error)
}

// Port is a port that opens its interface again. It is an engine.Port.
type Port struct {
	e    engine.Engine
	spec engine.PortSpec
	o    Options
	ns   *netif.Namespace

	bell   engine.LinkBell
	waker  *engine.Waker   // of the port in cur
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.RWMutex // over what follows; taken before the locks of queues
	cur    engine.Port
	away   bool // cur is closed
	closed bool
	opened uint64 // how often it was opened again
	rx     []*rxQueue
	tx     []*txQueue
	past   engine.PortStats // of ports before cur
	rules  pastRules
}

var _ engine.Port = (*Port)(nil)

// Open opens a port of e that opens itself again. The error is that of the engine;
// engine.ErrUnsupported where its ports do not tell that their interface is gone
// (engine.LinkReporter).
func Open(ctx context.Context, e engine.Engine, spec engine.PortSpec, o Options) (*Port, error) {
	if o.Least <= 0 {
		o.Least = 50 * time.Millisecond
	}
	if o.Most <= 0 {
		o.Most = 2 * time.Second
	}
	p := &Port{e: e, spec: spec, o: o, waker: engine.NewWaker(), done: make(chan struct{}), rules: newPastRules()}
	cur, err := e.OpenPort(ctx, spec)
	if err != nil {
		return nil, err
	}
	tells, ok := cur.(engine.LinkReporter)
	if !ok {
		return nil, errors.Join(fmt.Errorf("reopen: the engine %s does not tell when an interface is gone: %w",
			e.Name(), engine.ErrUnsupported), cur.Close())
	}
	if p.ns, err = netif.OpenNamespace(); err != nil {
		return nil, errors.Join(fmt.Errorf("reopen: %w", err), cur.Close())
	}
	p.cur = cur
	p.ctx, p.cancel = context.WithCancel(context.Background())
	tells.LinkState(p.waker)
	p.waker.Wake() // no event tells of what was before
	go p.run()
	return p, nil
}

// run follows the link of the port, and opens it again.
func (p *Port) run() {
	defer close(p.done)
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-p.waker.C():
		}
		if p.gone() {
			p.leave()
			p.bell.Ring()
			if !p.back() {
				return
			}
		}
		p.bell.Ring()
	}
}

// gone reports whether the interface of the port is.
func (p *Port) gone() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.cur.(engine.LinkReporter).LinkState(p.waker).Gone
}

// lost reports whether what a queue failed with is the loss of its interface: then run deals with
// it.
func (p *Port) lost() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return false
	}
	if p.away {
		return true
	}
	if !p.cur.(engine.LinkReporter).LinkState(p.waker).Gone {
		return false
	}
	p.waker.Wake()
	return true
}

// leave closes the port whose interface is gone. Its queues keep what it counted.
func (p *Port) leave() {
	p.mu.Lock()
	p.away = true
	rx, tx, cur := slices.Clone(p.rx), slices.Clone(p.tx), p.cur
	p.mu.Unlock()
	var errs []error
	for _, q := range rx {
		errs = append(errs, q.leave())
	}
	for _, q := range tx {
		errs = append(errs, q.now().Close())
	}
	p.failed(errors.Join(append(errs, cur.Close())...))
}

func (p *Port) failed(err error) {
	if err != nil && p.o.Failed != nil {
		p.o.Failed(err)
	}
}

// back opens the interface again, as often as it takes. It is false when the port is closed first.
func (p *Port) back() bool {
	pauses := engine.Backoff{Least: p.o.Least, Most: p.o.Most}
	for {
		t := time.NewTimer(pauses.Next())
		select {
		case <-p.ctx.Done():
			t.Stop()
			return false
		case <-t.C:
		}
		var next engine.Port
		err := p.ns.Do(func() (err error) {
			next, err = p.e.OpenPort(p.ctx, p.spec)
			return err
		})
		if err == nil {
			if err = p.adopt(next); err == nil {
				return true
			}
			err = errors.Join(err, next.Close())
		}
		p.failed(err)
	}
}

// adopt makes next the port: with the queues, and the rules under their IDs.
func (p *Port) adopt(next engine.Port) error {
	tells, ok := next.(engine.LinkReporter)
	if !ok {
		return fmt.Errorf("reopen: port %q does not tell of its link any more: %w", p.spec.Name, engine.ErrUnsupported)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return engine.ErrClosed
	}
	rx, tx := make([]engine.RxQueue, len(p.rx)), make([]engine.TxQueue, len(p.tx))
	var err error
	for i, q := range p.rx {
		if rx[i], err = next.AddRxQueue(q.spec); err != nil {
			return err
		}
	}
	for i, q := range p.tx {
		if tx[i], err = next.AddTxQueue(q.spec); err != nil {
			return err
		}
	}
	if rules := p.cur.Rules(); rules != nil {
		list := rules.List()
		if err := restore(next.Rules(), list); err != nil {
			return err
		}
		if len(list) > 0 && !p.spec.Isolated && len(rx) > 0 {
			// what came before the rules went to the first queue, whatever it was
			first := slices.MinFunc(rx, func(a, b engine.RxQueue) int { return a.ID() - b.ID() })
			if _, err := first.Discard(); err != nil {
				return err
			}
		}
		p.rules.add(rules.Stats())
	}
	var was engine.PortStats
	p.cur.Stats(&was)
	addStats(&p.past, &was)
	for i, q := range p.rx {
		q.adopt(rx[i])
	}
	for i, q := range p.tx {
		q.adopt(tx[i])
	}
	p.cur, p.away = next, false
	p.opened++
	tells.LinkState(p.waker)
	p.waker.Wake()
	return nil
}

// addStats adds what a port has counted.
func addStats(sum, s *engine.PortStats) {
	sum.Rx.Add(&s.Rx)
	sum.Tx.Add(&s.Tx)
	sum.Drops.Add(&s.Drops)
	sum.Kernel += s.Kernel
	sum.LinkChanges += s.LinkChanges
}

// port is the port that is open now, or was the last.
func (p *Port) port() engine.Port {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.cur
}

// LinkState implements engine.LinkReporter.
func (p *Port) LinkState(w *engine.Waker) engine.LinkState {
	p.bell.Set(w)
	p.mu.RLock()
	defer p.mu.RUnlock()
	s := p.cur.(engine.LinkReporter).LinkState(p.waker)
	s.Gone = s.Gone || p.away
	s.Up = s.Up && !s.Gone
	s.Changes += p.past.LinkChanges
	s.Reopened = p.opened
	return s
}

// Name implements engine.Port.
func (p *Port) Name() string { return p.port().Name() }

// Info implements engine.Port.
func (p *Port) Info() engine.PortInfo { return p.port().Info() }

// Capabilities implements engine.Port.
func (p *Port) Capabilities() engine.Capabilities { return p.port().Capabilities() }

// ReachesRegion implements engine.DeviceReacher.
func (p *Port) ReachesRegion(r *mem.Region) error {
	if card, ok := p.port().(engine.DeviceReacher); ok {
		return card.ReachesRegion(r)
	}
	return nil
}

// AddRxQueue implements engine.Port.
func (p *Port) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return nil, errAway(p)
	}
	cur, err := p.cur.AddRxQueue(spec)
	if err != nil {
		return nil, err
	}
	spec.ID = engine.Queue(cur.ID())
	q := &rxQueue{port: p, spec: spec, cur: cur}
	p.rx = append(p.rx, q)
	return q, nil
}

// AddTxQueue implements engine.Port.
func (p *Port) AddTxQueue(spec engine.TxSpec) (engine.TxQueue, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return nil, errAway(p)
	}
	cur, err := p.cur.AddTxQueue(spec)
	if err != nil {
		return nil, err
	}
	spec.ID = engine.Queue(cur.ID())
	q := &txQueue{port: p, spec: spec, cur: cur}
	p.tx = append(p.tx, q)
	return q, nil
}

func errAway(p *Port) error {
	return fmt.Errorf("reopen: port %q: its interface is gone, and is opened again when it is back: %w", p.spec.Name,
		engine.ErrDown)
}

// Stats implements engine.Port.
func (p *Port) Stats(s *engine.PortStats) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	p.cur.Stats(s)
	addStats(s, &p.past)
}

// Close implements engine.Port.
func (p *Port) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		<-p.done
		return nil
	}
	p.closed = true
	rx := slices.Clone(p.rx)
	p.mu.Unlock()
	p.cancel()
	<-p.done
	var errs []error
	for _, q := range rx {
		errs = append(errs, q.Close())
	}
	return errors.Join(append(errs, p.port().Close(), p.ns.Close())...)
}
