package cli

import (
	"context"
	"errors"

	"github.com/penstock-io/penstock/internal/accel"
	"github.com/penstock-io/penstock/mem"
)

// demoMemory is where a process of the demo takes memory from.
type demoMemory struct {
	memory string             // as on the command line
	a      *accel.Accelerator // nil with host memory
}

func openDemoMemory(memory string, gpu gpuFlags) (g demoMemory, err error) {
	if err := gpu.check(); err != nil {
		return g, err
	}
	g.memory = memory
	if k, err := memoryKind(memory); err != nil || k == mem.Host {
		return g, err
	}
	g.a, err = accel.Open(accel.Options{Runtime: gpu.name(), Device: gpu.device})
	return g, err
}

// String says whose memory it is, and what it was taken instead of; "" for the host's.
func (g demoMemory) String() string {
	if g.a == nil {
		return ""
	}
	return g.a.String()
}

// names are those of the receiver's exports, which say what memory they are: what was asked for,
// and the host's to compare it with.
func (g demoMemory) names() []string {
	if g.a == nil {
		return []string{g.memory}
	}
	return []string{g.memory, "host"}
}

// alloc makes memory of the kind that an export's name says.
func (g demoMemory) alloc(name, what string, size uint64) (*mem.Region, error) {
	k, err := memoryKind(name)
	if err != nil {
		return nil, err
	}
	size = max(size, 1)
	if k == mem.Host {
		return mem.Alloc(mem.Options{Name: what, Size: int(size)})
	}
	return g.a.Alloc(what, k, int(size))
}

func (g demoMemory) close() error {
	if g.a == nil {
		return nil
	}
	return g.a.Close()
}

// sources fills the memory here with the tensors. release gives it back, also after an error.
func (d *demo) sources(ctx context.Context) (release func() error, err error) {
	var mine []*mem.Region
	release = func() (err error) {
		for _, r := range mine {
			err = errors.Join(err, r.Close())
		}
		return err
	}
	host, err := d.m.region()
	if err != nil {
		return release, err
	}
	if d.m.file == nil {
		mine = append(mine, host)
	}
	for _, name := range d.backing.names() {
		src := host
		if name != "host" {
			if src, err = d.backing.alloc(name, "demo source", host.Len()); err != nil {
				return release, err
			}
			mine = append(mine, src)
			b := host.All().Bytes()
			err = accel.Write(ctx, mem.Span{Region: src, Len: host.Len()}, func(p []byte, off uint64) error {
				copy(p, b[off:])
				return nil
			})
			if err != nil {
				return release, err
			}
		}
		d.sides = append(d.sides, demoSide{name: name, src: src})
	}
	return release, nil
}

// scribble overwrites memory with what no tensor is.
func scribble(ctx context.Context, r *mem.Region) error {
	return accel.Write(ctx, r.All(), func(b []byte, _ uint64) error {
		for i := range b {
			b[i] = 0xEE
		}
		return nil
	})
}
