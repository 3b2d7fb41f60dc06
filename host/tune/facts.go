package tune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/host"
	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/internal/sys"
)

// irqsOf lists the interrupts of a device's queues.
func (l linux) irqsOf(iface string) (out []irq, err error) {
	entries, err := os.ReadDir(l.root + l.card(iface) + "/msi_irqs")
	if errors.Is(err, fs.ErrNotExist) { // software, or a card without message-signalled interrupts
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		name, err := l.read(fmt.Sprintf("/sys/kernel/irq/%d/actions", n))
		if err != nil || name == "" { // no driver uses it
			continue
		}
		q := host.Queue(name)
		if q < 0 { // not of a queue
			continue
		}
		affinity, err := l.read(fmt.Sprintf("/proc/irq/%d/smp_affinity_list", n))
		if err != nil {
			continue
		}
		out = append(out, irq{n, name, q, affinity})
	}
	slices.SortFunc(out, func(a, b irq) int { return a.number - b.number })
	return out, nil
}

// steeringOf is RPS and XPS of the queues of an interface. A queue that has none, as those of many
// devices with one, is left out.
func (l linux) steeringOf(iface string) (out []steering) {
	for _, kind := range []string{"rps", "xps"} {
		entries, _ := os.ReadDir(l.root + "/sys/class/net/" + iface + "/queues") // of which there may be none
		for _, e := range entries {
			rest, ok := strings.CutPrefix(e.Name(), steeringDirs[kind][0])
			n, err := strconv.Atoi(rest)
			if !ok || err != nil {
				continue
			}
			if v, err := l.get(iface, steeringSetting(kind, n)); err == nil {
				out = append(out, steering{kind, n, v})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b steering) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.queue, b.queue))
	})
	return out
}

func (l linux) facts(ctx context.Context, iface string) (f facts, err error) {
	d, err := ethtool.Open(iface)
	if errors.Is(err, ethtool.ErrNoDevice) {
		return f, fmt.Errorf("%w: %q; \"penstock tune nic\" lists those that are here (%w)", ErrInterface, iface, err)
	}
	if err != nil {
		return f, err
	}
	defer d.Close()
	unknown := func(what string, err error) {
		if err != nil && !errors.Is(err, ethtool.ErrNotSupported) {
			f.unknown = append(f.unknown, Unknown{what, err.Error()})
		}
	}
	if x, err := d.Driver(); err == nil {
		f.driver = x.Name
	} else {
		unknown("driver", err)
	}
	if x, err := d.Link(); err == nil {
		f.kind, f.up, f.mtu, f.minMTU, f.maxMTU, f.xdpMode, f.xdpProgram = x.Kind, x.Up, x.MTU, x.MinMTU, x.MaxMTU,
			x.XDPMode, x.XDPProgram
	} else {
		unknown("link", err)
		f.mtu, err = d.MTU()
		unknown("MTU", err)
	}
	if c, err := d.Channels(); err == nil {
		f.channels = &c
	} else {
		unknown("queues", err)
	}
	if r, err := d.Rings(); err == nil {
		f.rings = &r
	} else {
		unknown("rings", err)
	}
	if c, err := d.Coalesce(); err == nil {
		f.coalesce = &c
	} else {
		unknown("interrupts", err)
	}
	all, err := d.Features()
	unknown("offloads", err)
	f.features = map[string]ethtool.Feature{}
	for _, x := range all {
		f.features[x.Name] = x
	}
	f.rss, err = rssOf(d)
	unknown("RSS table", err)
	for i, h := range hashes {
		if x, err := d.HashFields(h.of); err == nil { // drivers that have none say so in many ways
			f.udpHash[i] = x.String()
		}
	}
	index, err := d.Index()
	if err == nil {
		var x ethtool.XDP
		if x, err = ethtool.XDPOf(index); err == nil {
			f.xdp = &x
		} else { // a kernel that cannot say is worth saying
			f.unknown = append(f.unknown, Unknown{"XDP of the driver", err.Error()})
		}
	}
	l.files(ctx, iface, &f, unknown)
	return f, ctx.Err()
}

// files finds out what is in files.
func (l linux) files(ctx context.Context, iface string, f *facts, unknown func(string, error)) {
	var err error
	dir := "/sys/class/net/" + iface
	f.deferIRQs, err = l.read(dir + "/napi_defer_hard_irqs")
	unknown("napi_defer_hard_irqs", err)
	f.flushTimeout, err = l.read(dir + "/gro_flush_timeout")
	unknown("gro_flush_timeout", err)
	f.irqs, err = l.irqsOf(iface)
	unknown("interrupts of the queues", err)

	f.steering = l.steeringOf(iface)

	f.node = l.node(iface)
	cpus := "/sys/devices/system/cpu/online"
	if f.node >= 0 {
		cpus = fmt.Sprintf("/sys/devices/system/node/node%d/cpulist", f.node)
	}
	text, err := l.read(cpus)
	if err == nil {
		f.cpus, err = host.ParseList(text)
	}
	unknown("processors near the card", err)

	f.hugePages, err = l.hugePagesOf(f.node)
	unknown("huge pages", err)
	if f.lockLimit, err = sys.LockLimit(); err != nil {
		f.lockLimit = math.MaxUint64
		unknown("limit of locked memory", err)
	}
	f.mayLock = l.capable(capIPCLock)
	files, _ := filepath.Glob(l.root + "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
	for _, g := range files { // none in most virtual machines
		if v, err := l.read(strings.TrimPrefix(g, l.root)); err == nil {
			f.governors = append(f.governors, v)
		}
	}
	slices.Sort(f.governors)
	f.isolated, err = l.read("/sys/devices/system/cpu/isolated")
	unknown("isolated processors", err)
	if err == nil && f.isolated == "" {
		f.isolated = "none"
	}
	if len(f.irqs) > 0 && ctx.Err() == nil {
		f.irqBalance = l.runs(ctx, "irqbalance")
	}
}

// card is the directory of the card that an interface is on. That of a virtio device is above it.
func (l linux) card(iface string) string {
	dir := "/sys/class/net/" + iface + "/device"
	if s, err := os.Readlink(l.root + dir + "/subsystem"); err == nil && filepath.Base(s) == "virtio" {
		dir += "/.."
	}
	return dir
}

// node is the NUMA node of a device; -1 where it has none, as on machines with one.
func (l linux) node(iface string) int {
	v, err := l.read(l.card(iface) + "/numa_node")
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

func (l linux) hugePagesOf(node int) (out []hugePages, err error) {
	pools, err := host.HugePages(os.DirFS(l.slash()), node)
	for _, p := range pools {
		// promised pages are not free to take
		out = append(out, hugePages{size: int(p.Size), node: node, total: p.Total, free: max(p.Free-p.Reserved, 0)})
	}
	return out, err
}

// runs reports whether a process of this name runs.
func (l linux) runs(ctx context.Context, name string) bool {
	files, _ := filepath.Glob(l.root + "/proc/[0-9]*/comm")
	for _, f := range files {
		if ctx.Err() != nil {
			return false
		}
		if v, err := l.read(strings.TrimPrefix(f, l.root)); err == nil && v == name {
			return true
		}
	}
	return false
}
