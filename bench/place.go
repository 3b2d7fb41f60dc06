package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/accel"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor/synth"
)

// Place says what memory one side of a measurement uses. The zero value is host memory.
type Place struct {
	Kind mem.Kind `json:"kind,omitempty"` // mem.Host, mem.HostPinned or mem.Device
	// of the accelerator for the other two: "cuda", "opencl", "host"; "" is the best there is
	Runtime string `json:"runtime,omitempty"`
	Device  int    `json:"device,omitempty"` // its number in the runtime
}

func (p Place) check() error {
	if p.Kind != mem.Host && p.Kind != mem.HostPinned && p.Kind != mem.Device {
		return fmt.Errorf("%w: memory of kind %s: expected %s, %s or %s", ErrOptions, p.Kind, mem.Host, mem.HostPinned,
			mem.Device)
	}
	return nil
}

// memories is where a process of a benchmark takes memory from.
type memories struct{ a *accel.Accelerator }

// allocate makes memory at a place. The first that is not of the host opens the accelerator, which
// is the only one of its process.
func (g *memories) allocate(name string, size uint64, huge bool, p Place) (*mem.Region, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	if p.Kind == mem.Host {
		return Allocate(name, size, huge)
	}
	if g.a == nil {
		var err error
		if g.a, err = accel.Open(accel.Options{Runtime: p.Runtime, Device: p.Device}); err != nil {
			return nil, err
		}
	}
	return g.a.Alloc("bench "+name, p.Kind, int(size))
}

// device names the accelerator behind a place, in short and with the reasons for it; "" for host
// memory.
func (g *memories) device(p Place) (name, why string) {
	if p.Kind == mem.Host || g.a == nil {
		return "", ""
	}
	return g.a.Device(), g.a.String()
}

// close gives the accelerator back; its regions are closed.
func (g *memories) close() error {
	if g.a == nil {
		return nil
	}
	a := g.a
	g.a = nil
	return a.Close()
}

// pattern is bytes that no other run has: those of a seed, from Base.
type pattern struct {
	Seed uint64 `json:"seed"`
	Base uint64 `json:"base,omitempty"`
	Len  uint64 `json:"len"`
}

// fill writes the pattern to the beginning of r, in memory of the host or of a device.
func (p pattern) fill(ctx context.Context, r *mem.Region) error {
	s, err := r.Span(0, p.Len)
	if err != nil {
		return err
	}
	return accel.Write(ctx, s, func(b []byte, off uint64) error {
		synth.FillAt(b, p.Seed, p.Base+off)
		return nil
	})
}

// verify checks that the beginning of r holds the pattern, and returns how many bytes were right.
// Memory of an accelerator is read back, and summed by its own kernel as well.
func (p pattern) verify(ctx context.Context, g *memories, r *mem.Region) (checked uint64, err error) {
	s, err := r.Span(0, p.Len)
	if err != nil {
		return 0, err
	}
	_, err = g.a.Inspect(ctx, s, func(b []byte, off uint64) error {
		if bad, ok := synth.Verify(b, p.Seed, p.Base+off); !ok {
			return fmt.Errorf("%w: byte %d of %d is wrong", errWrong, off+uint64(bad), p.Len)
		}
		checked += uint64(len(b))
		return nil
	})
	return checked, err
}

// errWrong is in the error of a check that finds other bytes than were sent.
var errWrong = errors.New("bytes did not come")

// scribble overwrites all of r, in memory of the host or of a device, with bytes that are no
// pattern.
func scribble(ctx context.Context, r *mem.Region) error {
	return accel.Write(ctx, r.All(), func(b []byte, _ uint64) error {
		for i := range b {
			b[i] = 0xEE
		}
		return nil
	})
}
