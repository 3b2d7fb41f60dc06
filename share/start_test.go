package share

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/penstock-io/penstock/transfer"
)

// What a server holds beside its mappings, and what its end makes its peers and their paths do,
// depends on what they asked for, not on how many files there are.
func TestStartAndEndOfManyFiles(t *testing.T) {
	const peers = 2
	dirs := 50 // a thousand files in each
	if testing.Short() {
		dirs = 5
	}
	ctx, root := testCtx(t), t.TempDir()
	write(t, filepath.Join(root, "f"), []byte("x"))
	for i := range dirs {
		dir := filepath.Join(root, fmt.Sprint("d", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for j := range 1000 {
			if i == 0 && j >= 10 { // of which peers fetch all
				break
			}
			if err := os.Link(filepath.Join(root, "f"), filepath.Join(dir, fmt.Sprint(j))); err != nil {
				t.Fatal(err)
			}
		}
	}
	files := 1 + 10 + (dirs-1)*1000
	n := testNode(t, transfer.Options{Name: "server", Listen: []string{"tcp://127.0.0.1:0"}})
	type held struct{ goroutines, files, mappings int }
	now := func() held {
		fds, err := os.ReadDir("/proc/self/fd")
		maps, merr := os.ReadFile("/proc/self/maps")
		if err = errors.Join(err, merr); err != nil {
			t.Fatal(err)
		}
		return held{runtime.NumGoroutine(), len(fds), bytes.Count(maps, []byte("\n"))}
	}
	before := now()
	s, err := Serve(ctx, n, Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	if x, is := s.Snapshot(), now(); x.Files != files || is.goroutines > before.goroutines ||
		is.files > before.files+2 {
		// the root, twice
		t.Errorf("%d files: %+v, before it served %+v", x.Files, is, before)
	}
	for range peers {
		p, err := testNode(t, transfer.Options{Name: "client"}).Dial(ctx, n.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		m, err := Mirror(ctx, Over(p), t.TempDir(), MirrorOptions{Prefix: "d0/"})
		if err != nil || m.Fetched != 10 {
			t.Fatalf("%+v, %v", m, err)
		}
		if _, err := Fetch(ctx, Over(p).ByPath(), "f",
			FetchOptions{Output: filepath.Join(t.TempDir(), "f")}); err != nil {
			t.Fatal(err)
		}
	}
	posted := func() (ops uint64) {
		for _, p := range n.Snapshot().Peers {
			if len(p.Paths) == 0 {
				t.Fatal("a peer without a path")
			}
			for _, x := range p.Paths {
				ops += x.Counters.OpsPosted
			}
		}
		return ops
	}
	was := posted()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// Each path of each peer is fenced for what a peer was told of: 11 names.
	if ops := posted() - was; ops < 11*peers || ops > 11*peers*2 {
		t.Errorf("the end of a server of %d files has %d operations posted to the paths of %d peers that know 11 "+
			"of them", files, ops, peers)
	}
	if x := n.Snapshot().Exports; len(x) != 0 {
		t.Errorf("%d exports are left", len(x))
	}
	if is := now(); is.mappings > before.mappings+files/10 {
		t.Errorf("%d mappings are left, before there were %d", is.mappings, before.mappings)
	}
}

// A list that a peer asks for while the server looks at its files for the first time waits for the
// end of that.
func TestListWaitsForTheFirstScan(t *testing.T) {
	const files = 3000
	ctx, root := testCtx(t), t.TempDir()
	write(t, filepath.Join(root, "0"), []byte("x"))
	for i := 1; i < files; i++ {
		if err := os.Link(filepath.Join(root, "0"), filepath.Join(root, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	n := testNode(t, transfer.Options{Name: "server", Listen: []string{"tcp://127.0.0.1:0"}})
	p, err := testNode(t, transfer.Options{Name: "client"}).Dial(ctx, n.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		s, err := Serve(ctx, n, Options{Root: root})
		if err == nil {
			t.Cleanup(func() { s.Close() })
		}
		served <- err
	}()
	for len(n.Snapshot().Exports) == 0 { // until the scan is under way
		if ctx.Err() != nil {
			t.Fatal(ctx.Err())
		}
		runtime.Gosched()
	}
	if es, err := Names(ctx, Over(p), ""); err != nil || len(es) != files {
		t.Errorf("%d names of %d, %v", len(es), files, err)
	}
	if err := <-served; err != nil {
		t.Fatal(err)
	}
}
