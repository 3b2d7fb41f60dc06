package tune

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/host"
	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/internal/sys"
)

// linux is this machine, in the network namespace of the calling thread. What it has is for tests.
type linux struct {
	root string // before /sys and /proc
	// writes is called instead of writing a file, and addrs instead of asking the kernel for
	// addresses; nil: they are not.
	writes func(path, value string) error
	addrs  func(iface string) ([]netip.Addr, error)
}

// rssDefault is the value of the setting "rss" for the table that the kernel makes by itself.
const rssDefault = "default"

// mostFile is more than any file of /sys or /proc that is read here has.
const mostFile = 1 << 20

// slash is the directory that stands for /.
func (l linux) slash() string { return cmp.Or(l.root, "/") }

// read reads a small file of /sys or /proc.
func (l linux) read(path string) (string, error) {
	f, err := os.Open(l.root + path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostFile))
	return strings.TrimSpace(string(b)), err
}

func (l linux) write(path, value string) error {
	if l.writes != nil {
		return l.writes(path, value)
	}
	f, err := os.OpenFile(l.root+path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value + "\n")
	return errors.Join(err, f.Close())
}

func (l linux) identity(iface string) (id identity, err error) {
	if id.Boot, err = l.read("/proc/sys/kernel/random/boot_id"); err != nil {
		return id, fmt.Errorf("%w: which boot this is: %w", ErrState, err)
	}
	if cookie, err := sys.NetworkCookie(); err == nil {
		id.Network = strconv.FormatUint(cookie, 10)
	} else if link, err := os.Readlink("/proc/thread-self/ns/net"); err == nil { // before Linux 5.14
		id.Network = strings.Trim(strings.TrimPrefix(link, "net:"), "[]") + "i"
	} else {
		return id, fmt.Errorf("%w: which network namespace this is: %w", ErrState, err)
	}
	if iface == theHost {
		id.Index = -1
		return id, nil
	}
	if isPCI(iface) { // which belongs to no network namespace
		id.Network, id.Bus = "pci", iface
		if _, err := os.Stat(l.root + l.pci(iface)); err == nil {
			id.Index = -1
		}
		return id, nil
	}
	d, err := ethtool.Open(iface)
	if errors.Is(err, ethtool.ErrNoDevice) {
		return id, nil
	}
	if err != nil {
		return id, err
	}
	defer d.Close()
	if id.Index, err = d.Index(); err != nil {
		return id, err
	}
	if x, err := d.Driver(); err == nil {
		id.Bus = x.Bus
	}
	return id, nil
}

// settings that belong to one interface name a file or a command for it; linux refuses others, so
// that a record that was tampered with reaches nothing else.
var (
	napiFiles = []string{"napi_defer_hard_irqs", "gro_flush_timeout"}
	coalesces = []string{"adaptive-rx", "adaptive-tx"}
	features  = []string{ethtool.FeatureGRO, ethtool.FeatureHardGRO, ethtool.FeatureLRO, ethtool.FeatureNtuple}
)

// hashes are the settings of the hash of UDP, by flow type.
var hashes = [2]struct {
	setting Setting
	of      ethtool.FlowType
}{{"hash udp4", ethtool.FlowUDP4}, {"hash udp6", ethtool.FlowUDP6}}

// hashType is the flow type of a setting such as "hash udp4".
func hashType(s Setting) (ethtool.FlowType, bool) {
	for _, h := range hashes {
		if h.setting == s {
			return h.of, true
		}
	}
	return 0, false
}

// file is the file of a setting that has one.
func (l linux) file(iface string, s Setting) (string, bool) {
	words := strings.Fields(string(s))
	number := func(i int) (int, bool) {
		n, err := strconv.Atoi(words[i])
		return n, err == nil && n >= 0
	}
	switch {
	case len(words) == 2 && words[0] == "napi" && slices.Contains(napiFiles, words[1]) && !strings.Contains(iface, "/"):
		return "/sys/class/net/" + iface + "/" + words[1], true
	case len(words) == 2 && steers(s) && !strings.Contains(iface, "/"):
		if n, ok := number(1); ok {
			d := steeringDirs[words[0]]
			return fmt.Sprintf("/sys/class/net/%s/queues/%s%d/%s", iface, d[0], n, d[1]), true
		}
	case len(words) == 2 && words[0] == "sysctl" && slices.Contains(HostSysctls, words[1]):
		return "/" + host.SysctlFile(words[1]), true
	case len(words) > 2 && words[0] == "irq":
		if n, ok := number(1); ok {
			return fmt.Sprintf("/proc/irq/%d/smp_affinity_list", n), true
		}
	case len(words) == 4 && words[0] == "hugepages" && words[2] == "node":
		size, ok := number(1)
		if !ok {
			break
		}
		if words[3] == "-1" {
			return fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages", size>>10), true
		}
		if node, ok := number(3); ok {
			return fmt.Sprintf("/sys/devices/system/node/node%d/hugepages/hugepages-%dkB/nr_hugepages", node, size>>10),
				true
		}
	}
	return "", false
}

func (l linux) settings(iface string) []Setting {
	if iface == theHost || isPCI(iface) { // nothing of it has another for consequence
		return nil
	}
	all := []Setting{"mtu", "channels", "rings", "rss", hashes[0].setting, hashes[1].setting}
	for _, x := range features {
		all = append(all, Setting("feature "+x))
	}
	for _, x := range coalesces {
		all = append(all, Setting("coalesce "+x))
	}
	for _, x := range napiFiles {
		all = append(all, Setting("napi "+x))
	}
	irqs, _ := l.irqsOf(iface) // of which there may be none
	for _, x := range irqs {
		all = append(all, irqSetting(x.number, x.name))
	}
	for _, q := range l.steeringOf(iface) {
		all = append(all, steeringSetting(q.kind, q.queue))
	}
	return all
}

func unknownSetting(s Setting) error { return fmt.Errorf("there is no setting %q", s) }

// present reports whether an interrupt is still the one that a setting is about. Other settings
// always are.
func (l linux) present(s Setting) error {
	rest, ok := strings.CutPrefix(string(s), "irq ")
	number, name, named := strings.Cut(rest, " ")
	if !ok || !named {
		return nil
	}
	now, err := l.read("/sys/kernel/irq/" + number + "/actions")
	if errors.Is(err, fs.ErrNotExist) || err == nil && now != name {
		return fmt.Errorf("%w: interrupt %s of %s", errGone, number, name)
	}
	return err
}

func (l linux) get(iface string, s Setting) (string, error) {
	if isPCI(iface) {
		if s != theDriver {
			return "", unknownSetting(s)
		}
		return l.getDriver(iface)
	}
	if cpus, ok := governorCPUs(s); ok {
		return l.getGovernors(cpus)
	}
	if file, ok := l.file(iface, s); ok {
		if err := l.present(s); err != nil {
			return "", err
		}
		v, err := l.read(file)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", errGone, err)
		}
		if err == nil && steers(s) {
			var cpus []int
			if cpus, err = host.ParseMask(v); err != nil {
				return "", fmt.Errorf("%s: %w", file, err)
			}
			return cpuText(cpus), nil
		}
		if strings.HasPrefix(string(s), "sysctl ") { // several numbers have tabs between them
			v = strings.Join(strings.Fields(v), " ")
		}
		return v, err
	}
	d, err := open(iface)
	if err != nil {
		return "", err
	}
	defer d.Close()
	if of, ok := hashType(s); ok {
		f, err := d.HashFields(of)
		return f.String(), err
	}
	kind, name, _ := strings.Cut(string(s), " ")
	switch {
	case s == "mtu":
		n, err := d.MTU()
		return strconv.Itoa(n), err
	case s == "channels":
		c, err := d.Channels()
		return channelText(c), err
	case s == "rings":
		r, err := d.Rings()
		return ringText(r.Rx, r.Tx), err
	case s == "rss":
		return rssOf(d)
	case kind == "feature" && slices.Contains(features, name):
		f, err := d.Feature(name)
		return onOff(f.Active), err
	case kind == "coalesce" && slices.Contains(coalesces, name):
		c, err := d.Coalesce()
		if name == "adaptive-rx" {
			return onOff(c.AdaptiveRx), err
		}
		return onOff(c.AdaptiveTx), err
	}
	return "", unknownSetting(s)
}

func (l linux) set(iface string, s Setting, value string) error {
	if isPCI(iface) {
		if s != theDriver {
			return unknownSetting(s)
		}
		return l.setDriver(iface, value)
	}
	if cpus, ok := governorCPUs(s); ok {
		return l.setGovernors(cpus, value)
	}
	if file, ok := l.file(iface, s); ok {
		if err := l.present(s); err != nil {
			return err
		}
		if steers(s) {
			cpus, err := host.ParseList(strings.Replace(value, noCPUs, "", 1))
			if err != nil {
				return fmt.Errorf("setting %s: %w", s, err)
			}
			value = host.Mask(sorted(cpus))
		}
		return l.write(file, value)
	}
	d, err := open(iface)
	if err != nil {
		return err
	}
	defer d.Close()
	bad := func(err error) error { return fmt.Errorf("setting %s: value %q: %w", s, value, err) }
	if of, ok := hashType(s); ok {
		f, err := ethtool.ParseHashFields(value)
		if err != nil {
			return bad(err)
		}
		return d.SetHashFields(of, f)
	}
	kind, name, _ := strings.Cut(string(s), " ")
	switch {
	case s == "mtu":
		n, err := strconv.Atoi(value)
		if err != nil {
			return bad(err)
		}
		return d.SetMTU(n)
	case s == "channels":
		c, err := d.Channels()
		if err != nil {
			return err
		}
		if _, err := fmt.Sscanf(value, "rx %d tx %d other %d combined %d", &c.Rx, &c.Tx, &c.Other,
			&c.Combined); err != nil {
			return bad(err)
		}
		return d.SetChannels(c)
	case s == "rings":
		r, err := d.Rings()
		if err != nil {
			return err
		}
		if _, err := fmt.Sscanf(value, "rx %d tx %d", &r.Rx, &r.Tx); err != nil {
			return bad(err)
		}
		return d.SetRings(r)
	case s == "rss":
		var table []uint32
		if value != rssDefault {
			for _, x := range strings.Split(value, ",") {
				n, err := strconv.ParseUint(x, 10, 32)
				if err != nil {
					return bad(err)
				}
				table = append(table, uint32(n))
			}
		}
		return d.SetRSSTable(table)
	case kind == "feature" && slices.Contains(features, name):
		return d.SetFeature(name, value == "on")
	case kind == "coalesce" && slices.Contains(coalesces, name):
		c, err := d.Coalesce()
		if err != nil {
			return err
		}
		if name == "adaptive-rx" {
			c.AdaptiveRx = value == "on"
		} else {
			c.AdaptiveTx = value == "on"
		}
		return d.SetCoalesce(c)
	}
	return unknownSetting(s)
}

// open is ethtool.Open that says what is gone.
func open(iface string) (*ethtool.Device, error) {
	d, err := ethtool.Open(iface)
	if errors.Is(err, ethtool.ErrNoDevice) {
		err = fmt.Errorf("%w: %w", errGone, err)
	}
	return d, err
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// rssOf is the setting "rss".
func rssOf(d *ethtool.Device) (string, error) {
	r, err := d.RSS()
	if err != nil {
		return "", err
	}
	if len(r.Table) == 0 {
		return "", fmt.Errorf("tune: %s: RSS table: %w", d.Name(), ethtool.ErrNotSupported)
	}
	n, err := d.RxQueues()
	if err != nil {
		c, cerr := d.Channels()
		if cerr != nil {
			return "", err
		}
		n = c.RxQueues()
	}
	if r.Default(n) {
		return rssDefault, nil
	}
	text := make([]string, len(r.Table))
	for i, q := range r.Table {
		text[i] = strconv.FormatUint(uint64(q), 10)
	}
	return strings.Join(text, ","), nil
}

// Capabilities (man 7 capabilities), by their bit.
const (
	capNetAdmin = 12
	capIPCLock  = 14
)

func (l linux) capable(bit int) bool {
	s, err := l.read("/proc/thread-self/status")
	if err != nil {
		return true // then the kernel says so itself
	}
	for line := range strings.Lines(s) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return err != nil || n>>bit&1 != 0
		}
	}
	return true
}

func (l linux) needs(iface string, s Setting) (right, missing string) {
	right = "CAP_NET_ADMIN"
	file, hasFile := l.file(iface, s)
	if isPCI(iface) {
		file, hasFile = l.pci(iface)+"/driver_override", true
	}
	if cpus, ok := governorCPUs(s); ok {
		file, hasFile = governorFile(cpus[0]), true
	}
	if hasFile && !strings.HasPrefix(string(s), "napi ") && !steers(s) {
		right = "root"
	}
	if right == "CAP_NET_ADMIN" && !l.capable(capNetAdmin) {
		return right, right
	}
	if !hasFile {
		return right, ""
	}
	f, err := os.OpenFile(l.root+file, os.O_WRONLY, 0)
	if err == nil {
		f.Close()
		return right, ""
	}
	if sys.IsErrno(err, sys.EROFS) {
		return right, "a " + strings.Join(strings.SplitAfterN(file, "/", 3)[:2], "") +
			" that is not mounted read-only, as it is in containers"
	}
	if errors.Is(err, fs.ErrPermission) {
		if info, err := os.Stat(l.root + file); err == nil && info.Mode()&0o222 == 0 &&
			strings.HasPrefix(file, "/proc/sys/net/") {
			return right, "the machine's own network namespace: in others this is read-only, for root too"
		}
		return right, right
	}
	return right, ""
}
