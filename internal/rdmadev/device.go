package rdmadev

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibvmem"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// Device is an open device with what all queues of a port share: a protection domain, the regions
// registered there, the completion channel of requests that send, and a goroutine that takes the
// events of both. Any goroutine may use it.
type Device struct {
	*ibv.Context
	Attr   ibv.DeviceAttr
	Port   ibv.PortAttr // as it was when the device was opened
	PD     *ibv.PD
	Memory *ibvmem.Adapter
	Sends  *ibv.Channel
	Waker  *engine.Waker   // wakes the goroutine
	End    chan struct{}   // closed when the goroutine is to end
	Bell   engine.LinkBell // rings when Link has changed

	regs    *ibvmem.Table
	link    engine.LinkUp
	async   *engine.Waker
	fds     []int // that engine.Events knows
	running sync.WaitGroup
	stop    sync.Once

	mu     sync.Mutex // guards owners
	owners map[*ibv.CQ]func()
}

// NewDevice takes over an open device, of which it uses one port; if that fails, the device is
// closed. tree is the machine's files, nil for this machine's.
func NewDevice(c *ibv.Context, port int, tree fs.FS) (_ *Device, err error) {
	d := &Device{Context: c, Waker: engine.NewWaker(), End: make(chan struct{}), async: engine.NewWaker(),
		owners: map[*ibv.CQ]func(){}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("device %s: %w: %w", c.Name(), engine.ErrUnavailable, err), d.Close())
		}
	}()
	if d.Attr, err = c.Attr(); err != nil {
		return nil, err
	}
	if d.Port, err = c.Port(port); err != nil {
		return nil, err
	}
	d.link.Begin(d.Port.State == ibv.PortActive)
	if d.PD, err = c.AllocPD(); err != nil {
		return nil, err
	}
	d.Memory = ibvmem.New(c, ibvmem.Options{Tree: tree})
	d.regs = d.Memory.NewTable(d.PD)
	if d.Sends, err = c.CreateChannel(); err != nil {
		return nil, err
	}
	for _, fd := range []int{d.Sends.FD(), c.AsyncFD()} {
		if err := engine.Events.Add(fd); err != nil {
			return nil, err
		}
		d.fds = append(d.fds, fd)
	}
	return d, nil
}

// Start starts the goroutine. It calls the owners of completion queues that have something, hear
// when the device has events (News), and work after that and whenever Waker is woken.
func (d *Device) Start(hear, work func()) {
	d.running.Go(func() {
		for device := true; ; {
			d.completions()
			if device {
				hear()
			}
			work()
			if engine.Events.Arm(d.fds[0], d.Waker) != nil || device && engine.Events.Arm(d.fds[1], d.async) != nil {
				return
			}
			select {
			case <-d.Waker.C():
				device = false
			case <-d.async.C():
				device = true
			case <-d.End:
				return
			}
		}
	})
}

// Stop ends the goroutine. It may be called again.
func (d *Device) Stop() {
	d.stop.Do(func() { close(d.End) })
	d.running.Wait()
}

// Close ends the goroutine and gives up the device. No queue is left.
func (d *Device) Close() (err error) {
	d.Stop()
	for _, fd := range d.fds {
		engine.Events.Remove(fd)
	}
	if d.Sends != nil {
		err = d.Sends.Close()
	}
	if d.PD != nil {
		err = errors.Join(err, d.regs.Close(), d.PD.Close())
	}
	return errors.Join(err, d.Context.Close())
}

// Own has the goroutine call event when a completion queue of the channel Sends was armed and has
// something; it may do so once more after Disown.
func (d *Device) Own(cq *ibv.CQ, event func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.owners[cq] = event
}

// Disown ends what Own began.
func (d *Device) Disown(cq *ibv.CQ) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.owners, cq)
}

// Notify calls the owner of a completion queue.
func (d *Device) Notify(cq *ibv.CQ) {
	d.mu.Lock()
	event := d.owners[cq]
	d.mu.Unlock()
	if event != nil {
		event()
	}
}

func (d *Device) completions() {
	for {
		cq, ok, err := d.Sends.Next()
		if !ok || err != nil {
			return
		}
		cq.Ack()
		d.Notify(cq)
	}
}

// News takes the events that the device has now. It has noted those of the port.
func (d *Device) News() iter.Seq[ibv.AsyncEvent] {
	return func(yield func(ibv.AsyncEvent) bool) {
		for {
			e, ok, err := d.NextAsync()
			if !ok || err != nil {
				return
			}
			if e.Type == ibv.EventPortActive || e.Type == ibv.EventPortErr {
				if e.Port == d.Port.Port && d.link.Set(e.Type == ibv.EventPortActive) {
					d.Bell.Ring()
				}
			}
			if !yield(e) {
				return
			}
		}
	}
}

// Link says whether the port is active.
func (d *Device) Link() engine.LinkState { return d.link.State() }

// Registered is the registration of a region, made if there is none.
func (d *Device) Registered(r *mem.Region) (*ibvmem.Registration, error) {
	x, err := d.regs.Find(r)
	if err != nil {
		return nil, Refused(err)
	}
	return x, nil
}

// Pools are the pools of a queue with their registrations, and the accelerators that need a flush
// before they see what came into them.
func (d *Device) Pools(all []*mem.Pool) (pools []Pool, flushers []mem.Flusher, err error) {
	for _, p := range all {
		x, err := d.Registered(p.Region())
		if err != nil {
			return nil, nil, err
		}
		if f := x.Flusher(); f != nil && !slices.Contains(flushers, f) {
			flushers = append(flushers, f)
		}
		pools = append(pools, Pool{Slots: p, Reg: x})
	}
	return pools, flushers, nil
}

// RegisterAll registers all regions that packets of a burst lie in. Without an error, Registered
// finds each.
func (d *Device) RegisterAll(b *burst.Burst) error {
	for i := range b.Len() {
		for k := range b.Segments(i) {
			if _, err := d.Registered(b.Segment(i, k).Region); err != nil {
				return fmt.Errorf("packet %d of the burst: %w", i, err)
			}
		}
	}
	return nil
}

// Reaches says why the device does not reach a region. The first question about a region registers
// a page of it.
func (d *Device) Reaches(r *mem.Region) error {
	if err := d.Memory.Reaches(d.PD, r); err != nil {
		return Refused(err)
	}
	return nil
}

// Refused makes an error of an engine of why memory cannot be registered.
func Refused(err error) error {
	kind := engine.ErrUnavailable
	if errors.Is(err, ibvmem.ErrNoWay) {
		kind = engine.ErrUnsupported
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// Limit takes from the capabilities of an engine what this device lacks.
func (d *Device) Limit(c *engine.Capabilities) {
	if !d.Memory.Able() {
		c.Memory = slices.DeleteFunc(c.Memory, func(k mem.Kind) bool { return k == mem.Device })
		c.Notes = append(c.Notes, ibvmem.Unable)
	}
}
