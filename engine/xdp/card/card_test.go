package card

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/packet/flow"
)

// fake is a card with a table of n-tuple rules and one of RSS.
type fake struct {
	size, queues int
	chooses      bool
	rules        map[uint32]ethtool.FlowSpec
	table        []uint32
	careless     bool // what the kernel makes by itself is for queues that there are not
	set          bool // an administrator has set the table, not the kernel
	refuseRules  func(ethtool.FlowSpec) error
	refuseTable  error
	noRSS        bool
	gone         bool
	calls        int
	killAt       int // this call, and the process with it, does not return; 0: none
}

type killed struct{}

func (f *fake) call() error {
	f.calls++
	if f.calls == f.killAt {
		panic(killed{})
	}
	if f.gone {
		return ethtool.ErrNoDevice
	}
	return nil
}

func (f *fake) RuleTable() (ethtool.RuleTable, error) {
	if f.size == 0 && !f.chooses {
		return ethtool.RuleTable{}, errors.Join(f.call(), ethtool.ErrNotSupported)
	}
	return ethtool.RuleTable{Rules: len(f.rules), Size: f.size, Chooses: f.chooses}, f.call()
}

func (f *fake) Rules() (out []ethtool.FlowSpec, err error) {
	for at, s := range f.rules {
		s.Location = at
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b ethtool.FlowSpec) int { return int(a.Location) - int(b.Location) })
	return out, f.call()
}

func (f *fake) InsertRule(s ethtool.FlowSpec) (ethtool.FlowSpec, error) {
	if f.refuseRules != nil {
		if err := f.refuseRules(s); err != nil {
			return s, err
		}
	}
	if f.chooses {
		for s.Location = 0; ; s.Location++ {
			if _, taken := f.rules[s.Location]; !taken {
				break
			}
		}
	} else if int(s.Location) >= f.size {
		return s, ethtool.ErrFull
	}
	f.rules[s.Location] = s // the card has it, and perhaps the process does not live to see it
	return s, f.call()
}

func (f *fake) DeleteRule(at uint32) error {
	if _, ok := f.rules[at]; !ok {
		return ethtool.ErrRefused
	}
	delete(f.rules, at)
	return f.call()
}

func (f *fake) RSS() (ethtool.RSS, error) {
	if f.noRSS {
		return ethtool.RSS{}, ethtool.ErrNotSupported
	}
	return ethtool.RSS{Table: slices.Clone(f.table)}, f.call()
}

func (f *fake) SetRSSTable(t []uint32) error {
	if f.refuseTable != nil {
		return f.refuseTable
	}
	f.set = t != nil
	if t == nil {
		if t = f.even(); f.careless {
			t = []uint32{0, 1, 2, 3, 4, 5, 6, 7}
		}
	}
	f.table = slices.Clone(t)
	return f.call()
}

func (f *fake) even() (t []uint32) {
	for i := range 8 {
		t = append(t, uint32(i%f.queues))
	}
	return t
}

func newFake(size int) *fake {
	f := &fake{size: size, queues: 4, rules: map[uint32]ethtool.FlowSpec{}}
	f.table = f.even()
	return f
}

// state is what is in the card, as text.
func (f *fake) state() string {
	rules, _ := (&fake{rules: f.rules}).Rules()
	return fmt.Sprint(rules, f.table, f.set)
}

func rules(t testing.TB, lines ...string) []flow.Rule {
	t.Helper()
	out, err := flow.ParseRules(strings.Join(lines, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range out {
		out[i].ID = uint32(i + 1)
	}
	return out
}

var here = Identity{"boot", "7", 3, "0000:01:00.0"}

func openCard(t testing.TB, f *fake, o Options) *Card {
	t.Helper()
	o.Interface, o.Identity = "eth0", here
	if o.Have == 0 {
		o.Have = f.queues
	}
	c, err := Open(f, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func set(t testing.TB, c *Card, w Want) Report {
	t.Helper()
	r, err := c.Set(w)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Rules go to the queues of the card where their receive queues are at home; what the card does not
// take stays in software, with the reason.
func TestSteer(t *testing.T) {
	f, dir := newFake(16), t.TempDir()
	theirs := ethtool.FlowSpec{Type: ethtool.FlowTCP4, Value: ethtool.FlowKey{DstPort: 22},
		Mask: ethtool.FlowKey{DstPort: 0xffff}, Queue: 1}
	f.rules[15] = theirs
	before := f.state()
	c := openCard(t, f, Options{Queues: []int{0, 1, 2, 3}, Dir: dir})
	r := set(t, c, Want{All: true, Rules: rules(t,
		"name low udp dst 5000 ip dst 10.0.0.0/8 -> queue 1",
		"name high prio 9 udp dst 5000 ip dst 10.0.0.1 -> queue 6",
		"name gone udp dst 7 -> drop",
		"name many udp -> rss 0 1",
		"name local tcp dst 22 -> kernel",
		"name odd udp dst 9 inner-vlan 5 -> queue 2",
		"name ssh tcp dst 22 ip dst 0.0.0.0/0 -> queue 1")})
	if r.Steered != 3 || len(r.Software) != 3 || len(r.Notes) != 0 {
		t.Errorf("%+v", r)
	}
	for i, want := range []string{`"gone": it drops`, `"many": `, `"odd": `} {
		if !strings.Contains(r.Software[i], want) ||
			!strings.Contains(strings.Join(r.Lines(), "\n"), "in software only: "+r.Software[i]) {
			t.Errorf("%s: expected %s", r.Software[i], want)
		}
	}
	// Of the first two the one of greater precedence is at the lower place; receive queue 6 is at
	// home on queue 2.
	var high, low uint32
	for at, s := range f.rules {
		if s.Mask.Dst[3] == 0xff {
			high = at
		} else if s.Mask.Dst[0] == 0xff {
			low = at
		}
	}
	if high >= low || f.rules[high].Queue != 2 || f.rules[low].Queue != 1 {
		t.Errorf("at %d %v, at %d %v", high, f.rules[high], low, f.rules[low])
	}
	// Other rules: what stays is not touched, what goes is taken out.
	calls := f.calls
	r = set(t, c, Want{All: true, Rules: rules(t, "udp dst 5000 ip dst 10.0.0.0/8 -> queue 1",
		"tcp dst 80 ip dst 10.0.0.1 -> queue 3")})
	if r.Steered != 2 || len(f.rules) != 3 || f.rules[low].Mask.Dst[0] != 0xff || f.calls-calls > 8 {
		t.Errorf("%+v, %s, %d calls", r, f.state(), f.calls-calls)
	}
	// The record has them with their places.
	if rec, err := c.store.load(here); err != nil || fmt.Sprint(rec.Rules) != fmt.Sprint(c.now.Rules) ||
		len(rec.Rules) != 2 || rec.Rules[0].Location == ethtool.AnyLocation {
		t.Errorf("%+v, %v", rec, err)
	}
	if err := c.Close(); err != nil || f.state() != before {
		t.Errorf("%v: %s, it was %s", err, f.state(), before)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%v", left)
	}
}

// The same rule of another program serves as well, and stays.
func TestTheirs(t *testing.T) {
	f := newFake(4)
	c := openCard(t, f, Options{Queues: []int{0, 1, 2, 3}, Dir: t.TempDir()})
	same := rules(t, "udp dst 5000 ip dst 10.0.0.1 -> queue 1")
	f.rules[0] = c.plan(same)[0].specs[0]
	before := f.state()
	if r := set(t, c, Want{Rules: same}); r.Steered != 1 || f.state() != before {
		t.Errorf("%+v, %s", r, f.state())
	}
	// Another program replaces our rule by its own.
	other := rules(t, "udp dst 5001 ip dst 10.0.0.1 -> queue 1")
	set(t, c, Want{Rules: other})
	foreign := ethtool.FlowSpec{Type: ethtool.FlowTCP4, Queue: 1}
	f.rules[3] = foreign
	if err := c.Close(); err != nil || f.rules[3] != foreign || len(f.rules) != 2 {
		t.Errorf("%v: %s", err, f.state())
	}
}

// A small table holds what has the greatest precedence; one that is full makes room for what is
// wanted instead.
func TestFull(t *testing.T) {
	f := newFake(2)
	c := openCard(t, f, Options{Queues: []int{0, 1, 2, 3}, Dir: t.TempDir()})
	r := set(t, c, Want{Rules: rules(t, "udp dst 1 ip dst 10.0.0.1 -> queue 1",
		"prio 5 udp dst 2 ip dst 10.0.0.1 -> queue 2", "prio 4 udp dst 3 ip dst 10.0.0.1 -> queue 3")})
	if r.Steered != 2 || len(r.Software) != 1 || !strings.Contains(r.Software[0], "rule 1: ") ||
		!strings.Contains(r.Software[0], "full") {
		t.Errorf("%+v", r)
	}
	r = set(t, c, Want{Rules: rules(t, "udp dst 7 ip dst 10.0.0.1 -> queue 1", "udp dst 8 ip dst 10.0.0.1 -> queue 1")})
	if r.Steered != 2 || len(r.Software) != 0 {
		t.Errorf("%+v, %s", r, f.state())
	}
	f.refuseRules = func(s ethtool.FlowSpec) error {
		if s.Value.DstPort == 9 {
			return fmt.Errorf("no nines: %w", ethtool.ErrRefused)
		}
		return nil
	}
	r = set(t, c, Want{Rules: rules(t, "udp dst 9 ip dst 10.0.0.1 -> queue 1", "udp dst 8 ip dst 10.0.0.1 -> queue 1",
		"name again udp dst 9 ip dst 10.0.0.1 -> queue 1")})
	if r.Steered != 1 || len(r.Software) != 2 || !strings.Contains(r.Software[0], "no nines") || len(f.rules) != 1 {
		t.Errorf("%+v, %s", r, f.state())
	}
	if err := c.Close(); err != nil || len(f.rules) != 0 {
		t.Error(err, f.state())
	}
}

// A card that chooses places is not given rules whose order counts.
func TestChooses(t *testing.T) {
	f := newFake(0)
	f.chooses = true
	c := openCard(t, f, Options{Queues: []int{0, 1, 2, 3}, Dir: t.TempDir()})
	r := set(t, c, Want{Rules: rules(t, "prio 1 udp dst 5000 ip dst 10.0.0.1 -> queue 1",
		"udp dst 5000 ip dst 10.0.0.0/8 -> queue 2", "udp dst 5001 ip dst 10.0.0.0/8 -> queue 2")})
	if r.Steered != 2 || len(r.Software) != 1 || !strings.Contains(r.Software[0], "rule 2: ") ||
		!strings.Contains(r.Software[0], "disjoint") {
		t.Errorf("%+v", r)
	}
}

// The table of RSS is that of the port's queues where the kernel would get packets otherwise, and
// only there.
func TestSpread(t *testing.T) {
	steered, alone := []string{"udp dst 5000 -> queue 1"},
		[]string{"udp dst 5000 -> queue 1", "udp dst 6000 -> rss 0 1"}
	for _, c := range []struct {
		what   string
		queues []int
		want   Want
		set    bool
	}{
		{"all queues", []int{0, 1, 2, 3}, Want{All: true}, false},
		{"some queues", []int{2, 3}, Want{All: true}, true},
		{"no receive queue yet", []int{2, 3}, Want{}, false},
		{"isolated, and the card steers all", []int{2, 3}, Want{Rules: rules(t, steered...)}, false},
		{"isolated, and it does not", []int{2, 3}, Want{Rules: rules(t, alone...)}, true},
		{"isolated, and only the kernel's", []int{2, 3}, Want{Rules: rules(t, "udp dst 5000 -> kernel")}, false},
		{"isolated, what drops must arrive", []int{2, 3}, Want{Rules: rules(t, "udp dst 5000 -> drop")}, true},
	} {
		for _, own := range []bool{false, true} {
			f, dir := newFake(16), t.TempDir()
			if own { // an administrator has set it
				f.table, f.set = []uint32{0, 1, 1, 1, 1, 1, 1, 1}, true
			}
			before := f.state()
			x := openCard(t, f, Options{Queues: c.queues, Dir: dir})
			r := set(t, x, c.want)
			ours := slices.Equal(f.table, []uint32{2, 3, 2, 3, 2, 3, 2, 3})
			if ours != c.set || ours != strings.Contains(strings.Join(r.Notes, "\n"), "set to queues [2 3]") {
				t.Errorf("%s: table %v, %v", c.what, f.table, r.Notes)
			}
			if again := set(t, x, c.want); fmt.Sprint(again) != fmt.Sprint(r) {
				t.Errorf("%s: %+v, then %+v", c.what, r, again)
			}
			if c.set {
				set(t, x, Want{})
				if f.state() != before {
					t.Errorf("%s: when nothing is wanted any more: %v", c.what, f.table)
				}
				set(t, x, c.want)
			}
			if err := x.Close(); err != nil || f.state() != before {
				t.Errorf("%s: %v: %s, it was %s", c.what, err, f.state(), before)
			}
			if left, _ := os.ReadDir(dir); len(left) != 0 {
				t.Errorf("%s: %v", c.what, left)
			}
		}
	}
	// A driver whose own table is not the one that was there.
	f := newFake(16)
	f.careless = true
	x := openCard(t, f, Options{Queues: []int{2, 3}, Dir: t.TempDir()})
	set(t, x, Want{All: true})
	if err := x.Close(); err != nil || !slices.Equal(f.table, f.even()) {
		t.Errorf("%v: %v", err, f.table)
	}
	// An administrator changes it while the port is open: that stays.
	f = newFake(16)
	x = openCard(t, f, Options{Queues: []int{2, 3}, Dir: t.TempDir()})
	set(t, x, Want{All: true})
	f.table[0] = 3
	want := slices.Clone(f.table)
	if err := x.Close(); err != nil || !slices.Equal(f.table, want) {
		t.Errorf("%v: %v", err, f.table)
	}
	// A table that leaves one of the port's queues out is right, and said.
	f.table = []uint32{2, 2, 2, 2, 2, 2, 2, 2}
	x = openCard(t, f, Options{Queues: []int{2, 3}, Dir: t.TempDir()})
	if r := set(t, x, Want{All: true}); f.table[0] != 2 || len(r.Notes) != 1 ||
		!strings.Contains(r.Notes[0], "ethtool -X eth0 weight 0 0 1 1") {
		t.Errorf("%v, %+v", f.table, r)
	}
}

// What cannot be is an error that says what to do, and nothing is changed.
func TestRefused(t *testing.T) {
	f := newFake(16)
	before := f.state()
	f.refuseTable = ethtool.ErrNotPermitted
	c := openCard(t, f, Options{Queues: []int{2, 3}, Dir: t.TempDir()})
	_, err := c.Set(Want{All: true})
	if !errors.Is(err, ErrSpread) || !errors.Is(err, ethtool.ErrNotPermitted) {
		t.Error(err)
	}
	for _, say := range []string{"ethtool -X eth0 weight 0 0 1 1", "penstock tune nic eth0 --queues 2 --apply",
		"has 4 queues"} {
		if !strings.Contains(err.Error(), say) {
			t.Errorf("%v: expected %q", err, say)
		}
	}
	if err := c.Close(); err != nil || f.state() != before {
		t.Errorf("%v: %s", err, f.state())
	}
	// A driver that tells nothing.
	f.noRSS = true
	if r := set(t, openCard(t, f, Options{Queues: []int{2, 3}, Dir: t.TempDir()}),
		Want{All: true}); len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "does not tell") {
		t.Errorf("%+v", r)
	}
	// The user says that the card is to be left as it is.
	f = newFake(16)
	c = openCard(t, f, Options{Queues: []int{2, 3}, Dir: t.TempDir(), Leave: true})
	r := set(t, c, Want{All: true, Rules: rules(t, "udp dst 5000 -> queue 1")})
	if f.state() != before || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "ethtool -X eth0 weight 0 0 1 1") ||
		len(r.Software) != 1 {
		t.Errorf("%+v, %s", r, f.state())
	}
	// Without a place for the record nothing is changed, nor with one that is not understood.
	for _, open := range []bool{true, false} {
		dir := t.TempDir()
		if open {
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(filepath.Join(dir, newStore(dir, here).file), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Open(f, Options{Interface: "eth0", Identity: here, Queues: []int{2, 3}, Have: 4, Dir: dir})
		if (err == nil) != open || !open && !errors.Is(err, ErrRecord) {
			t.Errorf("%v", err)
		}
		if _, err := c.Set(Want{All: true}); !errors.Is(err, ErrSpread) || !errors.Is(err, ErrRecord) ||
			f.state() != before {
			t.Errorf("%v, %s", err, f.state())
		}
		if r, _ := c.Set(Want{Rules: rules(t, "udp dst 5000 -> queue 1")}); r.Steered != 0 || f.state() != before {
			t.Errorf("%+v, %s", r, f.state())
		}
	}
	// Nor is a record believed that others may write.
	dir := t.TempDir()
	st := newStore(dir, here)
	if err := errors.Join(st.save(&record{Version: recordVersion, Device: here}),
		os.Chmod(st.path(), 0o666)); err != nil {
		t.Fatal(err)
	}
	if _, err := st.load(here); !errors.Is(err, ErrRecord) || !strings.Contains(err.Error(), "no write permission") {
		t.Error(err)
	}
	// A card with one queue has nothing to do.
	f.queues = 1
	c = openCard(t, f, Options{Queues: []int{0}, Dir: t.TempDir()})
	if r := set(t, c, Want{All: true, Rules: rules(t, "udp dst 5000 -> queue 1")}); len(r.Lines()) != 0 {
		t.Errorf("%+v", r)
	}
	// One that is gone has nothing of ours.
	f = newFake(16)
	c = openCard(t, f, Options{Queues: []int{2, 3}, Dir: t.TempDir()})
	set(t, c, Want{All: true, Rules: rules(t, "udp dst 5000 -> queue 1")})
	f.gone = true
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// Wherever a process is killed, the next one that opens the card takes back all of it, and nothing
// of others.
func TestKilledAnywhere(t *testing.T) {
	sets := [][]flow.Rule{
		rules(t, "udp dst 5000 -> queue 1", "prio 3 tcp dst 80 ip dst 10.0.0.1 -> queue 2", "udp dst 7 -> drop"),
		rules(t, "udp dst 5000 -> queue 1", "udp dst 6000-6003 ip src 10.0.0.0/8 -> queue 3"),
		rules(t, "udp -> rss 0 1"), nil,
	}
	dirs := 0
	tmp := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		f := newFake(rapid.SampledFrom([]int{4, 8, 32}).Draw(t, "size"))
		f.chooses = rapid.Bool().Draw(t, "chooses")
		if rapid.Bool().Draw(t, "theirs") {
			f.table, f.set = []uint32{1, 1, 2, 2, 3, 3, 0, 1}, true
			f.rules[2] = ethtool.FlowSpec{Type: ethtool.FlowTCP4, Value: ethtool.FlowKey{DstPort: 22},
				Mask: ethtool.FlowKey{DstPort: 0xffff}, Queue: 1}
		}
		before := f.state()
		dirs++
		dir := filepath.Join(tmp, fmt.Sprint(dirs))
		queues := rapid.SampledFrom([][]int{{0, 1, 2, 3}, {2, 3}, {1}}).Draw(t, "queues")
		open := func() *Card {
			c, err := Open(f, Options{Interface: "eth0", Identity: here, Queues: queues, Have: 4, Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		life := func() {
			defer func() {
				if e := recover(); e != nil && e != any(killed{}) {
					panic(e)
				}
			}()
			c := open()
			for range rapid.IntRange(1, 4).Draw(t, "sets") {
				w := Want{Rules: sets[rapid.IntRange(0, len(sets)-1).Draw(t, "set")], All: rapid.Bool().Draw(t, "all")}
				if _, err := c.Set(w); err != nil {
					t.Fatal(err)
				}
			}
			if rapid.Bool().Draw(t, "close") {
				if err := c.Close(); err != nil {
					t.Fatal(err)
				}
				if f.state() != before {
					t.Fatalf("closed: %s, it was %s", f.state(), before)
				}
				if left, _ := os.ReadDir(dir); len(left) != 0 {
					t.Fatalf("closed: left: %v", left)
				}
			}
		}
		for range rapid.IntRange(1, 3).Draw(t, "lives") {
			f.killAt = f.calls + rapid.IntRange(1, 60).Draw(t, "kill")
			life()
		}
		f.killAt = 0
		c := open()
		if f.state() != before {
			t.Fatalf("after the kill: %s, it was %s", f.state(), before)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Fatalf("left: %v", left)
		}
	})
}

// A record of another boot, namespace or device says nothing, and goes.
func TestOtherDevice(t *testing.T) {
	f, dir := newFake(16), t.TempDir()
	c := openCard(t, f, Options{Queues: []int{2, 3}, Dir: dir})
	set(t, c, Want{All: true})
	table := slices.Clone(f.table)
	for _, id := range []Identity{{"another", here.Network, here.Index, here.Bus},
		{here.Boot, here.Network, here.Index, "0000:02:00.0"}} {
		if err := c.store.save(&c.now); err != nil {
			t.Fatal(err)
		}
		x, err := Open(f, Options{Interface: "eth0", Identity: id, Queues: []int{2, 3}, Have: 4, Dir: dir})
		if err != nil || len(x.notes) != 0 || !slices.Equal(f.table, table) {
			t.Errorf("%v, %v, %v", err, x.notes, f.table)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("%v", left)
		}
	}
	if id, err := Identify(3, "x"); err != nil || id.Boot == "" || id.Network == "" || id.Index != 3 {
		t.Errorf("%+v, %v", id, err)
	}
	if d, err := DefaultDir(); err == nil && !filepath.IsAbs(d) {
		t.Error(d)
	}
}

func FuzzRecord(f *testing.F) {
	for _, r := range []record{
		{Version: 1, Device: here}, {Version: 1, Rules: []ethtool.FlowSpec{{Type: ethtool.FlowUDP4, Queue: 1}},
			RSS: &spread{Before: []uint32{0}, Ours: []uint32{1}}},
	} {
		b, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"version":1,"rss":{"before":[1],"ours":[1,2]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRecord(b)
		if err != nil {
			return
		}
		// Whatever it says, a card that has nothing of it stays as it is.
		card := newFake(4)
		card.rules[1] = ethtool.FlowSpec{Type: ethtool.FlowTCP4, Value: ethtool.FlowKey{DstPort: 22},
			Mask: ethtool.FlowKey{DstPort: 0xffff}, Queue: 77}
		before := card.state()
		for _, s := range r.Rules {
			if s.Same(card.rules[1]) {
				return
			}
		}
		c := &Card{dev: card, store: newStore("/nonexistent", here), now: *r}
		if r.RSS != nil && slices.Equal(r.RSS.Ours, card.table) {
			return
		}
		if err := c.Close(); err != nil || card.state() != before {
			t.Fatalf("%v: %s", err, card.state())
		}
	})
}
