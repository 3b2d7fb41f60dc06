// Package accel chooses and opens the accelerator whose memory a command uses, and gives reasons
// for the choice.
//
//	a, err := accel.Open(accel.Options{})                  // the best there is
//	fmt.Println(a)                                         // "cuda 0: NVIDIA ...", or what stands in for a card, and what is missing
//	r, err := a.Alloc("tensors", mem.Device, 1<<30)
//	err = accel.Write(ctx, r.All(), func(b []byte, off uint64) error { ... }) // fill it, piece by piece
//	err = a.Inspect(ctx, r.All(), func(b []byte, off uint64) error { ... })   // see it, and have a kernel of the device see the same
//
// On a machine without a card the runtimes opencl (PoCL) and host stand in. Their memory is the
// machine's, but it is handled as a card's: the CPU does not touch it, every byte goes by copies of
// the runtime. Figures taken on a stand-in say nothing about a card, so String says that it is one.
package accel

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/gpu/runtimes"
	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/mem"
)

// Options say which accelerator is wanted. The zero value is the first device of the best runtime
// that is here.
type Options struct {
	Runtime string    // "cuda", "opencl", "host"; "" is the best there is
	Device  int       // its number in the runtime, from 0
	Table   gpu.Table // nil: runtimes.Table
}

// ErrDevice is wrapped by the error of Open for a number that no device of the runtime has.
var ErrDevice = errors.New("no such device")

// Accelerator is a device that was opened for its memory.
type Accelerator struct {
	choice gpu.Choice
	ctx    *gpu.Context
	mem    *gpumem.Provider

	mu  sync.Mutex // guards sum
	sum *summer
}

// Open opens the device. The caller closes it. Errors wrap gpu.ErrUnavailable (the runtime is not
// here, and how to get it), gpu.ErrArgument (there is no runtime of that name) and ErrDevice.
func Open(o Options) (*Accelerator, error) {
	if o.Table == nil {
		o.Table = runtimes.Table()
	}
	choice, err := o.Table.Open(o.Runtime)
	if err != nil {
		return nil, err
	}
	all := choice.Devices()
	if o.Device < 0 || o.Device >= len(all) {
		var names []string
		for _, d := range all {
			names = append(names, d.String())
		}
		err := fmt.Errorf("accel: device %d of %s: %w: there are: %s", o.Device, choice.Name(), ErrDevice,
			strings.Join(names, ", "))
		return nil, errors.Join(err, choice.Close())
	}
	a := &Accelerator{choice: choice}
	if a.ctx, err = all[o.Device].Open(); err != nil {
		return nil, errors.Join(err, choice.Close())
	}
	// Opaque: a stand-in's memory must be reached as a card's is, or it would show nothing.
	if a.mem, err = gpumem.New(a.ctx, gpumem.Options{Opaque: true}); err != nil {
		return nil, errors.Join(err, a.ctx.Close(), choice.Close())
	}
	return a, nil
}

// Close gives the device back. Regions of it must be closed before, or it is an error that wraps
// gpu.ErrInUse.
func (a *Accelerator) Close() error {
	a.mu.Lock()
	s := a.sum
	a.sum = nil
	a.mu.Unlock()
	if err := errors.Join(s.close(), a.mem.Close()); err != nil {
		return err
	}
	return errors.Join(a.ctx.Close(), a.choice.Close())
}

// Context is the open context of the device.
func (a *Accelerator) Context() *gpu.Context { return a.ctx }

// Alloc makes memory of a kind that the provider has. The caller closes it.
func (a *Accelerator) Alloc(name string, kind mem.Kind, size int) (*mem.Region, error) {
	return mem.Alloc(mem.Options{Name: name, Kind: kind, Size: size, Provider: a.mem})
}

// Adopt makes a region of memory of the device that another library of this process has allocated,
// and keeps until the region is unmapped.
func (a *Accelerator) Adopt(name string, addr, size uint64) (*mem.Region, error) {
	return a.mem.AdoptAddress(name, addr, size, nil)
}

// OpenShared makes a region of memory of the device that another process of this machine has
// exported.
func (a *Accelerator) OpenShared(name string, h gpumem.Handle) (*mem.Region, error) {
	return a.mem.Open(name, h)
}

// Device names the device: "cuda 0: NVIDIA H100 80GB HBM3".
func (a *Accelerator) Device() string { return a.ctx.Device().String() }

// StandIn reports whether the device is this machine's processor, used as if it were a card.
func (a *Accelerator) StandIn() bool { return a.ctx.Info().Processor }

// String says which device it is, and where it is not the preferred one, why: "host 0: this
// process, in Go, a stand-in for a card: no cuda (libcuda.so.1 not found)".
func (a *Accelerator) String() string {
	s := a.Device()
	if a.StandIn() {
		s += ", a stand-in for a card"
	}
	var why []string
	for _, x := range a.choice.Skipped {
		why = append(why, fmt.Sprintf("no %s (%s)", x.Name, missing(x.Err)))
	}
	if len(why) > 0 {
		s += ": " + strings.Join(why, ", ")
	}
	return s
}

// libraries are the files that runtimes need.
var libraries = map[string]string{"libcuda.so.1": "NVIDIA's driver", "libOpenCL.so.1": "an OpenCL loader"}

// missing says briefly why a runtime is not here: its error in full also says how to get it, which
// penstock devices repeats.
func missing(err error) string {
	if errors.Is(err, dl.ErrNotFound) {
		for lib, what := range libraries {
			if strings.Contains(err.Error(), lib+": cannot open shared object file") {
				return fmt.Sprintf("%s not found: it comes with %s", lib, what)
			}
		}
	}
	return err.Error()
}
