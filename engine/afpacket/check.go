package afpacket

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/netif"
	"github.com/penstock-io/penstock/packet/flow"
)

// PortCapabilities implements engine.Checker.
func (*Engine) PortCapabilities(spec engine.PortSpec) (engine.Capabilities, error) {
	_, o, err := resolve(spec)
	return o.capabilities(), err
}

func (o *Options) capabilities() engine.Capabilities {
	can := flow.Software
	can.Engine, can.Queues = "packet sockets", maxQueues
	c := (*Engine)(nil).Capabilities()
	if o.Direction != DirectionIn {
		c.TxQueues = 0
	}
	c.Steering, c.RxDepth, c.RxDepthHint = &can, o.Frames, "frames makes the ring larger"
	return c
}

// CheckPort implements engine.Checker. Ports on one interface each get all packets, so that they
// hold nothing.
func (e *Engine) CheckPort(ctx context.Context, spec engine.PortSpec) (holds string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	a, _, err := resolve(spec)
	if err != nil {
		return "", err
	}
	if err := e.Available(); err != nil {
		return "", err
	}
	link, err := netif.Open(a.Where, spec.MTU)
	if err != nil {
		return "", fmt.Errorf("afpacket: %w", err)
	}
	return "", link.Close()
}
