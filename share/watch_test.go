package share

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/job"
)

// TestScansOfAQuietTree: without changes nothing is scanned, a change anywhere below is noticed,
// and what the kernel cannot watch is scanned each time.
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
		s.watch.ends()
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

// TestListingsHaveWhatChanged: a mirror and a listing have what was changed just before, though the
// next scan by time is far away; one that asks while nothing changes causes no scan.
func TestListingsHaveWhatChanged(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "a/same"), []byte("0"))
	write(t, filepath.Join(root, "a/gone-0"), nil)
	s := serve(t, Options{Root: root, RescanEvery: time.Hour})
	if m, err := Mirror(ctx, s.c, dir, MirrorOptions{}); err != nil || m.Fetched != 2 {
		t.Fatalf("%+v, %v", m, err)
	}
	for i := range 10 {
		write(t, filepath.Join(root, "a/same"), []byte{byte('1' + i)}) // as large as before
		if err := os.Rename(filepath.Join(root, fmt.Sprintf("a/gone-%d", i)),
			filepath.Join(root, fmt.Sprintf("a/gone-%d", i+1))); err != nil {
			t.Fatal(err)
		}
		m, err := Mirror(ctx, s.c, dir, MirrorOptions{Delete: true})
		if err != nil || m.Fetched != 2 || m.Deleted != 1 || m.Skipped != 0 {
			t.Fatalf("%+v, %v; expected 2 fetched and 1 deleted", m, err)
		}
		same(t, filepath.Join(dir, "a/same"), []byte{byte('1' + i)})
	}
	for s.watch.changed() { // what the mirror made the server open may be reported
		if _, err := Mirror(ctx, s.c, dir, MirrorOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	before := s.Snapshot().Scans
	for range 3 {
		if m, err := Mirror(ctx, s.c, dir, MirrorOptions{}); err != nil || m.Skipped != 2 {
			t.Fatalf("%+v, %v", m, err)
		}
		if _, err := List(ctx, s.c, ""); err != nil {
			t.Fatal(err)
		}
		if err := s.c.do(ctx, job.DoOptions{}, func(ctx context.Context, p *transfer.Peer) error {
			l, _, err := askListing(ctx, p, math.MaxUint64)
			if l != lackNothing {
				t.Errorf("a listing lacks %d where nothing changed", l)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Snapshot().Scans; n != before {
		t.Errorf("%d scans where nothing changed", n-before)
	}
}

// TestScansForPeersPause: scans that peers ask for take a part of the time only. A request that
// gets none says which scan it waits for.
func TestScansForPeersPause(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a"), []byte("1"))
	s := serve(t, Options{Root: root, RescanEvery: time.Hour})
	s.watch.mu.Lock()
	s.watch.cost = time.Hour
	s.watch.mu.Unlock()
	write(t, filepath.Join(root, "b"), []byte("1"))
	before := s.Snapshot().Scans
	if n := s.watch.caughtUp(testCtx(t), 0, false); n != 2 {
		t.Errorf("a list within the pause: scan %d, expected 2", n)
	}
	over, cancel := context.WithCancel(testCtx(t))
	cancel()
	for _, n := range []uint64{0, 2, math.MaxUint64} {
		if n := s.watch.caughtUp(over, n, true); n != 2 {
			t.Errorf("after the time of an answer: scan %d, expected 2", n)
		}
	}
	if n := s.watch.caughtUp(over, firstScan, true); n != 0 {
		t.Errorf("the first scan is over; scan %d", n)
	}
	if n := s.Snapshot().Scans; n != before {
		t.Errorf("%d scans within the pause", n-before)
	}
}

// TestScansByTimeGoOn: while a peer waits for the pause behind a scan that took long, scans by time
// go on, and it has what they see.
func TestScansByTimeGoOn(t *testing.T) {
	root := t.TempDir()
	s := serve(t, Options{Root: root, RescanEvery: 10 * time.Millisecond})
	s.watch.mu.Lock()
	s.watch.cost = time.Hour
	s.watch.mu.Unlock()
	write(t, filepath.Join(root, "a"), []byte("1"))
	short, cancel := context.WithTimeout(testCtx(t), 20*time.Second)
	defer cancel()
	if n := s.watch.caughtUp(short, 0, true); n != 0 {
		t.Errorf("scan %d is still waited for", n)
	}
}
