package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/path"
)

// clocked runs 60 s of virtual time in which 600 MB come at 10 MB/s, and returns what was printed.
func clocked(t *testing.T, mode displayMode, during func(second int, d *display)) (out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		d := &display{mode: mode, out: &o, err: &e, width: func() int { return 60 }}
		d.begin(status{what: "w", name: "w", total: 600e6})
		for i := range 60 {
			time.Sleep(time.Second)
			d.update(func(s *status) { s.done = uint64(i+1) * 10e6 })
			synctest.Wait()
			if during != nil {
				during(i+1, d)
			}
		}
		took, rate := d.end()
		if took != time.Minute || rate != 10e6 {
			t.Errorf("took %v at %v", took, rate)
		}
		d.end()
	})
	return o.String(), e.String()
}

func TestDisplayTerminal(t *testing.T) {
	out, errOut := clocked(t, displayTerminal, func(second int, d *display) {
		if second == 30 {
			d.say("half of it")
		}
	})
	if n := strings.Count(errOut, "%"); n > 10*60 || n < 60 {
		t.Errorf("drawn %d times in a minute", n)
	}
	if out != "" || strings.Count(errOut, "\n") != 1 || !strings.Contains(errOut, "\r\x1b[Khalf of it\n\rw") ||
		!strings.HasSuffix(errOut, "\x1b[K\r\x1b[K") {
		t.Errorf("%q, %q", out, errOut)
	}
	for l := range strings.SplitSeq(errOut, "\r") {
		if l = strings.TrimSuffix(l, "\x1b[K"); columns(l) >= 60 && !strings.Contains(l, "half") {
			t.Errorf("%d columns: %q", columns(l), l)
		}
	}
	if !strings.Contains(errOut, "w   50 %  300.0 MB / 600.0 MB") || !strings.Contains(errOut, "10.0 MB/s  ETA 0:30") {
		t.Errorf("%q", errOut)
	}
}

// A server that ends takes its files away first: that is no loss of a right.
func TestDisplayLost(t *testing.T) {
	for err, want := range map[error]string{
		fmt.Errorf("get: %w", path.ErrRevoked): "failed, trying again: the peer serves the file no more, for now: it " +
			"ends, or " +
			"the file has changed\n",
		errors.New("a plug was pulled"): "failed, trying again: a plug was pulled\n",
	} {
		var o, e bytes.Buffer
		d := &display{out: &o, err: &e}
		d.lost("w", 1, job.LinkFailure{Err: err})
		if e.String() != want {
			t.Errorf("%q, expected %q", e.String(), want)
		}
	}
}

func TestDisplayPlain(t *testing.T) {
	_, errOut := clocked(t, displayPlain, nil)
	lines := strings.Split(strings.TrimSpace(errOut), "\n")
	// Each tenth takes 6 s, less than plainEvery. The last one is the end, which the command
	// reports.
	if len(lines) != 9 || strings.ContainsAny(errOut, "\r\x1b") {
		t.Fatalf("%q", lines)
	}
	for i, l := range lines {
		if !strings.HasPrefix(l, "w   "+[]string{"10", "20", "30", "40", "50", "60", "70", "80", "90"}[i]+" %") {
			t.Errorf("line %d: %q", i, l)
		}
	}
	// When it is slow, time makes the lines.
	var e bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		d := &display{mode: displayPlain, err: &e, width: func() int { return 0 }}
		d.begin(status{what: "w", total: 600e6})
		time.Sleep(35 * time.Second)
		d.end()
	})
	if n := strings.Count(e.String(), "\n"); n != 3 {
		t.Errorf("%d lines in 35 s: %q", n, e.String())
	}
}

func TestDisplayJSON(t *testing.T) {
	out, errOut := clocked(t, displayJSON, func(second int, d *display) {
		d.say("for people")
		if second == 10 {
			d.warn("careful")
		}
	})
	var kinds = map[string]int{}
	dec := json.NewDecoder(strings.NewReader(out))
	for dec.More() {
		var e event
		if err := dec.Decode(&e); err != nil {
			t.Fatal(err)
		}
		kinds[e.Event]++
		if e.Event == "progress" && (e.Name != "w" || *e.Bytes != 600e6 || e.Done == nil) {
			t.Errorf("%+v", e)
		}
	}
	if errOut != "" || kinds["progress"] < 58 || kinds["progress"] > 60 || kinds["warning"] != 1 || len(kinds) != 2 {
		t.Errorf("%v, %q", kinds, errOut)
	}
}

func TestDisplayQuiet(t *testing.T) {
	out, errOut := clocked(t, displayQuiet, func(second int, d *display) {
		d.say("line")
		d.print("line")
		d.event(event{Event: "x"})
		if second == 10 {
			d.warn("careful")
		}
	})
	if out != "" || errOut != "WARNING: careful\n" {
		t.Errorf("%q, %q", out, errOut)
	}
}

// A terminal that is stopped holds up its writer alone.
func TestDisplayDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		d := &display{mode: displayTerminal, err: blocked{stop}, width: func() int { return 80 }}
		d.begin(status{what: "w", total: 100})
		time.Sleep(time.Second)
		for i := range 100 {
			d.update(func(s *status) { s.done = uint64(i + 1) })
		}
		close(stop)
		d.end()
	})
}

type blocked struct{ until chan struct{} }

func (b blocked) Write(p []byte) (int, error) {
	<-b.until
	return len(p), nil
}

// What turns out not to be fetched takes no time.
func TestDisplayOfLess(t *testing.T) {
	now := time.Unix(1, 0)
	var d display
	d.m.start(now, 600e6, 0)
	d.s = status{done: 10e6, total: 30e6}
	if s := d.measure(now.Add(time.Second)); s.eta != 2*time.Second {
		t.Errorf("%+v", s)
	}
}
