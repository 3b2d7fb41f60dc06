package xdp

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/netif"
	"github.com/penstock-io/penstock/engine/xdp/prog"
	"github.com/penstock-io/penstock/packet/flow"
)

// PortCapabilities implements engine.Checker.
func (*Engine) PortCapabilities(spec engine.PortSpec) (engine.Capabilities, error) {
	_, o, err := resolve(spec)
	return o.capabilities(), err
}

func (o *Options) capabilities() engine.Capabilities {
	can := prog.Capabilities
	can.Queues = maxQueues
	c := (*Engine)(nil).Capabilities()
	c.HardwareTime = o.HardwareTime
	c.Steering, c.RxDepth, c.RxDepthHint = &can, o.Ring, "ring makes the ring larger"
	if o.Spare < 0 && o.Memory == nil {
		c.Strides, c.PoolsWhy = Spec.Slots,
			"without spare chunks (Options.Spare) packets are in the port's memory alone"
	}
	return c
}

// CheckPort implements engine.Checker. A port holds its interface: one XDP program is on it at a
// time.
func (e *Engine) CheckPort(ctx context.Context, spec engine.PortSpec) (holds string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	a, o, err := resolve(spec)
	if err != nil {
		return "", err
	}
	if err := e.Available(); err != nil {
		return "", err
	}
	link, err := netif.Open(a.Where, spec.MTU)
	if err != nil {
		return "", fmt.Errorf("xdp: %w", err)
	}
	_, err = o.queuesOf(link)
	return "interface " + link.Name(), errors.Join(err, link.Close())
}

// PortNotes implements engine.Noter.
func (*Engine) PortNotes(spec engine.PortSpec, rules []flow.Rule) (notes []string) {
	a, _, err := resolve(spec)
	if err != nil {
		return nil
	}
	if n := prog.TakenTags(a.Where, rules); n != "" {
		notes = append(notes, n)
	}
	return notes
}

// queuesOf are the queues of an interface to use.
func (o *Options) queuesOf(link *netif.Interface) (queues []int, err error) {
	n := link.RxQueues()
	if o.Queues == nil {
		for i := range max(n, 1) {
			queues = append(queues, i)
		}
		return queues, nil
	}
	if last := o.Queues[len(o.Queues)-1]; n > 0 && last >= n {
		return nil, fmt.Errorf("xdp: queue %d of %s: expected 0 to %d, those that it has: \"ethtool -L\" changes "+
			"their number: %w", last, link.Name(), n-1, engine.ErrInvalid)
	}
	return o.Queues, nil
}
