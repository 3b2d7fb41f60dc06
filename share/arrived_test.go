package share

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock-io/penstock/transfer/control"
)

// TestArrivedIsServedWhenAskedFor uploads files: they count at once, each is exported when a peer
// asks for its name, and all when one asks for a list.
func TestArrivedIsServedWhenAskedFor(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	s := serve(t, Options{Root: root, Writable: true, Tensors: true, MaxFiles: 9, MaxBytes: 60000})
	exports := func() (n int) {
		for _, x := range s.node.Snapshot().Exports {
			if x.Name != "" {
				n++
			}
		}
		return n
	}
	var names, content []string
	for i := range 5 {
		names, content = append(names, fmt.Sprintf("d%d/%d", i%2, i)), append(content, "0123456789")
	}
	npy := "\x93NUMPY\x01\x00\x46\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }            \nabcdefgh"
	names, content = append(names, "e/x.npy"), append(content, npy)
	if _, err := smallBatch(t, s.peer, &smallRequest{token: token{1}}, names, content...); err != nil {
		t.Fatal(err)
	}
	bytes := uint64(50 + len(npy))
	if n := s.Snapshot(); n.Files != 6 || n.Bytes != bytes || exports() != 0 {
		t.Errorf("%d files of %d bytes, %d exported: expected 6 of %d, none exported", n.Files, n.Bytes, exports(),
			bytes)
	}
	if e, err := Find(ctx, s.c, "d1/3"); err != nil || e.Size != 10 || exports() != 1 {
		t.Errorf("%+v, %v, %d exported, expected one", e, err, exports())
	}
	if e, err := Find(ctx, s.c, "e/x.npy/array"); err != nil || e.Size != 8 {
		t.Errorf("a part of a file that nobody asked for yet: %+v, %v", e, err)
	}
	if n := s.Snapshot(); n.Files != 6 || n.Bytes != bytes {
		t.Errorf("%d files of %d bytes", n.Files, n.Bytes)
	}
	// What goes before anybody asks for it does not count after a scan, and its name stands for
	// nothing.
	if err := os.RemoveAll(filepath.Join(root, "d0")); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(ctx, s.c, "d0/2"); !errors.Is(err, control.NotFound) {
		t.Error(err)
	}
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	if n := s.Snapshot(); n.Files != 3 || n.Bytes != bytes-30 {
		t.Errorf("%d files of %d bytes, expected 3 of %d", n.Files, n.Bytes, bytes-30)
	}
	// Files that no peer has asked for count against the limits.
	if got, err := smallBatch(t, s.peer, &smallRequest{token: token{2}}, []string{"a", "b", "c", "d", "e2"}, "1", "2",
		"3", "4", "5"); err != nil || string(got) != "\x01\x01\x01\x01\x00" {
		t.Errorf("%v, %v", got, err)
	}
	was := exports()
	es, err := Names(ctx, s.c, "")
	if err != nil || len(es) != 8 || exports() != 8 { // the array is one of them
		t.Errorf("%d names, %d exported, before %d: %v", len(es), exports(), was, err)
	}
	// What replaces a file that is served is served at once.
	if err := os.Remove(filepath.Join(root, "b")); err != nil { // there is room for no file more
		t.Fatal(err)
	}
	if _, err := Find(ctx, s.c, "b"); !errors.Is(err, control.NotFound) {
		t.Fatal(err)
	}
	if got, err := smallBatch(t, s.peer, &smallRequest{token: token{3}, overwrite: true}, []string{"a"},
		"anew"); err != nil || got[0] != smallDone {
		t.Fatal(got, err)
	}
	s.mu.Lock()
	v, waits := s.names["a"], len(s.arrived)
	s.mu.Unlock()
	if v.of == nil || v.of.id.size != 4 || waits != 0 {
		t.Errorf("%+v, %d wait", v.of, waits)
	}
}

// TestArrivedOfAReplacedDirectory has a directory with an uploaded file become a link that leads
// out: the name stands for nothing.
func TestArrivedOfAReplacedDirectory(t *testing.T) {
	ctx, root, out := testCtx(t), t.TempDir(), t.TempDir()
	s := serve(t, Options{Root: root, Writable: true})
	if _, err := smallBatch(t, s.peer, &smallRequest{token: token{1}}, []string{"d/a", "kept"}, "1", "2"); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(out, "a"), []byte("secret"))
	if err := errors.Join(os.RemoveAll(filepath.Join(root, "d")),
		os.Symlink(out, filepath.Join(root, "d"))); err != nil {
		t.Fatal(err)
	}
	es, err := Names(ctx, s.c, "")
	if err != nil || len(es) != 1 || es[0].Name != "kept" {
		t.Errorf("%v, %v", es, err)
	}
	if n := s.Snapshot(); n.Files != 1 {
		t.Errorf("%d files", n.Files)
	}
}
