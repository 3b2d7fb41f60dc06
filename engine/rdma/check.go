package rdma

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock/engine"
)

// PortCapabilities implements engine.Checker.
func (*Engine) PortCapabilities(spec engine.PortSpec) (engine.Capabilities, error) {
	_, o, err := resolve(spec)
	return o.capabilities(), err
}

// capabilities are those of a port, as far as its options say.
func (o *Options) capabilities() engine.Capabilities {
	c := capabilities()
	c.ExactDrops = o.Transport == RC
	if o.Connect == ByCM {
		c.RxNeeded = "connect: cm: a queue pair that the connection manager connects has one"
		c.Lossless = o.Transport == RC // otherwise there are no credits
	}
	if o.Transport == UD {
		if c.MaxPacket = o.MTU; c.MaxPacket == 0 {
			c.MaxPacket = 4096 // no device has more
		}
	}
	return c
}

// CheckPort implements engine.Checker: it finds the device, and connects to nothing. A port that
// accepts holds what it listens on.
func (e *Engine) CheckPort(ctx context.Context, spec engine.PortSpec) (holds string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	a, o, err := resolve(spec)
	if err != nil {
		return "", err
	}
	if a.listen && a.local.Port() != 0 {
		holds = fmt.Sprintf("roce://%v", a.local)
	}
	p := &Port{a: a, o: o}
	dev, err := p.choose(e)
	if err != nil {
		return "", err
	}
	return holds, dev.Close()
}
