package rdma

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock/engine"
)

var _ engine.PortChecker = (*Engine)(nil)

// CheckPort implements engine.PortChecker: it finds the device, and connects to nothing. A port that accepts holds what it listens on.
func (e *Engine) CheckPort(ctx context.Context, spec engine.PortSpec) (holds string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	a, o, err := settle(spec)
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
