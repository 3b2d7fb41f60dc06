package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/path"
)

// unknownPrior is for drivers that have no prior of their own.
var unknownPrior = path.Cost{Latency: 50 * time.Microsecond, BytesPerSec: 1e9}

// costModel is what a lane has achieved: the path's own measurement at set-up, then a moving average of real transfers.
type costModel struct {
	base    path.Cost
	latency float64   // ns; 0: nothing observed
	rate    float64   // bytes/s; 0: nothing observed
	at      time.Time // of the last observation
}

const (
	latencyMax = 4 << 10 // transfers up to this size tell the latency
	rateMin    = 1 << 20 // transfers from this size on tell the rate
	weight     = 0.25    // of a new observation
	outlier    = 4       // a single observation counts as at most so many times better or worse than what was known
	// forget is how long observations count. A path that lost by them is not taken, and so not observed, until then.
	forget = 10 * time.Second
)

// observe learns from a transfer of n bytes that had the path for itself and took d. The first transfers pay for mapping the
// memory on both sides, and any may meet a busy machine: so one of them moves what is known only a little.
func (c *costModel) observe(n uint64, d time.Duration, now time.Time) {
	if d <= 0 {
		return
	}
	c.stale(now)
	mix := func(old *float64, base, x float64) {
		if *old == 0 {
			*old = base
		}
		if *old <= 0 {
			*old = x
			return
		}
		*old += weight * (min(max(x, *old/outlier), *old*outlier) - *old)
	}
	switch {
	case n <= latencyMax:
		mix(&c.latency, float64(c.base.Latency), float64(d))
		c.at = now
	case n >= rateMin:
		mix(&c.rate, c.base.BytesPerSec, float64(n)/d.Seconds())
		c.at = now
	}
}

func (c *costModel) stale(now time.Time) {
	if now.Sub(c.at) > forget {
		c.latency, c.rate = 0, 0
	}
}

// get returns the best that is known: what was observed, else what the path measured, else the prior.
func (c *costModel) get(prior path.Cost, now time.Time) path.Cost {
	c.stale(now)
	r := c.base
	if r.Latency <= 0 {
		r.Latency = prior.Latency
	}
	if r.BytesPerSec <= 0 {
		r.BytesPerSec = prior.BytesPerSec
	}
	if c.latency > 0 {
		r.Latency, r.Measured = time.Duration(c.latency), true
	}
	if c.rate > 0 {
		r.BytesPerSec, r.Measured = c.rate, true
	}
	return r
}

// costs is the cost model of a lane. It has a mutex of its own, so that a choice of a path does not wait for the lane's owner.
type costs struct {
	mu sync.Mutex
	costModel
}

func (c *costs) observe(n uint64, d time.Duration, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.costModel.observe(n, d, now)
}

func (c *costs) get(prior path.Cost, now time.Time) path.Cost {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.costModel.get(prior, now)
}

// product is twice the bytes that are on their way at a time when the path is full.
func (c *costs) product() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return uint64(2 * c.base.Latency.Seconds() * max(c.base.BytesPerSec, c.rate))
}

// Reasons that are set for every transfer.
const (
	excludedByCaller = "the caller excluded it"
	prior            = "prior"
	measured         = "measured"
)

// candidates lists every path of the node for a transfer of n bytes to the exports given, the best usable one first.
// They are appended to out.
// devices are the local regions that the CPU cannot reach.
func (p *Peer) candidates(out []Candidate, n uint64, exports []path.Desc, allowed []string, floor path.Security, devices ...*mem.Region) []Candidate {
	for _, d := range p.node.drivers {
		c := Candidate{Path: d.Name()}
		traits := d.Traits()
		cost := traits.Prior
		if cost == (path.Cost{}) {
			cost = unknownPrior
		}
		c.Usable, c.Reason = true, prior
		ln, err := p.openedLane(c.Path)
		switch {
		case len(allowed) > 0 && !slices.Contains(allowed, c.Path):
			c.Usable, c.Reason = false, excludedByCaller
		case !slices.Contains(p.info.Paths, c.Path):
			c.Usable, c.Reason = false, "the peer does not have it"
		case traits.SameHost && !p.SameHost():
			c.Usable, c.Reason = false, "the peer is on another host (or in another network namespace)"
		case p.potential(traits) < floor:
			c.err = below(p.potential(traits), floor)
			c.Usable, c.Reason = false, c.err.Error()
		case err != nil:
			c.Usable, c.Reason, c.err = false, err.Error(), err
		case traits.Whole && p.limits.paced():
			c.err = p.limits.cannotPace(traits)
			c.Usable, c.Reason = false, c.err.Error()
		case !traits.Devices && needsDevices(exports, devices):
			c.Usable, c.Reason, c.err = false, errNoDevices.Error(), errNoDevices
		case ln != nil:
			cost = ln.cost.get(cost, time.Now())
			if c.err = below(ln.caps.Security, floor); c.err != nil {
				c.Usable, c.Reason = false, c.err.Error()
			}
			if err := ln.reaches(exports, devices); err != nil {
				c.Usable, c.Reason = false, err.Error()
			}
			if c.Usable && cost.Measured {
				c.Reason = measured
			}
		case traits.Whole:
			for _, e := range exports {
				if !e.Whole {
					c.Usable, c.Reason = false, "the export is part of a region, and this path would hand over the whole of it"
				}
			}
		}
		c.Cost, c.Estimate = cost, cost.Time(n)
		out = append(out, c)
	}
	for _, c := range p.node.missing {
		if len(allowed) > 0 && !slices.Contains(allowed, c.Path) {
			c.Reason, c.err = excludedByCaller, nil
		}
		out = append(out, c)
	}
	slices.SortStableFunc(out, func(a, b Candidate) int {
		switch {
		case a.Usable != b.Usable && a.Usable:
			return -1
		case a.Usable != b.Usable:
			return 1
		case !a.Usable:
			return 0
		}
		return cmp.Compare(a.Estimate, b.Estimate)
	})
	return out
}

// errNoDevices is why most paths are not taken for memory of devices.
var errNoDevices = fmt.Errorf("it cannot reach memory of a device: %w", path.ErrUnreachable)

// needsDevices reports whether a path has to reach memory of devices by itself.
func needsDevices(exports []path.Desc, devices []*mem.Region) bool {
	return len(devices) > 0 || slices.ContainsFunc(exports, func(e path.Desc) bool { return e.Device })
}

// reaches says whether the lane's path gets at exports of the peer, and at local regions that the CPU cannot reach.
func (l *lane) reaches(exports []path.Desc, devices []*mem.Region) error {
	d, ok := l.p.(path.DeviceReacher)
	if !ok && needsDevices(exports, devices) {
		return errNoDevices
	}
	var errs []error
	for _, e := range exports {
		if e.Device {
			errs = append(errs, d.ReachesDevice(e))
		} else if err := l.p.Reaches(e); err != nil {
			errs = append(errs, err)
		}
	}
	for _, r := range devices {
		errs = append(errs, d.ReachesRegion(r))
	}
	return errors.Join(errs...)
}

// below is the error of a path that gives less security than is asked for.
func below(have, floor path.Security) error {
	if have >= floor {
		return nil
	}
	return fmt.Errorf("its security is %q, at least %q is asked for: %w", have, floor, ErrSecurity)
}

// choose returns the lane to take, opening paths as needed, and records in the transfer why.
func (p *Peer) choose(ctx context.Context, t *Transfer, exports []path.Desc, allowed []string) (*lane, error) {
	cs := p.candidates(t.candidates[:0], t.bytes, exports, allowed, t.floor, t.devices...)
	t.avoidLast(cs)
	ln, i, err := p.pick(ctx, cs, exports, t.floor, t.devices)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		t.mu.Lock()
		t.explain.Candidates = cs
		t.mu.Unlock()
		return nil, err
	}
	t.recordChoice(ln, cs, i)
	return ln, nil
}

// pick returns the lane of the first candidate that is usable and can be set up, and which one that is. It notes in the candidates before it
// why they are not; when it finds none, its error says so for each.
func (p *Peer) pick(ctx context.Context, cs []Candidate, exports []path.Desc, floor path.Security, devices []*mem.Region) (*lane, int, error) {
	var tried []error
	for i := range cs {
		c := &cs[i]
		if !c.Usable {
			if c.err == nil {
				c.err = errors.New(c.Reason)
			}
			tried = append(tried, fmt.Errorf("%s: %w", c.Path, c.err))
			continue
		}
		ln, err := p.lane(ctx, c.Path)
		if err == nil {
			err = errors.Join(below(ln.caps.Security, floor), ln.reaches(exports, devices))
		}
		if ctx.Err() != nil {
			return nil, 0, endOf(ctx)
		}
		if err == nil {
			return ln, i, nil
		}
		c.Usable, c.Reason = false, err.Error()
		tried = append(tried, fmt.Errorf("%s: %w", c.Path, err))
	}
	return nil, 0, fmt.Errorf("transfer: no path to %s: %w", p, errors.Join(append([]error{path.ErrUnavailable}, tried...)...))
}

func (t *Transfer) recordChoice(ln *lane, cs []Candidate, chosen int) {
	switch {
	case t.carried && t.tries == 0: // only its notification goes this way
		return
	case t.part != nil:
		defer t.part.chose(t, ln, cs, chosen) // runs last
	default:
		t.peer.transferPath(t, cs[chosen].Path, chosen)
	}
	caps := ln.caps
	t.mu.Lock()
	defer t.mu.Unlock()
	e := &t.explain
	e.Path, e.Candidates = cs[chosen].Path, cs
	e.Security, e.Floor = caps.Security, t.floor
	e.UserCopies, e.KernelCopies = caps.UserCopies, caps.KernelCopies
	usable, excluded := 0, 0
	for _, c := range cs {
		if c.Usable {
			usable++
		} else if c.Reason == excludedByCaller {
			excluded++
		}
	}
	switch {
	case usable == 1 && excluded > 0:
		e.Why = "the caller asked for it"
	case usable == 1:
		e.Why = "the only path that reaches this memory"
	case len(e.Failovers) > 0 && t.avoids(e.Path):
		e.Why = "it went down under this transfer, and there is no other"
	case len(e.Failovers) > 0:
		e.Why = "another one went down under this transfer"
	case chosen > 0:
		e.Why = "the faster ones could not be set up"
	default:
		e.Why = "lowest expected time for this size"
	}
}
