package share

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// TestScansOfAQuietTree: without changes nothing is scanned, a change anywhere below is noticed, and what the kernel cannot watch is scanned each time.
func TestScansOfAQuietTree(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a/b/c"), []byte("1"))
	s := serve(t, Options{Root: root, RescanEvery: time.Hour})
	if s.watch == nil || !s.watch.all.Load() {
		t.Fatal("nothing is watched")
	}
	s.watch.cost = time.Hour // so that no scan comes by time
	scan := func() {
		s.watch.begins()
		if err := s.Rescan(testCtx(t)); err != nil {
			t.Fatal(err)
		}
		s.watch.cost = time.Hour
	}
	if s.watch.needed() {
		t.Error("a scan of a tree in which nothing happened")
	}
	for _, change := range []func() error{
		func() error { return os.WriteFile(filepath.Join(root, "a/b/c"), []byte("2"), 0o644) },
		func() error { return os.Mkdir(filepath.Join(root, "a/d"), 0o755) },
		func() error { return os.WriteFile(filepath.Join(root, "a/d/new"), nil, 0o644) },
		func() error { return os.Chmod(filepath.Join(root, "a/d"), 0o700) },
		func() error { return os.Rename(filepath.Join(root, "a"), filepath.Join(root, "z")) },
		func() error { return os.Remove(filepath.Join(root, "z/b/c")) },
	} {
		for s.watch.needed() { // a scan may find what has been noticed before in the kernel's queue
			scan()
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		for ctx := testCtx(t); !s.watch.needed(); runtime.Gosched() {
			if ctx.Err() != nil {
				t.Fatal("a change is not noticed")
			}
		}
	}
	for s.watch.needed() {
		scan()
	}
	if s.watch.cost = 0; !s.watch.needed() {
		t.Error("no scan comes by time")
	}
	s.watch.cost = time.Hour
	s.watch.all.Store(false)
	if !s.watch.needed() {
		t.Error("what is not watched is not scanned")
	}
	if (*watch)(nil).needed() != true {
		t.Error("without a watch nothing is scanned")
	}
}
