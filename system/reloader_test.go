package system

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/config"
)

// reload waits for what a Reloader reports.
func reload(t *testing.T, c <-chan Reloaded) Reloaded {
	t.Helper()
	select {
	case r := <-c:
		if (r.Changes == nil) == (r.Err == nil) {
			t.Errorf("%+v", r)
		}
		return r
	case <-time.After(time.Minute):
		t.Fatal("waited a minute for a report")
	}
	panic("not reached")
}

// A file is put in force when it changes and when Trigger asks; one that is wrong, gone or too
// different is reported and changes nothing.
func TestReloader(t *testing.T) {
	flows := func(f string) string { return flowsText("reloader", f) }
	one, two := "{name: a, match: {udp_dst: 1}, actions: [{type: queue, id: 1}]}",
		"{name: b, match: {udp_dst: 2}, actions: [{type: queue, id: 1}]}"
	path := filepath.Join(t.TempDir(), "run.yaml")
	replace := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+"~", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+"~", path); err != nil {
			t.Fatal(err)
		}
	}
	replace(flows(one))
	s := mustOpen(t, flows(one), Options{Engines: noted(t, &diary{}), Logger: silent})
	reports := make(chan Reloaded, 100)
	r, err := NewReloader(s, path, ReloaderOptions{Report: func(r Reloaded) { reports <- r }})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	names := func() string {
		var out []string
		for _, f := range s.Port("loop").Rules().List() {
			out = append(out, f.Name)
		}
		return strings.Join(out, " ")
	}
	replace(flows(one + ", " + two))
	if x := reload(t, reports); x.Asked || x.Err != nil || x.Changes.String() != "loop: added b; 1 unchanged" ||
		names() != "a b" || string(x.Text) != flows(one+", "+two) {
		t.Errorf("%+v: %s", x, names())
	}
	replace("penstock: {no: such}")
	if x := reload(t, reports); !errors.Is(x.Err, config.ErrInvalid) || x.Problems.Count(config.Error) == 0 ||
		names() != "a b" {
		t.Errorf("%+v: %s", x, names())
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if x := reload(t, reports); !errors.Is(x.Err, fs.ErrNotExist) || x.Text != nil || names() != "a b" {
		t.Errorf("%+v: %s", x, names())
	}
	replace(strings.Replace(flows(two), "2048", "4096", 1))
	if x := reload(t, reports); !errors.Is(x.Err, ErrRestart) || names() != "a b" {
		t.Errorf("%+v: %s", x, names())
	}
	r.Trigger()
	if x := reload(t, reports); !x.Asked || !errors.Is(x.Err, ErrRestart) {
		t.Errorf("%+v", x)
	}
	replace(flows(two))
	if x := reload(t, reports); x.Err != nil || x.Changes.String() != "loop: removed a; 1 unchanged" || names() != "b" {
		t.Errorf("%+v: %s", x, names())
	}
	replace(flows(two)) // another file with the same text: no report
	r.Trigger()
	if x := reload(t, reports); !x.Asked || x.Err != nil || x.Changes.Any() {
		t.Errorf("%+v", x)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	r.Trigger() // too late: it does nothing
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	select {
	case x := <-reports:
		t.Errorf("nobody asked for %+v", x)
	default:
	}
}

// A file that has changed between its reading and the watch is seen; without a watch only Trigger
// counts.
func TestReloaderLooksFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.yaml")
	text := flowsText("first", "{name: a, match: {udp_dst: 1}, actions: [{type: drop}]}")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, flowsText("first", ""), Options{Engines: noted(t, &diary{}), Logger: silent})
	reports := make(chan Reloaded, 100)
	o := ReloaderOptions{Report: func(r Reloaded) { reports <- r }, NoWatch: true}
	still, err := NewReloader(s, path, o)
	if err != nil {
		t.Fatal(err)
	}
	still.Trigger()
	if x := reload(t, reports); !x.Asked || x.Changes.String() != "loop: added a; 0 unchanged" {
		t.Errorf("%+v", x)
	}
	if err := still.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Reload(mustLoad(t, flowsText("first", ""))); err != nil {
		t.Fatal(err)
	}
	o.NoWatch = false
	r, err := NewReloader(s, path, o)
	if err != nil {
		t.Fatal(err)
	}
	if x := reload(t, reports); x.Asked || x.Err != nil || x.Changes.String() != "loop: added a; 0 unchanged" {
		t.Errorf("%+v", x)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
