package xdp

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/xdp/card"
	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/flow"
)

// fakeDriver is a driver whose card steers, for an interface that does not.
type fakeDriver struct {
	name   string
	size   int
	rules  map[uint32]ethtool.FlowSpec
	table  []uint32
	refuse error // of SetRSSTable
	opened int
}

func (f *fakeDriver) options(o Options, dir string) Options {
	o.records = dir
	o.driver = func(name string) (driver, error) { f.name, f.opened = name, f.opened+1; return f, nil }
	return o
}

func (f *fakeDriver) RuleTable() (ethtool.RuleTable, error) {
	return ethtool.RuleTable{Rules: len(f.rules), Size: f.size}, nil
}

func (f *fakeDriver) Rules() (out []ethtool.FlowSpec, err error) {
	for at, s := range f.rules {
		s.Location = at
		out = append(out, s)
	}
	return out, nil
}

func (f *fakeDriver) InsertRule(s ethtool.FlowSpec) (ethtool.FlowSpec, error) {
	f.rules[s.Location] = s
	return s, nil
}

func (f *fakeDriver) DeleteRule(at uint32) error { delete(f.rules, at); return nil }

func (f *fakeDriver) RSS() (ethtool.RSS, error) {
	return ethtool.RSS{Table: slices.Clone(f.table)}, nil
}

func (f *fakeDriver) SetRSSTable(t []uint32) error {
	if f.refuse != nil {
		return f.refuse
	}
	if t == nil {
		t = []uint32{0, 1, 2, 3, 0, 1, 2, 3}
	}
	f.table = slices.Clone(t)
	return nil
}

func (f *fakeDriver) Driver() (ethtool.Driver, error) {
	return ethtool.Driver{Name: "fake", Bus: "0000:77:00.0"}, nil
}
func (f *fakeDriver) Rename(name string) { f.name = name }
func (f *fakeDriver) Close() error       { f.opened--; return nil }

func newFakeDriver() *fakeDriver {
	return &fakeDriver{size: 16, rules: map[uint32]ethtool.FlowSpec{}, table: []uint32{0, 1, 2, 3, 0, 1, 2, 3}}
}

func (f *fakeDriver) String() string { return fmt.Sprint(len(f.rules), f.table) }

// The card gives packets to the port's queues, by rules and by its table, and is as before when the
// port is closed.
func TestSteered(t *testing.T) {
	n := hosts(t, netns.LinkSpec{Queues: 4})
	f, dir := newFakeDriver(), t.TempDir()
	before := f.String()
	b := open(t, n.Hosts[1], engine.PortSpec{Options: f.options(Options{Queues: []int{2, 3}}, dir)})
	if f.String() != before || f.opened != 1 {
		t.Errorf("a port without receive queues: %v", f)
	}
	pools := []*mem.Pool{newPool(t, 2048, 1024)}
	q := addRx(t, b, engine.RxSpec{Depth: 64, Pools: pools})
	if !slices.Equal(f.table, []uint32{2, 3, 2, 3, 2, 3, 2, 3}) || len(f.rules) != 0 {
		t.Errorf("%v", f)
	}
	if _, err := b.Rules().Apply(rule(t, "name video udp dst 7 ip dst 198.18.0.2 -> queue 1"),
		rule(t, "name off udp dst 8 -> drop")); err != nil {
		t.Fatal(err)
	}
	if s := f.rules[15]; len(f.rules) != 1 || s.Queue != 3 || s.Type != ethtool.FlowUDP4 {
		t.Errorf("%v", f.rules)
	}
	c := b.Capabilities()
	said := strings.Join(c.Notes, "\n")
	for _, want := range []string{"the card steers packets of 1 rules",
		`in software only: rule "off": it drops packets`, "RSS is set to queues [2 3] while the port is open"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in\n%s", want, said)
		}
	}
	if c.RulesIn != "XDP program, and the card" {
		t.Error(c.RulesIn)
	}
	// Renamed: its driver is asked by the new name.
	for _, line := range []string{"link set eth0 down", "link set eth0 name other0", "link set other0 up"} {
		ip(t, n.Hosts[1], strings.Fields(line)...)
	}
	until(t, "the name", func() bool { return b.link.Name() == "other0" && b.Info().Up })
	if _, err := b.Rules().Apply(rule(t, "udp dst 9 ip dst 198.18.0.2 -> queue 0")); err != nil || f.name != "other0" ||
		len(f.rules) != 2 {
		t.Errorf("%v: %s, %v", err, f.name, f)
	}
	// What the card says of itself is not what packets do here: they come on the queue of this
	// processor, and the program is right.
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if f.String() != before || f.opened != 0 {
		t.Errorf("closed: %v, %d open", f, f.opened)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%v", left)
	}
	if _, err := b.Rules().Apply(rule(t, "udp dst 10 -> queue 0")); err == nil || len(f.rules) != 0 {
		t.Errorf("rules of a closed port: %v, %v", err, f)
	}
}

// The interface goes, and another one has its name: the port asks nothing of that, and leaves no
// record.
func TestSteeredGone(t *testing.T) {
	n := hosts(t, netns.LinkSpec{Queues: 4})
	f, dir := newFakeDriver(), t.TempDir()
	b := open(t, n.Hosts[1], engine.PortSpec{Options: f.options(Options{Queues: []int{2, 3}}, dir)})
	addRx(t, b, engine.RxSpec{Depth: 64, Pools: []*mem.Pool{newPool(t, 2048, 1024)}})
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("%v", left)
	}
	ours := f.String()
	ip(t, n.Hosts[1], "link", "del", "eth0")
	until(t, "it to be gone", b.link.Gone)
	if _, err := b.Rules().Apply(rule(t, "udp dst 7 ip dst 198.18.0.2 -> queue 1")); err == nil || f.String() != ours {
		t.Errorf("%v: %v", err, f)
	}
	if err := b.Close(); err != nil || f.String() != ours || f.opened != 0 {
		t.Errorf("%v: %v, it was %s; %d open", err, f, ours, f.opened)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%v", left)
	}
}

// Packets of a port would go to the kernel, and its card's table cannot be changed: the port
// refuses the queue, or the rule, and says how to fix it.
func TestNotSteered(t *testing.T) {
	n := hosts(t, netns.LinkSpec{Queues: 4})
	f := newFakeDriver()
	f.refuse = ethtool.ErrNotPermitted
	b := open(t, n.Hosts[1], engine.PortSpec{Options: f.options(Options{Queues: []int{2, 3}}, t.TempDir())})
	pools := []*mem.Pool{newPool(t, 2048, 1024)}
	_, err := b.AddRxQueue(engine.RxSpec{Depth: 64, Pools: pools})
	if !errors.Is(err, card.ErrSpread) || !errors.Is(err, engine.ErrUnavailable) ||
		!strings.Contains(err.Error(), "ethtool -X eth0 weight 0 0 1 1") {
		t.Fatal(err)
	}
	if b.applied != (b.isolation(b.rxs.Live())) || b.had != -1 || b.memory != nil {
		t.Errorf("a refused queue has left %+v, %d", b.applied, b.had)
	}
	f.refuse = nil
	if q := addRx(t, b, engine.RxSpec{Depth: 64, Pools: pools}); f.table[0] != 2 || q.ID() != 0 {
		t.Errorf("%v", f)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	// With isolation it is the rule that the card does not take which needs the table.
	f.refuse, f.size = ethtool.ErrNotSupported, 0
	b = open(t, n.Hosts[1], engine.PortSpec{Isolated: true,
		Options: f.options(Options{Queues: []int{2, 3}}, t.TempDir())})
	addRx(t, b, engine.RxSpec{Depth: 64, Pools: pools})
	rules := len(b.Rules().List())
	if _, err := b.Rules().Apply(rule(t, "udp dst 7 -> queue 0")); !errors.Is(err, card.ErrSpread) ||
		!errors.Is(err, engine.ErrUnsupported) || len(b.Rules().List()) != rules {
		t.Errorf("%v, %d rules", err, len(b.Rules().List()))
	}
	f.size = 16
	if _, err := b.Rules().Apply(rule(t, "udp dst 7 -> queue 0")); err != nil || len(f.rules) != 2 {
		t.Errorf("%v, %v", err, f)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	// Or the port leaves the card as it is, and says so.
	b = open(t, n.Hosts[1], engine.PortSpec{Options: f.options(Options{Queues: []int{2, 3}, LeaveCard: true},
		t.TempDir())})
	addRx(t, b, engine.RxSpec{Depth: 64, Pools: pools})
	if said := strings.Join(b.Capabilities().Notes, "\n"); !strings.Contains(said, "ethtool -X eth0 weight 0 0 1 1") ||
		len(f.rules) != 0 {
		t.Errorf("%v: %s", f, said)
	}
}

// A port with a veth's own driver, which has neither table: rules are in software, and the notes
// say so.
func TestVethDriver(t *testing.T) {
	n := hosts(t, netns.LinkSpec{Queues: 4})
	dir := t.TempDir()
	b := open(t, n.Hosts[1], engine.PortSpec{Options: Options{Queues: []int{1, 2}, records: dir}})
	addRx(t, b, engine.RxSpec{Depth: 64, Pools: []*mem.Pool{newPool(t, 2048, 1024)}})
	if _, err := b.Rules().Apply(rule(t, "name one udp dst 7 ip dst 198.18.0.2 -> queue 0")); err != nil {
		t.Fatal(err)
	}
	said := strings.Join(b.Capabilities().Notes, "\n")
	for _, want := range []string{`in software only: rule "one": ntuple: `, "ethtool -K eth0 ntuple on",
		"the driver does not tell how it spreads packets"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in\n%s", want, said)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%v", left)
	}
}

// Rules that look at VLAN tags which the device takes out of frames: the port says so as long as
// they are in force, and the engine before it is open.
func TestTakenTags(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	b := open(t, n.Hosts[1], engine.PortSpec{Options: Options{LeaveCard: true}})
	const want = `rules look at VLAN tags, but the device takes them out of frames (rx-vlan-hw-parse): "ethtool -K eth0 rxvlan off" leaves them in`
	for _, c := range []struct {
		rule string
		told bool
	}{{"udp dst 7 -> queue 0", false}, {"vlan 5 -> queue 0", true}, {"udp dst 8 -> queue 0", false}} {
		rules := b.Rules()
		var changes []flow.Change
		for _, r := range rules.List() {
			changes = append(changes, flow.Delete(r.ID))
		}
		if _, err := rules.Apply(append(changes, rule(t, c.rule))...); err != nil {
			t.Fatal(err)
		}
		if notes := b.Capabilities().Notes; slices.Contains(notes, want) != c.told {
			t.Errorf("%s: %q", c.rule, notes)
		}
		var before []string
		if err := n.Hosts[1].Do(func() error {
			before = New().PortNotes(engine.PortSpec{Address: "eth0"}, rules.List())
			return nil
		}); err != nil || slices.Contains(before, want) != c.told {
			t.Errorf("%s: beforehand %q, %v", c.rule, before, err)
		}
	}
}
