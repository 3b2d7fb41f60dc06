package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
)

// manyFiles makes so many files, small ones in directories and a large one here and there.
func manyFiles(t *testing.T, root string, n int) map[string][]byte {
	t.Helper()
	content := map[string][]byte{}
	for i := range n {
		size := i * 7 % 3000
		if i%500 == 499 {
			size = smallFile + 1
		}
		name := fmt.Sprintf("d%02d/f%05d", i%20, i)
		content[name] = randomBytes(uint64(i), size)
		write(t, filepath.Join(root, name), content[name])
	}
	return content
}

// TestMirrorLosesThePeerBetweenPages mirrors more files than the pages have that are asked for
// ahead, from a peer that goes when the first of them are there. What has come stays and is
// recorded, the rest has failed, nothing is deleted, and the next mirror fetches what is missing.
func TestMirrorLosesThePeerBetweenPages(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	content := manyFiles(t, root, (pagesAhead+fetchesAtOnce+2)*pageNames)
	s := serve(t, Options{Root: root})
	var lose sync.Once
	m, err := Mirror(ctx, s.c, dir, MirrorOptions{Delete: true, OnFile: func(f MirrorFile) {
		if f.Action == MirrorFetched {
			lose.Do(func() { s.peer.Close() })
		}
	}})
	if m == nil || !errors.Is(err, transfer.ErrClosed) || m.Fetched == 0 || m.Failed == 0 ||
		m.Fetched+m.Failed != len(content) || m.Deleted != 0 || len(m.Failures) != m.Failed {
		t.Fatalf("%+v, %v", m, err)
	}
	for _, f := range m.Failures {
		if f.Path != f.Name {
			t.Fatalf("%+v", f)
		}
		if _, err := os.Lstat(filepath.Join(dir, f.Path)); err == nil {
			t.Errorf("%s has failed, and is there", f.Path)
		}
	}
	there := m.Fetched
	again := serve(t, Options{Root: root})
	m, err = Mirror(ctx, again.c, dir, MirrorOptions{Delete: true})
	if err != nil || m.Skipped != there || m.Fetched != len(content)-there {
		t.Fatalf("%d files were there: %+v, %v", there, m, err)
	}
	for name, want := range content {
		same(t, filepath.Join(dir, name), want)
	}
}

// TestMirrorByPages mirrors what takes several pages, in all ways that a mirror takes: all are
// there, and a second mirror keeps all.
func TestMirrorByPages(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	content := manyFiles(t, root, 3*pageNames+1)
	s := serve(t, Options{Root: root})
	for _, o := range []MirrorOptions{{}, {Parallel: 3}, {Prefix: "d07/"}, {Filter: filterOf(t, "+f*77", "-*")}} {
		dir, want := t.TempDir(), map[string][]byte{}
		for name, b := range content {
			if strings.HasPrefix(name, o.Prefix) && o.Filter.Takes(name) {
				want[name] = b
			}
		}
		write(t, filepath.Join(dir, batchDir, "1"), nil) // of a mirror that is under way
		dry := o
		dry.DryRun = true
		if m, err := Mirror(ctx, s.c, dir, dry); err != nil || len(want) == 0 || m.Fetched != len(want) ||
			m.Moved == 0 {
			t.Errorf("%+v: %+v, %v", dry, m, err)
		}
		only(t, dir, batchDir)
		only(t, filepath.Join(dir, batchDir), "1")
		if m, err := Mirror(ctx, s.c, dir, o); err != nil || m.Fetched != len(want) {
			t.Errorf("%+v: %+v, %v", o, m, err)
		}
		for name, b := range want {
			same(t, filepath.Join(dir, name), b)
		}
		if m, err := Mirror(ctx, s.c, dir, o); err != nil || m.Skipped != len(want) || m.Fetched != 0 {
			t.Errorf("%+v again: %+v, %v", o, m, err)
		}
	}
}

// TestMirrorWhoseListingHasNoEnd has a peer that does not say any more whether its listing is
// complete, after it has published the names: nothing is fetched or deleted.
func TestMirrorWhoseListingHasNoEnd(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "x"), []byte("x"))
	write(t, filepath.Join(root, "y"), []byte("y"))
	s := serve(t, Options{Root: root})
	if m, err := Mirror(ctx, s.c, dir, MirrorOptions{Delete: true}); err != nil || m.Fetched != 2 {
		t.Fatalf("%+v, %v", m, err)
	}
	foreign := testNode(t, transfer.Options{Name: "foreign", Listen: []string{"tcp://127.0.0.1:0"}})
	asked := 0
	if _, err := foreign.Handle(listingService, func(context.Context, *transfer.Peer, []byte) ([]byte, error) {
		if asked++; asked > 1 {
			return nil, control.Errorf(control.Internal, "out of order")
		}
		return []byte{byte(lackNothing), 8: 1}, nil
	}); err != nil {
		t.Fatal(err)
	}
	p, err := testNode(t, transfer.Options{Name: "client"}).Dial(ctx, foreign.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if m, err := Mirror(ctx, Over(p), dir, MirrorOptions{Delete: true, OnFile: func(f MirrorFile) {
		t.Errorf("%+v", f)
	}}); !errors.Is(err, control.Internal) || m != nil || asked != 2 {
		t.Errorf("asked %d times: %+v, %v", asked, m, err)
	}
	same(t, filepath.Join(dir, "x"), []byte("x"))
	same(t, filepath.Join(dir, "y"), []byte("y"))
}
