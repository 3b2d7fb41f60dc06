package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/cuda"
)

type module struct {
	m       *cuda.Module
	program *driver.Program
	units   int // multiprocessors
}

// Load takes the newest form that runs here: by architecture, and among those that the device runs
// the first whose PTX the driver reads.
func (c *cudaContext) Load(p *driver.Program) (driver.Module, error) {
	var sm int
	if _, err := fmt.Sscanf(c.info.Arch, "sm_%d", &sm); err != nil {
		return nil, fmt.Errorf("%w: the device's architecture is %q", driver.ErrDriver, c.info.Arch)
	}
	forms := slices.DeleteFunc(slices.Clone(p.PTX), func(x driver.PTX) bool { return x.SM > sm })
	slices.SortStableFunc(forms, func(a, b driver.PTX) int {
		return cmp.Or(cmp.Compare(b.SM, a.SM), cmp.Compare(b.Version, a.Version))
	})
	if len(forms) == 0 {
		var has []string
		for _, x := range p.PTX {
			has = append(has, fmt.Sprintf("sm_%d", x.SM))
		}
		return nil, &driver.Error{Kind: driver.ErrArch, Op: "load",
			Text: fmt.Sprintf("the program has PTX for %v, and the device is %s", has, c.info.Arch),
			Hint: "compile it for an older architecture"}
	}
	var refused error
	for _, x := range forms {
		m, _, err := c.c.Load([]byte(x.Text))
		switch {
		case err == nil:
			return &module{m, p, c.info.Units}, nil
		case errors.Is(err, cuda.ErrDriver) || errors.Is(err, cuda.ErrArch):
			// An older form may do.
			if refused == nil {
				refused = explain(err, fmt.Sprintf("PTX %d.%d for sm_%d", x.Version/10, x.Version%10, x.SM), "")
			}
		default:
			return nil, translate(err)
		}
	}
	// To the program's user it is one thing, whatever the driver said: no form fits. The driver's
	// word comes along.
	return nil, fmt.Errorf("%w: %w", driver.ErrArch, refused)
}

func (m *module) Close() error { return translate(m.m.Close()) }

type kernel struct {
	f     *cuda.Function
	sig   *driver.Signature
	units int // multiprocessors
}

func (m *module) Kernel(i int) (driver.Kernel, error) {
	sig := &m.program.Kernels[i]
	f, err := m.m.Function(sig.Name)
	if err != nil {
		return nil, translate(err)
	}
	return &kernel{f, sig, m.units}, nil
}

// Occupancy implements driver.Occupancy.
func (k *kernel) Occupancy(group uint32) (uint32, error) {
	n, err := k.f.BlocksPerMultiprocessor(int(group), 0)
	return uint32(n * k.units), translate(err)
}

type call struct{ l *cuda.Launch }

func (k *kernel) Prepare(args []driver.Arg) (driver.Call, error) {
	sizes := make([]int, len(args))
	for i, p := range k.sig.Params {
		sizes[i] = p.Type.Size()
	}
	l, err := k.f.NewLaunch(sizes...)
	if err != nil {
		return nil, translate(err)
	}
	c := &call{l}
	for i, a := range args {
		c.set(i, a)
	}
	return c, nil
}

func (c *call) set(i int, a driver.Arg) {
	if a.Type == driver.Buffer {
		a.Bits = uint64(a.Mem.(*memory).addr) + a.Off
	}
	c.l.Set(i, a.Bits)
}

func (c *call) Set(i int, a driver.Arg) error {
	c.set(i, a)
	return nil
}

func (c *call) Close() error {
	c.l.Close()
	return nil
}
