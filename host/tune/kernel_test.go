package tune

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/sys"
)

// childEnv makes the test binary a process that applies a plan and is killed at a given operation.
const childEnv = "PENSTOCK_TUNE_CHILD"

// veth is what a veth pair can have, all other than it is at first.
var veth = Goals{Queues: 2, MTU: 9000, BusyPoll: true}

// killer is the real host on which this process dies at an operation.
type killer struct {
	linux
	at, n *int
}

func (k killer) die() {
	if *k.n++; *k.n == *k.at {
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			self.Signal(sys.SIGKILL)
		}
		select {} // until it takes effect
	}
}

func (k killer) set(iface string, s Setting, v string) error {
	k.die()
	err := k.linux.set(iface, s, v)
	k.die()
	return err
}

// child applies the plan of veth; its arguments are in the environment: state directory, operation.
func child() int {
	dir, at, _ := strings.Cut(os.Getenv(childEnv), "@")
	n, _ := strconv.Atoi(at)
	p, err := Nic(context.Background(), "eth0", veth)
	if err == nil {
		_, err = apply(context.Background(), killer{at: &n, n: new(int)}, p, Options{StateDir: dir})
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// state is what the program ethtool and /sys say of eth0.
func state(t *testing.T, h *netns.Host) string {
	t.Helper()
	p, err := testenv.Tool("ethtool", "ethtool")
	if err != nil {
		testenv.Missing(t, "ethtool", err)
	}
	var all strings.Builder
	for _, args := range [][]string{{"-k", "eth0"}, {"-l", "eth0"}} {
		out, err := h.Output(t.Context(), p, args...)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(out)
	}
	err = h.Do(func() error {
		for _, f := range []string{"mtu", "gro_flush_timeout", "napi_defer_hard_irqs"} {
			b, err := os.ReadFile("/sys/class/net/eth0/" + f)
			if err != nil {
				return err
			}
			fmt.Fprintf(&all, "%s %s", f, b)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func TestVeth(t *testing.T) {
	n := netns.New(t, netns.Topology{Link: netns.LinkSpec{Queues: 4}})
	h := n.Hosts[0]
	gro := func() error {
		d, err := ethtool.Open("eth0")
		if err != nil {
			return err
		}
		defer d.Close()
		return d.SetFeature("gro", true)
	}
	if err := h.Do(gro); err != nil {
		t.Fatal(err)
	}
	before := state(t, h)
	o := Options{StateDir: filepath.Join(t.TempDir(), "state")}
	err := h.Do(func() error {
		if _, err := Undo(t.Context(), "eth0", o); !errors.Is(err, ErrNothing) {
			return fmt.Errorf("undo of nothing: %v", err)
		}
		if _, err := Nic(t.Context(), "eth0", Goals{Queues: 5}); !errors.Is(err, ErrGoal) {
			return fmt.Errorf("5 queues: %v", err)
		}
		if _, err := Nic(t.Context(), "eth0", Goals{Ring: 100}); !errors.Is(err, ErrGoal) {
			return fmt.Errorf("rings: %v", err)
		}
		if _, err := Nic(t.Context(), "eth7", Goals{}); !errors.Is(err, ethtool.ErrNoDevice) {
			return fmt.Errorf("eth7: %v", err)
		}
		p, err := Nic(t.Context(), "eth0", veth)
		if err != nil {
			return err
		}
		var names []string
		for _, s := range p.Changes() {
			names = append(names, s.Name)
		}
		if want := []string{"gro", "mtu", "channels", "defer-irqs", "flush-timeout"}; !slices.Equal(names, want) ||
			p.Driver != "veth" {
			return fmt.Errorf("%v, expected %v", names, want)
		}
		if _, err := p.Apply(t.Context(), o); err != nil {
			return err
		}
		// The same plan again changes nothing, another one other things.
		res, err := p.Apply(t.Context(), o)
		if err != nil || slices.ContainsFunc(res.Outcomes, func(x Outcome) bool { return x.State != Already }) {
			return fmt.Errorf("again: %+v, %v", res, err)
		}
		if p, err = Nic(t.Context(), "eth0", Goals{Queues: 3, MTU: 2000}); err != nil {
			return err
		}
		_, err = p.Apply(t.Context(), o)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	tuned := state(t, h)
	for _, want := range []string{"generic-receive-offload: off", "mtu 2000", "gro_flush_timeout 200000",
		"napi_defer_hard_irqs 2"} {
		if !strings.Contains(tuned, want) {
			t.Errorf("no %q in\n%s", want, tuned)
		}
	}
	if err := h.Do(func() error { _, err := Undo(t.Context(), "eth0", o); return err }); err != nil {
		t.Fatal(err)
	}
	if after := state(t, h); after != before {
		t.Errorf("after:\n%s\nbefore:\n%s", after, before)
	}
}

// A process that is killed at any operation leaves a record that another one can undo.
func TestKilled(t *testing.T) {
	n := netns.New(t, netns.Topology{Link: netns.LinkSpec{Queues: 4}})
	h := n.Hosts[0]
	before := state(t, h)
	changed := 0
	for at := 1; ; at++ {
		o := Options{StateDir: t.TempDir()}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s@%d", childEnv, o.StateDir, at))
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		err := h.Run(cmd)
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() > 0 {
			t.Fatalf("%v: %s", err, out.String())
		}
		if state(t, h) != before {
			changed++
		}
		if err := h.Do(func() error { _, err := Undo(t.Context(), "eth0", o); return err }); err != nil {
			t.Fatalf("killed at operation %d: %v", at, err)
		}
		if after := state(t, h); after != before {
			t.Fatalf("killed at operation %d:\n%s\nbefore:\n%s", at, after, before)
		}
		if err == nil { // it came to its end
			if at < 8 || changed < 6 {
				t.Errorf("killed at %d operations, which had changed something %d times", at-1, changed)
			}
			return
		}
	}
}

// Two hosts with an eth0 each and one state directory do not meet.
func TestTwoNamespaces(t *testing.T) {
	n := netns.New(t, netns.Topology{})
	o := Options{StateDir: t.TempDir()}
	apply := func(h *netns.Host, mtu int) {
		if err := h.Do(func() error {
			p, err := Nic(t.Context(), "eth0", Goals{MTU: mtu, Skip: []string{"gro"}})
			if err == nil {
				_, err = p.Apply(t.Context(), o)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	a, b := n.Hosts[0], n.Hosts[1]
	before := state(t, b)
	apply(a, 4000)
	apply(b, 5000)
	if err := b.Do(func() error { _, err := Undo(t.Context(), "eth0", o); return err }); err != nil {
		t.Fatal(err)
	}
	if state(t, b) != before || !strings.Contains(state(t, a), "mtu 4000") {
		t.Errorf("%s\n%s", state(t, a), state(t, b))
	}
	if err := a.Do(func() error { _, err := Undo(t.Context(), "eth0", o); return err }); err != nil {
		t.Fatal(err)
	}
}

// Without /sys and /proc a plan still comes, and says what is unknown.
func TestWithoutFiles(t *testing.T) {
	n := netns.New(t, netns.Topology{})
	err := n.Hosts[0].Do(func() error {
		h := linux{root: t.TempDir()}
		p, err := makePlan(t.Context(), h, "eth0", Goals{MTU: 4000, BusyPoll: true})
		if err != nil {
			return err
		}
		if len(p.Unknown) < 4 || !strings.Contains(p.String(), "unknown: napi_defer_hard_irqs") ||
			!slices.ContainsFunc(p.Steps, func(s Step) bool {
				return s.Name == "mtu"
			}) {
			return fmt.Errorf("%v", p)
		}
		if _, err := apply(t.Context(), h, p, Options{StateDir: t.TempDir()}); !errors.Is(err, ErrState) {
			return fmt.Errorf("without a boot id: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A forged record reaches nothing but what a plan could.
func TestSettingsAreBounded(t *testing.T) {
	for _, s := range []Setting{"", "mtu ", "file /etc/passwd", "napi ../../../etc/passwd", "napi threaded",
		"irq ../../x y", "irq -1 y", "irq 1",
		"hugepages 2097152 node ../..", "hugepages x node 0", "feature tx-checksum-ipv4", "coalesce rx-usecs"} {
		if f, ok := (linux{}).file("lo", s); ok {
			t.Errorf("%q is %s", s, f)
		}
		if v, err := (linux{}).get("lo", s); err == nil {
			t.Errorf("%q is %q", s, v)
		}
		if err := (linux{}).set("lo", s, "0"); err == nil {
			t.Errorf("%q was set", s)
		}
	}
	if f, ok := (linux{}).file("../x", "napi gro_flush_timeout"); ok {
		t.Error(f)
	}
}

// custom is a table of RSS as a list, also where it is the default.
func custom(t *testing.T, table, name string) string {
	t.Helper()
	if table != rssDefault {
		return table
	}
	d, err := ethtool.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r, err := d.RSS()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Repeat("0,", len(r.Table)-1) + "0"
}

// Real cards' drivers: queues, rings and interrupts.
func TestGuestNics(t *testing.T) {
	p := guest.Nics
	p.Name = "nics+rss"
	p.Modules = append(slices.Clone(p.Modules), "e1000e", "vmxnet3", "virtio_pci", "virtio_net")
	p.Programs = append(slices.Clone(p.Programs), guest.Program{Name: "ethtool", Package: "ethtool"})
	p.NICs = slices.Clone(p.NICs)
	p.NICs[2].Options += ",rss=on,hash=on" // a table and a choice of fields that the driver lets one set
	if guest.Enter(t, guest.Spec{Profile: p}) {
		return
	}
	for _, name := range []string{"nic0", "nic1", "nic2"} {
		t.Run(name, func(t *testing.T) {
			if out, err := exec.Command("ip", "link", "set", name, "up").CombinedOutput(); err != nil {
				// vmxnet3 and e1000e have interrupts then
				t.Fatalf("%v: %s", err, out)
			}
			l := linux{}
			snapshot := func() (all []string) {
				for _, s := range []Setting{"mtu", "channels", "rings", "rss", "hash udp4", "hash udp6",
					"feature rx-gro", "feature rx-lro", "coalesce adaptive-rx", "napi gro_flush_timeout"} {
					v, err := l.get(name, s)
					all = append(all, fmt.Sprintf("%s: %s %v", s, v, err))
				}
				irqs, err := l.irqsOf(name)
				all = append(all, fmt.Sprint(irqs, err))
				n, _ := l.get(name, hugeSetting(2<<20, -1))
				return append(all, n)
			}
			g := Goals{Ring: 512, MTU: 2000, BusyPoll: true, HugePages: Huge{Bytes: 300 << 20}}
			if name == "nic2" {
				f, err := l.facts(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				if f.channels != nil && f.channels.MaxCombined >= 2 {
					g.Queues = 3 - f.channels.Combined%2 // 2 or 3
					g.Queues = min(g.Queues, f.channels.MaxCombined)
				}
				g.Ring = 0
				if table, err := l.get(name, "rss"); err == nil {
					// a table that an administrator has set, and a hash of addresses
					if err := l.set(name, "rss", strings.Repeat("1,0,", strings.Count(custom(t, table, name), ",")/2)+
						"1,0"); err != nil {
						t.Error(err)
					}
					if err := l.set(name, "hash udp4", "sd"); err != nil {
						t.Error(err)
					}
				} else {
					t.Logf("without RSS: %v", err)
				}
			}
			before := snapshot()
			p, err := Nic(t.Context(), name, g)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%v", p)
			o := Options{StateDir: t.TempDir()}
			res, err := p.Apply(t.Context(), o)
			t.Logf("%v, %v", res.Outcomes, err)
			if err != nil {
				t.Error(err)
			}
			if v, err := l.get(name, "rss"); err == nil && v != rssDefault {
				// virtio-net does not let it follow the queues
				t.Errorf("RSS table %s", v)
			}
			if res, err = Undo(t.Context(), name, o); err != nil {
				t.Error(res, err)
			}
			if after := snapshot(); !slices.Equal(after, before) {
				t.Errorf("after:\n%s\nbefore:\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
			}
		})
	}
}

// Cards behind an IOMMU, with a real kernel: to vfio-pci and uio_pci_generic, and back.
func TestGuestDriver(t *testing.T) {
	p := guest.Nics
	p.Name = "nics+driver"
	p.Modules = append(slices.Clone(p.Modules), "e1000e", "vmxnet3", "virtio_pci", "virtio_net", "uio_pci_generic")
	if guest.Enter(t, guest.Spec{Profile: p}) {
		return
	}
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	all, err := Cards(t.Context())
	if err != nil || len(all) != 3 {
		t.Fatalf("%v %+v", err, all)
	}
	for _, x := range []struct{ name, driver, to string }{{"nic0", "e1000e", "vfio-pci"},
		{"nic1", "vmxnet3", "uio_pci_generic"}, {"nic2", "virtio-pci", "vfio-pci"}} {
		t.Run(x.name, func(t *testing.T) {
			i := slices.IndexFunc(all, func(c Card) bool { return slices.Contains(c.Interfaces, x.name) })
			if i < 0 || all[i].Driver != x.driver || all[i].Group < 0 {
				t.Fatalf("%s: %+v", x.name, all)
			}
			c := all[i]
			o := Options{StateDir: filepath.Join(t.TempDir(), "state")}
			ip("address", "add", "192.0.2.1/24", "dev", x.name)
			if _, err := Driver(t.Context(), x.name, x.to); !errors.Is(err, ErrRefused) ||
				!strings.Contains(err.Error(), "192.0.2.1") {
				t.Errorf("with an address: %v", err)
			}
			ip("address", "flush", "dev", x.name)
			plan, err := Driver(t.Context(), x.name, x.to)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%v", plan)
			if res, err := plan.Apply(t.Context(), o); err != nil {
				t.Fatalf("%v %+v", err, res)
			}
			now := func() string { return linux{}.base("/sys/bus/pci/devices/" + c.Addr + "/driver") }
			if _, err := os.Stat("/sys/class/net/" + x.name); now() != x.to || !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("driver %s, interface: %v", now(), err)
			}
			if x.to == "vfio-pci" {
				f, err := os.OpenFile(fmt.Sprintf("/dev/vfio/%d", c.Group), os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := UndoDriver(t.Context(), c.Addr, o); !errors.Is(err, ErrRefused) ||
					!strings.Contains(err.Error(), fmt.Sprintf("/dev/vfio/%d open", c.Group)) {
					t.Errorf("while it is open: %v", err)
				}
				f.Close()
			}
			if again, err := Driver(t.Context(), c.Addr, x.to); err != nil || len(again.Steps) != 0 {
				t.Errorf("%v %v", err, again)
			}
			if res, err := UndoDriver(t.Context(), c.Addr, o); err != nil || now() != x.driver {
				t.Fatalf("driver %s: %v %+v", now(), err, res)
			}
			if v, err := (linux{}).get(c.Addr, theDriver); err != nil || v != x.driver {
				t.Errorf("%q %v", v, err)
			}
			if l := (linux{}).carries(c.Addr); len(l) != 1 { // perhaps by another name: it is a new interface
				t.Errorf("interfaces %v", l)
			}
			// Without a record: what the kernel itself chooses.
			if plan, err = Driver(t.Context(), c.Addr, x.to); err != nil {
				t.Fatal(err)
			}
			if _, err := plan.Apply(t.Context(), Options{StateDir: t.TempDir()}); err != nil {
				t.Fatal(err)
			}
			if plan, err = Driver(t.Context(), c.Addr, KernelDriver); err != nil || len(plan.Steps) != 1 {
				t.Fatalf("%v %v", err, plan)
			}
			if _, err := plan.Apply(t.Context(), o); err != nil || now() != x.driver {
				t.Errorf("driver %s: %v", now(), err)
			}
		})
	}
}
