package verbs

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibvmem"
	"github.com/penstock-io/penstock/mem"
)

// registered is the registration of a region at the port's device, made if there is none. Any goroutine may ask.
func (p *Port) registered(r *mem.Region) (*ibvmem.Registration, error) {
	x, err := p.regs.Find(r)
	if err != nil {
		return nil, refused(err)
	}
	return x, nil
}

// refused makes an error of the engine of why memory cannot be registered.
func refused(err error) error {
	kind := engine.ErrUnavailable
	if errors.Is(err, ibvmem.ErrNoWay) {
		kind = engine.ErrUnsupported
	}
	return fmt.Errorf("verbs: %w: %w", kind, err)
}
