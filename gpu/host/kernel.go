package host

import "github.com/penstock-io/penstock/gpu/driver"

type module struct {
	ctx  *hostContext
	prog *driver.Program
}

func (c *hostContext) Load(p *driver.Program) (driver.Module, error) {
	if p.Go == nil {
		return nil, &driver.Error{Kind: driver.ErrArch, Op: "load", Text: "the program has no kernels in Go",
			Hint: "use a runtime that takes its other forms"}
	}
	return &module{c, p}, c.err()
}

func (m *module) Kernel(i int) (driver.Kernel, error) {
	sig := &m.prog.Kernels[i]
	return &kernel{m.ctx, sig.Name, m.prog.Go[sig.Name]}, nil
}

func (m *module) Close() error { return nil }

type kernel struct {
	ctx  *hostContext
	name string
	f    driver.GoFunc
}

// Occupancy implements driver.Occupancy. A group in Go is one goroutine, whatever its items are
// (driver.Groups).
func (k *kernel) Occupancy(uint32) (uint32, error) { return occupancy, k.ctx.err() }

func (k *kernel) Prepare(args []driver.Arg) (driver.Call, error) {
	c := &call{kernel: k, args: make([]driver.GoArg, len(args))}
	for i, a := range args {
		c.args[i] = argument(a)
	}
	return c, nil
}

func argument(a driver.Arg) driver.GoArg {
	if a.Type != driver.Buffer {
		return driver.GoArg{Bits: a.Bits}
	}
	end := a.Off + a.Len
	return driver.GoArg{Bytes: a.Mem.(*memory).data[a.Off:end:end]}
}

type call struct {
	kernel *kernel
	args   []driver.GoArg
}

func (c *call) Set(i int, a driver.Arg) error {
	c.args[i] = argument(a)
	return nil
}

func (c *call) Close() error { return nil }
