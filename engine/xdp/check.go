package xdp

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/netif"
	"github.com/penstock-io/penstock/engine/xdp/prog"
	"github.com/penstock-io/penstock/flow"
	"github.com/penstock-io/penstock/mem"
)

var (
	_ engine.PortChecker   = (*Engine)(nil)
	_ engine.QueueChecker  = (*Engine)(nil)
	_ engine.RuleDescriber = (*Engine)(nil)
)

// CheckPort implements engine.PortChecker. A port holds its interface: one XDP program is on it at a time.
func (e *Engine) CheckPort(ctx context.Context, spec engine.PortSpec) (holds string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	a, o, err := settle(spec)
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
		return nil, fmt.Errorf("xdp: queue %d of %s: expected 0 to %d, those that it has: \"ethtool -L\" changes their number: %w", last, link.Name(), n-1, engine.ErrInvalid)
	}
	return o.Queues, nil
}

// CheckRxQueue implements engine.QueueChecker.
func (*Engine) CheckRxQueue(port engine.PortSpec, _ engine.RxSpec, pools []engine.PoolSpec) error {
	_, o, err := settle(port)
	if err == nil && len(pools) > 0 {
		err = o.checkMemory(pools[len(pools)-1])
	}
	if err != nil {
		return fmt.Errorf("xdp: receive queue of %s: %w", port.Name, err)
	}
	return nil
}

// CheckTxQueue implements engine.QueueChecker.
func (*Engine) CheckTxQueue(port engine.PortSpec, _ engine.TxSpec, pools []engine.PoolSpec) error {
	_, o, err := settle(port)
	for _, pool := range pools {
		if err == nil {
			err = o.checkMemory(pool)
		}
	}
	if err != nil {
		return fmt.Errorf("xdp: transmit queue of %s: %w", port.Name, err)
	}
	return nil
}

// checkMemory says whether packets can be in such slots: without spare chunks in those alone that the kernel uses in place.
func (o *Options) checkMemory(p engine.PoolSpec) error {
	if o.Spare >= 0 || isChunk(p.Stride) && p.Kind != mem.Device {
		return nil
	}
	return fmt.Errorf("pool %q: its slots are %d bytes apart in memory of kind %v: without spare chunks (Options.Spare) expected 2048 or 4096 bytes of memory that the kernel reaches: %w",
		p.Name, p.Stride, p.Kind, engine.ErrUnsupported)
}

// RuleCapabilities implements engine.RuleDescriber.
func (*Engine) RuleCapabilities(engine.PortSpec) flow.Capabilities {
	can := prog.Capabilities
	can.Queues = maxQueues
	return can
}
