package ethtool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/sys"
)

// Errors of this package; match them with errors.Is.
var (
	// ErrNotSupported: the driver or the kernel does not have this setting at all.
	ErrNotSupported = errors.New("not supported")
	// ErrNotPermitted: CAP_NET_ADMIN is missing.
	ErrNotPermitted = errors.New("not permitted: it needs CAP_NET_ADMIN in the network namespace of the interface")
	// ErrNoDevice: there is no such interface in this network namespace.
	ErrNoDevice = errors.New("no such interface")
	// ErrRefused: the driver has the setting but not this value, or not now.
	ErrRefused = errors.New("refused by the driver")
	// ErrMalformed: the kernel's answer is not understood.
	ErrMalformed = sys.ErrNetlink
)

var native = binary.NativeEndian

// Device is an open connection to the driver of one network device. Close it.
type Device struct {
	name string
	fd   int
	// call gives b to the driver; tests put one of their own here.
	call func(b []byte) (int, sys.Errno)
}

// Open opens a device by its name in the calling thread's network namespace. The error wraps
// ErrNoDevice if there is none.
func Open(name string) (*Device, error) {
	if len(name) == 0 || len(name) > 15 {
		return nil, fmt.Errorf("ethtool: interface %q: expected a name of 1 to 15 bytes: %w", name, ErrNoDevice)
	}
	fd, err := sys.DeviceSocket()
	if err != nil {
		return nil, fmt.Errorf("ethtool: %w", err)
	}
	d := &Device{name: name, fd: fd}
	d.call = func(b []byte) (int, sys.Errno) { return sys.EthtoolIoctl(fd, d.name, b) }
	if _, err := d.Index(); err != nil {
		sys.Close(fd)
		return nil, err
	}
	return d, nil
}

// Close gives the connection up.
func (d *Device) Close() error { return sys.Close(d.fd) }

// Name is the interface's name.
func (d *Device) Name() string { return d.name }

// Rename says that the interface has another name now. No other method may run meanwhile.
func (d *Device) Rename(name string) { d.name = name }

// Index is the interface's number.
func (d *Device) Index() (int, error) {
	n, err := sys.InterfaceIndex(d.fd, d.name)
	return n, d.wrap("number", err)
}

// MTU is the interface's MTU in bytes.
func (d *Device) MTU() (int, error) {
	n, err := sys.InterfaceMTU(d.fd, d.name)
	return n, d.wrap("MTU", err)
}

// SetMTU sets the MTU in bytes. The device may go down for a moment, or for good if its driver does
// so.
func (d *Device) SetMTU(mtu int) error {
	return d.wrap(fmt.Sprintf("MTU %d", mtu), sys.SetInterfaceMTU(d.fd, d.name, mtu))
}

// wrap says of an error of the kernel's on what it was, and which of this package's errors it is.
func (d *Device) wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	var e sys.Errno
	if !errors.As(err, &e) {
		return fmt.Errorf("ethtool: %s: %s: %w", d.name, what, err)
	}
	kind := ErrRefused
	switch e {
	case sys.EOPNOTSUPP, sys.ENOSYS:
		kind = ErrNotSupported
	case sys.EPERM, sys.EACCES:
		kind = ErrNotPermitted
	case sys.ENODEV, sys.ENXIO:
		kind = ErrNoDevice
	}
	return fmt.Errorf("ethtool: %s: %s: %w (%w)", d.name, what, kind, err)
}

// do gives the driver a command whose structure is b; the first word is the command.
func (d *Device) do(what string, command uint32, b []byte) error {
	native.PutUint32(b, command)
	if _, e := d.call(b); e != 0 {
		return d.wrap(what, e)
	}
	return nil
}

// words is a command whose structure is n words of 32 bits behind the command's number, which it
// returns.
func (d *Device) words(what string, command uint32, n int) ([]uint32, error) {
	b := make([]byte, 4*(1+n))
	if err := d.do(what, command, b); err != nil {
		return nil, err
	}
	out := make([]uint32, n)
	for i := range out {
		out[i] = native.Uint32(b[4+4*i:])
	}
	return out, nil
}

// setWords is the other direction.
func (d *Device) setWords(what string, command uint32, words []uint32) error {
	b := make([]byte, 4, 4*(1+len(words)))
	for _, w := range words {
		b = native.AppendUint32(b, w)
	}
	return d.do(what, command, b)
}

// text is a string in a field of fixed length.
func text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// Commands of linux/ethtool.h.
const (
	cmdDriver        = 0x03
	cmdCoalesce      = 0x0e
	cmdSetCoalesce   = 0x0f
	cmdRings         = 0x10
	cmdSetRings      = 0x11
	cmdStrings       = 0x1b
	cmdHashFields    = 0x29
	cmdSetHashFields = 0x2a
	cmdRxQueues      = 0x2d
	cmdRuleCount     = 0x2e
	cmdRule          = 0x2f
	cmdRules         = 0x30
	cmdDeleteRule    = 0x31
	cmdInsertRule    = 0x32
	cmdStringsCount  = 0x37
	cmdFeatures      = 0x3a
	cmdSetFeatures   = 0x3b
	cmdChannels      = 0x3c
	cmdSetChannels   = 0x3d
	cmdTimestamps    = 0x41
	cmdRSS           = 0x46
	cmdSetRSS        = 0x47
	cmdLinkSettings  = 0x4c
	stringsFeatures  = 4
	stringLen        = 32
	mostStrings      = 4096 // more than any driver has
)

// strings are the names of a set, in its order.
func (d *Device) strings(what string, set uint32) ([]string, error) {
	b := make([]byte, 4+4+8+4)
	native.PutUint64(b[8:], 1<<set)
	if err := d.do(what, cmdStringsCount, b); err != nil {
		return nil, err
	}
	if native.Uint64(b[8:])>>set&1 == 0 { // the driver does not have the set
		return nil, d.wrap(what, sys.EOPNOTSUPP)
	}
	n := native.Uint32(b[16:])
	if n > mostStrings {
		return nil, d.wrap(what, fmt.Errorf("%d names: %w", n, ErrMalformed))
	}
	// Room for as many as the kernel said: it writes that many, whatever the length in the request.
	b = make([]byte, 12+stringLen*int(n))
	native.PutUint32(b[4:], set)
	native.PutUint32(b[8:], n)
	if err := d.do(what, cmdStrings, b); err != nil {
		return nil, err
	}
	out := make([]string, min(n, native.Uint32(b[8:])))
	for i := range out {
		out[i] = text(b[12+stringLen*i:][:stringLen])
	}
	return out, nil
}

// Driver is the driver of a device.
type Driver struct {
	Name     string // "ixgbe", "veth"
	Version  string // of the driver; of one in the kernel's tree mostly the kernel's release
	Firmware string // of the card, empty if there is none
	Bus      string // its address, "0000:01:00.0"; empty for devices that are only software
}

// Driver asks which driver the device has.
func (d *Device) Driver() (Driver, error) {
	b := make([]byte, 196)
	if err := d.do("driver", cmdDriver, b); err != nil {
		return Driver{}, err
	}
	return Driver{Name: text(b[4:36]), Version: text(b[36:68]), Firmware: text(b[68:100]), Bus: text(b[100:132])}, nil
}
