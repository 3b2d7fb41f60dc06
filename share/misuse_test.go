package share

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/job"
)

// Options that cannot be are refused by Serve and Mirror, in words that name the field, its value
// and what was expected.
func TestBadOptions(t *testing.T) {
	n, err := transfer.Open(t.Context(), transfer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	dir := t.TempDir()
	for _, c := range []struct {
		o    Options
		want []string
	}{
		{Options{}, []string{"Options.Root is empty"}},
		{Options{Root: dir, MaxFiles: -1}, []string{"Options.MaxFiles is -1", "0 for 50000"}},
		{Options{Root: dir, KeepPartial: -time.Second}, []string{"Options.KeepPartial is -1s", "positive"}},
		{Options{Root: dir, RescanEvery: -1}, []string{"Options.RescanEvery is -1ns", "positive"}},
		{Options{Root: dir, Removable: true}, []string{"Options.Removable", "without Options.Writable", "expected both"}},
	} {
		s, err := Serve(t.Context(), n, c.o)
		if err == nil {
			s.Close()
			t.Errorf("%+v is taken", c.o)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: expected %q in it", err, w)
			}
		}
	}
	if _, err := Serve(t.Context(), nil, Options{Root: dir}); err == nil ||
		!strings.Contains(err.Error(), "the node is nil") {
		t.Errorf("without a node: %v", err)
	}
	if _, err := Mirror(t.Context(), Conn{}, dir, MirrorOptions{Parallel: -1}); err == nil ||
		!strings.Contains(err.Error(), "MirrorOptions.Parallel is -1") {
		t.Errorf("mirror: %v", err)
	}
}

// Each function and method that takes a context is called without one: an error that says so, and a
// panic that does in builds with -tags invariants. A closed server, peer and link are errors, and
// the zero Conn is.
func TestMisuse(t *testing.T) {
	n, err := transfer.Open(t.Context(), transfer.Options{Anonymous: identity.All,
		Listen: []string{"tcp://127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	s, err := Serve(t.Context(), n, Options{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	p, err := n.Dial(t.Context(), n.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	l := job.NewLink(n, n.Addrs()[0], job.LinkOptions{})
	ctx := t.Context()
	calls := map[string]func(c Conn) error{
		"List": func(c Conn) error { _, err := List(ctx, c, ""); return err },
		"Find": func(c Conn) error { _, err := Find(ctx, c, "x"); return err },
		"Fetch": func(c Conn) error {
			_, err := Fetch(ctx, c, "x", FetchOptions{Output: t.TempDir() + "/x"})
			return err
		},
		"Mirror": func(c Conn) error { _, err := Mirror(ctx, c, t.TempDir(), MirrorOptions{}); return err },
		"Stream": func(c Conn) error { _, err := Stream(ctx, c, "x", io.Discard, StreamOptions{}); return err },
		"Upload": func(c Conn) error { _, err := Upload(ctx, c, "misuse_test.go", "x", UploadOptions{}); return err },
		"Remove": func(c Conn) error { return Remove(ctx, c, []Entry{{Name: "x"}}, RemoveOptions{}) },
	}
	conns := map[string]Conn{"peer": Over(p), "link": OverLink(l), "zero": {}}
	try := func(f func() error) (panicked any, err error) {
		defer func() { panicked = recover() }()
		return nil, f()
	}
	expectContext := func(name string, f func() error) {
		t.Helper()
		panicked, err := try(f)
		said, _ := panicked.(string)
		if invariants.Enabled && !strings.Contains(said, "the context is nil") || !invariants.Enabled &&
			(panicked != nil || !errors.Is(err, transfer.ErrContext)) {
			t.Errorf("%s without a context: %v, panic %v", name, err, panicked)
		}
	}
	ctx = nil
	for name, f := range calls {
		for over, c := range conns {
			expectContext(name+" over "+over, func() error { return f(c) })
		}
	}
	expectContext("Serve", func() error { _, err := Serve(ctx, n, Options{Root: t.TempDir()}); return err })
	expectContext("Rescan", func() error { return s.Rescan(ctx) })

	ctx = t.Context()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	p.Close()
	l.Close()
	if err := s.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	if err := s.Rescan(ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("Rescan after Close: %v", err)
	}
	s.Snapshot()
	s.UnderWay()
	for name, f := range calls {
		for over, c := range conns {
			if panicked, err := try(func() error { return f(c) }); err == nil || panicked != nil {
				t.Errorf("%s over a closed %s: %v, panic %v", name, over, err, panicked)
			}
		}
	}
}
