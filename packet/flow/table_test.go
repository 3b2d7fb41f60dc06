package flow_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/packet/flow/flowtest"
	"pgregory.net/rapid"
)

func mustTable(t testing.TB, o flow.TableOptions) *flow.Table {
	t.Helper()
	table, err := flow.NewTable(o)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// frameFor returns a frame that meets the match, and its layers.
func frameFor(t testing.TB, match string) ([]byte, *packet.Layers) {
	t.Helper()
	m, err := flow.ParseMatch(match)
	if err != nil {
		t.Fatal(err)
	}
	p, ok := flowtest.Meeting(flowtest.NewRand(1), &m)
	if !ok {
		t.Fatalf("no packet meets %v", match)
	}
	f := p.Frame()
	l := new(packet.Layers)
	packet.Parse(f, l)
	return f, l
}

func TestTableBatches(t *testing.T) {
	table := mustTable(t, flow.TableOptions{})
	if v := table.Snapshot().Version(); v != 1 {
		t.Errorf("version %d at the beginning", v)
	}
	rules := mustRules(t, "name a udp dst 1 -> queue 1\nname b udp dst 2 -> queue 2\nname c udp dst 3 -> queue 3")
	res, err := table.Apply(flow.Add(rules[0]), flow.Add(rules[1]), flow.Add(rules[2]))
	if err != nil || res.Version != 2 || fmt.Sprint(res.IDs) != "[1 2 3]" {
		t.Fatal(res, err)
	}
	frame, l := frameFor(t, "udp dst 2")
	before := table.Snapshot()
	if d := before.Classify(frame, l); d.ID != 2 || d.Queue != 2 || d.Verdict != flow.Deliver {
		t.Errorf("%+v", d)
	}

	// All or nothing: the last change is bad, so the first is not made, and no ID is used up.
	fails := func(has string, changes ...flow.Change) {
		t.Helper()
		res, err := table.Apply(changes...)
		var p flow.Problems
		if !errors.As(err, &p) || !strings.Contains(err.Error(), has) {
			t.Errorf("%v %v, expected %q", res, err, has)
		}
		if table.Snapshot() != before {
			t.Error("a batch that failed has changed the table")
		}
	}
	x := mustRules(t, "name x udp dst 4 -> queue 4")[0]
	fails("rule 1: id: the table has no rule 9", flow.Add(x), flow.Delete(9))
	fails("rule 1: id: the table has no rule 2", flow.Delete(2), flow.Delete(2))
	fails("no rule 0", flow.Delete(0))
	fails("empty change", flow.Change{})
	fails(`rule 0 "b": name: rules 2 and 4 would both have this name`, flow.Add(mustRules(t, "name b any -> drop")[0]))
	fails(`rule 1 "b": name: rules 1 and 2 would both`, flow.Delete(3), flow.Replace(1, rules[1]))
	fails("cannot become rule 3", flow.Replace(1, mustRules(t, "id 3 any -> drop")[0]))
	fails("expected 0, or 4 and more; use Replace", flow.Add(mustRules(t, "id 3 any -> drop")[0]))
	fails("begins above its end", flow.Add(x), flow.Add(flow.Rule{Match: flow.Match{Length: flow.Some(flow.Range{Lo: 5,
		Hi: 4})}, Actions: x.Actions}))
	_, err = table.Apply(flow.Delete(8), flow.Add(flow.Rule{}), flow.Add(mustRules(t, "port dst 1 -> drop")[0]))
	if err == nil || strings.Count(err.Error(), "\n\t") != 3 {
		t.Errorf("not all problems of the batch: %v", err)
	}

	// Names can be swapped within a batch; a replaced rule keeps its ID and its place.
	a, b := rules[1], rules[0]
	a.Actions, b.Actions = []flow.Action{flow.Queue(11)}, []flow.Action{flow.Queue(12)}
	if res, err = table.Apply(flow.Replace(1, a), flow.Delete(3), flow.Replace(2, b), flow.Add(x)); err != nil ||
		fmt.Sprint(res.IDs) != "[1 3 2 4]" {
		t.Fatal(res, err)
	}
	if d := table.Snapshot().Classify(frame, l); d.ID != 1 || d.Queue != 11 {
		t.Errorf("%+v", d)
	}
	if d := before.Classify(frame, l); d.ID != 2 || d.Queue != 2 {
		t.Errorf("an old snapshot has changed: %+v", d)
	}
	var text []string
	for _, r := range table.Snapshot().Rules() {
		text = append(text, r.String())
	}
	if got := strings.Join(text,
		"; "); got != "id 1 name b udp dst 2 -> queue 11; id 2 name a udp dst 1 -> queue 12; id 4 name x udp dst 4 "+
		"-> queue 4" {
		t.Error(got)
	}
	if res, err = table.Apply(flow.Delete(4), flow.Delete(1), flow.Delete(2)); err != nil {
		t.Fatal(err)
	}
	if res, err = table.Apply(flow.Add(x)); err != nil || res.IDs[0] != 5 {
		t.Errorf("%v %v: an ID was used again", res, err)
	}
}

// A version that the device refuses is none: nothing has changed, and no ID is used up.
func TestTableInstall(t *testing.T) {
	table := mustTable(t, flow.TableOptions{})
	one, _ := flow.ParseRule("udp dst 1 -> queue 1")
	refused := errors.New("refused")
	if res, err := table.Install(func(next *flow.Snapshot) error {
		if len(next.Rules()) != 1 || next.Version() != 2 || next.Rules()[0].ID != 1 || table.Snapshot().Version() != 1 {
			t.Errorf("version %d with %v, while %d is in force", next.Version(), next.Rules(),
				table.Snapshot().Version())
		}
		return refused
	}, flow.Add(one)); err != refused || res.IDs != nil {
		t.Errorf("%v, %v", res, err)
	}
	if table.Snapshot().Version() != 1 || len(table.List()) != 0 {
		t.Errorf("a version that was refused is in force: %v", table.List())
	}
	asked := false
	if _, err := table.Install(func(*flow.Snapshot) error {
		asked = true
		return nil
	}, flow.Delete(9)); err == nil || asked {
		t.Errorf("%v; a batch that is wrong came to the device: %v", err, asked)
	}
	res, err := table.Install(func(*flow.Snapshot) error { return nil }, flow.Add(one))
	if err != nil || res.Version != 2 || res.IDs[0] != 1 || len(table.List()) != 1 {
		t.Errorf("%v, %v", res, err)
	}
}

func TestTableIsolation(t *testing.T) {
	frame, l := frameFor(t, "udp dst 77")
	table := mustTable(t, flow.TableOptions{})
	expect := func(v flow.Verdict, queue uint16) {
		t.Helper()
		if d := table.Snapshot().Classify(frame, l); d != (flow.Decision{Rule: -1, Verdict: v, Queue: queue}) {
			t.Errorf("%+v, expected %v, queue %d", d, v, queue)
		}
	}
	expect(flow.Kernel, 0)
	for _, i := range []flow.Isolation{{Unmatched: flow.Discard}, {Unmatched: flow.Deliver, Queue: 3},
		{Unmatched: flow.Kernel}} {
		if _, err := table.SetIsolation(i); err != nil {
			t.Fatal(err)
		}
		expect(i.Unmatched, i.Queue)
	}
	for _, bad := range []flow.Isolation{{Unmatched: 9}, {Queue: 3}, {Unmatched: flow.Discard, Queue: 1}} {
		if _, err := table.SetIsolation(bad); err == nil {
			t.Errorf("%+v", bad)
		}
		if _, err := flow.NewTable(flow.TableOptions{Isolation: bad}); err == nil {
			t.Errorf("%+v", bad)
		}
	}
	// Dropping all traffic, and allowing it again, is a rule above the others.
	if _, err := table.Apply(flow.Add(mustRules(t, "udp dst 77 -> queue 1")[0])); err != nil {
		t.Fatal(err)
	}
	res, err := table.Apply(flow.Add(mustRules(t, "prio 2147483647 any -> drop")[0]))
	if err != nil {
		t.Fatal(err)
	}
	if d := table.Snapshot().Classify(frame, l); d.Verdict != flow.Discard {
		t.Errorf("%+v", d)
	}
	if _, err := table.Apply(flow.Delete(res.IDs[0])); err != nil {
		t.Fatal(err)
	}
	if d := table.Snapshot().Classify(frame, l); d.Verdict != flow.Deliver {
		t.Errorf("%+v", d)
	}
}

func TestTableOfALimitedEngine(t *testing.T) {
	table := mustTable(t, flow.TableOptions{Engine: &flow.Capabilities{
		Engine: "tiny", MaxRules: 2, Queues: 2, Fields: flow.Fields(flow.FieldProto, flow.FieldDstPort),
		Actions: flow.ActionKinds(flow.ToQueue)}})
	rules := mustRules(t, "udp dst 1 -> queue 1\nudp dst 2 -> queue 0\nudp dst 3 -> queue 0\nudp dst 3 -> queue "+
		"2\nprio 1 udp dst 5 -> queue 0")
	if _, err := table.Apply(flow.Add(rules[0])); err != nil {
		t.Fatal(err)
	}
	for i, has := range map[int]string{2: "tiny takes 2 rules", 3: "has no queue 2", 4: "has no priorities"} {
		if _, err := table.Apply(flow.Add(rules[1]), flow.Add(rules[i])); err == nil ||
			!strings.Contains(err.Error(), has) {
			t.Errorf("%v: %v", rules[i].String(), err)
		}
	}
	if _, err := table.Apply(flow.Add(rules[1])); err != nil {
		t.Fatal(err)
	}
}

// While a writer moves rules from queue to queue, a reader sees each batch whole: two rules that
// change together always agree, and versions only grow. Counters of all pollers add up to what the
// pollers have seen.
func TestTableUnderChange(t *testing.T) {
	table := mustTable(t, flow.TableOptions{})
	one, l1 := frameFor(t, "udp dst 1")
	two, l2 := frameFor(t, "tcp dst 2")
	pair := func(q uint16) (flow.Rule, flow.Rule) {
		r := mustRules(t, fmt.Sprintf("udp dst 1 -> queue %d\ntcp dst 2 -> queue %d", q, q))
		return r[0], r[1]
	}
	a, b := pair(1)
	res, err := table.Apply(flow.Add(a), flow.Add(b))
	if err != nil {
		t.Fatal(err)
	}
	const pollers, versions = 3, 300
	var counted [pollers]atomic.Uint64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for p := range pollers {
		wg.Go(func() {
			counters := table.NewCounters()
			defer counters.Close()
			cache, err := flow.NewCache(flow.MinCacheSize)
			if err != nil {
				t.Error(err)
				return
			}
			frames, layers, out := [][]byte{one, two}, []packet.Layers{*l1, *l2}, make([]flow.Decision, 2)
			last := uint64(0)
			for !stop.Load() {
				s := table.Snapshot()
				if s.Version() < last {
					t.Errorf("version %d after %d", s.Version(), last)
					return
				}
				last = s.Version()
				for i := range frames {
					out[i] = s.Resolve(cache.Classify(s.Classifier(), frames[i], &layers[i]))
				}
				// Version v has both rules at queue v-1, or both deleted.
				x, y := out[0], out[1]
				if x.Queue != y.Queue || x.Verdict != y.Verdict || x.Verdict == flow.Deliver &&
					uint64(x.Queue) != last-1 {
					t.Errorf("version %d: %+v and %+v", last, x, y)
					return
				}
				if p == 0 {
					counters.Count(s, x, len(one))
					counters.Count(s, y, len(two))
				} else {
					counters.CountBatch(s, frames, out)
				}
				counted[p].Add(2)
			}
		})
	}
	ids := res.IDs
	for v := 2; v < versions; v++ {
		a, b := pair(uint16(v))
		var changes []flow.Change
		switch {
		case len(ids) == 0:
			changes = []flow.Change{flow.Add(a), flow.Add(b)}
		case v%7 == 0:
			changes = []flow.Change{flow.Delete(ids[1]), flow.Delete(ids[0])}
		default:
			changes = []flow.Change{flow.Replace(ids[0], a), flow.Replace(ids[1], b)}
		}
		res, err := table.Apply(changes...)
		if err != nil {
			t.Fatal(err)
		}
		if ids = res.IDs; v%7 == 0 {
			ids = nil
		}
		if v%50 == 0 {
			table.Stats()
		}
	}
	stop.Store(true)
	wg.Wait()
	s := table.Stats()
	sum := s.Unmatched.Packets + s.Deleted.Packets
	bytes := s.Unmatched.Bytes + s.Deleted.Bytes
	for _, r := range s.Rules {
		sum, bytes = sum+r.Packets, bytes+r.Bytes
	}
	want := uint64(0)
	for i := range counted {
		want += counted[i].Load()
	}
	if sum != want || bytes != want/2*uint64(len(one)+len(two)) {
		t.Errorf("%d packets and %d bytes counted, expected %d and %d", sum, bytes, want,
			want/2*uint64(len(one)+len(two)))
	}
}

// Against a model: any sequence of batches gives the rules, IDs and counts that a list gives.
func TestTableIsAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, err := flow.NewTable(flow.TableOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var model []flow.Rule
		counts := map[uint32]uint64{}
		var unmatched, deleted uint64
		counters := table.NewCounters()
		next := uint32(1)
		old := table.Snapshot()
		for range rapid.IntRange(1, 8).Draw(t, "batches") {
			var changes []flow.Change
			after := append([]flow.Rule(nil), model...)
			id, bad := next, false
			for range rapid.IntRange(0, 4).Draw(t, "changes") {
				r := flow.Rule{Match: drawMatch(t), Actions: []flow.Action{flow.Queue(1)}}
				bad = bad || flow.Validate([]flow.Rule{r}).Err() != nil
				target := rapid.Uint32Range(0, next).Draw(t, "id")
				find := func(id uint32) int {
					return slices.IndexFunc(after, func(r flow.Rule) bool { return r.ID == id })
				}
				at := find(target)
				before := rapid.Uint32Range(0, next).Draw(t, "before")
				place := func(r flow.Rule) { // in front of another one
					k := len(after)
					if before != 0 {
						k = find(before)
					}
					if bad = bad || k < 0; k >= 0 {
						after = slices.Insert(slices.Clip(after), k, r)
					}
				}
				switch rapid.IntRange(0, 5).Draw(t, "op") {
				case 0, 1:
					changes = append(changes, flow.Add(r))
					r.ID = id
					id++
					after = append(after, r)
				case 2:
					changes = append(changes, flow.Replace(target, r))
					if bad = bad || at < 0; at >= 0 {
						r.ID = target
						after[at] = r
					}
				case 3:
					changes = append(changes, flow.Delete(target))
					// A bad rule that the same batch deletes again is never looked at.
					if bad = bad || at < 0; at >= 0 {
						after = append(after[:at:at], after[at+1:]...)
					}
				case 4:
					changes = append(changes, flow.Insert(before, r))
					r.ID = id
					id++
					place(r)
				case 5:
					changes = append(changes, flow.Move(target, before))
					if bad = bad || at < 0; at >= 0 && before != target {
						r := after[at]
						after = append(after[:at:at], after[at+1:]...)
						place(r)
					}
				}
			}
			_, err := table.Apply(changes...)
			if err == nil && bad {
				// Only right if every rule that stayed is good.
				for i := range after {
					if flow.Validate(after[i:i+1]).Err() != nil {
						t.Fatalf("a bad batch was accepted: %v", after[i].String())
					}
				}
			}
			if err != nil && !bad {
				t.Fatal(err)
			}
			if err == nil {
				left := map[uint32]bool{}
				for i := range after {
					left[after[i].ID] = true
				}
				for id, n := range counts {
					if !left[id] {
						deleted += n
						delete(counts, id)
					}
				}
				model, next = after, id
			}
			s := table.Snapshot()
			got := s.Rules()
			if len(got) != len(model) {
				t.Fatalf("%d rules, expected %d", len(got), len(model))
			}
			for i := range got {
				if !got[i].Equal(&model[i]) {
					t.Fatalf("rule %d is %v, expected %v", i, got[i].String(), model[i].String())
				}
			}
			use := s
			if rapid.Bool().Draw(t, "an old snapshot") {
				use = old // a batch that was classified before the change
			}
			for range 5 {
				i := rapid.IntRange(-1, use.Classifier().Len()-1).Draw(t, "rule")
				d := flow.Decision{Rule: int32(i)}
				counters.Count(use, d, 10)
				if i < 0 {
					unmatched++
					continue
				}
				id := use.Classifier().Rule(i).ID
				stays := false
				for k := range model {
					stays = stays || model[k].ID == id
				}
				if stays {
					counts[id]++
				} else {
					deleted++
				}
			}
			old = s
			if rapid.Bool().Draw(t, "another poller") {
				counters.Close()
				counters = table.NewCounters()
			}
			st := table.Stats()
			if st.Unmatched.Packets != unmatched || st.Deleted != (flow.Count{Packets: deleted, Bytes: deleted * 10}) {
				t.Fatalf("%+v, expected %d unmatched, %d deleted", st, unmatched, deleted)
			}
			for i, r := range st.Rules {
				if r.ID != model[i].ID || r.Packets != counts[r.ID] || r.Bytes != 10*counts[r.ID] {
					t.Fatalf("%+v, expected %d", r, counts[r.ID])
				}
			}
		}
	})
}

func TestTableDoesNotAllocate(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace, "the race detector allocates")
	table := mustTable(t, flow.TableOptions{})
	var changes []flow.Change
	rules := flowtest.Rules(1, 50)
	for _, r := range rules {
		r.ID = 0
		changes = append(changes, flow.Add(r))
	}
	if _, err := table.Apply(changes...); err != nil {
		t.Fatal(err)
	}
	frames := flowtest.NewTraffic(rules, flowtest.TrafficOptions{Seed: 1, Flows: 32}).Flows
	layers, out := make([]packet.Layers, len(frames)), make([]flow.Decision, len(frames))
	for i, f := range frames {
		packet.Parse(f, &layers[i])
	}
	cache, err := flow.NewCache(0)
	if err != nil {
		t.Fatal(err)
	}
	counters := table.NewCounters()
	if n := testing.AllocsPerRun(20, func() {
		s := table.Snapshot()
		for i := range frames {
			out[i] = s.Resolve(cache.Classify(s.Classifier(), frames[i], &layers[i]))
		}
		counters.CountBatch(s, frames, out)
		counters.Count(s, out[0], 1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkTableChange replaces one rule among 1,000.
func BenchmarkTableChange1000(b *testing.B) {
	table := mustTable(b, flow.TableOptions{})
	rules := flowtest.Rules(1, 1000)
	var changes []flow.Change
	for i := range rules {
		rules[i].ID = 0
		changes = append(changes, flow.Add(rules[i]))
	}
	res, err := table.Apply(changes...)
	if err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	start := threadTime(b)
	_ = start
	b.ReportAllocs()
	for b.Loop() {
		i := r.IntN(len(rules))
		if _, err := table.Apply(flow.Replace(res.IDs[i], rules[i])); err != nil {
			b.Fatal(err)
		}
	}
}

// Packets carry the mark of a rule where it has one, also 0, and its counts are still its own.
func TestTableMarks(t *testing.T) {
	table := mustTable(t, flow.TableOptions{})
	rules := mustRules(t, "mark 77 udp dst 1 -> queue 1\nmark 0 udp dst 2 -> queue 1\nudp dst 3 -> queue 1\nmark 77 "+
		"udp dst 4 -> queue 1")
	res, err := table.Apply(flow.Add(rules[0]), flow.Add(rules[1]), flow.Add(rules[2]), flow.Add(rules[3]))
	if err != nil {
		t.Fatal(err)
	}
	c := table.NewCounters()
	defer c.Close()
	for i, want := range []uint32{77, 0, res.IDs[2], 77} {
		frame, l := frameFor(t, fmt.Sprintf("udp dst %d", i+1))
		s := table.Snapshot()
		d := s.Classify(frame, l)
		if d.ID != want || d.Rule != int32(i) {
			t.Errorf("packet %d: %+v, expected to carry %d", i+1, d, want)
		}
		c.Count(s, d, len(frame))
	}
	for i, r := range table.Stats().Rules {
		if r.Packets != 1 || r.ID != res.IDs[i] {
			t.Errorf("rule %d: %+v", i, r)
		}
	}
	if err := flow.Validate([]flow.Rule{{Mark: flow.Some(uint32(flow.MaxRuleID + 1)),
		Actions: []flow.Action{flow.Queue(0)}}}).Err(); err == nil || !strings.Contains(err.Error(), "mark") {
		t.Errorf("a mark of 25 bits: %v", err)
	}
}
