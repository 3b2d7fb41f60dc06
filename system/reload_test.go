package system

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
	"pgregory.net/rapid"
)

// flowsText is a configuration of one looped port with these flows.
func flowsText(name, flows string) string {
	return fmt.Sprintf(`penstock:
  memory_regions: [{name: a, kind: host, num_bufs: 2048, buf_size: 2KiB}]
  interfaces:
    - name: loop
      engine: sim
      address: sim://%s?loop
      rx:
        queues: [{memory_regions: [a]}, {memory_regions: [a]}, {memory_regions: [a]}]
        flows: [%s]
      tx: {queues: [{memory_regions: [a]}]}
`, name, flows)
}

// Whatever the flows were and are: after a Reload the table has exactly the new ones, in their
// order, those that stayed kept their counts, and packets carry the ids of the file.
func TestReloadGivesTheList(t *testing.T) {
	s := mustOpen(t, flowsText("reloads", ""), Options{Engines: noted(t, &diary{})})
	in := burst.New(16)
	rapid.Check(t, func(rt *rapid.T) {
		for range rapid.IntRange(1, 4).Draw(rt, "reloads") {
			var flows []string
			ports := rapid.SliceOfNDistinct(rapid.IntRange(1, 9), 0, 7, rapid.ID).Draw(rt, "ports")
			for _, p := range ports {
				name := ""
				if p%3 > 0 { // some have none
					name = fmt.Sprintf("name: n%d, ", p)
				}
				flows = append(flows,
					fmt.Sprintf("{%sid: %d, priority: %d, match: {udp_dst: %d}, actions: [{type: queue, id: %d}]}",
						name, p*100,
						rapid.SampledFrom([]int{0, 0, 1}).Draw(rt, "priority"), p,
						rapid.IntRange(0, 2).Draw(rt, "queue")))
			}
			cfg := mustLoad(t, flowsText("reloads", strings.Join(flows, ", ")))
			before := ruleCounts(s)
			c, err := s.Reload(cfg)
			if err != nil {
				rt.Fatal(err)
			}
			// The table is the list.
			want, _ := cfg.Interfaces[0].Rx.Rules()
			slices.SortStableFunc(want, func(a, b flow.Rule) int { return int(b.Priority - a.Priority) })
			got := s.Port("loop").Rules().List()
			if len(got) != len(want) {
				rt.Fatalf("%d rules, expected %d", len(got), len(want))
			}
			for i := range got {
				r := got[i]
				if r.ID = 0; !r.Equal(&want[i]) {
					rt.Fatalf("rule %d is %v, expected %v", i, &r, &want[i])
				}
			}
			// What stayed has its counts; the report adds up.
			after := ruleCounts(s)
			for say, n := range after {
				if had, there := before[say]; there && n != had {
					rt.Fatalf("%s has counted %d, and had %d", say, n, had)
				}
			}
			if len(c.Interfaces) > 0 {
				x := &c.Interfaces[0]
				if len(x.Added)+len(x.Changed)+len(x.Moved)+x.Unchanged != len(want) || x.Name != "loop" {
					rt.Fatalf("%+v of %d flows", x, len(want))
				}
			} else if len(want) > 0 {
				rt.Fatal("nothing was said")
			}
			if again, err := s.Reload(cfg); err != nil || again.Any() {
				rt.Fatalf("the same again: %v, %v", again, err)
			}
			// A packet for each flow.
			for _, p := range ports {
				sendFrames(t, txOf(t, s, "loop", 0), udpFrame(t, uint16(p), 1))
				k := slices.IndexFunc(cfg.Interfaces[0].Rx.Flows, func(f config.Flow) bool { return f.ID == p*100 })
				queue := cfg.Interfaces[0].Rx.Flows[k].Actions[0].ID.Value
				if err := rxOf(t, s, "loop", queue).Recv(t.Context(), in); err != nil {
					rt.Fatal(err)
				}
				if in.Len() != 1 || in.Flow(0) != uint32(p*100) {
					rt.Fatalf("%d packets, of flow %d, expected %d", in.Len(), in.Flow(0), p*100)
				}
				in.Release()
			}
		}
	})
}

// ruleCounts are what the flows of the interface loop have counted, by what they say.
func ruleCounts(s *System) map[string]uint64 {
	out := map[string]uint64{}
	for _, r := range s.Snapshot().Interfaces[0].Rules {
		r.Rule.ID = 0
		if strings.HasPrefix(r.Rule.Name, "flow_") { // a place in the list
			r.Rule.Name = ""
		}
		out[r.Rule.String()] = r.Packets
	}
	return out
}

// The edit of a list by itself: applied to a table it gives the other list, rules that say the same
// keep their IDs, and no more is moved than has to be.
func TestEditRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, err := flow.NewTable(flow.TableOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var have []rule
		for range 3 {
			var want []rule
			for _, p := range rapid.SliceOfNDistinct(rapid.Uint16Range(1, 12), 0, 9, rapid.ID).Draw(t, "ports") {
				r := rule{flow: flow.Rule{Name: fmt.Sprintf("n%d", p), Mark: flow.Some(uint32(p)),
					Actions: []flow.Action{flow.Queue(rapid.Uint16Range(0, 1).Draw(t, "queue"))},
					Match:   flow.Match{Proto: flow.Some(packet.ProtoUDP), DstPort: flow.Some(flow.One(p))}}}
				if p > 8 {
					r.derived, r.flow.Name = true, fmt.Sprintf("flow_%d", len(want))
				}
				want = append(want, r)
			}
			e := editRules(have, want)
			var ids []uint32
			if len(e.changes) > 0 {
				if err := table.Check(e.changes...); err != nil {
					t.Fatal(err)
				}
				r, err := table.Apply(e.changes...)
				if err != nil {
					t.Fatal(err)
				}
				ids = r.IDs
			}
			next := e.placed(ids)
			list := table.List()
			if len(list) != len(want) || len(next) != len(want) {
				t.Fatalf("%d and %d rules, expected %d", len(list), len(next), len(want))
			}
			for i := range list {
				r := list[i]
				if r.ID != next[i].id || r.ID == 0 {
					t.Fatalf("rule %d has the ID %d, and %d is noted", i, r.ID, next[i].id)
				}
				if r.ID = 0; !r.Equal(&want[i].flow) {
					t.Fatalf("rule %d is %v, expected %v", i, &r, &want[i].flow)
				}
				for _, h := range have {
					if h.flow.Equal(&want[i].flow) && h.id != next[i].id {
						t.Fatalf("%v had the ID %d, and has %d", &r, h.id, next[i].id)
					}
				}
			}
			have = next
		}
	})
}

func TestAscending(t *testing.T) {
	for _, c := range []struct {
		list []int
		want int
	}{{nil, 0}, {[]int{-1, -1}, 0}, {[]int{0, 1, 2}, 3}, {[]int{2, 1, 0}, 1}, {[]int{3, 0, -1, 1, 4, 2}, 3},
		{[]int{1, 2, 3, 4, 0}, 4}} {
		n, last := 0, -1
		for i, stays := range ascending(c.list) {
			if stays {
				if n++; c.list[i] <= last {
					t.Errorf("%v: %v", c.list, ascending(c.list))
				}
				last = c.list[i]
			}
		}
		if n != c.want {
			t.Errorf("%v: %d stay, expected %d", c.list, n, c.want)
		}
	}
}

// What is no flow cannot be changed: all of it is said, with its place, and nothing is changed.
// Neither does a wrong file change anything.
func TestReloadRefuses(t *testing.T) {
	flows := "{name: f, match: {udp_dst: 5}, actions: [{type: queue, id: 1}]}"
	text := flowsText("refuses", flows)
	s := mustOpen(t, text, Options{Engines: noted(t, &diary{}), Logger: silent})
	other := strings.NewReplacer("num_bufs: 2048", "num_bufs: 4096", "sim://refuses?loop", "sim://other?loop",
		"[{memory_regions: [a]}, {memory_regions: [a]}, {memory_regions: [a]}]",
		"[{memory_regions: [a], depth: 512}, {memory_regions: [a]}]", "tx: {queues: [{memory_regions: [a]}]}",
		"mtu: 1500", "udp_dst: 5", "udp_dst: 6").Replace(text) + "  transfers: {}\n"
	_, err := s.Reload(mustLoad(t, other))
	var restart *RestartError
	if !errors.As(err, &restart) || !errors.Is(err, ErrRestart) {
		t.Fatal(err)
	}
	for _, want := range []string{"test.yaml:2:52: memory_regions[0].num_bufs: was 2048, is 4096",
		"test.yaml:6:16: interfaces[0].address: was \"sim://refuses?loop\", is \"sim://other?loop\"",
		"test.yaml:10:12: interfaces[0].mtu: was 0, is 1500",
		"test.yaml:8:17: interfaces[0].rx.queues: was 3 of them, is 2 of them",
		"interfaces[0].tx: was there, is absent", "test.yaml:11:14: transfers: was absent, is there"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("not said: %s", want)
		}
	}
	if len(restart.Differences) != 6 {
		t.Errorf("%d differences", len(restart.Differences))
	}
	if t.Failed() {
		t.Log(err)
	}
	for _, c := range []struct {
		text string
		want error
	}{
		{strings.Replace(text, "actions: [{type: queue, id: 1}]",
			"actions: [{type: queue, id: 1}]}, {name: g, match: {udp_dst: <port>}, actions: [{type: queue, id: 1}]", 1),
			ErrMissing},
		{text + "  applications: [{kind: sink, interface: loop, record: x}]\n", ErrRestart},
	} {
		if _, err := s.Reload(mustLoad(t, c.text)); !errors.Is(err, c.want) {
			t.Errorf("%v, expected %v", err, c.want)
		}
	}
	if _, err := s.Reload(nil); !errors.Is(err, config.ErrInvalid) {
		t.Error(err)
	}
	if list := s.Port("loop").Rules().List(); len(list) != 1 || list[0].Match.DstPort.Value.Lo != 5 {
		t.Errorf("%v", list)
	}
	if !s.Config().Equal(mustLoad(t, text)) {
		t.Error("the configuration is another one")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reload(mustLoad(t, text)); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("Reload after Close: %v", err)
	}
}

// Rules that the program put into the table besides stay.
func TestReloadLeavesOthers(t *testing.T) {
	text := flowsText("others",
		"{name: a, match: {udp_dst: 1}, actions: [{type: queue, id: 1}]}, {name: b, match: {udp_dst: 2}, actions: "+
			"[{type: queue, id: 1}]}")
	s := mustOpen(t, text, Options{Engines: noted(t, &diary{}), Logger: silent})
	rules := s.Port("loop").Rules()
	_, err := rules.Apply(flow.Add(flow.Rule{Name: "mine", Actions: []flow.Action{flow.Queue(2)}}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = rules.Apply(flow.Delete(rules.List()[0].ID)); err != nil { // a: behind our back
		t.Fatal(err)
	}
	c, err := s.Reload(mustLoad(t, strings.Replace(text, "udp_dst: 2", "udp_dst: 3", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.String(); got != "loop: added a; changed b; 0 unchanged" {
		t.Error(got)
	}
	var names []string
	for _, r := range rules.List() {
		names = append(names, r.Name)
	}
	if !slices.Contains(names, "mine") || len(names) != 3 || slices.Index(names, "a") > slices.Index(names, "b") {
		t.Errorf("%v", names)
	}
}

// When the second port refuses, the first has its flows again, and what it carries meanwhile is
// neither lost nor doubled: flows a and b of the first port go to the same queue before, while and
// after.
func TestReloadChangesBack(t *testing.T) {
	text := func(first, second string) string {
		return fmt.Sprintf(`penstock:
  memory_regions: [{name: a, kind: host, num_bufs: 4096, buf_size: 2KiB}]
  interfaces:
    - name: one
      engine: sim
      address: sim://one?loop
      rx:
        queues: [{memory_regions: [a]}, {memory_regions: [a]}]
        flows: [{name: keep, id: 1, match: {udp_dst: 1}, actions: [{type: queue, id: 1}]}, {name: gone, id: 2, match: {udp_dst: 2}, actions: [{type: queue, id: 0}]}%s]
      tx: {queues: [{memory_regions: [a]}]}
    - name: two
      engine: sim
      address: sim://two?loop
      rx:
        queues: [{memory_regions: [a]}]
        flows: [{name: x, match: {udp_dst: 1}, actions: [{type: queue, id: 0}]}%s]
`, first, second)
	}
	d := &diary{}
	s := mustOpen(t, text("", ""), Options{Engines: noted(t, d), Logger: silent})
	d.deny = func(port string, changes []flow.Change) error {
		if port == "two" {
			return fmt.Errorf("the card says no: %w", engine.ErrFull)
		}
		return nil
	}
	x := startTraffic(t, txOf(t, s, "one", 0), rxOf(t, s, "one", 1), 1, 1, true)
	before := s.Port("one").Rules().List()
	for k := range 20 {
		c, err := s.Reload(mustLoad(t,
			strings.Replace(text(fmt.Sprintf(", {name: new%d, match: {udp_dst: 7}, actions: [{type: drop}]}", k),
				", {name: y, match: {udp_dst: 2}, actions: [{type: drop}]}"),
				"{name: gone, id: 2, match: {udp_dst: 2}, actions: [{type: queue, id: 0}]}, ", "", 1)))
		if c != nil || !errors.Is(err, engine.ErrFull) ||
			!strings.Contains(err.Error(), `test.yaml:16:16: interface "two": flows: the card says no`) {
			t.Fatal(err)
		}
		x.pass()
	}
	after := s.Port("one").Rules().List()
	if len(after) != len(before) {
		t.Fatalf("%v, was %v", after, before)
	}
	for i := range after {
		was, is := before[i], after[i]
		if was.ID, is.ID = 0, 0; !is.Equal(&was) || is.Name == "keep" && after[i].ID != before[i].ID {
			t.Errorf("rule %d is %v, was %v", i, &after[i], &before[i])
		}
	}
	n := x.finish()
	st := s.Snapshot().Interfaces[0]
	for _, r := range st.Rules {
		if r.Rule.Name == "keep" && r.Packets != uint64(n) {
			t.Errorf("the flow has counted %d packets of %d", r.Packets, n)
		}
	}
	if drops := st.Stats.Rx.Drops.Total() + st.Stats.Drops.Total(); drops != 0 {
		t.Errorf("%d packets were dropped", drops)
	}
	d.deny = nil
	if c, err := s.Reload(mustLoad(t, text(", {name: z, match: {udp_dst: 3}, actions: [{type: queue, id: 1}]}",
		""))); err != nil || c.String() != "one: added z; 2 unchanged\ntwo: 1 unchanged" {
		t.Error(c, err)
	}
}
