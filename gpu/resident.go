package gpu

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/gpu/driver"
)

// ResidentMode says how long a Resident's launches last.
type ResidentMode uint8

const (
	// ResidentStay is one launch that goes on as long as it may: the kernel polls what the CPU
	// publishes. All groups are on the device at once.
	ResidentStay ResidentMode = iota
	// ResidentBatch is a launch whenever Ring announces something, which drains what is there and
	// ends: an ordinary launch, that any device can do with the same kernel.
	ResidentBatch
)

// ResidentOptions say how a kernel stays.
type ResidentOptions struct {
	Name string // for messages
	Mode ResidentMode
	Grid Grid
	// Passes is how many passes a launch makes at most. Then it ends and another one goes on: so a
	// kernel also ends when this process is stopped. 0 means 1<<24, and with ResidentBatch 1<<10.
	Passes uint32
	// Turn is how long a launch lasts at most; the next one goes on. 0 means half a second where
	// the device has a watchdog (Info.Watchdog), which would otherwise end the context, and no
	// limit elsewhere. More than a second is refused there.
	Turn time.Duration
}

const (
	residentPasses = 1 << 24
	batchPasses    = 1 << 10
	// idlePasses is how many passes in a row without work a kernel makes on a processor before it
	// leaves until the doorbell rings: about a millisecond.
	idlePasses = 1 << 14
	// watchdogTurn is a launch's time where a watchdog looks, and watchdogMost the longest that is
	// allowed: watchdogs wait for two seconds at least.
	watchdogTurn = 500 * time.Millisecond
	watchdogMost = time.Second
)

// residentState is what the goroutine of a Resident does.
type residentState uint32

const (
	residentReady   residentState = iota // not started
	residentRuns                         // a launch is under way
	residentSleeps                       // nothing to do until the doorbell rings
	residentChanges                      // Replace exchanges the kernel
	residentEnded                        // no launch comes any more
)

var residentStates = [...]string{"ready", "running", "asleep", "changing", "ended"}

func (s residentState) String() string { return residentStates[s] }

// Resident is a kernel that works for as long as its user wants, on what the CPU publishes in
// memory that both see. The kernel follows the protocol of driver.Control, whose memory is its
// first argument: internal/kernels/cl/resident.h and driver.Passes are its side of it.
//
//	r, err := ctx.NewResident(kernel, gpu.ResidentOptions{Grid: gpu.Grid{Groups: 1, Group: 64}}, args...) // asks whether it fits, prepares everything
//	err = r.Start()                                                                                       // launches it
//	... publish; r.Ring()
//	err = r.Close(goctx)                                                                                  // asks it to leave, waits, gives everything back
//
// Launches end when their passes or their time are used up, and on a processor when there is
// nothing to do; a goroutine launches the kernel again, which goes on where it was. That goroutine
// sleeps otherwise.
//
// From Start to Close a Resident of mode ResidentStay holds its device: what would wait for the
// kernel inside the driver, with every later call behind it, is an error that wraps ErrInUse in all
// contexts of the device: to allocate, adopt and open memory, to make streams, to load programs,
// and to close memory and modules. They are done before Start, or in Replace.
type Resident struct {
	object
	o       ResidentOptions
	stream  *Stream
	block   *Memory
	control *driver.Control
	asleep  atomic.Bool   // the goroutine waits for the doorbell
	ringing atomic.Int32  // calls of Ring that may touch the control block
	wake    chan struct{} // of one
	ended   chan struct{} // the goroutine is gone

	mu       sync.Mutex
	state    residentState
	call     *Call
	limit    uint32 // groups that fit; guarded by the device's gate as well, once it is started
	lifted   bool   // Replace has the device; guarded by the device's gate
	closing  bool
	change   *change // asked for
	err      error
	launches uint64
	last     []driver.GroupStatus
	beats    uint64
	done     uint64
}

// change is a Replace.
type change struct {
	prepare func() (*Kernel, []Arg, error)
	err     error
	over    chan struct{}
}

// NewResident prepares a persistent kernel: control block, stream, call. args are its arguments
// behind the control block. It needs CapSharedAtomics, and CapResident for ResidentStay. Nothing
// runs before Start. The caller closes it, before memory of args and the kernel's module.
//
// More groups than the device runs at once, beside the Residents that it has, are an error that
// wraps ErrArgument and says how many fit: the other groups would never begin, and a program that
// waits for their results would hang.
func (c *Context) NewResident(k *Kernel, o ResidentOptions, args ...Arg) (*Resident, error) {
	refuse := func(err error) (*Resident, error) {
		return nil, fmt.Errorf("gpu: %s: resident kernel %q: %w", c.dev, o.Name, err)
	}
	f := c.Info()
	if err := f.Capabilities.Check(CapSharedAtomics); err != nil {
		return refuse(err)
	}
	switch {
	case k == nil || k.mod.ctx != c:
		return refuse(fmt.Errorf("%w: expected a kernel of this context", ErrArgument))
	case o.Mode > ResidentBatch:
		return refuse(fmt.Errorf("%w: a mode of %d", ErrArgument, o.Mode))
	case o.Grid.Items() == 0 || o.Grid.Group > f.MaxGroup || o.Grid.Groups > f.MaxGroups:
		return refuse(fmt.Errorf("%w: %d groups of %d: expected 1 to %d of 1 to %d", ErrArgument, o.Grid.Groups,
			o.Grid.Group, f.MaxGroups, f.MaxGroup))
	case o.Turn < 0 || f.Watchdog && o.Turn > watchdogMost:
		return refuse(fmt.Errorf("%w: turns of %v: expected at most %v, since the device has a watchdog", ErrArgument,
			o.Turn, watchdogMost))
	}
	r := &Resident{o: o, wake: make(chan struct{}, 1), ended: make(chan struct{}),
		last: make([]driver.GroupStatus, o.Grid.Groups)}
	if r.o.Turn == 0 && f.Watchdog {
		r.o.Turn = watchdogTurn
	}
	if o.Passes == 0 {
		r.o.Passes = residentPasses
		if o.Mode == ResidentBatch {
			r.o.Passes = batchPasses
		}
	}
	var err error
	if r.limit, err = r.fits(c, k); err != nil {
		return refuse(err)
	}
	if err := r.prepare(c, k, args); err != nil {
		return refuse(errors.Join(err, r.release()))
	}
	if err := r.init(c, "resident kernel", o.Name); err != nil {
		return nil, errors.Join(err, r.release())
	}
	return r, nil
}

// prepare makes what the kernel needs.
func (r *Resident) prepare(c *Context, k *Kernel, args []Arg) (err error) {
	kind := MappedMemory
	if !c.Info().Capabilities.Has(CapMapped) {
		kind = SharedMemory
	}
	if r.block, err = c.Alloc(MemoryOptions{Name: r.o.Name + " control", Kind: kind,
		Size: driver.ControlSize(r.o.Grid.Groups)}); err != nil {
		return err
	}
	if r.control, err = driver.NewControl(r.block.Bytes(), r.o.Grid.Groups); err != nil {
		return err
	}
	if r.call, err = k.Prepare(append([]Arg{Buffer(r.block.All())}, args...)...); err != nil {
		return err
	}
	r.stream, err = c.NewStream(StreamOptions{Name: r.o.Name})
	return err
}

// release closes what prepare made. The kernel does not run.
func (r *Resident) release() error {
	var errs []error
	if r.stream != nil {
		errs = append(errs, r.stream.Close())
	}
	if r.call != nil {
		errs = append(errs, r.call.Close())
	}
	if r.block != nil {
		errs = append(errs, r.block.Close())
	}
	return errors.Join(errs...)
}

// Occupancy is how many groups of so many items the device runs at once, when it runs nothing else.
// It needs CapResident.
func (k *Kernel) Occupancy(group uint32) (groups uint32, err error) {
	c := k.mod.ctx
	if err := c.Info().Capabilities.Check(CapResident); err != nil {
		return 0, fmt.Errorf("gpu: %s: kernel %s: occupancy: %w", c.dev, k.sig.Name, err)
	}
	if err := k.mod.usable(); err != nil {
		return 0, err
	}
	if group == 0 || group > c.Info().MaxGroup {
		return 0, fmt.Errorf("gpu: %s: kernel %s: occupancy of groups of %d: %w: expected 1 to %d items", c.dev,
			k.sig.Name, group, ErrArgument, c.Info().MaxGroup)
	}
	x, ok := k.drv.(driver.Occupancy)
	if !ok {
		return 0, fmt.Errorf("gpu: %s: kernel %s: occupancy: %w: the runtime says that kernels may stay, and not "+
			"how many", c.dev, k.sig.Name, ErrDriver)
	}
	groups, err = x.Occupancy(group)
	if err != nil {
		return 0, fmt.Errorf("gpu: %s: kernel %s: occupancy of groups of %d: %w", c.dev, k.sig.Name, group, c.note(err))
	}
	return groups, nil
}

// fits is how many groups of the kernel the device runs at once; an error where they are fewer than
// the grid has.
func (r *Resident) fits(c *Context, k *Kernel) (uint32, error) {
	if r.o.Mode == ResidentBatch { // groups of a launch that ends may wait for each other's places
		return math.MaxUint32, nil
	}
	n, err := k.Occupancy(r.o.Grid.Group)
	if err == nil && r.o.Grid.Groups > n {
		err = tooMany(r.o.Grid, n, "")
	}
	return n, err
}

func tooMany(g Grid, fit uint32, beside string) error {
	return fmt.Errorf("%w: %d groups of %d items, but only %d fit on the device at once%s: the others would never begin", ErrArgument, g.Groups, g.Group, fit, beside)
}

// hold enters the Resident as one that holds its device, of whose kernel limit groups fit, when
// those who must not be in the driver then are out of it. The share of the device that each holds
// is its groups as a part of those that would fit alone.
func (d *Device) hold(r *Resident, limit uint32) error {
	if r.o.Mode == ResidentBatch {
		return nil
	}
	d.gate.Lock()
	defer d.gate.Unlock()
	free, others := 1.0, 0
	for x := range d.residents {
		if x != r {
			free -= float64(x.o.Grid.Groups) / float64(x.limit)
			others++
		}
	}
	if fit := uint32(free*float64(limit) + 1e-6); r.o.Grid.Groups > fit {
		return tooMany(r.o.Grid, fit, fmt.Sprintf(" beside %d other resident kernels", others))
	}
	if d.residents == nil {
		d.residents = map[*Resident]struct{}{}
	}
	d.residents[r] = struct{}{}
	r.limit = limit
	return nil
}

// lift lets others use the device for a while, or ends that, when they are out of the driver. The
// Resident keeps its share.
func (d *Device) lift(r *Resident, on bool) {
	d.gate.Lock()
	defer d.gate.Unlock()
	r.lifted = on
}

// yield takes the Resident off the device, whose kernel has left.
func (d *Device) yield(r *Resident) {
	d.gate.Lock()
	defer d.gate.Unlock()
	delete(d.residents, r)
}

// pass is for calls that may wait in the driver for all work of the device: an error where a
// Resident holds it. Otherwise none begins to before done is called.
func (d *Device) pass(what string) (done func(), err error) {
	d.gate.RLock()
	for r := range d.residents {
		if !r.lifted {
			d.gate.RUnlock()
			return nil, fmt.Errorf("gpu: %s: %s: %w: it would wait for %s, and every later call with it: do it "+
				"before Start, in Replace, or after Close", d, what, ErrInUse, &r.object)
		}
	}
	return d.gate.RUnlock, nil
}

// Start launches the kernel. Errors wrap ErrArgument where the groups do not fit beside those of
// other Residents, and ErrInUse where it was started before.
func (r *Resident) Start() error {
	if err := r.usable(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != residentReady {
		return fmt.Errorf("gpu: %s: %s: start: %w: it is %s", r.ctx.dev, &r.object, ErrInUse, r.state)
	}
	if err := r.ctx.dev.hold(r, r.limit); err != nil {
		return fmt.Errorf("gpu: %s: %s: start: %w", r.ctx.dev, &r.object, err)
	}
	r.state = residentRuns
	go r.run()
	return nil
}

// Ring says that something was published for the kernel. A producer publishes first and rings then,
// once for any number of items. Any goroutine may; it allocates nothing, and wakes the kernel where
// it has left because nothing came. After Close it does nothing.
func (r *Resident) Ring() {
	r.ringing.Add(1)
	if !r.closed.Load() {
		r.control.Ring()
	}
	r.ringing.Add(-1)
	if r.asleep.Load() {
		r.rouse()
	}
}

func (r *Resident) rouse() {
	select {
	case r.wake <- struct{}{}:
	default: // it is awake
	}
}

// run launches the kernel again and again. It alone uses the stream and the call.
func (r *Resident) run() {
	defer close(r.ended)
	defer r.ctx.dev.yield(r)
	for r.next() {
		if err := r.launch(); err != nil {
			r.mu.Lock()
			r.err = err
			r.finish()
			r.mu.Unlock()
			return
		}
	}
}

// finish notes that there are no launches any more. The caller holds mu.
func (r *Resident) finish() {
	r.state = residentEnded
	if x := r.change; x != nil {
		r.change = nil
		x.err = fmt.Errorf("gpu: %s: %s: replace the kernel: it has ended: %w", r.ctx.dev, &r.object,
			errors.Join(ErrClosed, r.err))
		close(x.over)
	}
}

// next waits until there is something to launch, and prepares the control block for it; false means
// that there never is.
func (r *Resident) next() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		switch {
		case r.closing:
			r.finish()
			return false
		case r.change != nil:
			r.exchange()
			continue
		case r.control.Again():
			r.state = residentRuns
			r.launches++
			idle := uint32(0)
			if r.o.Mode == ResidentBatch {
				idle = 1
			} else if r.ctx.Info().Processor {
				idle = idlePasses
			}
			r.control.Begin(r.o.Passes, idle)
			return true
		}
		r.state = residentSleeps
		r.asleep.Store(true)
		if !r.control.Again() && !r.closing && r.change == nil { // a Ring from here on finds asleep
			r.mu.Unlock()
			<-r.wake
			r.mu.Lock()
		}
		r.asleep.Store(false)
	}
}

// launch does one launch and waits for its end.
func (r *Resident) launch() error {
	if err := r.stream.Launch(r.call, r.o.Grid); err != nil {
		return err
	}
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if r.o.Turn > 0 {
		ctx, cancel = context.WithTimeout(ctx, r.o.Turn)
	}
	err := r.stream.Wait(ctx)
	cancel()
	if err != nil && err == ctx.Err() {
		r.control.Stop()
		err = r.stream.Wait(context.Background())
	}
	r.mu.Lock()
	r.count()
	r.mu.Unlock()
	return err
}

// count adds what the groups have done since it was called last. Between two calls no counter goes
// round, since a launch makes at most Passes passes. The caller holds mu.
func (r *Resident) count() {
	for i := range r.last {
		now := r.control.Group(i)
		r.beats += uint64(now.Heartbeat - r.last[i].Heartbeat)
		r.done += uint64(now.Done - r.last[i].Done)
		r.last[i] = now
	}
}

// Replace exchanges the kernel while what is published waits: the kernel leaves, prepare is called
// with the device free for what a Resident otherwise forbids, such as to load a program, and the
// kernel that it gives goes on, with the checkpoints of the old one. args are as in NewResident;
// the grid stays. Where prepare fails or its kernel does not fit, the old one goes on. When ctx
// ends first the exchange still happens, and its result is lost. prepare must not use the Resident.
// The old kernel's module may be closed in a later Replace, or after Close.
func (r *Resident) Replace(ctx context.Context, prepare func() (*Kernel, []Arg, error)) error {
	if err := r.usable(); err != nil {
		return err
	}
	x := &change{prepare: prepare, over: make(chan struct{})}
	r.mu.Lock()
	if r.state == residentReady || r.state == residentEnded || r.closing || r.change != nil {
		defer r.mu.Unlock()
		return fmt.Errorf("gpu: %s: %s: replace the kernel: %w: it is %s, or another Replace waits", r.ctx.dev,
			&r.object, ErrInUse, r.state)
	}
	r.change = x
	r.control.Stop()
	r.mu.Unlock()
	r.rouse()
	select {
	case <-x.over:
		return x.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// exchange does what Replace asks for, between two launches. The caller holds mu, which it gives up
// meanwhile.
func (r *Resident) exchange() {
	x := r.change
	r.state = residentChanges
	r.mu.Unlock()
	r.ctx.dev.lift(r, true)
	call, limit, err := r.replacement(x.prepare)
	if err == nil {
		err = r.ctx.dev.hold(r, limit)
	}
	r.ctx.dev.lift(r, false)
	r.mu.Lock()
	r.change = nil
	if err == nil {
		r.call, call = call, r.call
	}
	if call != nil {
		err = errors.Join(err, call.Close())
	}
	if err != nil {
		x.err = fmt.Errorf("gpu: %s: %s: replace the kernel: %w", r.ctx.dev, &r.object, err)
	}
	close(x.over)
}

func (r *Resident) replacement(prepare func() (*Kernel, []Arg, error)) (*Call, uint32, error) {
	k, args, err := prepare()
	if err != nil {
		return nil, 0, err
	}
	if k == nil || k.mod.ctx != r.ctx {
		return nil, 0, fmt.Errorf("%w: expected a kernel of this context", ErrArgument)
	}
	limit, err := r.fits(r.ctx, k)
	if err != nil {
		return nil, 0, err
	}
	call, err := k.Prepare(append([]Arg{Buffer(r.block.All())}, args...)...)
	return call, limit, err
}

// Err is nil while the kernel works, and otherwise what ended it.
func (r *Resident) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Ended is closed when the kernel runs no more: after Close, or because of what Err says.
func (r *Resident) Ended() <-chan struct{} { return r.ended }

// ResidentStats is what a Resident has done.
type ResidentStats struct {
	State     string // ready, running, asleep, changing, ended
	Launches  uint64
	Heartbeat uint64 // passes begun by all groups; while it is running this goes up, or a group hangs
	Done      uint64 // items of work, as the kernel counts them
	Groups    int
	Limit     uint32 // groups that fit on the device at once
}

// Stats is what the kernel has done so far. Any goroutine may call it.
func (r *Resident) Stats() ResidentStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != residentReady && !r.closed.Load() {
		r.count()
	}
	return ResidentStats{State: r.state.String(), Launches: r.launches, Heartbeat: r.beats, Done: r.done,
		Groups: len(r.last), Limit: r.limit}
}

// Close asks the kernel to leave, waits until it has, and gives everything back but the memory of
// the arguments. What was published and not taken stays where it is. When ctx ends first the error
// wraps ErrInUse and says which groups are still there; nothing is given back then, and Close may
// be called again.
func (r *Resident) Close(ctx context.Context) error {
	if r.closed.Load() {
		return nil
	}
	r.mu.Lock()
	r.closing = true
	started := r.state != residentReady
	r.control.Stop()
	r.mu.Unlock()
	if started {
		r.rouse()
		select {
		case <-r.ended:
		case <-ctx.Done():
			return fmt.Errorf("gpu: %s: %s: close: %w: %w: %s", r.ctx.dev, &r.object, ErrInUse, ctx.Err(), r.staying())
		}
	}
	// Others may hold the device still, behind which memory cannot be given back.
	done, err := r.quiet()
	if err != nil {
		return err
	}
	done()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.end() {
		return nil
	}
	if !started {
		r.state = residentEnded
		close(r.ended)
	}
	for r.ringing.Load() > 0 { // for the few instructions of a Ring
		runtime.Gosched()
	}
	return r.release()
}

// staying says which groups have not left.
func (r *Resident) staying() string {
	n, first := 0, ""
	for i := range r.control.Groups() {
		if g := r.control.Group(i); g.State == driver.GroupRunning || g.State == driver.GroupNew {
			if n == 0 {
				first = fmt.Sprintf(", such as group %d, which is %s and at pass %d", i, g.State, g.Heartbeat)
			}
			n++
		}
	}
	return fmt.Sprintf("%d of %d groups have not left%s", n, r.control.Groups(), first)
}
