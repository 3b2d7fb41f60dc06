package cuda

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/penstock-io/penstock/internal/dl"
)

// Library is the name by which the loader finds the driver.
const Library = "libcuda.so.1"

// Driver is the driver's library in this process. Any goroutine may use it. It stays loaded until
// the process ends, since threads of its own run in it.
type Driver struct {
	path    string
	fn      [functions]dl.Func
	missing missingSet
	version int
	pid     int
}

var loaded struct {
	mu      sync.Mutex
	drivers map[string]*Driver
}

// Load loads and initialises the driver. path is the library's file; "" is [Library]. The same path
// gives the same driver. Errors wrap ErrUnavailable (no library, no device) or ErrDriver (too old,
// broken), and a later Load tries again.
func Load(path string) (*Driver, error) {
	if path == "" {
		path = Library
	}
	loaded.mu.Lock()
	defer loaded.mu.Unlock()
	d := loaded.drivers[path]
	if d == nil {
		l, err := dl.Open(path)
		if err != nil {
			return nil, fmt.Errorf("cuda: %w: %w: install NVIDIA's driver (Debian: nvidia-driver or libcuda1; a "+
				"container needs --gpus)", ErrUnavailable, err)
		}
		fns, missing, err := bind(l.Symbol)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		d = &Driver{path: path, fn: fns, missing: missing, pid: os.Getpid()}
		if loaded.drivers == nil {
			loaded.drivers = map[string]*Driver{}
		}
		loaded.drivers[path] = d // also where it does not start: a library that was called is never unloaded
	}
	// Once more for a driver that is known: it costs nothing then, and a device may have come
	// meanwhile.
	if err := check(fnInit, d.fn[fnInit].Call1(0)); err != nil {
		return nil, err
	}
	v, r := out[int32](d.fn[fnDriverGetVersion])
	if err := check(fnDriverGetVersion, r); err != nil {
		return nil, err
	}
	d.version = int(v)
	if since := featureTable[Core].since; d.version < since {
		return nil, fmt.Errorf("cuda: %w: it is for CUDA %s, and Penstock needs %s: update NVIDIA's driver", ErrDriver,
			Version(d.version), Version(since))
	}
	return d, nil
}

// Path is the library's file or name, as it was given to [Load].
func (d *Driver) Path() string { return d.path }

// Version is the newest version of CUDA that the driver supports: 1000 × major + 10 × minor.
func (d *Driver) Version() int { return d.version }

// Version is a version of CUDA as people write it: 12040 is "12.4".
func Version(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// Has reports whether the driver has a feature: nil, or an error of the kind ErrDriver that says
// which function is missing and since when there is one. It says nothing of devices: see
// [Device.Attribute].
func (d *Driver) Has(f Feature) error {
	if f >= features {
		return fmt.Errorf("cuda: %w: it knows no %v", ErrDriver, f)
	}
	if d.missing[f] == "" {
		return nil
	}
	return fmt.Errorf("cuda: %w: for %v it needs %s, which came with CUDA %s, and this one is for %s: update "+
		"NVIDIA's driver", ErrDriver, f, d.missing[f],
		Version(featureTable[f].since), Version(d.version))
}

// alive refuses work in a process that is another one than that which loaded the driver: a child of
// fork.
func (d *Driver) alive() error {
	if pid := os.Getpid(); pid != d.pid {
		return &Error{Call: "the driver of process " + fmt.Sprint(d.pid), Result: ErrorNotInitialized,
			Detail: fmt.Sprintf("used in process %d", pid)}
	}
	return nil
}

// DeviceCount is the number of devices that this process sees.
func (d *Driver) DeviceCount() (int, error) {
	if err := d.alive(); err != nil {
		return 0, err
	}
	n, r := out[int32](d.fn[fnDeviceGetCount])
	return int(n), check(fnDeviceGetCount, r)
}

// Devices are the devices that this process sees, in the driver's order (CUDA_VISIBLE_DEVICES,
// CUDA_DEVICE_ORDER).
func (d *Driver) Devices() ([]*Device, error) {
	n, err := d.DeviceCount()
	if err != nil {
		return nil, err
	}
	var all []*Device
	for i := range n {
		dev, err := d.Device(i)
		if err != nil {
			return nil, err
		}
		all = append(all, dev)
	}
	return all, nil
}

// Device is the device of a number, from 0.
func (d *Driver) Device(ordinal int) (*Device, error) {
	if err := d.alive(); err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal > 1<<30 {
		return nil, fmt.Errorf("cuda: %w: device %d: expected a number from 0", ErrUnavailable, ordinal)
	}
	h, r := out[int32](d.fn[fnDeviceGet], uintptr(ordinal))
	if err := check(fnDeviceGet, r); err != nil {
		return nil, about(err, "device %d", ordinal)
	}
	return &Device{d: d, h: h, ordinal: ordinal}, nil
}
