package tcp

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/path"
)

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name    string
		pool    []trial
		want    string
		certain bool
	}{
		{"clearly faster", []trial{{name: "reno", best: 12, second: 11}, {name: "sys", best: 2, second: 1}}, "reno", true},
		{"clearly faster, with disturbed rounds", []trial{{name: "reno", best: 12, second: 4}, {name: "sys", best: 2, second: 1}}, "reno", true},
		{"faster once only", []trial{{name: "reno", best: 12, second: 1.5}, {name: "sys", best: 2, second: 1.9}}, "sys", false},
		{"faster, but one round of the system's", []trial{{name: "reno", best: 12, second: 11}, {name: "sys", best: 2}}, "sys", false},
		{"alike", []trial{{name: "reno", best: 10.5, second: 10}, {name: "sys", best: 10, second: 9}}, "sys", true},
		{"slower, and the system's rounds disagree", []trial{{name: "reno", best: 5, second: 4}, {name: "sys", best: 10, second: 2}}, "sys", false},
		{"the steadier of two", []trial{{name: "reno", best: 12, second: 6}, {name: "cubic", best: 11, second: 10}, {name: "sys", best: 1, second: 1}}, "cubic", true},
		{"the system's cannot be had", []trial{{name: "reno", best: 12, second: 11}, {name: "sys", denied: true}}, "reno", true},
		{"the system's cannot be had, and the rounds disagree", []trial{{name: "reno", best: 12, second: 1}, {name: "sys", denied: true}}, "reno", false},
		{"the system's was not measured in time", []trial{{name: "reno", best: 12, second: 11}, {name: "sys"}}, "sys", false},
	} {
		got, certain := judge(c.pool, "sys")
		if got.name != c.want || certain != c.certain {
			t.Errorf("%s: %s, certain %v", c.name, got.name, certain)
		}
	}
}

// TestUncertainVerdicts: what was not clear is measured again, all tries count together, and they end.
func TestUncertainVerdicts(t *testing.T) {
	host := route{host: netip.MustParseAddr("127.9.9.9")}
	defer ForgetMeasurements()
	now := time.Now()
	try := func(at time.Time, fast, slow float64) verdictOf {
		t.Helper()
		if !claim(host) {
			t.Fatal("the host cannot be measured")
		}
		if claim(host) {
			t.Fatal("two measurements of one host at a time")
		}
		return settle(host, []trial{{name: "fast", best: fast}, {name: "sys", best: slow}}, "sys", at)
	}
	v := try(now, 10e9, 1e9)
	if _, known := verdictFor(host); v.name != "sys" || v.certain || known || !strings.Contains(v.line, "uncertain") {
		t.Errorf("after one round of each: %+v", v)
	}
	v = try(now, 9e9, 1.1e9)
	if w, known := verdictFor(host); v.name != "fast" || !v.certain || !known || w.name != "fast" || v.rate != 10e9 || strings.Contains(v.line, "uncertain") {
		t.Errorf("after two tries that agree: %+v", v)
	}
	if claim(host) {
		t.Error("a certain verdict is measured again")
	}

	ForgetMeasurements()
	for i := range maxTrials {
		if _, known := verdictFor(host); known {
			t.Fatalf("known after %d tries", i)
		}
		v = try(now, 10e9/float64(1+i*9), 1e9)
	}
	if _, known := verdictFor(host); v.name != "sys" || v.certain || !known {
		t.Errorf("after all tries: %+v, known %v; expected the system's choice for a while", v, known)
	}
	verdicts.by[host].until = now.Add(-time.Second)
	if _, known := verdictFor(host); known {
		t.Error("an uncertain verdict stays for ever")
	}
	if v = try(now, 10e9, 1e9); v.tries != 1 || len(v.pool) != 2 || v.pool[0].second != 0 {
		t.Errorf("after the pause: %+v; expected a new start", v)
	}
	ForgetMeasurements()
	if !claim(host) {
		t.Fatal("a forgotten host cannot be measured")
	}
	if v = settle(host, nil, "sys", now); v.name != "" || verdicts.by[host].measuring || verdicts.by[host].tries != 0 {
		t.Errorf("a measurement that was lost counts: %+v", v)
	}
}

// TestTrialsEnd: operations do not wait for a measurement that takes too long, whatever holds it up.
func TestTrialsEnd(t *testing.T) {
	ForgetMeasurements()
	defer ForgetMeasurements()
	e := newBench(t, Options{}, 1, false, 4<<20)
	e.serve()
	if _, err := e.a.Post([]path.Op{{Kind: path.Put, Copies: []path.Copy{{Local: e.la.All(), Key: e.kb}}}}); err != nil {
		t.Fatal(err)
	}
	c := &e.a.cc
	if c.state != chooserRun || !e.a.hold {
		t.Fatal("the large put does not wait for the trials")
	}
	for e.a.probes == 0 { // a round is under way
		e.a.send(false)
	}
	c.began = time.Now().Add(-2 * trialBudget)
	c.step(e.a)
	if c.state == chooserRun || e.a.hold {
		t.Fatal("the trials go on beyond their time")
	}
	if s := strings.Join(e.a.Explain(), "\n"); !strings.Contains(s, "none could be measured") {
		t.Errorf("explained as:\n%s", s)
	}
	for done := false; !done; {
		for _, x := range e.ev[:e.a.Poll(e.ev[:])] {
			if x.Err != nil {
				t.Fatal(x.Err)
			}
			done = done || x.Kind == path.EventDone
		}
	}
	for e.a.probes > 0 { // what was under way is acknowledged in the end
		e.a.Poll(e.ev[:])
	}
	if e.do(t, []path.Op{{Kind: path.Put, Copies: []path.Copy{{Local: e.la.All(), Key: e.kb}}}}); e.a.probes > 0 || c.state == chooserRun {
		t.Error("a path measured twice on one connection, which may have been paced")
	}
}

// On loopback an algorithm that does not pace is kept unless the system's paced one is clearly faster in each round.
func TestLoopbackDoesNotPace(t *testing.T) {
	pool := []trial{{name: "cubic", best: 10e9, second: 9e9}, {name: "reno", best: 10e9, second: 9e9}, {name: "bbr", best: 10.5e9, second: 10e9}}
	for _, c := range []struct {
		host, system, want string
	}{
		{"127.0.0.1", "bbr", "cubic"},
		{"::1", "bbr", "cubic"},
		{"192.0.2.1", "bbr", "bbr"},
		{"127.0.0.1", "reno", "reno"},
	} {
		keep, why := incumbent(netip.MustParseAddr(c.host), c.system, pool)
		if got, _ := judge(pool, keep); got.name != c.want || (why == "") != (c.system == keep) {
			t.Errorf("to %s with %s: %s (%s), want %s", c.host, c.system, got.name, why, c.want)
		}
	}
	pool[2].best, pool[2].second = 20e9, 19e9
	keep, _ := incumbent(netip.MustParseAddr("127.0.0.1"), "bbr", pool)
	if got, _ := judge(pool, keep); got.name != "bbr" {
		t.Errorf("bbr is twice as fast, chosen was %s", got.name)
	}
	if keep, _ := incumbent(netip.MustParseAddr("127.0.0.1"), "bbr", []trial{{name: "cubic", denied: true}, {name: "bbr", best: 1}}); keep != "bbr" {
		t.Errorf("no other algorithm can be had, kept is %s", keep)
	}
}
