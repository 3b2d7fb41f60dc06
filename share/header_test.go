package share

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestFetchWithAHeader fetches files that get a header: of no bytes, of one block, of several that
// do not fill the last, small ones in an answer and large ones.
func TestFetchWithAHeader(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	s := serve(t, Options{Root: root})
	header := bytes.Repeat([]byte("h"), 130)
	out := filepath.Join(dir, "out")
	for _, n := range []int{0, 1, 500, 1 << 20, 3<<20 + 7, window + 5} {
		b := randomBytes(uint64(n), n)
		write(t, filepath.Join(root, "f"), b)
		o := FetchOptions{Output: out, Overwrite: true, Digest: true, Header: func(e Entry) ([]byte, error) {
			if e.Name != "f" || e.Size != uint64(n) {
				t.Errorf("%+v", e)
			}
			return header, nil
		}}
		for range 2 { // the second replaces the first
			f, err := Fetch(ctx, s.c, "f", o)
			if err != nil || f.Size != uint64(n) || f.SHA256 == nil {
				t.Fatalf("%d bytes: %+v, %v", n, f, err)
			}
			same(t, out, append(bytes.Clone(header), b...))
			only(t, dir, "out")
		}
	}
	wrong := errors.New("wrong")
	if _, err := Fetch(ctx, s.c, "f", FetchOptions{Output: filepath.Join(dir, "b"),
		Header: func(Entry) ([]byte, error) {
			return nil, wrong
		}}); !errors.Is(err, wrong) {
		t.Errorf("%v", err)
	}
	only(t, dir, "out")

	// A fetch that could not take its place at the end restarts where the bytes were moved, and
	// has the right ones.
	content := randomBytes(9, window)
	write(t, filepath.Join(root, "g"), content)
	at := filepath.Join(dir, "g")
	o := FetchOptions{Output: at, Header: func(Entry) ([]byte, error) {
		return header, nil
	}, Progress: func(p Progress) {
		if p.Bytes == p.Size && p.Start == 0 {
			write(t, at, nil)
		}
	}}
	if _, err := Fetch(ctx, s.c, "g", o); !errors.Is(err, ErrExists) {
		t.Fatalf("%v", err)
	}
	if err := os.Remove(at); err != nil {
		t.Fatal(err)
	}
	o.Progress = nil
	if _, err := Fetch(ctx, s.c, "g", o); err != nil {
		t.Fatal(err)
	}
	same(t, at, append(bytes.Clone(header), content...))
	only(t, dir, "g", "out")
}
