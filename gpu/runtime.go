package gpu

import (
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/gpu/driver"
)

// Runtime is one library of accelerators, opened by its package (gpu/cuda, gpu/opencl, gpu/host).
type Runtime struct {
	drv     driver.Runtime
	devices []*Device

	mu       sync.Mutex
	contexts int
	closed   bool
}

// New is for packages that implement a runtime: it makes one of drv, which it owns from now on,
// also when it fails.
func New(drv driver.Runtime) (*Runtime, error) {
	r := &Runtime{drv: drv}
	for i, d := range drv.Devices() {
		info := d.Info()
		if err := checkInfo(&info, drv.Name(), i); err != nil {
			return nil, errors.Join(err, drv.Close())
		}
		r.devices = append(r.devices, &Device{rt: r, drv: d, info: info})
	}
	if len(r.devices) == 0 {
		return nil, errors.Join(fmt.Errorf("gpu: %s: %w: it has no device", drv.Name(), ErrUnavailable), drv.Close())
	}
	return r, nil
}

// checkInfo holds a runtime to what users of Info rely on.
func checkInfo(f *Info, runtime string, index int) error {
	bad := func(what string) error {
		return fmt.Errorf("gpu: %s: device %d: %w: its description has %s", runtime, index, ErrDriver, what)
	}
	switch {
	case f.Runtime != runtime || f.Index != index:
		return bad(fmt.Sprintf("the runtime %q and the number %d", f.Runtime, f.Index))
	case f.Name == "":
		return bad("no name")
	case !powerOfTwo(f.Align) || !powerOfTwo(f.ArgAlign):
		return bad(fmt.Sprintf("alignments of %d and %d bytes: expected powers of two", f.Align, f.ArgAlign))
	case f.MaxGroup == 0 || f.MaxGroups == 0 || f.MaxAlloc == 0:
		return bad("a limit of 0")
	}
	for c := range driver.NumCapabilities {
		if s := f.Capabilities[c]; s.OK == (s.Why != "") {
			return bad(fmt.Sprintf("the capability %s, which is there (%v) with the reason %q", c, s.OK, s.Why))
		}
	}
	return nil
}

func powerOfTwo(n uint64) bool { return n != 0 && n&(n-1) == 0 }

// Name is the runtime's: "cuda", "opencl", "host".
func (r *Runtime) Name() string { return r.drv.Name() }

// Version is that of its library or driver, for people.
func (r *Runtime) Version() string { return r.drv.Version() }

// Devices are its devices, at least one, in the order of the runtime. The slice is the caller's.
func (r *Runtime) Devices() []*Device { return append([]*Device(nil), r.devices...) }

// Close gives the library back. With a context still open it is an error that wraps ErrInUse, and
// nothing is closed.
func (r *Runtime) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	if r.contexts > 0 {
		return fmt.Errorf("gpu: %s: close: %w: %d contexts are open", r.Name(), ErrInUse, r.contexts)
	}
	r.closed = true
	return r.drv.Close()
}

// Device is an accelerator of a runtime.
type Device struct {
	rt   *Runtime
	drv  driver.Device
	info Info

	gate      sync.RWMutex           // read-locked by calls that a Resident's kernel would hold up in the driver
	residents map[*Resident]struct{} // that hold the device
}

// Info is what the device is. It was found when the runtime was opened.
func (d *Device) Info() Info { return d.info }

// Runtime is the runtime of the device.
func (d *Device) Runtime() *Runtime { return d.rt }

// String names the device: "opencl 0: pthread-skylake-avx512".
func (d *Device) String() string {
	return fmt.Sprintf("%s %d: %s", d.info.Runtime, d.info.Index, d.info.Name)
}

// Open makes a context on the device. The caller closes it. A process may open several, also of one
// device.
func (d *Device) Open() (*Context, error) {
	d.rt.mu.Lock()
	if d.rt.closed {
		d.rt.mu.Unlock()
		return nil, fmt.Errorf("gpu: %s: open a context: the runtime is %w", d, ErrClosed)
	}
	d.rt.contexts++
	d.rt.mu.Unlock()
	c, err := d.drv.Open()
	if err != nil {
		d.closed()
		return nil, fmt.Errorf("gpu: %s: open a context: %w", d, err)
	}
	return newContext(d, c), nil
}

func (d *Device) closed() {
	d.rt.mu.Lock()
	d.rt.contexts--
	d.rt.mu.Unlock()
}
