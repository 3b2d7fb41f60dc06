package share

import (
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// longName is a name of n bytes. Those of one length differ in their ends alone, and a rune lies
// across each place where one could be cut.
func longName(n int, end string) string {
	s := strings.Repeat("\u00e9", (n-len(end))/2)
	return strings.Repeat("a", n-len(end)-len(s)) + s + end
}

// Every name that a file system takes arrives, in a batch and by itself, with every way to move a
// file; the server lists a longer one as left out.
func TestLongNames(t *testing.T) {
	ctx, root, local, dir, out := testCtx(t), t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	files := map[string][]byte{}
	for i, n := range []int{241, 242, 243, 247, 250, 255} {
		files[longName(n, "small")] = randomBytes(uint64(i), 1000)
		files[longName(n, "also small")] = randomBytes(uint64(i), 1001)
		files[longName(n, "large")] = randomBytes(uint64(i), smallFile+1+i)
	}
	for name, b := range files {
		write(t, filepath.Join(local, name), b)
	}
	tooLong := "d/" + longName(254, "") // 256 bytes
	write(t, filepath.Join(local, tooLong), []byte("1"))
	s := serve(t, Options{Root: root, Writable: true, Removable: true})
	var failed []string
	u, err := UploadTree(ctx, s.c, []TreeSource{{Path: local}}, TreeOptions{OnFile: func(f MirrorFile) {
		if f.Err != nil {
			failed = append(failed, f.Name)
		}
	}})
	if !errors.Is(err, ErrName) || u.Sent != len(files) || !slices.Equal(failed, []string{tooLong}) {
		t.Fatalf("%+v, %v, %q", u, err, failed)
	}
	only(t, filepath.Join(root, stagingDir))
	write(t, filepath.Join(root, tooLong), []byte("1"))
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	if left := s.Snapshot().Skipped; len(left) != 1 || left[0].Path != tooLong ||
		!strings.Contains(left[0].Reason, "a name of 256 bytes, expected 1 to 255") {
		t.Errorf("%q", left)
	}
	if m, err := Mirror(ctx, s.c, dir, MirrorOptions{}); err != nil || m.Fetched != len(files) {
		t.Fatalf("%+v, %v", m, err)
	}
	for name, b := range files {
		same(t, filepath.Join(root, name), b)
		same(t, filepath.Join(dir, name), b)
		for _, c := range []Conn{s.c, s.c.ByPath()} {
			if _, err := Fetch(ctx, c, name, FetchOptions{Output: filepath.Join(out, name),
				Overwrite: true}); err != nil {
				t.Fatal(err)
			}
			same(t, filepath.Join(out, name), b)
		}
		if _, err := Upload(ctx, s.c, filepath.Join(local, name), name, UploadOptions{Overwrite: true}); err != nil {
			t.Fatal(err)
		}
		e := (*DigestError)(nil)
		if _, err := Fetch(ctx, s.c, name, FetchOptions{Output: filepath.Join(out, name), Overwrite: true,
			Expect: &[32]byte{1}}); !errors.As(err, &e) || e.Got != sha256.Sum256(b) {
			t.Fatal(err)
		}
		same(t, e.Kept, b)
		os.Remove(e.Kept)
	}
	entries, err := os.ReadDir(out)
	if err != nil || len(entries) != len(files) {
		t.Errorf("%d files, %v", len(entries), err)
	}
	es, err := List(ctx, s.c, "")
	if err != nil || len(es) != len(files) {
		t.Fatal(len(es), err)
	}
	if err := Remove(ctx, s.c, es, RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	only(t, root, stagingDir, "d")
}

// Names with the same beginning have partial files of their own: Fetch resumes each of them, and
// the scan tells them from files of other programs.
func TestPartialFilesOfLongNames(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	s := serve(t, Options{Root: root})
	local := serve(t, Options{Root: dir, Writable: true})
	names := []string{longName(242, "1"), longName(242, "2"), longName(255, "1"), longName(255, "2")}
	content, good := map[string][]byte{}, map[string]uint64{}
	var want []string
	for i, name := range names {
		content[name] = randomBytes(uint64(i), 2*window)
		write(t, filepath.Join(root, name), content[name])
		short, cancel := context.WithCancel(ctx)
		_, err := Fetch(short, s.c, name, FetchOptions{Output: filepath.Join(dir, name), Progress: func(p Progress) {
			if p.Bytes > 0 {
				cancel()
			}
		}})
		cancel()
		e := (*PartialError)(nil)
		if !errors.As(err, &e) {
			t.Fatal(err)
		}
		if fi, err := os.Stat(e.Partial); err != nil || fi.Size() != 2*window || !utf8.ValidString(e.Partial) {
			t.Errorf("%q: %v", e.Partial, err)
		}
		good[name] = e.Good
		want = append(want, filepath.Base(e.Partial),
			filepath.Base(e.Partial)+strings.TrimPrefix(StateSuffix, PartialSuffix))
	}
	slices.Sort(want)
	only(t, dir, append([]string{stagingDir}, want...)...)
	// A share and a put of the directory know them as their own.
	if err := local.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	if n := local.Snapshot(); n.Files != 0 || len(n.Skipped) != 0 {
		t.Errorf("%+v", n)
	}
	if _, u, err := uploadTree(t, local.c, TreeOptions{DryRun: true}, TreeSource{dir, ""}); err != nil || u.Sent != 0 ||
		u.Failed != 0 {
		t.Errorf("%+v, %v", u, err)
	}
	for _, name := range names {
		f, err := Fetch(ctx, s.c, name, FetchOptions{Output: filepath.Join(dir, name)})
		if err != nil || f.Resumed != good[name] || f.Moved != f.Size-f.Resumed {
			t.Fatalf("%+v, %v", f, err)
		}
		same(t, filepath.Join(dir, name), content[name])
	}
	slices.Sort(names)
	only(t, dir, append([]string{stagingDir}, names...)...)
}
