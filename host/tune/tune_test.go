package tune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/ethtool"
	"pgregory.net/rapid"
)

var everything = Goals{Queues: 4, Ring: 1000, MTU: 3000, BusyPoll: true, HugePages: Huge{Bytes: 64 << 20}}

func planOf(t interface {
	Helper()
	Fatal(...any)
}, f *fake, g Goals) Plan {
	t.Helper()
	p, err := makePlan(ctx, f, "fake0", g)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var ctx = context.Background()

func TestPlan(t *testing.T) {
	f := newFake()
	p := planOf(t, f, everything)
	var got []string
	for _, s := range p.Steps {
		kind := "do"
		if s.Advice {
			kind = "advice"
		}
		got = append(got, fmt.Sprintf("%s %s: %s: %s -> %s", kind, s.Name, s.What, s.Now, s.Wanted))
		if s.Why == "" || s.Command == "" || s.Where == "" || !slices.Contains(Names, s.Name) ||
			s.Reversible == s.Advice || (s.Setting == "") != s.Advice {
			t.Errorf("%+v", s)
		}
	}
	want := []string{
		"do lro: LRO: on -> off",
		"do gro: GRO: on -> off",
		"do mtu: MTU: 1500 -> 3000",
		"do channels: queues: rx 0 tx 0 other 1 combined 8 -> rx 0 tx 0 other 1 combined 4",
		"do rss: RSS table over the new queues: of 8 queues -> default",
		"do rings: rings: rx 512 tx 512 -> rx 1000 tx 1000",
		"do udp-hash: hash of udp4: sd -> sdfn",
		"do ntuple: n-tuple rules: off -> on",
		"do adaptive-rx: adaptive interrupts, receiving: on -> off",
		"do defer-irqs: napi_defer_hard_irqs: 0 -> 2",
		"do flush-timeout: gro_flush_timeout: 0 -> 200000",
		"do irq: interrupt 40 (fake-TxRx-0): 0-3 -> 0",
		"do irq: interrupt 41 (fake-TxRx-1): 0-3 -> 1",
		"do hugepages: huge pages of 2 MiB: 16 -> 40",
		"advice irqbalance: irqbalance: runs -> stopped",
		"advice governor: CPU frequency: powersave -> performance",
		"advice isolation: isolated processors: none -> those of the pollers"}
	if !slices.Equal(got, want) {
		t.Errorf("\n%s\nexpected\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	b, err := json.Marshal(p)
	var again Plan
	if err := errors.Join(err, json.Unmarshal(b, &again)); err != nil || fmt.Sprint(again) != fmt.Sprint(p) {
		t.Errorf("%v:\n%v", err, again)
	}
	for _, want := range []string{"ethtool -L fake0 combined 4", "MTU ",
		"echo 40 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "yours to decide"} {
		if !strings.Contains(p.String(), want) {
			t.Errorf("no %q in\n%v", want, p)
		}
	}
	if f.sets != 0 {
		t.Error("the plan changed something")
	}

	// Applied, there is nothing left to do but what is advice.
	if _, err := apply(ctx, f, p, Options{StateDir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	g := everything
	// the driver has placed them again
	g.Ring, g.Skip = 0, []string{"irq"}
	if p := planOf(t, f, g); len(p.Changes()) != 1 || p.Changes()[0].Name != "rings" {
		// 1000 became 1024, which is less than what is right
		t.Errorf("%v", p)
	}
	g.Skip = []string{"irq", "rings", "irqbalance", "governor", "isolation"}
	if p := planOf(t, f, g); p.String() != "fake0 (fake): nothing to change\n" {
		t.Errorf("%q", p)
	}
}

func TestGoalsThatCannotBe(t *testing.T) {
	for _, x := range []struct {
		g    Goals
		want string
	}{
		{Goals{Queues: -1}, "expected 1 to"},
		{Goals{Queues: 17}, "expected at most 16"},
		{Goals{Ring: 10000}, "at most 8192 to receive"},
		{Goals{MTU: 9217}, "expected 68 to 9216"},
		{Goals{HugePages: Huge{1 << 30, 1 << 30}}, "no huge pages of 1 GiB; it has 2 MiB"},
		{Goals{HugePages: Huge{1 << 30, 3}}, "power of two"},
		{Goals{RPS: []int{-1}}, "RPS to processor -1"},
		{Goals{XPS: []int{1 << 20}}, "XPS to processor"},
		{Goals{Skip: []string{"gor"}}, `no step is called "gor"`},
	} {
		if _, err := makePlan(ctx, newFake(), "fake0", x.g); !errors.Is(err, ErrGoal) ||
			!strings.Contains(err.Error(), x.want) {
			t.Errorf("%+v: %v", x.g, err)
		}
	}
}

func TestAdvice(t *testing.T) {
	f := newFake()
	f.base.xdpMode, f.base.xdpProgram = "native", 17
	f.base.xdp = &ethtool.XDP{}
	f.base.lockLimit = 8 << 20
	f.base.irqBalance, f.base.isolated = false, "2-3"
	f.base.unknown = []Unknown{{"rings", "no answer"}}
	text := planOf(t, f, Goals{MTU: 9000, HugePages: Huge{Bytes: 64 << 20}}).String()
	for _, want := range []string{"native, id 17", "xdpdrv off", "no native XDP", "8 MiB", "LimitMEMLOCK=67108864",
		"unknown: rings: no answer", "rx-sg", "needs"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "irqbalance") || strings.Contains(text, "isolated processors") {
		t.Error(text)
	}
}

// anyGoals are goals that the fake host can have.
func anyGoals(t *rapid.T) Goals {
	g := Goals{Queues: rapid.IntRange(0, 16).Draw(t, "queues"),
		Ring: rapid.SampledFrom([]int{0, 64, 1000, 4096}).Draw(t, "ring"),
		MTU:  rapid.SampledFrom([]int{0, 1400, 9000}).Draw(t, "mtu"), BusyPoll: rapid.Bool().Draw(t, "busy"),
		Skip: rapid.SliceOfNDistinct(rapid.SampledFrom(Names), 0, 3, rapid.ID).Draw(t, "skip")}
	if rapid.Bool().Draw(t, "steer") {
		g.RPS = rapid.SampledFrom([][]int{{}, {2, 3}, {0, 1, 5}}).Draw(t, "rps")
		g.XPS = rapid.SampledFrom([][]int{nil, {}, {0, 1, 2, 3, 4}}).Draw(t, "xps")
	}
	g.HugePages.Bytes = uint64(rapid.SampledFrom([]int{0, 20, 300}).Draw(t, "huge")) << 20
	return g
}

// scramble gives the host other values to begin with.
func scramble(t *rapid.T, f *fake) {
	for _, s := range []Setting{"feature rx-gro", "feature rx-lro", "feature rx-gro-hw", "feature rx-ntuple-filter",
		"coalesce adaptive-rx", "coalesce adaptive-tx"} {
		f.values[s] = onOff(rapid.Bool().Draw(t, string(s)))
	}
	n := rapid.IntRange(4, 16).Draw(t, "combined")
	f.values["channels"] = fmt.Sprintf("rx 0 tx 0 other 1 combined %d", n)
	f.queues(n)
	if rapid.Bool().Draw(t, "custom") {
		f.values["rss"] = "3,2,1,0,3,2,1,0"
	}
	f.keeps = rapid.Bool().Draw(t, "keeps")
	f.pages = rapid.SampledFrom([]int{20, 100, 1 << 20}).Draw(t, "pages")
}

// memoryDir is a directory in memory where there is such a file system: this test writes a great
// many records, each to the disk.
func memoryDir(t *testing.T) string {
	if dir, err := os.MkdirTemp("/dev/shm", "penstock-tune"); err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		return dir
	}
	return t.TempDir()
}

// try runs fn, and says whether it was killed.
func try(fn func() error) (dead bool, err error) {
	defer func() {
		if x := recover(); x != nil {
			if _, ok := x.(killed); !ok {
				panic(x)
			}
			dead = true
		}
	}()
	return false, fn()
}

// faults makes the host fail or the process die at the n-th operation.
func faults(f *fake, at int, kill bool) {
	n := 0
	f.trouble = func(op string, s Setting) {
		// A value that cannot be read for a moment is not seen to change as a consequence:
		// interrupts, queues and the table of RSS can be read here.
		if !kill && op == "get" && (strings.HasPrefix(string(s), "irq ") || steers(s) || s == "rss") {
			return
		}
		if n++; n != at {
			return
		}
		if kill {
			panic(killed{})
		}
		f.err = fmt.Errorf("injected into %s of %s", op, s)
	}
}

// Whatever was applied, however often, and wherever it was killed or failed: Undo restores all of
// it, and leaves no record.
func TestApplyUndoIsIdentity(t *testing.T) {
	root := memoryDir(t)
	kills, errs := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		f := newFake()
		scramble(t, f)
		before := f.snapshot()
		dir, err := os.MkdirTemp(root, "state")
		if err != nil {
			t.Fatal(err)
		}
		o := Options{StateDir: filepath.Join(dir, "a", "b")}
		run := func(fn func() error) error {
			f.trouble = nil
			if fault := rapid.IntRange(0, 2).Draw(t, "fault"); fault > 0 {
				faults(f, rapid.IntRange(1, 60).Draw(t, "at"), fault == 2)
			}
			dead, err := try(fn)
			f.trouble, f.err = nil, nil
			if dead {
				kills++
			} else if err != nil {
				errs++
			}
			return err
		}
		for range rapid.IntRange(1, 4).Draw(t, "applies") {
			p, err := makePlan(ctx, f, "fake0", anyGoals(t))
			if err != nil {
				t.Fatal(err)
			}
			run(func() error { _, err := apply(ctx, f, p, o); return err })
		}
		for range rapid.IntRange(0, 2).Draw(t, "undos") {
			run(func() error { _, err := undo(ctx, f, "fake0", o); return err })
		}
		res, err := undo(ctx, f, "fake0", o)
		if err != nil && !errors.Is(err, ErrNothing) {
			t.Fatal(err)
		}
		if d := differ(before, f.values); d != nil {
			t.Fatalf("%v\n%+v", d, res)
		}
		if _, err := undo(ctx, f, "fake0", o); !errors.Is(err, ErrNothing) {
			t.Fatal(err)
		}
		if left, _ := filepath.Glob(o.StateDir + "/*"); len(left) > 0 {
			t.Fatal(left)
		}
	})
	if kills == 0 || errs == 0 {
		t.Errorf("%d kills, %d errors: nothing was tried", kills, errs)
	}
}

// Undo leaves what another process has changed since, names it, and restores it by force.
func TestUndoLeavesOthersAlone(t *testing.T) {
	root := memoryDir(t)
	rapid.Check(t, func(t *rapid.T) {
		f := newFake()
		before := f.snapshot()
		dir, err := os.MkdirTemp(root, "state")
		if err != nil {
			t.Fatal(err)
		}
		o := Options{StateDir: dir}
		p := planOf(t, f, everything)
		if _, err := apply(ctx, f, p, o); err != nil {
			t.Fatal(err)
		}
		others := map[Setting]string{"mtu": "1450", "irq 41 fake-TxRx-1": "3", "napi gro_flush_timeout": "77",
			"hugepages 2097152 node 0": "500"}
		var theirs []Setting
		for s, v := range others {
			if rapid.Bool().Draw(t, string(s)) {
				f.values[s] = v
				theirs = append(theirs, s)
			}
		}
		res, err := undo(ctx, f, "fake0", o)
		if err != nil {
			t.Fatal(err)
		}
		for _, out := range res.Outcomes {
			mine := !slices.Contains(theirs, out.Setting)
			if mine != (out.State == Restored) || !mine &&
				(out.State != Skipped || !strings.Contains(out.Why, others[out.Setting])) {
				t.Fatalf("%+v", out)
			}
		}
		if d := differ(before, f.values); len(d) != len(theirs) {
			t.Fatal(d)
		}
		o.Force = true
		if _, err := undo(ctx, f, "fake0", o); err != nil && (len(theirs) > 0 || !errors.Is(err, ErrNothing)) {
			t.Fatal(err)
		}
		if d := differ(before, f.values); d != nil {
			t.Fatal(d)
		}
	})
}

func TestAfterABoot(t *testing.T) {
	f := newFake()
	o := Options{StateDir: t.TempDir()}
	if _, err := apply(ctx, f, planOf(t, f, everything), o); err != nil {
		t.Fatal(err)
	}
	f.id.Boot = "boot-2"
	now := f.snapshot()
	if _, err := undo(ctx, f, "fake0", o); !errors.Is(err, ErrNothing) ||
		!strings.Contains(err.Error(), "booted since") {
		t.Error(err)
	}
	if d := differ(now, f.values); d != nil {
		t.Error(d)
	}
	// The next boot's Apply restarts.
	f = newFake()
	f.id.Boot = "boot-3"
	before := f.snapshot()
	if _, err := apply(ctx, f, planOf(t, f, everything), o); err != nil {
		t.Fatal(err)
	}
	if _, err := undo(ctx, f, "fake0", o); err != nil || differ(before, f.values) != nil {
		t.Error(err, differ(before, f.values))
	}
}

// An interface of the same name that is another one is left alone; the host is not.
func TestAnotherDevice(t *testing.T) {
	f := newFake()
	o := Options{StateDir: t.TempDir()}
	before := f.snapshot()
	if _, err := apply(ctx, f, planOf(t, f, everything), o); err != nil {
		t.Fatal(err)
	}
	f.id.Index = 9
	res, err := undo(ctx, f, "fake0", o)
	if err != nil {
		t.Fatal(err)
	}
	for _, out := range res.Outcomes {
		host := strings.HasPrefix(string(out.Setting), "hugepages")
		if host != (out.State == Restored) || !host && out.State != Gone {
			t.Errorf("%+v", out)
		}
	}
	if f.values["mtu"] != "3000" || f.values["irq 40 fake-TxRx-0"] != "0" ||
		f.values["hugepages 2097152 node 0"] != before["hugepages 2097152 node 0"] {
		t.Error(f.values)
	}
	// In another network namespace nothing was ever done.
	f.id.Network = "2"
	if _, err := undo(ctx, f, "fake0", o); !errors.Is(err, ErrNothing) {
		t.Error(err)
	}
}

// A table of RSS that an administrator has set keeps queues from going: it goes first, and comes
// back last.
func TestTableOfRSS(t *testing.T) {
	f := newFake()
	f.values["rss"] = "7,6,5,4,3,2,1,0"
	before := f.snapshot()
	o := Options{StateDir: t.TempDir()}
	p := planOf(t, f, Goals{Queues: 2})
	if _, err := apply(ctx, f, p, o); err != nil || f.values["rss"] != rssDefault ||
		!strings.HasSuffix(f.values["channels"], " combined 2") {
		t.Error(err, f.values)
	}
	if _, err := undo(ctx, f, "fake0", o); err != nil || differ(before, f.values) != nil {
		t.Error(err, differ(before, f.values))
	}
	f.keeps = true
	if _, err := apply(ctx, f, planOf(t, f, Goals{Queues: 12}), o); err != nil || f.values["rss"] != rssDefault {
		t.Error(err, f.values["rss"])
	}
	if _, err := undo(ctx, f, "fake0", o); err != nil || differ(before, f.values) != nil {
		t.Error(err, differ(before, f.values))
	}
	// One that names no queue that goes still does not follow.
	f.values["rss"] = "1,0,1,0"
	if p := planOf(t, f, Goals{Queues: 16}); p.Changes()[2].Name != "rss" || p.Changes()[3].Name != "channels" {
		t.Errorf("%v", p)
	}
}

// What could not be restored at first, and is so when the others are, is no failure.
func TestFailureThatMends(t *testing.T) {
	f := newFake()
	f.values["irq 42 fake-TxRx-2"] = "8" // where the driver puts it for eight queues
	before := f.snapshot()
	o := Options{StateDir: t.TempDir()}
	if _, err := apply(ctx, f, planOf(t, f, Goals{Queues: 4, Skip: []string{"irq"}}), o); err != nil ||
		f.values["irq 42 fake-TxRx-2"] != "4" {
		t.Fatal(err, f.values)
	}
	n := 0
	f.trouble = func(op string, s Setting) {
		if s == "irq 42 fake-TxRx-2" && op == "before" {
			n++
			f.err = errors.New("not now")
		}
	}
	res, err := undo(ctx, f, "fake0", o)
	if err != nil || n != 1 || differ(before, f.values) != nil {
		t.Error(res, err, n, differ(before, f.values))
	}
}

func TestInterruptThatIsGone(t *testing.T) {
	f := newFake()
	o := Options{StateDir: t.TempDir()}
	if _, err := apply(ctx, f, planOf(t, f, Goals{HugePages: everything.HugePages}), o); err != nil {
		t.Fatal(err)
	}
	delete(f.values, "irq 41 fake-TxRx-1")
	res, err := undo(ctx, f, "fake0", o)
	if err != nil || !slices.ContainsFunc(res.Outcomes, func(x Outcome) bool {
		return x.Setting == "irq 41 fake-TxRx-1" && x.State == Gone
	}) {
		t.Error(res, err)
	}
}

func TestRefusals(t *testing.T) {
	f := newFake()
	p := planOf(t, f, everything)
	before := f.snapshot()
	f.lacks = "CAP_NET_ADMIN"
	_, err := apply(ctx, f, p, Options{StateDir: t.TempDir()})
	if !errors.Is(err, ErrRights) || !strings.Contains(err.Error(), "MTU takes CAP_NET_ADMIN") || f.sets != 0 {
		t.Error(err)
	}
	if p := planOf(t, f, everything); len(p.Missing()) != 1 || !strings.Contains(p.String(), "MISSING: CAP_NET_ADMIN") {
		t.Errorf("%v", p)
	}
	f.lacks = ""

	// Without a place for the record nothing changes.
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := apply(ctx, f, p, Options{StateDir: filepath.Join(file, "x")}); !errors.Is(err, ErrState) ||
		f.sets != 0 {
		t.Error(err)
	}
	// Nor where another user may write.
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := apply(ctx, f, p, Options{StateDir: open}); !errors.Is(err, ErrState) ||
		!strings.Contains(err.Error(), "right to write") || f.sets != 0 {
		t.Error(err)
	}
	dir := t.TempDir()
	s, err := openStore(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := apply(ctx, f, p, Options{StateDir: dir}); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	s.close()

	// A step that comes short stops it, and the result says where.
	f.pages = 20
	res, err := apply(ctx, f, p, Options{StateDir: dir})
	if last := res.Outcomes[len(res.Outcomes)-1]; !errors.Is(err, ErrNotSo) || last.State != Failed ||
		last.To != "20" || !strings.Contains(err.Error(), "--undo") {
		t.Error(res, err)
	}
	records, _ := filepath.Glob(dir + "/fake0@1.json")
	if fi, err := os.Stat(records[0]); err != nil || fi.Mode().Perm() != 0o600 {
		t.Error(fi.Mode(), err)
	}
	// A record that is damaged is not used and not removed.
	whole, err := os.ReadFile(records[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(records[0], whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := undo(ctx, f, "fake0", Options{StateDir: dir}); !errors.Is(err, ErrState) ||
		!strings.Contains(err.Error(), records[0]) {
		t.Error(err)
	}
	if err := os.WriteFile(records[0], whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := undo(ctx, f, "fake0", Options{StateDir: dir}); err != nil || differ(before, f.values) != nil {
		t.Error(err, differ(before, f.values))
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"interface":"eth0","entries":[{"setting":"mtu","from":"1500","ours":["9000"]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRecord(b)
		if err != nil {
			return
		}
		h := newFake()
		dir := t.TempDir()
		r.Interface, r.Device = "fake0", h.id
		s, err := openStore(dir, true)
		if err != nil {
			t.Fatal(err)
		}
		err = s.save(r)
		s.close()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := undo(ctx, h, "fake0", Options{StateDir: dir}); err != nil && !errors.Is(err, ErrNothing) {
			_ = err.Error()
		}
	})
}

// RPS sends all flows of a queue to all its processors; XPS gives each processor one queue. Queues
// that go take theirs with them.
func TestSteering(t *testing.T) {
	f := newFake()
	before := f.snapshot()
	p := planOf(t, f, Goals{Queues: 2, RPS: []int{5, 2, 3}, XPS: []int{0, 1, 2},
		Skip: []string{"irq", "rings", "lro", "gro", "udp-hash", "ntuple", "adaptive-rx"}})
	var got []string
	for _, s := range p.Changes() {
		got = append(got, fmt.Sprintf("%s: %s -> %s: %s", s.Setting, s.Now, s.Wanted, s.Command))
	}
	const dir = "/sys/class/net/fake0/queues/"
	want := []string{"channels: rx 0 tx 0 other 1 combined 8 -> rx 0 tx 0 other 1 combined 2: ethtool -L fake0 " +
		"combined 2",
		"rss: of 8 queues -> default: ethtool -X fake0 default",
		"rps 0: none -> 2-3,5: echo 2c > " + dir + "rx-0/rps_cpus",
		"rps 1: none -> 2-3,5: echo 2c > " + dir + "rx-1/rps_cpus",
		"xps 0: none -> 0,2: echo 5 > " + dir + "tx-0/xps_cpus"} // the second queue that sends is so already
	if !slices.Equal(got, want) {
		t.Errorf("\n%s\nexpected\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	o := Options{StateDir: t.TempDir()}
	if _, err := apply(ctx, f, p, o); err != nil {
		t.Fatal(err)
	}
	if _, ok := f.values["rps 6"]; ok || f.values["rps 0"] != "2-3,5" {
		t.Error(f.values)
	}
	// The queue that comes back gets what it had, although it was not there when undoing began.
	res, err := undo(ctx, f, "fake0", o)
	if err != nil || differ(before, f.values) != nil {
		t.Error(err, differ(before, f.values))
	}
	if !slices.ContainsFunc(res.Outcomes, func(x Outcome) bool {
		return x.Setting == "rps 6" && x.State == Restored && x.To == "1,3"
	}) ||
		slices.ContainsFunc(res.Outcomes, func(x Outcome) bool { return x.State == Gone }) {
		t.Errorf("%+v", res)
	}
}

// The ways in which a queue can go and come back between what was done and what is undone.
func TestSteeringThatComesBack(t *testing.T) {
	channels := func(n int) string { return fmt.Sprintf("rx 0 tx 0 other 1 combined %d", n) }
	for name, between := range map[string]func(*fake, Options){
		"somebody else has given it back": func(f *fake, o Options) {
			if _, err := apply(ctx, f, planOf(t, f, Goals{Queues: 2}), o); err != nil {
				t.Fatal(err)
			}
			if err := f.set("fake0", "channels", channels(8)); err != nil {
				t.Fatal(err)
			}
		},
		"killed, and applied with more queues": func(f *fake, o Options) {
			f.trouble = func(op string, s Setting) {
				if op == "after" && s == "channels" {
					panic(killed{})
				}
			}
			p := planOf(t, f, Goals{Queues: 2})
			if dead, err := try(func() error { _, err := apply(ctx, f, p, o); return err }); !dead {
				t.Fatal(err)
			}
			f.trouble = nil
			if _, err := apply(ctx, f, planOf(t, f, Goals{Queues: 16}), o); err != nil {
				t.Fatal(err)
			}
		},
		"the queues could not be restored at first": func(f *fake, o Options) {
			if _, err := apply(ctx, f, planOf(t, f, Goals{Queues: 2}), o); err != nil {
				t.Fatal(err)
			}
			f.trouble = func(op string, s Setting) {
				if op == "before" && s == "channels" {
					f.err = errors.New("not now")
				}
			}
			if _, err := undo(ctx, f, "fake0", o); err == nil {
				t.Fatal("it was restored")
			}
			f.trouble, f.err = nil, nil
		},
	} {
		f := newFake()
		before := f.snapshot()
		o := Options{StateDir: t.TempDir()}
		between(f, o)
		res, err := undo(ctx, f, "fake0", o)
		// Undo leaves interrupts where another process's change has put them.
		left := slices.DeleteFunc(differ(before, f.values), func(s string) bool { return strings.HasPrefix(s, "irq ") })
		if err != nil || len(left) > 0 {
			t.Errorf("%s: %v: %v\n%+v", name, err, left, res)
		}
	}
}
