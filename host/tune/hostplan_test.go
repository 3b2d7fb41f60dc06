package tune

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/host"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"pgregory.net/rapid"
)

// newFakeHost is a fake with what is of the host.
func newFakeHost() *fake {
	f := newFake()
	f.id.Index = -1
	f.values = map[Setting]string{"sysctl net.core.rmem_max": "212992", "sysctl net.core.wmem_max": "212992",
		"sysctl net.core.netdev_budget":       "300",
		"sysctl net.core.netdev_budget_usecs": "2000", "sysctl net.core.netdev_max_backlog": "1000",
		"sysctl kernel.numa_balancing": "1",
		"sysctl net.ipv4.tcp_rmem":     "4096 131072 6291456", hugeSetting(2<<20, 0): "16", hugeSetting(2<<20, 1): "16",
		"governor 0-3": "performance@3 powersave@0-2"}
	return f
}

var everythingOfHost = HostGoals{Sysctls: map[string]string{"net.ipv4.tcp_rmem": " 4096  131072 67108864 ",
	"kernel.numa_balancing": "0"},
	HugePages: []HostHuge{{Huge{Bytes: 64 << 20}, 0}, {Huge{Bytes: 32 << 20}, 1}}}

func TestHostPlan(t *testing.T) {
	f := newFakeHost()
	f.softnet = host.Softnet{Packets: 1000, Squeezed: 7, Dropped: 3}
	p, err := hostPlan(ctx, f, everythingOfHost)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range p.Steps {
		got = append(got, fmt.Sprintf("%s: %s: %s -> %s: %s", s.Name, s.What, s.Now, s.Wanted, s.Command))
		if s.Advice || !s.Host || !s.Reversible || s.Why == "" || s.Where == "" || s.Setting == "" ||
			!slices.Contains(HostNames, s.Name) {
			t.Errorf("%+v", s)
		}
	}
	const node = "/sys/devices/system/node/node"
	want := []string{
		"buffers: net.core.rmem_max: 212992 -> 67108864: sysctl -w net.core.rmem_max=67108864",
		"buffers: net.core.wmem_max: 212992 -> 67108864: sysctl -w net.core.wmem_max=67108864",
		"budget: net.core.netdev_budget: 300 -> 600: sysctl -w net.core.netdev_budget=600",
		"budget: net.core.netdev_budget_usecs: 2000 -> 8000: sysctl -w net.core.netdev_budget_usecs=8000",
		"backlog: net.core.netdev_max_backlog: 1000 -> 8192: sysctl -w net.core.netdev_max_backlog=8192",
		"sysctl: kernel.numa_balancing: 1 -> 0: sysctl -w kernel.numa_balancing=0",
		"sysctl: net.ipv4.tcp_rmem: 4096 131072 6291456 -> 4096 131072 67108864: sysctl -w 'net.ipv4.tcp_rmem=4096 " +
			"131072 67108864'",
		"hugepages: huge pages of 2 MiB of NUMA node 0: 16 -> 40: echo 40 > " + node +
			"0/hugepages/hugepages-2048kB/nr_hugepages",
		"hugepages: huge pages of 2 MiB of NUMA node 1: 16 -> 24: echo 24 > " + node +
			"1/hugepages/hugepages-2048kB/nr_hugepages",
		"governor: CPU frequency: performance@3 powersave@0-2 -> performance@0-3: cpupower -c 0-3 frequency-set -g " +
			"performance"}
	if !slices.Equal(got, want) {
		t.Errorf("\n%s\nexpected\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if s := p.String(); !strings.HasPrefix(s, "host\n") || f.sets != 0 {
		t.Error(s)
	}
	b, err := json.Marshal(p)
	var again Plan
	if err := errors.Join(err, json.Unmarshal(b, &again)); err != nil || fmt.Sprint(again) != fmt.Sprint(p) {
		t.Error(err)
	}
	// Without trouble in receiving the plan has nothing about it; it leaves out what is named, and
	// what is so already.
	f.softnet = host.Softnet{Packets: 1000000, Squeezed: 1, Dropped: 1}
	f.values["sysctl net.core.wmem_max"] = "134217728"
	p, err = hostPlan(ctx, f, HostGoals{Skip: []string{"governor"}})
	if err != nil || len(p.Steps) != 2 || p.Steps[0].What != "net.core.rmem_max" ||
		p.Steps[1].Name != "numa-balancing" {
		t.Errorf("%v, %v", p, err)
	}
	// Of the whole machine's pages those count that are not reserved: 15 of 32.
	p, err = hostPlan(ctx, f, HostGoals{HugePages: []HostHuge{{Huge{Bytes: 32 << 20}, -1}},
		Skip: []string{"governor", "buffers", "numa-balancing"}})
	if err != nil || len(p.Steps) != 1 || p.Steps[0].Now != "32" || p.Steps[0].Wanted != "33" ||
		p.Steps[0].Setting != hugeSetting(2<<20, -1) {
		t.Errorf("%+v, %v", p, err)
	}
	delete(f.values, "sysctl net.core.rmem_max")
	if p, err := hostPlan(ctx, f, HostGoals{}); err != nil || len(p.Unknown) != 1 ||
		p.Unknown[0].What != "net.core.rmem_max" {
		t.Errorf("%v, %v", p, err)
	}
}

func TestHostGoalsThatCannotBe(t *testing.T) {
	huge := func(bytes uint64, page, node int) HostHuge { return HostHuge{Huge{bytes, page}, node} }
	for _, x := range []struct {
		g    HostGoals
		want string
	}{
		{HostGoals{Buffers: 1 << 31}, "at most 2147483647"},
		{HostGoals{Sysctls: map[string]string{"kernel.core_pattern": "1"}}, `"kernel.core_pattern": expected one of`},
		{HostGoals{Sysctls: map[string]string{"net.core.rmem_max": "much"}}, "expected a number"},
		{HostGoals{Sysctls: map[string]string{"net.core.rmem_max": " "}}, "without a value"},
		{HostGoals{HugePages: []HostHuge{huge(1<<20, 0, 2)}}, "no NUMA node 2"},
		{HostGoals{HugePages: []HostHuge{huge(1<<20, 0, -2)}}, "of node -2"},
		{HostGoals{HugePages: []HostHuge{huge(0, 0, 0)}}, "0 bytes"},
		{HostGoals{HugePages: []HostHuge{huge(1<<20, 3, 0)}}, "power of two"},
		{HostGoals{HugePages: []HostHuge{huge(1<<20, 0, 0), huge(1<<20, 2<<20, 0)}}, "twice"},
		{HostGoals{HugePages: []HostHuge{huge(1<<20, 0, 0), huge(1<<20, 0, -1)}}, "at once"},
		{HostGoals{HugePages: []HostHuge{huge(1<<30, 1<<30, 0)}}, "no huge pages of 1 GiB"},
		{HostGoals{Governor: "a b"}, "governor"},
		{HostGoals{Cores: []int{-1}}, "processor -1"},
		{HostGoals{Cores: []int{9}}, "no processor 9"},
		{HostGoals{Skip: []string{"mtu"}}, `no step is called "mtu"`},
	} {
		if _, err := hostPlan(ctx, newFakeHost(), x.g); !errors.Is(err, ErrGoal) ||
			!strings.Contains(err.Error(), x.want) {
			t.Errorf("%+v: %v", x.g, err)
		}
	}
	f := newFakeHost()
	f.values["governor 0-3"] = ""
	if _, err := hostPlan(ctx, f, HostGoals{Governor: "performance"}); !errors.Is(err, ErrGoal) ||
		!strings.Contains(err.Error(), "hypervisor") {
		t.Error(err)
	}
	if p, err := hostPlan(ctx, f, HostGoals{}); err != nil || slices.ContainsFunc(p.Steps, func(s Step) bool {
		return s.Name == "governor"
	}) {
		t.Errorf("%v, %v", p, err)
	}
}

// Whatever was applied to the host, and wherever that was killed or failed: UndoHost restores all
// of it. Interfaces do not come into it.
func TestHostApplyUndoIsIdentity(t *testing.T) {
	root := memoryDir(t)
	kills, errs := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		f := newFakeHost()
		f.pages = rapid.SampledFrom([]int{30, 1 << 20}).Draw(t, "pages")
		before := f.snapshot()
		dir, err := os.MkdirTemp(root, "host")
		if err != nil {
			t.Fatal(err)
		}
		o := Options{StateDir: dir}
		for range rapid.IntRange(1, 3).Draw(t, "applies") {
			g := HostGoals{Skip: rapid.SliceOfNDistinct(rapid.SampledFrom(HostNames), 0, 3, rapid.ID).Draw(t, "skip"),
				Governor: rapid.SampledFrom([]string{"", "powersave"}).Draw(t, "governor")}
			if rapid.Bool().Draw(t, "more") {
				g.Sysctls, g.HugePages = everythingOfHost.Sysctls, everythingOfHost.HugePages
			}
			p, err := hostPlan(ctx, f, g)
			if err != nil {
				t.Fatal(err)
			}
			if fault := rapid.IntRange(0, 2).Draw(t, "fault"); fault > 0 {
				faults(f, rapid.IntRange(1, 50).Draw(t, "at"), fault == 2)
			}
			dead, err := try(func() error { _, err := apply(ctx, f, p, o); return err })
			f.trouble, f.err = nil, nil
			if dead {
				kills++
			} else if err != nil {
				errs++
				if !strings.Contains(err.Error(), "host: ") {
					t.Fatal(err)
				}
			}
		}
		if _, err := undo(ctx, f, theHost, o); err != nil && !errors.Is(err, ErrNothing) {
			t.Fatal(err)
		}
		if d := differ(before, f.values); d != nil {
			t.Fatal(d)
		}
		if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
			t.Fatal(left)
		}
	})
	if kills == 0 || errs == 0 {
		t.Errorf("%d kills, %d errors: nothing was tried", kills, errs)
	}
}

// The settings of the host are these files and no others.
func TestHostFiles(t *testing.T) {
	l := tree(t, map[string]string{
		"proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456", "proc/sys/net/core/rmem_max": "212992",
		"proc/sys/net/core/wmem_max": "99999999", "proc/sys/kernel/core_pattern": "core",
		"sys/devices/system/cpu/online":                        "0-2",
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave",
		"sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance",
		"sys/devices/system/cpu/cpu2/cpufreq/scaling_governor": "powersave",
		"sys/devices/system/node/online":                       "0", "sys/devices/system/node/node0/cpulist": "0-2",
		"sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages":   "3",
		"sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages": "1",
		"proc/sys/kernel/random/boot_id":                                          "boot",
	})
	goals := HostGoals{Sysctls: map[string]string{"net.ipv4.tcp_rmem": "1 2 3"},
		HugePages: []HostHuge{{Huge{Bytes: 4 << 20}, 0}}, Cores: []int{0, 1}}
	p, err := hostPlan(ctx, l, goals)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{StateDir: t.TempDir()}
	read := func() string {
		var out []string
		for _, f := range []string{"/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/core/rmem_max", governorFile(0),
			governorFile(1), governorFile(2),
			"/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"} {
			v, err := l.read(f)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, strings.Join(strings.Fields(v), " "))
		}
		return strings.Join(out, "; ")
	}
	before := read()
	if res, err := apply(ctx, l, p, o); err != nil ||
		read() != "1 2 3; 67108864; performance; performance; powersave; 4" {
		t.Errorf("%v, %v: %s", res, err, read())
	}
	if res, err := undo(ctx, l, theHost, o); err != nil || read() != before {
		t.Errorf("%v, %v: %s", res, err, read())
	}
	for _, s := range []Setting{"sysctl kernel.core_pattern", "sysctl net.core.rmem_max/../../../kernel/core_pattern",
		"governor 0-1 x", "governor ", "rps ../0", "xps -1"} {
		if v, err := l.get("eth0", s); err == nil {
			t.Errorf("%s is %q", s, v)
		}
		if err := l.set("eth0", s, "x"); err == nil {
			t.Errorf("%s was set", s)
		}
	}
	for _, v := range []string{"performance@2", "performance", "@0", "performance@x"} {
		if err := l.set(theHost, "governor 0-1", v); err == nil {
			t.Errorf("governors %q", v)
		}
	}
	if read() != before {
		t.Error(read())
	}
}

// In a network namespace the parameters of its own are really set and restored.
func TestHostInANamespace(t *testing.T) {
	n := netns.New(t, netns.Topology{})
	err := n.Hosts[0].Do(func() error {
		values := func() string {
			var out []string
			for _, f := range []string{"tcp_rmem", "udp_rmem_min"} {
				b, err := os.ReadFile("/proc/sys/net/ipv4/" + f)
				if err != nil {
					t.Error(err)
				}
				out = append(out, strings.Join(strings.Fields(string(b)), " "))
			}
			return strings.Join(out, "; ")
		}
		before := values()
		o := Options{StateDir: t.TempDir()}
		p, err := Host(ctx, HostGoals{Sysctls: map[string]string{"net.ipv4.tcp_rmem": "8192 262144 33554432",
			"net.ipv4.udp_rmem_min": "8192"},
			Skip: []string{"buffers", "governor", "numa-balancing", "budget", "backlog"}})
		if err != nil {
			return err
		}
		if _, err := p.Apply(ctx, o); err != nil {
			return err
		}
		if got := values(); got != "8192 262144 33554432; 8192" {
			t.Errorf("applied: %s", got)
		}
		if again, err := Host(ctx, HostGoals{Sysctls: map[string]string{"net.ipv4.udp_rmem_min": "8192"},
			Skip: []string{"buffers", "governor", "numa-balancing", "budget", "backlog"}}); err != nil ||
			len(again.Steps) != 0 {
			t.Errorf("%v, %v", again, err)
		}
		res, err := UndoHost(ctx, o)
		if err != nil {
			return err
		}
		if got := values(); got != before || len(res.Outcomes) != 2 {
			t.Errorf("undone: %s, was %s: %+v", got, before, res)
		}
		if _, err := UndoHost(ctx, o); !errors.Is(err, ErrNothing) {
			t.Error(err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// RPS and XPS of a veth pair, with queues that go and come back.
func TestSteeringOfVeth(t *testing.T) {
	n := netns.New(t, netns.Topology{Link: netns.LinkSpec{Queues: 4}})
	err := n.Hosts[0].Do(func() error {
		const dir = "/sys/class/net/eth0/queues/"
		values := func() string {
			var out []string
			files, _ := filepath.Glob(dir + "*/[rx]ps_cpus")
			for _, f := range files {
				b, err := os.ReadFile(f)
				if err != nil {
					t.Error(err)
				}
				cpus, err := host.ParseMask(strings.TrimSpace(string(b)))
				if err != nil {
					t.Error(err)
				}
				out = append(out, strings.TrimPrefix(f, dir)+"="+cpuText(cpus))
			}
			return strings.Join(out, " ")
		}
		if err := os.WriteFile(dir+"rx-3/rps_cpus", []byte("1"), 0o644); err != nil {
			return err
		}
		before := values()
		if !strings.Contains(before, "rx-3/rps_cpus=0") || !strings.Contains(before, "tx-3/xps_cpus") {
			return fmt.Errorf("this kernel has no RPS and XPS of veth: %s", before)
		}
		o := Options{StateDir: t.TempDir()}
		p, err := Nic(ctx, "eth0", Goals{Queues: 2, RPS: []int{0}, XPS: []int{0}, Skip: []string{"gro"}})
		if err != nil {
			return err
		}
		if _, err := p.Apply(ctx, o); err != nil {
			return err
		}
		if got := values(); !strings.Contains(got,
			"rx-0/rps_cpus=0 rx-1/rps_cpus=0 tx-0/xps_cpus=0 tx-1/xps_cpus=none") || strings.Contains(got, "rx-3") {
			t.Errorf("applied: %s", got)
		}
		res, err := Undo(ctx, "eth0", o)
		if err != nil {
			return err
		}
		if got := values(); got != before {
			t.Errorf("undone: %s\nwas %s\n%+v", got, before, res)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
