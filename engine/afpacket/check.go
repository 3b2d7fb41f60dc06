package afpacket

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/netif"
	"github.com/penstock-io/penstock/flow"
)

var (
	_ engine.PortChecker   = (*Engine)(nil)
	_ engine.RuleDescriber = (*Engine)(nil)
)

// CheckPort implements engine.PortChecker. Ports on one interface each get all packets, so that they hold nothing.
func (e *Engine) CheckPort(ctx context.Context, spec engine.PortSpec) (holds string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	a, _, err := settle(spec)
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

// RuleCapabilities implements engine.RuleDescriber.
func (*Engine) RuleCapabilities(engine.PortSpec) flow.Capabilities {
	can := flow.Software
	can.Engine, can.Queues = "packet sockets", maxQueues
	return can
}
