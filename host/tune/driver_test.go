package tune

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const testCard = "0000:01:00.0"

// bus is a /sys of files with a network card, and what the kernel does when a process writes there.
type bus struct {
	linux
	t       *testing.T
	natural string // driver that the kernel chooses
	refuse  string // a driver that does not take the card
	step    int
	die     int // at which step the process is killed: even before it, odd behind it; -1: never
}

func newBus(t *testing.T, more map[string]string) *bus {
	const dev = "sys/bus/pci/devices/" + testCard + "/"
	files := map[string]string{
		"proc/sys/kernel/random/boot_id": "boot-1",
		"proc/thread-self/net/route": "Iface Destination Gateway Flags RefCnt Use " +
			"Metric Mask MTU Window IRTT\neth0 00000000 0102A8C0 0003 0 0 100 00000000 0 0 0\neth1 0001A8C0 00000000 " +
			"0001 0 0 0 00FFFFFF 0 0 0",
		"proc/thread-self/net/ipv6_route": "00000000000000000000000000000000 00 " +
			"00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 1 0 00200200 lo",
		"proc/thread-self/status": "CapEff: ffffffffffffffff",
		dev + "class":             "0x020000",
		dev + "vendor":            "0x8086",
		dev + "device":            "0x10d3",
		dev + "driver_override":   "(null)",
		dev + "driver":            "->../../drivers/e1000e",
		dev + "iommu_group":       "->../../../../kernel/iommu_groups/7",
		dev + "net/eth1/mtu":      "1500",
		"sys/kernel/iommu_groups/7/devices/" + testCard:               "->../../../../bus/pci/devices/" + testCard,
		"sys/kernel/iommu_groups/7/devices/0000:00:01.0":              "->../../../../bus/pci/devices/0000:00:01.0",
		"sys/bus/pci/devices/0000:00:01.0/driver":                     "->../../drivers/pcieport",
		"sys/bus/pci/devices/0000:00:01.0/class":                      "0x060400",
		"sys/bus/pci/drivers/e1000e/module":                           "",
		"sys/bus/pci/drivers/vfio-pci/module":                         "",
		"sys/bus/pci/drivers/uio_pci_generic/module":                  "",
		"sys/class/net/eth1/device":                                   "->../../../bus/pci/devices/" + testCard,
		"sys/class/net/eth1/address":                                  "02:00:00:00:00:01",
		"sys/class/net/veth0/address":                                 "02:00:00:00:00:02",
		"sys/bus/pci/devices/0000:02:00.0/class":                      "0x020000",
		"sys/bus/pci/devices/0000:02:00.0/driver_override":            "(null)",
		"sys/bus/pci/devices/0000:02:00.0/driver":                     "->../../drivers/virtio-pci",
		"sys/bus/pci/devices/0000:02:00.0/virtio0/net/eth2/mtu":       "1500",
		"sys/class/net/eth2/device":                                   "->../../../bus/pci/devices/0000:02:00.0/virtio0",
		"sys/bus/pci/devices/0000:03:00.0/class":                      "0x010802",
		"sys/bus/pci/devices/0000:03:00.0/driver_override":            "(null)",
		"sys/bus/pci/devices/0000:03:00.0/driver":                     "->../../drivers/nvme",
		"sys/bus/pci/devices/0000:03:00.0/iommu_group":                "->../../../../kernel/iommu_groups/8",
		"sys/kernel/iommu_groups/8/devices/0000:03:00.0/placeholder ": "",
	}
	for name, v := range more {
		if files[name] = v; v == "<none>" {
			delete(files, name)
		}
	}
	b := &bus{linux: tree(t, files), t: t, natural: "e1000e", die: -1}
	b.linux.writes = b.write
	b.linux.addrs = func(string) ([]netip.Addr, error) { return nil, nil }
	return b
}

func (b *bus) kill() {
	if b.step++; b.step-1 == b.die {
		panic(killed{})
	}
}

// write is the kernel's end of the files that the setting of a driver is made of.
func (b *bus) write(path, value string) error {
	b.kill()
	defer b.kill()
	at := func(name string) string { return filepath.Join(b.root, "sys/bus/pci", name) }
	dev := at("devices/" + testCard)
	override, driver := func() string {
		s, _ := b.read(b.pci(testCard) + "/driver_override")
		return strings.Replace(s, "(null)", "", 1)
	}(), b.base(b.pci(testCard)+"/driver")
	bind := func(name string) error {
		if _, err := os.Stat(at("drivers/" + name)); err != nil || driver != "" || name == b.refuse {
			return syscall.ENODEV
		}
		if name == b.natural {
			if err := os.MkdirAll(dev+"/net/eth1", 0o755); err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Join(b.root, "sys/class/net/eth1"), 0o755); err != nil {
				return err
			}
			if err := os.Symlink("../../../bus/pci/devices/"+testCard,
				filepath.Join(b.root, "sys/class/net/eth1/device")); err != nil && !os.IsExist(err) {
				return err
			}
		}
		return os.Symlink("../../drivers/"+name, dev+"/driver")
	}
	switch rest := strings.TrimPrefix(path, "/sys/bus/pci/"); {
	case rest == "devices/"+testCard+"/driver_override":
		if value == "" {
			value = "(null)"
		}
		return os.WriteFile(dev+"/driver_override", []byte(value+"\n"), 0o644)
	case rest == "devices/"+testCard+"/driver/unbind" && value == testCard && driver != "":
		return errors.Join(os.Remove(dev+"/driver"), os.RemoveAll(dev+"/net"),
			os.RemoveAll(filepath.Join(b.root, "sys/class/net/eth1")))
	case rest == "drivers_probe" && value == testCard:
		if driver != "" {
			return nil
		}
		if override == "" {
			override = b.natural
		}
		_ = bind(override) // the kernel does not say that no driver took it
		return nil
	case strings.HasPrefix(rest, "drivers/") && strings.HasSuffix(rest, "/bind") && value == testCard:
		name := strings.TrimSuffix(strings.TrimPrefix(rest, "drivers/"), "/bind")
		if override != "" && override != name || override == "" && name != b.natural {
			return syscall.ENODEV
		}
		return bind(name)
	}
	b.t.Errorf("%q was written to %s", value, path)
	return syscall.EINVAL
}

// now is the card's driver, and whether its interface is there.
func (b *bus) now() string {
	v, err := b.get(testCard, theDriver)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(v, " ", b.carries(testCard))
}

func TestDriverThereAndBack(t *testing.T) {
	for _, name := range []string{"vfio-pci", "uio_pci_generic"} {
		b := newBus(t, nil)
		o := Options{StateDir: filepath.Join(t.TempDir(), "state")}
		p, err := driverPlan(ctx, b.linux, "eth1", name)
		if err != nil {
			t.Fatal(err)
		}
		if p.Interface != testCard || p.Driver != "e1000e" || len(p.Steps) != 1 || p.Steps[0].Now != "e1000e" ||
			p.Steps[0].Missing != "" || !p.Steps[0].Reversible || !strings.Contains(p.Steps[0].Why, "loses eth1") {
			t.Errorf("%+v", p)
		}
		if b.step != 0 {
			t.Error("the plan changed something")
		}
		for _, want := range []string{testCard + " (e1000e)", "driver of Intel 82574L " + testCard,
			"driverctl --nosave set-override " + testCard + " " + name} {
			if !strings.Contains(p.String(), want) {
				t.Errorf("no %q in\n%v", want, p)
			}
		}
		res, err := apply(ctx, b.linux, p, o)
		if err != nil || len(res.Outcomes) != 1 || res.Outcomes[0].State != Changed ||
			b.now() != name+" override="+name+" []" {
			t.Fatalf("%v %+v: %s", err, res, b.now())
		}
		if p, err := driverPlan(ctx, b.linux, testCard, name); err != nil || len(p.Steps) != 0 {
			t.Errorf("%v %v", p, err)
		}
		if res, err = undo(ctx, b.linux, testCard, o); err != nil || len(res.Outcomes) != 1 ||
			res.Outcomes[0].State != Restored || b.now() != "e1000e [eth1]" {
			t.Errorf("%v %+v: %s", err, res, b.now())
		}
		if _, err := undo(ctx, b.linux, testCard, o); !errors.Is(err, ErrNothing) ||
			!strings.Contains(err.Error(), testCard) {
			t.Error(err)
		}
	}
}

// Wherever the process is killed, of Apply and of Undo: the next Undo restores the driver.
func TestDriverKilled(t *testing.T) {
	for _, value := range []string{"vfio-pci", KernelDriver} {
		for first := 0; ; first++ {
			b := newBus(t, nil)
			if value == KernelDriver { // from a driver that an administrator has forced on it
				b = newBus(t, map[string]string{"sys/bus/pci/devices/" + testCard +
					"/driver": "->../../drivers/vfio-pci",
					"sys/bus/pci/devices/" + testCard + "/driver_override": "vfio-pci",
					"sys/bus/pci/devices/" + testCard + "/net/eth1/mtu":    "<none>"})
			}
			before := b.now()
			o := Options{StateDir: filepath.Join(t.TempDir(), "state")}
			p, err := driverPlan(ctx, b.linux, testCard, value)
			if err != nil || len(p.Steps) != 1 {
				t.Fatalf("%v %v", p, err)
			}
			b.die = first
			dead, err := try(func() error { _, err := apply(ctx, b.linux, p, o); return err })
			if !dead {
				if err != nil || first < 4 {
					t.Fatalf("%d steps: %v", first, err)
				}
				break
			}
			for again := 0; ; again++ {
				b.step, b.die = 0, again
				dead, err := try(func() error { _, err := undo(ctx, b.linux, testCard, o); return err })
				if err != nil && !errors.Is(err, ErrNothing) {
					t.Fatalf("killed at %d and %d: %v; it is %s", first, again, err, b.now())
				}
				if !dead {
					break
				}
			}
			if b.now() != before {
				t.Errorf("killed at %d: it is %s, was %s", first, b.now(), before)
			}
			if _, err := undo(ctx, b.linux, testCard, o); !errors.Is(err, ErrNothing) {
				t.Errorf("killed at %d: %v", first, err)
			}
		}
	}
}

// A driver that does not take the card is an error, and what was there comes back.
func TestDriverThatDoesNotTakeIt(t *testing.T) {
	b := newBus(t, nil)
	b.refuse = "vfio-pci"
	o := Options{StateDir: filepath.Join(t.TempDir(), "state")}
	p, err := driverPlan(ctx, b.linux, testCard, "vfio-pci")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := apply(ctx, b.linux, p, o); !errors.Is(err, ErrNotSo) ||
		!strings.Contains(err.Error(), "penstock tune driver "+testCard+" --undo") ||
		b.now() != "none override=vfio-pci []" {
		t.Errorf("%v: %s", err, b.now())
	}
	if _, err := undo(ctx, b.linux, testCard, o); err != nil || b.now() != "e1000e [eth1]" {
		t.Errorf("%v: %s", err, b.now())
	}
}

func TestDriverRefused(t *testing.T) {
	const dev = "sys/bus/pci/devices/" + testCard + "/"
	const open = "vfio-pci"
	vfio := map[string]string{dev + "driver": "->../../drivers/vfio-pci", dev + "driver_override": "vfio-pci",
		dev + "net/eth1/mtu": "<none>", "proc/42/comm": "testpmd"}
	with := func(a map[string]string, more ...string) map[string]string {
		out := map[string]string{}
		for k, v := range a {
			out[k] = v
		}
		for i := 0; i < len(more); i += 2 {
			out[more[i]] = more[i+1]
		}
		return out
	}
	addr := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	for _, x := range []struct {
		name, device, driver string
		files                map[string]string
		addrs                []netip.Addr
		err                  error
		want                 string // in the error; empty: there is none
	}{
		{"well", testCard, open, nil, nil, nil, ""},
		{"short address", "01:00.0", open, nil, nil, nil, ""},
		{"link local", testCard, open, nil, addr("fe80::1"), nil, ""},
		{"no device", "0000:09:00.0", open, nil, nil, ErrInterface, "no PCI device 0000:09:00.0"},
		{"no interface", "eth9", open, nil, nil, ErrInterface, `no interface "eth9"`},
		{"a path", "../eth1", open, nil, nil, ErrInterface, ""},
		{"software", "veth0", open, nil, nil, ErrGoal, "not of a PCI device"},
		{"virtio", "eth2", open, nil, nil, ErrGoal, "0000:02:00.0 is in no group of an IOMMU"},
		{"a name", testCard, "../x", nil, nil, ErrGoal, `driver "../x"`},
		{"a disk", "0000:03:00.0", open, nil, nil, ErrRefused, "no network card"},
		{"not loaded", testCard, "igb_uio", nil, nil, ErrGoal, "modprobe igb_uio"},
		{"no IOMMU", testCard, open, map[string]string{dev + "iommu_group": "<none>"}, nil, ErrGoal, "intel_iommu=on"},
		{"no IOMMU, uio", testCard, "uio_pci_generic", map[string]string{dev + "iommu_group": "<none>"}, nil, nil, ""},
		{"default route", testCard, open,
			map[string]string{"proc/thread-self/net/route": "eth1 00000000 0102A8C0 0003 0 0 100 00000000 0 0 0"}, nil,
			ErrRefused, "eth1 carries the default route"},
		{"default route of IPv6", testCard, open,
			map[string]string{"proc/thread-self/net/ipv6_route": strings.Repeat("0", 32) + " 00 " + strings.Repeat("0",
				32) + " 00 fe800000000000000000000000000001 00000400 1 0 00000003 eth1"}, nil, ErrRefused,
			"eth1 carries the default route"},
		{"a host at 0.0.0.0", testCard, open,
			map[string]string{"proc/thread-self/net/route": "eth1 00000000 0102A8C0 0003 0 0 100 FFFFFFFF 0 0 0"}, nil,
			nil, ""},
		{"no IPv6", testCard, open, map[string]string{"proc/thread-self/net/ipv6_route": "<none>"}, nil, nil, ""},
		{"routes that cannot be read", testCard, open, map[string]string{"proc/thread-self/net/route": "<none>"}, nil, os.ErrNotExist, "stays as it is"},
		{"address", testCard, open, nil, addr("192.168.1.2"), ErrRefused, "192.168.1.2"},
		{"link-local address of IPv4", testCard, open, nil, addr("169.254.1.2"), ErrRefused, "169.254.1.2"},
		{"address of IPv6", testCard, open, nil, addr("fd00::2"), ErrRefused, "ip address flush dev eth1"},
		{"bond", testCard, open, map[string]string{"sys/class/net/eth1/master": "->../../bond0"}, nil, ErrRefused, "part of bond0"},
		{"VLAN", testCard, open, map[string]string{"sys/class/net/eth1/upper_eth1.5": "->../eth1.5"}, nil, ErrRefused, "eth1.5 is on top of eth1"},
		{"virtual functions", testCard, open, map[string]string{dev + "sriov_numvfs": "4"}, nil, ErrRefused, "4 virtual functions"},
		{"no virtual functions", testCard, open, map[string]string{dev + "sriov_numvfs": "0"}, nil, nil, ""},
		{"elsewhere", testCard, open, map[string]string{dev + "net/eth1/mtu": "<none>"}, nil, ErrRefused, "another network namespace"},
		{"others of the group", testCard, open,
			map[string]string{"sys/kernel/iommu_groups/7/devices/0000:03:00.0": "->../x"}, nil, ErrRefused,
			"0000:03:00.0 (nvme)"},
		{"others of the group, in user space", testCard, open,
			map[string]string{"sys/kernel/iommu_groups/7/devices/0000:04:00.0": "->../x",
				"sys/bus/pci/devices/0000:04:00.0/driver": "->../../drivers/vfio-pci"}, nil, nil, ""},
		{"back", testCard, KernelDriver, vfio, nil, nil, ""},
		{"back, of which it is already", testCard, KernelDriver, nil, nil, nil, ""},
		{"open group", testCard, KernelDriver, with(vfio, "proc/42/fd/7", "->/dev/vfio/7"), nil, ErrRefused, "testpmd (process 42) has /dev/vfio/7 open"},
		{"other group", testCard, KernelDriver, with(vfio, "proc/42/fd/7", "->/dev/vfio/8"), nil, nil, ""},
		{"open device", testCard, KernelDriver, with(vfio, "proc/42/fd/7", "->/dev/vfio/devices/vfio3",
			dev+"vfio-dev/vfio3/dev", "1:1"), nil, ErrRefused, "vfio3 open"},
		{"open uio", testCard, "vfio-pci", with(vfio, dev+"driver", "->../../drivers/uio_pci_generic", "proc/42/fd/7",
			"->/dev/uio0", dev+"uio/uio0/name", "x"), nil, ErrRefused, "/dev/uio0 open"},
	} {
		b := newBus(t, x.files)
		b.linux.addrs = func(string) ([]netip.Addr, error) { return x.addrs, nil }
		before := b.now()
		p, err := driverPlan(ctx, b.linux, x.device, x.driver)
		if x.err == nil {
			if err != nil {
				t.Errorf("%s: %v", x.name, err)
			}
			continue
		}
		if !errors.Is(err, x.err) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v; expected %v with %q", x.name, err, x.err, x.want)
		}
		if len(p.Steps) != 0 {
			t.Errorf("%s: %v", x.name, p)
		}
		if x.err != ErrRefused || x.device != testCard {
			continue
		}
		// A plan that was made before it was so is refused, too, and so is an undo.
		wanted := x.driver + " override=" + x.driver
		if x.driver == KernelDriver {
			wanted = KernelDriver
		}
		old := Plan{Interface: testCard, Steps: []Step{{Name: "driver", What: "driver", Setting: theDriver, Now: before,
			Wanted: wanted}}}
		dir := filepath.Join(t.TempDir(), "state")
		if _, err := apply(ctx, b.linux, old, Options{StateDir: dir}); !errors.Is(err, ErrRefused) || b.step != 0 {
			t.Errorf("%s: an old plan: %v after %d writes", x.name, err, b.step)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: it left a record", x.name)
		}
		writeRecord(t, b, dir, wanted)
		if _, err := undo(ctx, b.linux, testCard, Options{StateDir: dir, Force: true}); !errors.Is(err, ErrRefused) ||
			b.step != 0 {
			t.Errorf("%s: undo: %v after %d writes", x.name, err, b.step)
		}
	}
}

// writeRecord leaves the record of a process that was killed: it says that the card's driver was
// another one.
func writeRecord(t *testing.T, b *bus, dir, from string) {
	t.Helper()
	id, err := b.identity(testCard)
	if err != nil {
		t.Fatal(err)
	}
	st, err := openStore(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	defer st.close()
	if err := st.save(&record{Version: recordVersion, Interface: testCard, Device: id,
		Entries: []entry{{Setting: theDriver, What: "driver", From: from}}, Unfinished: true}); err != nil {
		t.Fatal(err)
	}
}

// A record that was tampered with reaches neither other files nor devices that are no network
// cards.
func TestDriverTampered(t *testing.T) {
	for _, from := range []string{"../../../x", "vfio-pci override=../x", "e1000e\nx", ""} {
		b := newBus(t, nil)
		dir := filepath.Join(t.TempDir(), "state")
		writeRecord(t, b, dir, from)
		if _, err := undo(ctx, b.linux, testCard, Options{StateDir: dir}); err == nil || b.step != 0 {
			t.Errorf("%q: %v after %d writes", from, err, b.step)
		}
	}
	b := newBus(t, nil)
	for _, s := range []Setting{"mtu", "hugepages 2097152 node -1", "sysctl net.core.rmem_max"} {
		if err := b.set(testCard, s, "1"); err == nil {
			t.Errorf("%s of a PCI device", s)
		}
		if _, err := b.get(testCard, s); err == nil {
			t.Errorf("%s of a PCI device", s)
		}
	}
	if err := b.set("0000:03:00.0", theDriver, "none"); !errors.Is(err, ErrRefused) || b.step != 0 {
		t.Error(err)
	}
	if _, err := b.get("eth1", theDriver); err == nil {
		t.Error("an interface has a driver to set")
	}
}

// A reboot forgets which card has which driver, and a card that was taken out has none.
func TestDriverOfAnotherBoot(t *testing.T) {
	b := newBus(t, nil)
	dir := filepath.Join(t.TempDir(), "state")
	writeRecord(t, b, dir, "vfio-pci override=vfio-pci")
	if err := os.WriteFile(filepath.Join(b.root, "proc/sys/kernel/random/boot_id"), []byte("boot-2"),
		0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := undo(ctx, b.linux, testCard, Options{StateDir: dir}); !errors.Is(err, ErrNothing) || b.step != 0 {
		t.Error(err)
	}
	b = newBus(t, nil)
	writeRecord(t, b, dir, "none")
	if err := os.RemoveAll(filepath.Join(b.root, b.pci(testCard))); err != nil {
		t.Fatal(err)
	}
	if _, err := undo(ctx, b.linux, testCard, Options{StateDir: dir}); err != nil || b.step != 0 {
		t.Error(err)
	}
}

func TestCards(t *testing.T) {
	b := newBus(t, map[string]string{"sys/bus/pci/devices/0000:04:00.0/class": "0x020000",
		"sys/bus/pci/devices/0000:04:00.0/driver_override": "vfio-pci"})
	all, err := b.cards(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(all)
	want := `[{"addr":"0000:01:00.0","name":"Intel 82574L","driver":"e1000e","iommu_group":7,"interfaces":["eth1"]},` +
		`{"addr":"0000:02:00.0","name":"network card 0000:0000","driver":"virtio-pci","iommu_group":-1,"interfaces":["eth2"]},` +
		`{"addr":"0000:04:00.0","name":"network card 0000:0000","driver_override":"vfio-pci","iommu_group":-1}]`
	if string(got) != want {
		t.Errorf("%s\nexpected\n%s", got, want)
	}
	if all, err := (linux{root: t.TempDir()}).cards(ctx); err != nil || all != nil {
		t.Errorf("%v %v", all, err)
	}
}
