package tune

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/host"
)

// ErrRefused: a device stays with its driver because it is in use; nothing was changed. The only
// way round it is to end that use.
var ErrRefused = errors.New("tune: refused")

// KernelDriver stands for the driver that the kernel itself chooses for a device.
const KernelDriver = "kernel"

// UserDrivers are drivers that hand a device to a program in user space.
var UserDrivers = []string{"vfio-pci", "uio_pci_generic", "igb_uio"}

// theDriver is the setting of a PCI device's driver. Its value is the name of the driver, or
// "none", and behind it " override=NAME" where driver_override is set. KernelDriver is a value that
// can be wanted.
const theDriver Setting = "driver"

var (
	pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	driverName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
)

// isPCI reports whether what is tuned is a PCI device: no interface has such a name, as the kernel
// allows no colon in one.
func isPCI(device string) bool { return pciAddress.MatchString(device) }

// Card is a PCI device that is a network card.
type Card struct {
	Addr       string   `json:"addr"`
	Name       string   `json:"name"`
	Driver     string   `json:"driver,omitempty"` // empty: none
	Override   string   `json:"driver_override,omitempty"`
	Group      int      `json:"iommu_group"`          // -1: none
	Interfaces []string `json:"interfaces,omitempty"` // of the calling thread's network namespace
}

// Cards lists the network cards on PCI of this machine.
func Cards(ctx context.Context) ([]Card, error) { return linux{}.cards(ctx) }

// Driver makes the plan that a PCI device, named by its address or by an interface that it carries,
// gets another driver: one of UserDrivers, any other that is loaded, or KernelDriver. It changes
// nothing. The error wraps ErrRefused where the device is used and so must keep its driver, ErrGoal
// where it cannot have that one, and ErrInterface where there is no such device. Plan.Interface is
// the device's address: so it is undone (Undo), as its interface goes away with its driver.
func Driver(ctx context.Context, device, driver string) (Plan, error) {
	return driverPlan(ctx, linux{}, device, driver)
}

// UndoDriver is Undo of a plan of Driver. device is the address, or an interface that the card
// carries now.
func UndoDriver(ctx context.Context, device string, o Options) (Result, error) {
	l := linux{}
	addr, err := l.resolve(device)
	if err != nil {
		return Result{Interface: device}, err
	}
	return undo(ctx, l, addr, o)
}

func driverPlan(ctx context.Context, l linux, device, driver string) (Plan, error) {
	if err := ctx.Err(); err != nil {
		return Plan{}, err
	}
	if !driverName.MatchString(driver) {
		return Plan{}, fmt.Errorf("%w: driver %q: expected such as %s, or %s", ErrGoal, driver,
			strings.Join(UserDrivers, ", "), KernelDriver)
	}
	addr, err := l.resolve(device)
	if err != nil {
		return Plan{}, err
	}
	wanted := driver + " override=" + driver
	if driver == KernelDriver {
		wanted = KernelDriver
	}
	now, err := l.get(addr, theDriver)
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Interface: addr, Driver: binding(now).shown()}
	if enough(theDriver, wanted, now) || binding(now).driver == driver {
		// it has the driver already, forced on it or not
		return p, nil
	}
	if err := l.refuses(addr, theDriver, wanted); err != nil {
		return Plan{}, err
	}
	s := Step{Name: "driver", What: "driver of " + l.cardName(addr), Setting: theDriver, Where: l.pci(addr) + "/driver",
		Now: now, Wanted: wanted, Why: "As asked for.",
		Command: fmt.Sprintf("driverctl --nosave set-override %s %s", addr, driver), Reversible: true}
	if driver == KernelDriver {
		s.Command = fmt.Sprintf("driverctl --nosave unset-override %s", addr)
	}
	if ifaces := l.carries(addr); ifaces != nil {
		s.Why = fmt.Sprintf("As asked for. The kernel loses %s, with what is set on it: undone, it comes back "+
			"switched off and as new.", strings.Join(ifaces, ", "))
	}
	s.Needs, s.Missing = l.needs(addr, theDriver)
	p.Steps = []Step{s}
	return p, nil
}

// bound is a value of the setting of a driver.
type bound struct{ driver, override string }

func binding(value string) bound {
	d, o, _ := strings.Cut(value, " override=")
	return bound{d, o}
}

func (b bound) String() string {
	if b.override == "" {
		return b.driver
	}
	return b.driver + " override=" + b.override
}

// shown is the driver for people.
func (b bound) shown() string {
	if b.driver == noDriver {
		return "no driver"
	}
	return b.driver
}

const noDriver = "none"

// user reports whether a program in user space has the device, or can.
func (b bound) user() bool { return slices.Contains(UserDrivers, b.driver) }

func (l linux) pci(addr string) string { return "/sys/bus/pci/devices/" + addr }

// resolve is the address of a device.
func (l linux) resolve(device string) (string, error) {
	addr := strings.ToLower(device)
	if isPCI("0000:" + addr) {
		addr = "0000:" + addr
	}
	if isPCI(addr) {
		if _, err := os.Stat(l.root + l.pci(addr)); err != nil {
			return "", fmt.Errorf("%w: there is no PCI device %s", ErrInterface, addr)
		}
		return addr, nil
	}
	if device == "" || strings.Contains(device, "/") || strings.Contains(device, "..") {
		return "", fmt.Errorf("%w: %q", ErrInterface, device)
	}
	if _, err := os.Stat(l.root + "/sys/class/net/" + device); err != nil {
		return "", fmt.Errorf("%w: there is no interface %q; a card that has none any more is named by its address, "+
			"which \"penstock tune driver\" lists", ErrInterface, device)
	}
	dir, err := filepath.EvalSymlinks(l.root + "/sys/class/net/" + device + "/device")
	for ; err == nil && len(dir) > 1; dir = filepath.Dir(dir) { // a virtio device is below its card
		if isPCI(filepath.Base(dir)) {
			return filepath.Base(dir), nil
		}
	}
	return "", fmt.Errorf("%w: the interface %s is not of a PCI device", ErrGoal, device)
}

// getDriver is the setting of a device's driver.
func (l linux) getDriver(addr string) (string, error) {
	override, err := l.read(l.pci(addr) + "/driver_override")
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: PCI device %s", errGone, addr)
	}
	if err != nil {
		return "", err
	}
	b := bound{l.base(l.pci(addr) + "/driver"), override}
	if b.driver == "" {
		b.driver = noDriver
	}
	if override == "(null)" {
		b.override = ""
	}
	return b.String(), nil
}

// base is the name that a link leads to; empty if there is none.
func (l linux) base(path string) string {
	to, err := os.Readlink(l.root + path)
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

// setDriver gives a device another driver. The order is such that a process that is killed leaves
// the device with its old driver, with none, or with the new one, and driver_override with the old
// or the new name: all of which is seen, and restored.
func (l linux) setDriver(addr, value string) error {
	want := binding(value)
	if !driverName.MatchString(want.driver) || want.override != "" && !driverName.MatchString(want.override) {
		return fmt.Errorf("setting %s: value %q", theDriver, value)
	}
	text, err := l.getDriver(addr)
	if err != nil {
		return err
	}
	now := binding(text)
	if err := l.refuses(addr, theDriver, value); err != nil {
		return err
	}
	if now.override != want.override {
		if err := l.write(l.pci(addr)+"/driver_override", want.override); err != nil {
			return err
		}
	}
	if now.driver == want.driver || want.driver == KernelDriver && now.driver != noDriver && !now.user() {
		return nil
	}
	if now.driver != noDriver {
		if err := l.write(l.pci(addr)+"/driver/unbind", addr); err != nil {
			return err
		}
	}
	switch {
	case want.driver == noDriver:
		return nil
	case want.driver == KernelDriver, want.override != "":
		return l.write("/sys/bus/pci/drivers_probe", addr)
	}
	return l.write("/sys/bus/pci/drivers/"+want.driver+"/bind", addr)
}

// refuses says why a device must not get another driver, as it is used now or as the machine is;
// nil if it may. Other settings always may.
func (l linux) refuses(device string, s Setting, value string) error {
	if s != theDriver {
		return nil
	}
	text, err := l.getDriver(device)
	if err != nil {
		return err
	}
	now, want := binding(text), binding(value)
	if class, err := l.read(l.pci(device) + "/class"); err != nil || !strings.HasPrefix(class, "0x02") {
		return fmt.Errorf("%w: %s is no network card (class %q)", ErrRefused, device, class)
	}
	if now.driver == want.driver {
		return nil
	}
	if want.driver != noDriver && want.driver != KernelDriver {
		if _, err := os.Stat(l.root + "/sys/bus/pci/drivers/" + want.driver); err != nil {
			return fmt.Errorf("%w: the driver %s is not loaded: modprobe %s", ErrGoal, want.driver, want.driver)
		}
	}
	if want.driver == "vfio-pci" {
		if err := l.isolated(device); err != nil {
			return err
		}
	}
	if now.user() {
		return l.opened(device)
	}
	if now.driver != noDriver {
		return l.inUse(device, now.driver)
	}
	return nil
}

// isolated looks at the IOMMU group of a device: vfio-pci takes whole groups, and what the kernel
// still drives of one could be reached by the others.
func (l linux) isolated(addr string) error {
	group := l.base(l.pci(addr) + "/iommu_group")
	if group == "" {
		return fmt.Errorf("%w: %s is in no group of an IOMMU, which vfio-pci needs: turn it on in the firmware "+
			"(VT-d, AMD-Vi, SMMU), and intel_iommu=on on the kernel's command line",
			ErrGoal, addr)
	}
	entries, err := os.ReadDir(l.root + l.pci(addr) + "/iommu_group/devices")
	if err != nil {
		return fmt.Errorf("tune: what else is in IOMMU group %s cannot be read: %w", group, err)
	}
	var others []string
	for _, e := range entries {
		d := l.base(l.pci(e.Name()) + "/driver")
		// Drivers that the kernel's vfio takes for harmless: bridges, and those that leave the
		// device alone.
		if e.Name() != addr && d != "" && d != "pcieport" && d != "pci-stub" && !slices.Contains(UserDrivers, d) {
			others = append(others, fmt.Sprintf("%s (%s)", l.cardName(e.Name()), d))
		}
	}
	if others != nil {
		return fmt.Errorf("%w: IOMMU group %s has other devices that the kernel drives: %s; they share the "+
			"translation of addresses with %s, and have to go with it or into a slot of their own",
			ErrRefused, group, strings.Join(others, ", "), addr)
	}
	return nil
}

// opened says which processes have a device open in user space: taking its driver away would wait
// for them.
func (l linux) opened(addr string) error {
	files := map[string]bool{}
	if g := l.base(l.pci(addr) + "/iommu_group"); g != "" {
		files["/dev/vfio/"+g] = true
	}
	for dir, dev := range map[string]string{"uio": "/dev/", "vfio-dev": "/dev/vfio/devices/"} {
		entries, _ := os.ReadDir(l.root + l.pci(addr) + "/" + dir) // of which there is none, or one
		for _, e := range entries {
			files[dev+e.Name()] = true
		}
	}
	var who []string
	links, _ := filepath.Glob(l.root + "/proc/[0-9]*/fd/*") // of processes that end meanwhile there is nothing to tell
	for _, f := range links {
		if to, err := os.Readlink(f); err == nil && files[to] {
			pid := filepath.Base(filepath.Dir(filepath.Dir(f)))
			name, _ := l.read("/proc/" + pid + "/comm") // it may have ended
			if x := fmt.Sprintf("%s (process %s) has %s open", name, pid, to); !slices.Contains(who, x) {
				who = append(who, x)
			}
		}
	}
	if who != nil {
		return fmt.Errorf("%w: %s is used: %s; end it first", ErrRefused, addr, strings.Join(who, ", "))
	}
	return nil
}

// carries are the interfaces of a device in this network namespace.
func (l linux) carries(addr string) []string { return host.InterfacesOf(os.DirFS(l.root+"/"), addr) }

// inUse says what a device's interfaces are used for.
func (l linux) inUse(addr, driver string) error {
	if n, err := l.read(l.pci(addr) + "/sriov_numvfs"); err == nil && n != "0" {
		return fmt.Errorf("%w: %s has %s virtual functions, which would go with its driver: echo 0 > "+
			"%s/sriov_numvfs first", ErrRefused, addr, n, l.pci(addr))
	}
	ifaces := l.carries(addr)
	if ifaces == nil {
		return fmt.Errorf("%w: %s has the driver %s and no interface that can be seen here: it may be in another "+
			"network namespace, where it is in use", ErrRefused, addr, driver)
	}
	routed, err := host.DefaultRoutes(os.DirFS(l.root + "/"))
	if err != nil {
		return fmt.Errorf("tune: the default route cannot be read, so %s stays as it is: %w", addr,
			err)
	}
	for _, i := range ifaces {
		if slices.Contains(routed, i) {
			return fmt.Errorf("%w: %s carries the default route: the machine could not be reached any more", ErrRefused,
				i)
		}
		if m := l.base("/sys/class/net/" + i + "/master"); m != "" {
			return fmt.Errorf("%w: %s is part of %s (bond, bridge or team): take it out first, ip link set dev %s "+
				"nomaster", ErrRefused, i, m, i)
		}
		upper, _ := filepath.Glob(l.root + "/sys/class/net/" + i + "/upper_*")
		if len(upper) > 0 {
			return fmt.Errorf("%w: %s is on top of %s", ErrRefused,
				strings.TrimPrefix(filepath.Base(upper[0]), "upper_"),
				i)
		}
		addrs, err := l.addresses(i)
		if err != nil {
			return fmt.Errorf("tune: the addresses of %s cannot be read, so it stays as it is: %w", i, err)
		}
		for _, a := range addrs {
			if !a.IsLinkLocalUnicast() || a.Is4() {
				return fmt.Errorf("%w: %s has the address %v: its users would be cut off; ip address flush dev %s "+
					"takes it away", ErrRefused, i, a, i)
			}
		}
	}
	return nil
}

// addresses are the IP addresses of an interface.
func (l linux) addresses(iface string) (out []netip.Addr, err error) {
	if l.addrs != nil {
		return l.addrs(iface)
	}
	i, err := net.InterfaceByName(iface)
	if err != nil {
		return nil, err
	}
	all, err := i.Addrs()
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Addr().Unmap())
		}
	}
	return out, err
}

// cardName is a device for people.
func (l linux) cardName(addr string) string {
	p := host.PCI{Vendor: uint16(l.hex(addr, "vendor")), Device: uint16(l.hex(addr, "device")),
		Class: uint32(l.hex(addr, "class"))}
	return p.Name() + " " + addr
}

// hex is a number of a device's; 0 if there is none.
func (l linux) hex(addr, file string) uint64 {
	v, _ := l.read(l.pci(addr) + "/" + file)
	n, _ := strconv.ParseUint(strings.TrimPrefix(v, "0x"), 16, 32)
	return n
}

func (l linux) cards(ctx context.Context) ([]Card, error) {
	entries, err := os.ReadDir(l.root + "/sys/bus/pci/devices")
	if errors.Is(err, fs.ErrNotExist) { // a machine without PCI
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Card
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		addr := e.Name()
		if !isPCI(addr) || l.hex(addr, "class")>>16 != 0x02 {
			continue
		}
		v, err := l.getDriver(addr)
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		b := binding(v)
		c := Card{Addr: addr, Name: strings.TrimSuffix(l.cardName(addr), " "+addr), Driver: b.driver,
			Override: b.override, Group: -1, Interfaces: l.carries(addr)}
		if b.driver == noDriver {
			c.Driver = ""
		}
		if n, err := strconv.Atoi(l.base(l.pci(addr) + "/iommu_group")); err == nil {
			c.Group = n
		}
		out = append(out, c)
	}
	return out, nil
}
