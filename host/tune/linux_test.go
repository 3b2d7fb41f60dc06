package tune

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"golang.org/x/sys/unix"
)

// tree makes a /sys and /proc of files; a value that begins with -> is a link.
func tree(t *testing.T, files map[string]string) linux {
	t.Helper()
	root := t.TempDir()
	for name, v := range files {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(v, "->"); ok {
			err = os.Symlink(to, name)
		} else {
			err = os.WriteFile(name, []byte(v+"\n"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return linux{root: root}
}

// A card with two queues on NUMA node 1, and a virtio device, whose interrupts are those of the
// card above it.
func TestFilesOfACard(t *testing.T) {
	l := tree(t, map[string]string{
		"sys/class/net/eth0/device":                                                  "->../../../devices/pci/0000:01:00.0",
		"sys/devices/pci/numa_node":                                                  "0", // of the bridge: not eth0's
		"sys/devices/pci/msi_irqs/9":                                                 "msix",
		"sys/kernel/irq/9/actions":                                                   "bridge-rx-0",
		"proc/irq/9/smp_affinity_list":                                               "0",
		"sys/devices/pci/0000:01:00.0/numa_node":                                     "1",
		"sys/devices/pci/0000:01:00.0/subsystem":                                     "->../../../bus/pci",
		"sys/devices/pci/0000:01:00.0/msi_irqs/40":                                   "msix",
		"sys/devices/pci/0000:01:00.0/msi_irqs/41":                                   "msix",
		"sys/devices/pci/0000:01:00.0/msi_irqs/42":                                   "msix",
		"sys/devices/pci/0000:01:00.0/msi_irqs/43":                                   "msix",
		"sys/kernel/irq/40/actions":                                                  "eth0",
		"sys/kernel/irq/41/actions":                                                  "eth0-TxRx-0",
		"sys/kernel/irq/42/actions":                                                  "eth0-TxRx-1",
		"sys/kernel/irq/43/actions":                                                  "",
		"proc/irq/40/smp_affinity_list":                                              "0-7",
		"proc/irq/41/smp_affinity_list":                                              "0-7",
		"proc/irq/42/smp_affinity_list":                                              "5",
		"sys/class/net/virt0/device":                                                 "->../../../devices/pci/0000:02:00.0/virtio3",
		"sys/devices/pci/0000:02:00.0/virtio3/subsystem":                             "->../../../../bus/virtio",
		"sys/devices/pci/0000:02:00.0/numa_node":                                     "-1",
		"sys/devices/pci/0000:02:00.0/msi_irqs/50":                                   "msix",
		"sys/kernel/irq/50/actions":                                                  "virtio3-input.0",
		"proc/irq/50/smp_affinity_list":                                              "0-1",
		"sys/devices/system/node/node1/cpulist":                                      "4-5,7",
		"sys/devices/system/cpu/online":                                              "0-7",
		"sys/devices/system/cpu/isolated":                                            "",
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor":                       "powersave",
		"sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages":      "64",
		"sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages":    "60",
		"sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages":   "0",
		"sys/devices/system/node/node1/hugepages/hugepages-1048576kB/free_hugepages": "0",
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":                      "128",
		"sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages":                    "100",
		"sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages":                    "30",
		"proc/77/comm":                            "irqbalance",
		"proc/irq/42/no_number":                   "x",
		"sys/class/net/eth0/napi_defer_hard_irqs": "0",
	})
	unknown := func(f *facts) func(string, error) {
		return func(what string, err error) {
			if err != nil {
				f.unknown = append(f.unknown, Unknown{what, err.Error()})
			}
		}
	}
	var f facts
	l.files(t.Context(), "eth0", &f, unknown(&f))
	if want := []irq{{41, "eth0-TxRx-0", 0, "0-7"}, {42, "eth0-TxRx-1", 1, "5"}}; !slices.Equal(f.irqs, want) {
		t.Errorf("interrupts %v, expected %v", f.irqs, want)
	}
	if f.node != 1 || !slices.Equal(f.cpus, []int{4, 5, 7}) || !f.irqBalance || f.isolated != "none" ||
		f.deferIRQs != "0" || !slices.Equal(f.governors, []string{"powersave"}) {
		t.Errorf("%+v", f)
	}
	if want := []hugePages{{2 << 20, 1, 64, 60}, {1 << 30, 1, 0, 0}}; !slices.Equal(f.hugePages, want) {
		t.Errorf("huge pages %v, expected %v", f.hugePages, want)
	}
	if len(f.unknown) != 1 || f.unknown[0].What != "gro_flush_timeout" {
		t.Errorf("unknown: %v", f.unknown)
	}
	f = facts{}
	l.files(t.Context(), "virt0", &f, unknown(&f))
	if want := []irq{{50, "virtio3-input.0", 0, "0-1"}}; !slices.Equal(f.irqs, want) || f.node != -1 ||
		len(f.cpus) != 8 {
		t.Errorf("%+v", f)
	}
	if want := []hugePages{{2 << 20, -1, 128, 70}}; !slices.Equal(f.hugePages, want) {
		t.Errorf("huge pages %v, expected %v", f.hugePages, want)
	}
	// The settings are those files.
	for s, want := range map[Setting]string{"irq 41 eth0-TxRx-0": "0-7", hugeSetting(2<<20, 1): "64",
		hugeSetting(2<<20, -1): "128"} {
		if got, err := l.get("eth0", s); err != nil || got != want {
			t.Errorf("%s: %q, %v", s, got, err)
		}
		if err := l.set("eth0", s, "3"); err != nil {
			t.Error(err)
		}
		if got, err := l.get("eth0", s); err != nil || got != "3" {
			t.Errorf("%s: %q, %v", s, got, err)
		}
	}
	for _, gone := range []Setting{"irq 99 eth0-TxRx-0", "irq 41 other-TxRx-0"} { // the second is another device's now
		if _, err := l.get("eth0", gone); !errors.Is(err, errGone) {
			t.Errorf("%s: %v", gone, err)
		}
		if err := l.set("eth0", gone, "1"); !errors.Is(err, errGone) {
			t.Errorf("%s: %v", gone, err)
		}
	}
}

// A /sys that is mounted read-only, as in containers, is named; nothing is tried.
func TestReadOnlySys(t *testing.T) {
	n := netns.New(t, netns.Topology{})
	err := n.Hosts[0].Do(func() error {
		if err := unix.Mount("", "/sys", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return err
		}
		p, err := Nic(t.Context(), "eth0", Goals{BusyPoll: true, Skip: []string{"gro"}})
		if err != nil {
			return err
		}
		_, err = p.Apply(t.Context(), Options{StateDir: t.TempDir()})
		if err == nil || !strings.Contains(err.Error(), "nothing was changed") ||
			!strings.Contains(err.Error(), "a /sys/ that is not mounted read-only") {
			return fmt.Errorf("applied: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// What only the machine's own network namespace can set takes no rights that one could get in
// another.
func TestNeedsOfANamespace(t *testing.T) {
	n := netns.New(t, netns.Topology{})
	err := n.Hosts[0].Do(func() error {
		p, err := Host(ctx, HostGoals{Sysctls: map[string]string{"net.core.rmem_max": "99999999"},
			Skip: []string{"governor", "numa-balancing", "budget", "backlog"}})
		if err != nil {
			return err
		}
		found := false
		for _, s := range p.Steps {
			found = found || s.Setting == "sysctl net.core.rmem_max"
			if s.Setting == "sysctl net.core.rmem_max" &&
				!strings.HasPrefix(s.Missing, "the machine's own network namespace") {
				return fmt.Errorf("%+v", s)
			}
		}
		if !found {
			return fmt.Errorf("there is no such step: %+v", p.Steps)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
