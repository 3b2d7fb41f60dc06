package cli

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/stage/app"
	root "github.com/penstock-io/penstock/system"
	"github.com/penstock-io/penstock/transfer/observe"
)

// busySample is a sample with something of everything, n of each list.
func busySample(n int) *runSample {
	start := time.Unix(1000, 0)
	plan := &root.Plan{}
	at := func(s uint64) *runRaw {
		r := &runRaw{at: start.Add(time.Duration(s) * time.Second), cpu: time.Duration(s) * 30 * time.Millisecond}
		for i := range n {
			name := []string{"near", "far", "a-rather-long-interface-name"}[min(i, 2)]
			if i > 2 {
				name = fmt.Sprint("if", i)
			}
			f := root.InterfaceSnapshot{Name: name, Info: engine.PortInfo{Engine: "xdp", Up: i != 1}}
			f.Stats.Rx = engine.RxStats{Packets: s * 1_234_567, Bytes: s * 1_234_567 * 1000}
			f.Stats.Tx = engine.TxStats{Packets: s * uint64(12+i), Bytes: s * 1200}
			f.Stats.Rx.Drops[engine.DropQueueFull] = 7 * s
			f.Stats.Drops[engine.DropNoRule] = 3
			f.Rx = []root.RxSnapshot{{Name: name, ID: 0, Poller: "p",
				Polled: &engine.PolledStats{Waiting: 3, Stalls: 12345678}, Stats: f.Stats.Rx}, {Name: name, ID: 1}}
			f.Tx = []root.TxSnapshot{{ID: 0, Stats: engine.TxStats{Queued: 17}}}
			rule, err := flow.ParseRule("prio 5 udp dst 4096-5000 ip src 10.0.0.0/8 -> queue 0")
			if err != nil {
				panic(err)
			}
			rule.ID, rule.Name = uint32(i+1), "video"
			f.Rules = []root.RuleSnapshot{{Rule: rule, Count: flow.Count{Packets: s * 1000, Bytes: s * 64000}}}
			f.Unmatched.Packets = 5
			r.sys.Interfaces = append(r.sys.Interfaces, f)
			plan.Interfaces = append(plan.Interfaces,
				root.InterfacePlan{Name: name, Rx: []root.RxPlan{{ID: 0, HandOff: 32}},
					Tx: []root.TxPlan{{ID: 0, Depth: 1024}}})
			r.sys.Regions = append(r.sys.Regions, root.RegionSnapshot{Name: fmt.Sprint("packets", i), Kind: mem.Huge,
				Stats: mem.PoolStats{Slots: 51200, InUse: 10000 + int(s), Exhausted: 3}})
			a := app.Snapshot{Name: fmt.Sprint("forwarder", i), Kind: app.Forward, Packets: s * 1_234_567,
				Bytes: s * 1_234_567 * 1000, Sent: s * 1_234_000}
			a.Drops[app.DropNoRoom] = 567 * s
			if i == 1 {
				a = app.Snapshot{Name: "radar", Kind: app.Sink, Packets: s * 1000, Taken: s * 1000,
					Tensor: &app.TensorSnapshot{Name: "samples", Tensor: "i16[1024 2048]", Generations: s, Filled: 500,
						Of: 1024, Missing: 12}}
			}
			r.sys.Applications = append(r.sys.Applications,
				root.ApplicationSnapshot{Snapshot: a, From: name + "/0", To: map[bool]string{true: "far/0"}[i != 1]})
		}
		r.sys.Pollers = []root.PollerSnapshot{{Name: "p", Core: 3}}
		r.sys.Node = &observe.Snapshot{Node: observe.NodeStatus{Name: "here",
			Addresses: []string{"tcp://10.0.0.1:7070"}, PeersTotal: 3}}
		for i := range n {
			r.sys.Node.Peers = append(r.sys.Node.Peers, observe.PeerStatus{ID: uint64(i),
				Name: fmt.Sprint("trainer\x1b", i), BytesOut: s * 1.2e9, BytesIn: 5,
				Paths: []observe.PathStatus{{Path: "shm"}, {Path: "tcp"}}})
		}
		return r
	}
	m := newSampler(plan, start)
	m.sample(at(8))
	return m.sample(at(10))
}

// The screen at sizes that people have, and one that is too small.
func TestRunFrames(t *testing.T) {
	var b bytes.Buffer
	for _, c := range []struct{ n, columns, rows int }{{1, 80, 24}, {2, 80, 24}, {2, 60, 20}, {3, 120, 40}, {9, 80, 24},
		{2, 40, 6}, {2, 30, 5}} {
		f := runFrame{title: "/etc/penstock/pair.yaml", sample: busySample(c.n),
			messages: []string{"12:00:01 peer trainer: connected",
				"12:00:03 reload: nothing was changed: only flows can change"}}
		fmt.Fprintf(&b, "%d of each, %d x %d\n", c.n, c.columns, c.rows)
		for _, l := range f.lines(c.columns, c.rows) {
			fmt.Fprintf(&b, "|%s|\n", pad(l, c.columns))
		}
	}
	const file = "testdata/runframe.txt"
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, b.Bytes()) {
		t.Errorf("the screens are others: look at them, then go test ./cli -run RunFrames -update\n%s", &b)
	}
}

// The frame fits on every terminal, and says how much it leaves out.
func TestRunFrameFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		columns, rows := rapid.IntRange(1, 200).Draw(t, "columns"), rapid.IntRange(1, 100).Draw(t, "rows")
		f := runFrame{title: "x.yaml", sample: busySample(rapid.IntRange(0, 12).Draw(t, "of each"))}
		for range rapid.IntRange(0, 5).Draw(t, "messages") {
			f.messages = append(f.messages, rapid.String().Draw(t, "message"))
		}
		lines := f.lines(columns, rows)
		if len(lines) > rows || len(lines) == 0 {
			t.Fatalf("%d lines on %d", len(lines), rows)
		}
		text := strings.Join(lines, "\n")
		for _, l := range lines {
			if w := columnsOf(l); w > columns {
				t.Fatalf("%d columns on %d: %q", w, columns, l)
			}
			if strings.ContainsAny(l, "\x1b\n\r\t") {
				t.Fatalf("a line that is none: %q", l)
			}
		}
		if columns < 80 || rows < leastRows {
			return
		}
		// Every row of every section is there, or counted among those that are not.
		for _, s := range f.sections(columns) {
			shown := 0
			for _, r := range s.rows {
				if strings.Contains("\n"+text+"\n", "\n"+strings.TrimRight(r, " ")+"\n") {
					shown++
				}
			}
			folded := strings.Contains(text, fmt.Sprintf(" +%d more\n", len(s.rows)-shown)) || shown == 0 &&
				strings.Contains(text, "not shown: ")
			if shown < len(s.rows) && !folded {
				t.Fatalf("%d of %d %s on %d x %d, and nobody says so:\n%s", shown, len(s.rows), s.what, columns, rows,
					text)
			}
		}
	})
}

func columnsOf(s string) int { return columns(s) }

// Colours change nothing but colours.
func TestRunFrameColor(t *testing.T) {
	f := runFrame{title: "x.yaml", sample: busySample(2)}
	plain := f.lines(80, 40)
	f.color = true
	for i, l := range f.lines(80, 40) {
		bare := strings.NewReplacer("\x1b[1m", "", "\x1b[33m", "", "\x1b[0m", "").Replace(l)
		if strings.TrimRight(bare, " ") != plain[i] || strings.Contains(bare, "\x1b") {
			t.Errorf("line %d: %q, without colours %q", i, l, plain[i])
		}
	}
}

// What waited at the end and was thrown away is in the drops and the summary, also of the flow.
func TestRunThrownAway(t *testing.T) {
	rule, err := flow.ParseRule("udp dst 4096 -> queue 0")
	if err != nil {
		t.Fatal(err)
	}
	rule.ID, rule.Name, rule.Mark = 1, "radar", flow.Some[uint32](7)
	f := root.InterfaceSnapshot{Name: "near", Rules: []root.RuleSnapshot{{Rule: rule, Count: flow.Count{Packets: 10}}}}
	f.Rx = []root.RxSnapshot{{ID: 2, Closed: map[uint32]flow.Count{7: {Packets: 3}, 0: {Packets: 1}}}}
	f.Unmatched.Packets, f.Stats.Rx.Packets = 2, 12
	f.Stats.Rx.Drops[engine.DropClosed] = 5
	s := newSampler(&root.Plan{}, time.Unix(1000, 0)).sample(&runRaw{at: time.Unix(1001, 0),
		sys: root.Snapshot{Interfaces: []root.InterfaceSnapshot{f}}})
	if s.Interfaces[0].Dropped != 9 || len(s.Drops) != 2 || s.Drops[1].Where != "near/2" ||
		s.Drops[1].Reason != "closed" || s.Drops[1].Packets != 4 || s.Queues[0].Dropped != 4 {
		t.Errorf("%+v\n%+v\n%+v", s.Interfaces, s.Drops, s.Queues)
	}
	if len(s.Rules) != 2 || s.Rules[0].Closed != 3 || s.Rules[1].Closed != 1 {
		t.Errorf("%+v", s.Rules)
	}
	text := summary(s)
	for _, want := range []string{"dropped: closed 5, closed 4\n", "flow radar: 10 packets, of which 3 waited",
		"flow no rule: 2 packets, of which 1 waited"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

// A change of a link is an event of its own, and a line elsewhere.
func TestRunLinkEvents(t *testing.T) {
	for mode, want := range map[displayMode]string{
		displayJSON:  `{"event":"link","interface":"near","change":"lost"}` + "\n",
		displayPlain: "interface near: it is gone\n",
		displayQuiet: "WARNING: interface near: it is gone\n",
	} {
		var b bytes.Buffer
		w := &runOutput{mode: mode, out: &b, err: &b, log: newMessageLog()}
		if w.link(root.LinkEvent{Interface: "near", Change: root.LinkLost}); b.String() != want {
			t.Errorf("%q, expected %q", b.String(), want)
		}
	}
	w := &runOutput{mode: displayTerminal, log: newMessageLog()}
	w.link(root.LinkEvent{Interface: "near", Change: root.LinkDown})
	if l := w.log.newest(); len(l) != 1 || !strings.HasSuffix(l[0], "interface near: the link is down") {
		t.Errorf("%q", l)
	}
}

// Rates are differences over the time between two samples; the first sample has those since the
// start.
func TestRunRates(t *testing.T) {
	s := busySample(1)
	if s.Interval != 2 || s.Seconds != 10 || s.CPU != 0.03 {
		t.Errorf("%+v", s)
	}
	x := s.Interfaces[0]
	if x.In.PacketsPerSecond != 1_234_567 || x.In.BitsPerSecond != 8*1_234_567_000 || x.In.Packets != 12_345_670 ||
		x.Dropped != 73 {
		t.Errorf("%+v", x)
	}
	if len(s.Drops) != 3 || s.Drops[0] != (runDrop{"near in", "queue-full", 70, 7, "near"}) ||
		s.Drops[1] != (runDrop{"near in", "no-rule", 3, 0, "near"}) ||
		s.Drops[2] != (runDrop{"forwarder0", "no-room", 5670, 567, ""}) {
		t.Errorf("%+v", s.Drops)
	}
	if p := s.Pools[0]; p.Lowest != 51200-10010 || p.Used != 10010 {
		t.Errorf("%+v", p)
	}
	for in, want := range map[float64]string{0: "0", 1.25: "1.2", 9999: "9999", 10000: "10.0k", 999_600: "1.00M",
		1e12: "1.00T"} {
		if got := formatPerSecond(in); got != want {
			t.Errorf("%v per second is %q, expected %q", in, got, want)
		}
	}
	for in, want := range map[float64]string{0: "0 b/s", 999: "999 b/s", 1234: "1.23 kb/s", 12_345_000: "12.3 Mb/s",
		999_900_000: "1.00 Gb/s", 4e14: "400 Tb/s"} {
		if got := formatBits(in); got != want {
			t.Errorf("%v bits per second is %q, expected %q", in, got, want)
		}
	}
}
