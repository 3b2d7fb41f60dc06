package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// unknownPrior is for drivers that have no prior of their own.
var unknownPrior = path.Cost{Latency: 50 * time.Microsecond, BytesPerSec: 1e9}

const excludedByCaller = "the caller excluded it"

// candidates lists every path of the node for a transfer of n bytes to the exports given, the best
// usable one first. devices are the local regions that the CPU cannot reach.
func (p *Peer) candidates(n uint64, exports []path.Desc, allowed []string, floor path.Security,
	devices ...*mem.Region) []Candidate {
	out := p.survey(exports, allowed, floor, devices)
	rank(out, n)
	return out
}

// rank puts the candidates for a transfer of n bytes in order, the best usable one first. An
// explanation has them then, which keeps no channel.
func rank(cs []Candidate, n uint64) {
	for i := range cs {
		cs[i].ch = nil
		if cs[i].Cost != (path.Cost{}) {
			cs[i].Estimate = cs[i].Cost.Time(n)
		}
	}
	slices.SortStableFunc(cs, func(a, b Candidate) int {
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
}

// priorOf is what a path of a driver is taken to cost before it is set up.
func priorOf(t setup.Traits) path.Cost {
	if t.Prior == (path.Cost{}) {
		return unknownPrior
	}
	return t.Prior
}

// survey says of every path of the node whether it can be used, and what it is taken to cost.
func (p *Peer) survey(exports []path.Desc, allowed []string, floor path.Security,
	devices []*mem.Region) (out []Candidate) {
	now := clock()
	for _, d := range p.node.drivers {
		traits := d.Traits()
		c := Candidate{Path: d.Name(), Cost: priorOf(traits)}
		ch, err := p.openedChannel(c.Path)
		switch {
		case len(allowed) > 0 && !slices.Contains(allowed, c.Path):
			c.Reason = excludedByCaller
		case !slices.Contains(p.info.Paths, c.Path):
			c.Reason = "the peer does not have it"
		case traits.SameHost && !p.SameHost():
			c.Reason = "the peer is on another host (or in another network namespace)"
		case p.potential(traits) < floor:
			c.err = below(p.potential(traits), floor)
		case err != nil:
			c.err, c.again = err, true
		case p.cannotPace(traits) != nil:
			c.err = p.cannotPace(traits)
		case !traits.Devices && needsDevices(exports, devices):
			c.err = errNoDevices
		case ch != nil:
			c.ch, c.Cost, c.err = ch, ch.cost.Get(now), below(ch.caps.Security, floor)
			if err := ch.reaches(exports, devices); err != nil {
				c.Reason = err.Error()
			}
		case traits.Whole && slices.ContainsFunc(exports, func(e path.Desc) bool { return !e.Whole }):
			c.Reason = "the export is adopted memory, such as a served file, or a part of a region, of which this " +
				"path would hand over the whole (ExportOptions.WholeRegion permits that)"
		}
		if c.err != nil {
			c.Reason = c.err.Error()
		}
		if c.Usable = c.Reason == ""; c.Usable {
			c.Reason = basis(c.Cost)
		}
		out = append(out, c)
	}
	for _, c := range p.node.missing {
		if len(allowed) > 0 && !slices.Contains(allowed, c.Path) {
			c.Reason, c.err = excludedByCaller, nil
		}
		out = append(out, c)
	}
	return out
}

// basis is what the estimate for a path that can be used is based on.
func basis(c path.Cost) string {
	if c.Measured {
		return "measured"
	}
	return "prior"
}

// errNoDevices is why most paths are not taken for memory of devices.
var errNoDevices = fmt.Errorf("it cannot reach memory of a device: %w", path.ErrUnreachable)

// needsDevices reports whether a path has to reach memory of devices by itself.
func needsDevices(exports []path.Desc, devices []*mem.Region) bool {
	return len(devices) > 0 || slices.ContainsFunc(exports, func(e path.Desc) bool { return e.Device })
}

// reaches says whether the channel's path gets at exports of the peer, and at local regions that
// the CPU cannot reach.
func (ch *channel) reaches(exports []path.Desc, devices []*mem.Region) error {
	d, ok := ch.p.(path.DeviceReacher)
	if !ok && needsDevices(exports, devices) {
		return errNoDevices
	}
	var errs []error
	for _, e := range exports {
		if e.Device {
			errs = append(errs, d.ReachesDevice(e))
		} else if err := ch.p.Reaches(e); err != nil {
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

// choose returns the channel to take, opening paths as needed, and records in the transfer why.
func (p *Peer) choose(ctx context.Context, t *Transfer, exports []path.Desc, allowed []string) (*channel, error) {
	cs := p.candidates(t.bytes, exports, allowed, t.floor, t.devices...)
	t.avoidLast(cs)
	ch, i, err := p.pick(ctx, cs, exports, t.floor, t.devices)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		t.mu.Lock()
		t.chosen, t.explain.more().Candidates = chosen{}, cs
		t.mu.Unlock()
		return nil, err
	}
	t.recordChoice(ch, cs, i)
	return ch, nil
}

// pick returns the channel of the first candidate that is usable and can be set up, and which one
// that is. It notes in the candidates before it why they are not. When it finds none its error says
// what failed, or if nothing was tried why not, for each.
func (p *Peer) pick(ctx context.Context, cs []Candidate, exports []path.Desc, floor path.Security,
	devices []*mem.Region) (*channel, int, error) {
	// failed: without what cannot be here or between these two, which is no news where another one
	// failed
	var all, failed []error
	tried := false
	for i := range cs {
		c := &cs[i]
		if !c.Usable {
			never := !c.again && (c.err == nil || errors.Is(c.err, path.ErrUnavailable))
			if c.err == nil {
				c.err = errors.New(c.Reason)
			}
			all = append(all, fmt.Errorf("%s: %w", c.Path, c.err))
			if !never {
				failed = append(failed, all[len(all)-1])
			}
			tried = tried || c.again
			continue
		}
		ch, err := p.channel(ctx, c.Path)
		if err == nil {
			err = errors.Join(below(ch.caps.Security, floor), ch.reaches(exports, devices))
		}
		if ctx.Err() != nil {
			return nil, 0, endOf(ctx)
		}
		if err == nil {
			return ch, i, nil
		}
		c.Usable, c.Reason = false, err.Error()
		failed, tried = append(failed, fmt.Errorf("%s: %w", c.Path, err)), true
	}
	if tried {
		all = failed
	}
	return nil, 0, fmt.Errorf("transfer: no path to %s: %w", p,
		errors.Join(append([]error{path.ErrUnavailable}, all...)...))
}

func (t *Transfer) recordChoice(ch *channel, cs []Candidate, at int) {
	switch {
	case t.reach == reachCarried && t.tries == 0: // only its notification goes this way
		return
	case t.part != nil:
		defer t.part.chose(t, ch, cs, at) // runs last
	default:
		t.rerouted(cs[at].Path, at)
	}
	caps := ch.caps
	t.mu.Lock()
	defer t.mu.Unlock()
	t.chosen, t.explain.Path = chosen{}, cs[at].Path
	e := t.explain.more()
	e.Candidates = cs
	e.Security, e.Floor = caps.Security, t.floor
	e.UserCopies, e.KernelCopies = caps.UserCopies, caps.KernelCopies
	usable, why := reason(cs)
	switch {
	case usable == 1:
		e.Why = why
	case len(t.explain.Failovers) > 0 && t.avoids(cs[at].Path):
		e.Why = "it went down under this transfer, and there is no other"
	case len(t.explain.Failovers) > 0:
		e.Why = "another one went down under this transfer"
	case at > 0:
		e.Why = "the faster ones could not be set up"
	default:
		e.Why = why
	}
}

// reason is why the first of the candidates is taken, and how many can be.
func reason(cs []Candidate) (usable int, why string) {
	excluded := 0
	for i := range cs {
		if cs[i].Usable {
			usable++
		} else if cs[i].Reason == excludedByCaller {
			excluded++
		}
	}
	switch {
	case usable == 1 && excluded > 0:
		return usable, "the caller asked for it"
	case usable == 1:
		return usable, "the only path that reaches this memory"
	}
	return usable, "lowest expected time for this size"
}
