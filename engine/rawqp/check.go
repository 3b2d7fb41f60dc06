package rawqp

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/netif"
	"github.com/penstock-io/penstock/packet/flow"
)

// PortCapabilities implements engine.Checker.
func (*Engine) PortCapabilities(spec engine.PortSpec) (engine.Capabilities, error) {
	_, _, err := resolve(spec)
	return capabilities(&spec), err
}

func capabilities(spec *engine.PortSpec) engine.Capabilities {
	can := flow.Software
	can.Engine, can.Queues, can.Tunnels = "raw packet queue pairs", maxQueues, nil
	can.Actions = flow.ActionKinds(flow.ToQueue, flow.RSS, flow.Drop)
	if spec.Isolated {
		can.Engine = "an isolated port of raw packet queue pairs, which takes from the kernel only what the card can " +
			"tell apart,"
		can.Fields, can.FlexOffset = cardFields, 0
	}
	c := (*Engine)(nil).Capabilities()
	c.Steering = &can
	return c
}

// CheckPort implements engine.Checker: it asks the device for a queue pair of raw packets.
func (e *Engine) CheckPort(ctx context.Context, spec engine.PortSpec) (holds string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	a, o, err := resolve(spec)
	if err != nil {
		return "", err
	}
	dev, netdev, err := e.find(a.Where, &o)
	if err != nil {
		return "", err
	}
	err = able(dev, o.Port)
	if err == nil && netdev != "" {
		var link *netif.Interface
		if link, err = netif.Open(netdev, spec.MTU); err != nil {
			err = fmt.Errorf("verbs: %w", err)
		} else {
			err = link.Close()
		}
	}
	return "", errors.Join(err, dev.Close())
}
