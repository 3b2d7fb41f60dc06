package share

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/transfer/control"
)

// TestFollowLinks serves a directory as caches of model hubs are: the files of a snapshot are links
// to blobs. What leads out of the directory, to nothing or in a circle is left out, and listings
// are complete all the same.
func TestFollowLinks(t *testing.T) {
	ctx, root, out := testCtx(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "blobs/0a"), []byte("weights"))
	write(t, filepath.Join(root, "blobs/0b"), []byte("config"))
	write(t, filepath.Join(out, "secret"), []byte("secret"))
	link := func(to, at string) {
		t.Helper()
		p := filepath.Join(root, at)
		os.Remove(p)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.Symlink(to, p)); err != nil {
			t.Fatal(err)
		}
	}
	link("../../blobs/0a", "snapshots/1/model.bin")
	link("../../blobs/0b", "snapshots/1/config.json")
	link("snapshots/1", "latest")
	link("../..", "snapshots/1/loop")
	link("nothing", "dangling")
	link(filepath.Join(out, "secret"), "absolute")
	link("../../../../../../../../.."+out, "snapshots/up")
	s := serve(t, Options{Root: root, FollowLinks: true})
	names := func() (out []string) {
		t.Helper()
		es, err := List(ctx, s.c, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range es {
			out = append(out, e.Name)
		}
		return out
	}
	want := []string{"blobs/0a", "blobs/0b", "latest/config.json", "latest/model.bin", "snapshots/1/config.json",
		"snapshots/1/model.bin"}
	if got := names(); !slices.Equal(got, want) {
		t.Errorf("%q, expected %q", got, want)
	}
	skipped := map[string]bool{}
	for _, x := range s.Snapshot().Skipped {
		skipped[x.Path] = strings.Contains(x.Reason, "link")
	}
	for _, p := range []string{"dangling", "absolute", "snapshots/up", "latest/loop", "snapshots/1/loop"} {
		if !skipped[p] {
			t.Errorf("%s is not left out as a link: %v", p, skipped)
		}
	}
	for _, n := range []string{"snapshots/1/loop/blobs/0a", "latest/loop/latest/loop/blobs/0a"} {
		// else a peer could make any number of them
		if _, err := Find(ctx, s.c, n); !errors.Is(err, control.NotFound) {
			t.Errorf("%s: %v", n, err)
		}
	}
	dir := t.TempDir()
	m, err := Mirror(ctx, s.c, dir, MirrorOptions{Delete: true})
	if err != nil || m.Fetched != len(want) || m.Incomplete != nil {
		t.Errorf("%+v, %v", m, err)
	}
	same(t, filepath.Join(dir, "snapshots/1/model.bin"), []byte("weights"))
	// A link that leads to another blob stands for that at once, and one that leads out of the
	// directory for nothing.
	was, err := Find(ctx, s.c, "snapshots/1/model.bin")
	if err != nil {
		t.Fatal(err)
	}
	link("../../blobs/0b", "snapshots/1/model.bin")
	if now, err := Find(ctx, s.c, "snapshots/1/model.bin"); err != nil || now.Size != 6 || now.Tag == was.Tag {
		t.Errorf("%+v, %v", now, err)
	}
	link(filepath.Join(out, "secret"), "snapshots/1/model.bin")
	if _, err := Find(ctx, s.c, "snapshots/1/model.bin"); !errors.Is(err, control.NotFound) {
		t.Errorf("a link out of the directory: %v", err)
	}
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	if got := names(); slices.Contains(got, "snapshots/1/model.bin") {
		t.Errorf("%q", got)
	}
	if n := serve(t, Options{Root: root}).Snapshot(); n.Files != 2 {
		t.Errorf("without FollowLinks %d files are served, expected 2", n.Files)
	}
	write(t, filepath.Join(root, batchDir, "1"), nil) // of a mirror into this directory
	if n := serve(t, Options{Root: root, Hidden: true}).Snapshot(); n.Files != 2 {
		t.Errorf("with Hidden %d files are served, expected 2", n.Files)
	}
}
