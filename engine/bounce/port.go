package bounce

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/mem"
)

// Options change how much is under way at once. The zero value is right for most.
type Options struct {
	Bursts  int // of a queue that are being copied at most; 0 means 4
	Packets int // of such a burst at most; 0 means 64
}

const (
	maxBursts  = 1 << 10
	maxPackets = 1 << 16
)

// Port is a port of an engine whose queues also take memory of accelerators. It is an engine.Port.
type Port struct {
	engine.Port
	o    Options
	caps engine.Capabilities

	mu    sync.Mutex // guards what follows
	rx    []*rxQueue // staged ones that are open
	tx    []*txQueue
	ended []*txQueue // closed ones, the newest: what is given to them later counts too
	oldRx drift      // of all others that were
	oldTx engine.TxStats
}

var _ engine.Port = (*Port)(nil)

// New makes a Port of a port, which it owns from now on.
func New(p engine.Port, o Options) *Port {
	o.Bursts, o.Packets = min(max(o.Bursts, 0), maxBursts), min(max(o.Packets, 0), maxPackets)
	if o.Bursts == 0 {
		o.Bursts = 4
	}
	if o.Packets == 0 {
		o.Packets = 64
	}
	s := &Port{Port: p, o: o, caps: p.Capabilities()}
	return s
}

// Needed reports whether an engine with these capabilities needs bounce buffers to use memory of
// accelerators.
func Needed(c engine.Capabilities) bool { return !slices.Contains(c.Memory, mem.Device) }

// Capabilities are those of the engine's port, with memory of accelerators.
func (p *Port) Capabilities() engine.Capabilities {
	c := p.Port.Capabilities()
	if Needed(c) && len(c.Memory) > 0 {
		c.ZeroCopyForward = false // what goes to or comes from the device is copied
		c.Memory = append(slices.Clone(c.Memory), mem.Device)
	}
	return c
}

// hidden reports whether a pool is in memory that the CPU does not reach.
func hidden(x *mem.Pool) bool { return x != nil && x.Region().Mover() != nil }

// reached reports whether the engine takes these pools as they are, as far as it tells.
func (p *Port) reached(pools []*mem.Pool) bool {
	if !slices.ContainsFunc(pools, hidden) {
		return true
	}
	if Needed(p.caps) {
		return false
	}
	card, some := p.Port.(engine.DeviceReacher)
	return !some || !slices.ContainsFunc(pools, func(x *mem.Pool) bool {
		return hidden(x) && card.ReachesRegion(x.Region()) != nil
	})
}

// refused reports whether the engine's answer is that it does not take these pools, where bounce
// buffers may do.
func refused(pools []*mem.Pool, err error) bool {
	return errors.Is(err, engine.ErrUnsupported) && slices.ContainsFunc(pools, hidden)
}

// staged reports whether a queue with these pools needs bounce buffers: device memory that the CPU
// or the engine's card reaches is used as it is. Only the last pool may be device memory.
func (p *Port) staged(pools []*mem.Pool) (bool, error) {
	switch {
	case p.reached(pools):
		return false, nil
	case len(p.caps.Memory) == 0:
		return false, fmt.Errorf("the engine has its own memory only: %w", engine.ErrUnsupported)
	case len(pools) > 2 || slices.Contains(pools, nil):
		return false, fmt.Errorf("%d pools: expected one, or two for headers and payload: %w", len(pools),
			engine.ErrInvalid)
	case len(pools) == 2 && hidden(pools[0]):
		return false, fmt.Errorf("pool %q for headers is device memory: headers are read by the CPU: give it host "+
			"memory: %w", pools[0].Name(), engine.ErrUnsupported)
	}
	return true, nil
}

// deviceOf is the memory behind a pool, as its runtime knows it.
func deviceOf(pool *mem.Pool) (*gpu.Memory, mem.Provider, error) {
	r := pool.Region()
	m, ok := r.Handle().(*gpu.Memory)
	if !ok || r.Mover() == nil {
		return nil, nil, fmt.Errorf("pool %q is not memory of a runtime of package gpu that the CPU cannot reach: %w",
			pool.Name(), engine.ErrUnsupported)
	}
	return m, r.Mover().Staging(), nil
}

// stagingPool makes page-locked host memory of so many slots that the device copies from and to.
func stagingPool(name string, from mem.Provider, size, slots int) (*mem.Pool, *gpu.Memory, error) {
	o := mem.PoolOptions{Name: name + " staging", SlotSize: size, Slots: slots}
	switch { // the engine xdp uses slots in place that are so far apart
	case size > 1024 && size <= 2048:
		o.Align = 2048
	case size > 2048 && size <= 4096:
		o.Align = 4096
	}
	o.Memory.Kind, o.Memory.Provider = mem.HostPinned, from
	pool, err := mem.NewPool(o)
	if err != nil {
		return nil, nil, err
	}
	m, ok := pool.Region().Handle().(*gpu.Memory)
	if !ok || pool.Region().All().Bytes() == nil {
		return nil, nil, errors.Join(fmt.Errorf("the staging memory of %q cannot be copied by the device: %w", name,
			engine.ErrUnsupported), pool.Close())
	}
	return pool, m, nil
}

// freeStaging ends a stream whose work is over, and the memory of its copies; both may be nil.
func freeStaging(s *gpu.Stream, staging *mem.Pool) (err error) {
	if s != nil {
		err = s.Close()
	}
	if staging != nil {
		// An engine may keep slots until its port is closed: the memory goes with the last of them.
		if e := staging.Close(); !errors.Is(e, mem.ErrInUse) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// span names bytes of a region as the runtime knows it.
func span(m *gpu.Memory, off uint64, n uint32) gpu.Span {
	return gpu.Span{Memory: m, Off: off, Len: uint64(n)}
}

// AddRxQueue adds a receive queue. Memory that the engine's card reaches itself goes to the engine
// (engine.DeviceReacher), and is staged after all if it takes it in no such queue. Errors are those
// of the engine, and those of memory that cannot be had.
func (p *Port) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	staged, err := p.staged(spec.Pools)
	if err != nil {
		return nil, p.failed("a receive queue", spec.Name, err)
	}
	if !staged {
		if q, err := p.Port.AddRxQueue(spec); !refused(spec.Pools, err) {
			return q, err
		}
	}
	q, err := newRxQueue(p, spec)
	if err != nil {
		return nil, p.failed("a receive queue", spec.Name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rx = append(p.rx, q)
	return q, nil
}

// AddTxQueue adds a transmit queue. Errors are those of the engine, and those of memory that cannot
// be had.
func (p *Port) AddTxQueue(spec engine.TxSpec) (engine.TxQueue, error) {
	staged, err := p.staged(spec.Pools)
	if err != nil {
		return nil, p.failed("a transmit queue", spec.Name, err)
	}
	if !staged {
		if q, err := p.Port.AddTxQueue(spec); !refused(spec.Pools, err) {
			return q, err
		}
	}
	return p.addTx(spec, spec.Pools[len(spec.Pools)-1:])
}

// AddForwarder adds a transmit queue whose Forward also takes what a receive queue with the pools
// from receives, the last of which is device memory, whatever memory the queue's own pools are. It
// copies all that is sent on it.
func (p *Port) AddForwarder(spec engine.TxSpec, from []*mem.Pool) (engine.TxQueue, error) {
	if _, err := p.staged(spec.Pools); err != nil {
		return nil, p.failed("a transmit queue", spec.Name, err)
	}
	if staged, err := p.staged(from); err != nil || !staged {
		return p.AddTxQueue(spec)
	}
	return p.addTx(spec, from)
}

// addTx adds a queue for packets of its own pools, and for those in pools from.
func (p *Port) addTx(spec engine.TxSpec, from []*mem.Pool) (engine.TxQueue, error) {
	q, err := newTxQueue(p, spec, from)
	if err != nil {
		return nil, p.failed("a transmit queue", spec.Name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tx = append(p.tx, q)
	return q, nil
}

func (p *Port) failed(what, name string, err error) error {
	return fmt.Errorf("bounce: port %q: %s %q: %w", p.Name(), what, name, err)
}

// Stats implements engine.Port: what a queue counts is what came out of it, and what was dropped on
// the way.
func (p *Port) Stats(s *engine.PortStats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.oldRx
	for _, q := range p.rx {
		d.add(q.drift())
	}
	var tx engine.TxStats
	tx.Add(&p.oldTx)
	for _, l := range [][]*txQueue{p.tx, p.ended} {
		for _, q := range l {
			var one engine.TxStats
			q.own(&one)
			tx.Add(&one)
		}
	}
	p.Port.Stats(s) // after the queues: what they took out of the engine is part of it
	d.apply(&s.Rx)
	s.Tx.Add(&tx)
}

// keepEnded is the number of closed queues that are remembered apart.
const keepEnded = 64

// retireRx moves the counts of a closed queue to those that were; retireTx does so when it is one
// of the oldest.
func (p *Port) retireRx(q *rxQueue) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.rx, q); i >= 0 {
		p.oldRx.add(q.drift())
		p.rx = slices.Delete(p.rx, i, i+1)
	}
}

func (p *Port) retireTx(q *txQueue) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.tx, q); i >= 0 {
		p.tx, p.ended = slices.Delete(p.tx, i, i+1), append(p.ended, q)
	}
	if len(p.ended) > keepEnded {
		var one engine.TxStats
		p.ended[0].own(&one)
		p.oldTx.Add(&one)
		p.ended = slices.Delete(p.ended, 0, 1)
	}
}

// Close closes the queues and the port.
func (p *Port) Close() error {
	p.mu.Lock()
	rx, tx := slices.Clone(p.rx), slices.Clone(p.tx)
	p.mu.Unlock()
	var errs []error
	for _, q := range rx {
		errs = append(errs, q.Close())
	}
	for _, q := range tx {
		errs = append(errs, q.Close())
	}
	return errors.Join(append(errs, p.Port.Close())...)
}
