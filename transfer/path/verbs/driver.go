package verbs

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/rdmadev"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// Name is the driver's name.
const Name = "verbs"

// Options choose the adapter and shape the paths. The zero value takes the first device with an
// active port.
type Options struct {
	Library string     // file of libibverbs; "" is the system's
	Device  string     // name such as "mlx5_0"; "" is the first that can be used
	Port    int        // of the device, from 1; 0 is the first that is active
	GID     *int       // index in the port's table of addresses; nil leaves the choice to the path
	For     netip.Addr // an address of a peer, for which the GID is chosen; not valid: any
	// QueuePairs is the number of data queue pairs of a path unless setup.Config.Streams says
	// otherwise; 0 means DefaultQueuePairs. Both sides have the same.
	QueuePairs int
	Depth      int // requests in the queue of a queue pair; 0 means DefaultDepth
	// Timeout is how long the adapter waits for an acknowledgement before it sends again: 4.096 µs
	// × 2^Timeout, 6 times; 0 means DefaultTimeout.
	Timeout int
	Tuning  // between which values the path looks for the best ones
	// NoInline has the adapter fetch also what is small, NoWindows has each peer in a protection
	// domain of its own.
	NoInline, NoWindows bool
	// Insecure permits peers on other machines. RDMA is not encrypted: every host on the way can
	// read and change what travels.
	Insecure bool

	looks time.Duration // between two looks whether queue pairs get on; 0: rdmadev.WatchEvery. For tests.
}

// The values that the zero Options stand for.
const (
	DefaultQueuePairs = 1
	DefaultDepth      = 256
	DefaultTimeout    = 14 // 67 ms
)

// retries is how often an adapter sends again what the peer does not acknowledge. Soft-RoCE takes
// the 7 that fits into the field for "for ever".
const retries = 6

// maxDepth bounds Options.Depth.
const maxDepth = 8192

func (o *Options) depth() int { return cmp.Or(o.Depth, DefaultDepth) }

// ring is the depth as a power of two.
func (o *Options) ring() int { return 1 << bits.Len(uint(o.depth()-1)) }

// inlines are the sizes to ask for, the best first.
func (o *Options) inlines() []int {
	if o.NoInline {
		return []int{0}
	}
	return []int{220, 128, 64, 0}
}

// Check says what is wrong with options, as Probe and Endpoint would: values out of range. It looks
// at nothing else. The error wraps path.ErrUnavailable.
func (o Options) Check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("verbs: "+format+": %w", append(args, path.ErrUnavailable)...)
	}
	switch {
	case o.Depth != 0 && (o.Depth < 4*keepSmall || o.Depth > maxDepth):
		return bad("Options.Depth is %d: expected 0 for %d, or %d to %d", o.Depth, DefaultDepth, 4*keepSmall, maxDepth)
	case o.QueuePairs < 0 || o.QueuePairs > maxQPs:
		return bad("Options.QueuePairs is %d: expected 0 for %d, or up to %d", o.QueuePairs, DefaultQueuePairs, maxQPs)
	case o.Timeout < 0 || o.Timeout > 31:
		return bad("Options.Timeout is %d: expected 0 for %d, or up to 31", o.Timeout, DefaultTimeout)
	case o.Port < 0:
		return bad("Options.Port is %d: expected 0 for the first active one, or a number from 1", o.Port)
	case o.GID != nil && o.For.IsValid():
		return bad("Options.GID and Options.For are both there: GID names the address that For would choose: " +
			"expected one of them")
	}
	return o.Tuning.check()
}

// Driver makes paths over RDMA. It implements setup.EndpointDriver. The device is open while an
// endpoint or a path of the driver is.
type Driver struct {
	o    Options
	tree fs.FS // the machine's files, nil: this machine's; tests have others

	mu  sync.Mutex // guards what follows, and the device's count of users
	lib rdmadev.Library
	dev *device
}

var (
	_ setup.EndpointDriver = (*Driver)(nil)
	_ setup.Prober         = (*Driver)(nil)
	_ path.Path            = (*Path)(nil)
	_ path.DeviceReacher   = (*Path)(nil)
)

// New makes a driver; for bad options see Check, a missing device shows by Probe and Endpoint.
func New(o Options) *Driver { return &Driver{o: o, lib: rdmadev.Library{Path: o.Library}} }

// Check is that of the Options; it makes the driver a setup.Checker.
func (d *Driver) Check() error { return d.o.Check() }

// Name is "verbs".
func (d *Driver) Name() string { return Name }

// Traits are those of an adapter that has no encryption. Shared memory comes before it, sockets
// behind it, until both were measured.
func (d *Driver) Traits() setup.Traits {
	return setup.Traits{Devices: true, Prior: path.Cost{Latency: 5 * time.Microsecond, BytesPerSec: 6e9}}
}

// Probe opens the device and closes it again. It makes the driver a setup.Prober.
func (d *Driver) Probe() error {
	dev, err := d.device()
	if err != nil {
		return err
	}
	return dev.put()
}

// device is the open device, one use more.
func (d *Driver) device() (*device, error) {
	if err := d.o.Check(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dev == nil {
		dev, err := openDevice(d)
		if err != nil {
			return nil, err
		}
		d.dev = dev
	}
	d.dev.users++
	return d.dev, nil
}

// put ends one use.
func (dev *device) put() error {
	d := dev.owner
	d.mu.Lock()
	defer d.mu.Unlock()
	if dev.users--; dev.users > 0 {
		return nil
	}
	d.dev = nil
	return dev.close()
}

// way is how this side reaches a peer.
func (dev *device) way(d *description) ibv.Address {
	a := ibv.Address{Port: uint8(dev.port.Port), DGID: netip.AddrFrom16(d.gid), SGIDIndex: uint8(dev.gid.Index),
		LID: d.lid}
	if dev.port.Link == ibv.LinkEthernet {
		a.LID = 0
	}
	return a
}

// permits refuses peers beyond this machine unless the options permit what is not encrypted.
func (dev *device) permits(gid [16]byte) error {
	if gid == dev.raw || dev.owner.o.Insecure {
		return nil
	}
	return fmt.Errorf("verbs: the peer at %s is not on this machine, and RDMA is not encrypted: say Insecure to "+
		"permit it: %w",
		netip.AddrFrom16(gid), path.ErrUnavailable)
}

// randomPSN is where the sequence numbers of a queue pair begin: what is left of another connection
// on the way does not fit.
func randomPSN() uint32 {
	var b [4]byte
	rand.Read(b[:]) // never fails (Go 1.24)
	return binary.BigEndian.Uint32(b[:]) & (1<<24 - 1)
}

// terms are what a configuration asks for.
func (d *Driver) terms(cfg setup.Config) (window, qps int, err error) {
	window, qps = cmp.Or(cfg.Window, setup.DefaultWindow), cmp.Or(cfg.Streams, d.o.QueuePairs, DefaultQueuePairs)
	switch {
	case cfg.Exports == nil:
		err = errors.New("verbs: Config.Exports is nil: give the table of what the peer may reach, which may be empty")
	case window < 1:
		err = fmt.Errorf("verbs: Config.Window is %d: expected 0 for %d, or up to %d", cfg.Window, setup.DefaultWindow,
			maxWindow)
	case qps < 1:
		err = fmt.Errorf("verbs: Config.Streams is %d: expected 0 for %d, or up to %d", cfg.Streams, DefaultQueuePairs,
			maxQPs)
	}
	return min(window, maxWindow), min(qps, maxQPs), err
}
