package feed

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/mem/ring"
)

// rig is the device that is measured.
type rig struct {
	o   *Options
	s   *bench.Suite
	dev *gpu.Device
	own *place
	cpu *place // goroutines of this process; nil where the device is that
	rt  *gpu.Runtime
}

// place is a context with the kernel loaded.
type place struct {
	c     *gpu.Context
	mod   *gpu.Module
	k     *gpu.Kernel
	limit uint32 // groups of most that are there at once
	most  uint32 // items of a group
}

func newRig(o *Options, dev *gpu.Device) (_ *rig, err error) {
	g := &rig{o: o, dev: dev}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	if g.own, err = newPlace(dev); err != nil {
		return nil, err
	}
	if dev.Runtime().Name() == "host" {
		return g, nil
	}
	if g.rt, err = host.Open(host.Options{}); err != nil {
		return nil, err
	}
	g.cpu, err = newPlace(g.rt.Devices()[0])
	return g, err
}

func newPlace(dev *gpu.Device) (_ *place, err error) {
	p := &place{most: warp}
	if p.c, err = dev.Open(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.c.Info().Processor {
		p.most = 1
	}
	if p.mod, err = p.c.Load(kernels.FeedSum); err != nil {
		return nil, err
	}
	if p.k, err = p.mod.Kernel("feed_sum"); err != nil {
		return nil, err
	}
	if p.c.Info().Capabilities.Has(gpu.CapResident) {
		p.limit, err = p.k.Occupancy(p.most)
	}
	return p, err
}

func (p *place) close() error {
	var err error
	if p.mod != nil {
		err = p.mod.Close()
	}
	return errors.Join(err, p.c.Close())
}

func (g *rig) close() error {
	var errs []error
	for _, p := range []*place{g.own, g.cpu} {
		if p != nil {
			errs = append(errs, p.close())
		}
	}
	if g.rt != nil {
		errs = append(errs, g.rt.Close())
	}
	return errors.Join(errs...)
}

func (g *rig) measure(ctx context.Context, p paired.Plan, what string) error {
	g.o.Progress.Say("%s", p.Name)
	p.Pairs = g.o.Pairs
	return g.s.Measure(ctx, p, func(x *paired.Row) error {
		x.What, x.Path = what, g.dev.Runtime().Name()
		return nil
	})
}

// line is a kernel, its rings, and the payload. One goroutine uses it, or each of its parts.
type line struct {
	p       *place
	r       *gpu.Resident
	in, out []*ring.Descriptors
	mems    []*gpu.Memory
	payload []byte
	sums    []uint64 // of the packet in each slot of the payload
	size    uint64
	next    int // ring that is fed next
	first   int // ring whose answers are taken first
	sent    uint64
	got     uint64
	buf     [32]ring.Desc
	each    func(tag uint64) // is called for each answer; nil: no call
}

// stride is from one packet to the next in the payload memory.
func (l *line) stride() uint64 { return (l.size + 127) &^ 127 }

// newLine prepares a kernel of groups with items each for packets of size bytes in some rings, of
// which group g serves ring g mod rings, and starts it.
func newLine(p *place, mode gpu.ResidentMode, groups, items, rings uint32, depth int, size uint64) (_ *line,
	err error) {
	l := &line{p: p, size: size}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	alloc := func(kind gpu.Kind, n uint64) *gpu.Memory {
		if err != nil {
			return nil
		}
		var m *gpu.Memory
		if m, err = p.c.Alloc(gpu.MemoryOptions{Name: "bench feed", Kind: kind, Size: n}); err == nil {
			l.mems = append(l.mems, m)
		}
		return m
	}
	each := uint64(ring.DescriptorsSize(depth))
	places := uint64(depth)
	in, out := alloc(gpu.MappedMemory, each*uint64(rings)), alloc(gpu.MappedMemory, each*uint64(rings))
	payload := alloc(gpu.MappedMemory, places*l.stride())
	row := 4 * uint64(items)
	rows, weights := alloc(gpu.DeviceMemory, uint64(rings)*uint64(depth)*row), alloc(gpu.DeviceMemory, 128)
	if err != nil {
		return nil, err
	}
	for i := range uint64(rings) {
		for _, x := range []struct {
			m    *gpu.Memory
			list *[]*ring.Descriptors
		}{{in, &l.in}, {out, &l.out}} {
			d, err := ring.NewDescriptors(x.m.Bytes()[i*each:][:each], places*l.stride())
			if err != nil {
				return nil, err
			}
			*x.list = append(*x.list, d)
		}
	}
	l.payload, l.sums = payload.Bytes(), make([]uint64, places)
	noise := rand.New(rand.NewPCG(1, size))
	for i := range l.sums {
		b := l.payload[uint64(i)*l.stride():][:size]
		for j := range b {
			b[j] = byte(noise.Uint32())
			l.sums[i] += uint64(b[j])
		}
	}
	o := gpu.ResidentOptions{Name: "bench feed", Mode: mode, Grid: gpu.Grid{Groups: groups, Group: items}}
	l.r, err = p.c.NewResident(p.k, o, gpu.Buffer(in.All()), gpu.Buffer(out.All()), gpu.U32(uint32(depth)),
		gpu.U32(rings), gpu.Buffer(payload.All()), gpu.U64(places*l.stride()),
		gpu.Buffer(rows.All()), gpu.U64(row), gpu.Buffer(weights.All()), gpu.U64(0), gpu.U64(0))
	if err != nil {
		return nil, err
	}
	return l, l.r.Start()
}

func (l *line) close() error {
	var errs []error
	if l.r != nil {
		errs = append(errs, l.r.Close(context.Background()))
	}
	for _, m := range l.mems {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// parts are lines for one goroutine each, with some of the rings of l.
func (l *line) parts(n int) []*line {
	parts := make([]*line, n)
	for i := range parts {
		p := *l
		p.in, p.out, p.next, p.first, p.sent, p.got = l.in[i*len(l.in)/n:(i+1)*len(l.in)/n],
			l.out[i*len(l.out)/n:(i+1)*len(l.out)/n], 0, 0, 0, 0
		parts[i] = &p
	}
	return parts
}

// full keeps the rings full for a time, by as many goroutines as feed them.
func (l *line) full(ctx context.Context, budget time.Duration, feeders int) (sample paired.Sample, err error) {
	parts := l.parts(min(feeders, len(l.in)))
	samples, errs := make([]paired.Sample, len(parts)), make([]error, len(parts))
	var wg sync.WaitGroup
	for i, p := range parts {
		wg.Go(func() { samples[i], errs[i] = p.flow(ctx, budget, math.MaxUint64, false) })
	}
	wg.Wait()
	for _, s := range samples {
		sample.Value += s.Value
		sample.Verified += s.Verified
	}
	return sample, errors.Join(errs...)
}

// publish puts up to n packets, at most 32, into the next ring that has room, and announces them.
func (l *line) publish(n int) error {
	n = min(n, len(l.buf))
	for range l.in {
		for i := range n {
			tag := l.sent + uint64(i)
			l.buf[i] = ring.Desc{Off: tag % uint64(len(l.sums)) * l.stride(), Len: l.size, Tag: tag}
		}
		k, err := l.in[l.next].Publish(l.buf[:n])
		l.next = (l.next + 1) % len(l.in)
		if err != nil {
			return err
		}
		if k > 0 {
			l.sent += uint64(k)
			l.r.Ring()
			return nil
		}
	}
	return nil
}

// collect takes answers that are there, of one ring at least, and checks them.
func (l *line) collect() error {
	before := l.got
	for i := 0; i < len(l.out) && l.got-before < uint64(len(l.buf)); i++ {
		r := l.out[l.first]
		l.first = (l.first + 1) % len(l.out)
		t, n, err := r.Claim(l.buf[:])
		if err != nil {
			return err
		}
		for _, d := range l.buf[:n] {
			if want := l.sums[d.Tag%uint64(len(l.sums))]; d.Tag >= l.sent || d.Value != want || d.Len != l.size {
				return fmt.Errorf("%w: packet %d of %d came back with %d bytes and the sum %d: expected %d and %d",
					paired.ErrFailed, d.Tag, l.sent, d.Len, d.Value, l.size, want)
			}
		}
		if n > 0 {
			if l.each != nil {
				for _, d := range l.buf[:n] {
					l.each(d.Tag)
				}
			}
			r.Release(t, n)
			l.got += uint64(n)
		}
	}
	if l.got == before {
		if err := l.r.Err(); err != nil {
			return err
		}
		runtime.Gosched() // the kernel needs a processor, too, where it runs on one
	}
	return nil
}

// flow sends for a time, with as much under way as the rings hold and at most most packets, and
// takes all answers. With bursts it sends a burst of most packets when all of the one before have
// come.
func (l *line) flow(ctx context.Context, budget time.Duration, most uint64, bursts bool) (sample paired.Sample,
	err error) {
	from, began := l.got, time.Now()
	for time.Since(began) < budget {
		if err := ctx.Err(); err != nil {
			return sample, err
		}
		if bursts {
			for want := l.sent + most; l.sent < want; {
				err = errors.Join(err, l.publish(int(want-l.sent)))
				if err != nil {
					return sample, err
				}
				if l.sent < want {
					err = l.collect()
				}
			}
			err = errors.Join(err, l.drain(ctx))
		} else {
			if free := most - (l.sent - l.got); free > 0 {
				err = l.publish(int(min(free, uint64(len(l.buf)))))
			}
			err = errors.Join(err, l.collect())
		}
		if err != nil {
			return sample, err
		}
	}
	if err := l.drain(ctx); err != nil {
		return sample, err
	}
	n := l.got - from
	return paired.Sample{Value: float64(n) / float64(time.Since(began)) * 1e3, Verified: n * l.size}, nil
}

// drain takes answers until all are there.
func (l *line) drain(ctx context.Context) error {
	for l.got < l.sent {
		if err := errors.Join(l.collect(), ctx.Err()); err != nil {
			return err
		}
	}
	return nil
}

// groups is a number of work-items as groups and items of one; the groups are at most those that
// fit, and then it is false.
func (p *place) groups(threads int) (groups, items uint32, all bool) {
	items = min(p.most, uint32(threads))
	groups = uint32(threads) / items
	return min(groups, max(1, p.limit)), items, groups <= p.limit
}

// stays says why the device has no persistent kernel; nil where it has.
func (p *place) stays() error {
	caps := &p.c.Info().Capabilities
	return errors.Join(caps.Check(driver.CapResident), caps.Check(driver.CapSharedAtomics))
}
