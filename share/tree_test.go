package share

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/sched"
)

// uploadTree is UploadTree with an account of what became of each name.
func uploadTree(t *testing.T, c Conn, o TreeOptions, sources ...TreeSource) (map[string]MirrorAction, *UploadedTree,
	error) {
	t.Helper()
	became := map[string]MirrorAction{}
	var last MirrorProgress
	o.OnFile = func(f MirrorFile) {
		if became[f.Name] != "" {
			t.Errorf("%s is told of twice", f.Name)
		}
		became[f.Name] = f.Action
	}
	o.Progress = func(p MirrorProgress) { last = p }
	u, err := UploadTree(testCtx(t), c, sources, o)
	if u != nil {
		counts := map[MirrorAction]int{}
		for _, a := range became {
			counts[a]++
		}
		if want := (map[MirrorAction]int{MirrorSent: u.Sent, MirrorSkipped: u.Kept, MirrorFailed: u.Failed,
			MirrorLeftOut: u.LeftOut}); counts[MirrorSent] != want[MirrorSent] ||
			counts[MirrorSkipped] != want[MirrorSkipped] || counts[MirrorFailed] != want[MirrorFailed] ||
			counts[MirrorLeftOut] != want[MirrorLeftOut] {
			t.Errorf("the account says %v, the names %v", want, counts)
		}
		if last.BytesDone != last.Bytes || last.FilesDone+last.FilesFailed != last.Files {
			t.Errorf("the progress ends at %+v", last)
		}
	}
	return became, u, err
}

func TestUploadTree(t *testing.T) {
	root, local := t.TempDir(), t.TempDir()
	files := map[string][]byte{"a": []byte("1"), "sub/empty": {}, "sub/large": randomBytes(3, 2*chunkSize+7),
		"sub/.dot": []byte("d"), "sub/\u00e9 .": []byte("d")}
	for i := range 40 {
		files[fmt.Sprintf("many/%02d", i)] = fmt.Append(nil, "content ", i)
	}
	want := map[string]MirrorAction{}
	for n, b := range files {
		write(t, filepath.Join(local, n), b)
		want["run/"+n] = MirrorSent
	}
	for _, n := range []string{recordName, "y.partial", "y.partial.state", stagingDir + "/z",
		"sub/" + batchDir + "/7"} {
		write(t, filepath.Join(local, n), nil)
	}
	if err := errors.Join(os.Symlink("a", filepath.Join(local, "link")),
		os.Symlink("sub", filepath.Join(local, "dirlink")),
		os.Mkdir(filepath.Join(local, "nothing"), 0o755)); err != nil {
		t.Fatal(err)
	}
	want["run/link"], want["run/dirlink"] = MirrorLeftOut, MirrorLeftOut
	one := filepath.Join(t.TempDir(), "one")
	write(t, one, []byte("one"))
	want["one.bin"] = MirrorSent
	sources := []TreeSource{{local, "run/"}, {one, "one.bin"}}
	for _, strong := range []bool{false, true} {
		s := serve(t, Options{Root: root, Writable: true, Hidden: true, Strong: strong})
		got, u, err := uploadTree(t, s.c, TreeOptions{}, sources...)
		if err != nil || !maps.Equal(got, want) || u.Failed != 0 {
			t.Fatalf("strong %t: %+v, %v: %v", strong, u, err, got)
		}
		for n, b := range files {
			p, _ := PathOf("run/" + n)
			same(t, filepath.Join(root, p), b)
		}
		same(t, filepath.Join(root, "one.bin"), []byte("one"))
		if n := s.Snapshot().Files; n != len(want)-2 { // without a scan; two are links
			t.Errorf("strong %t: %d files are served of %d", strong, n, len(want)-2)
		}
		// What is there is kept, and moves no bytes. What is there with another content is not
		// replaced.
		write(t, filepath.Join(local, "sub/large"), randomBytes(4, 2*chunkSize+7))
		write(t, filepath.Join(local, "a"), []byte("12"))
		if err := os.Remove(filepath.Join(root, "run/many/07")); err != nil {
			t.Fatal(err)
		}
		if err := s.Rescan(testCtx(t)); err != nil {
			t.Fatal(err)
		}
		_, u, err = uploadTree(t, s.c, TreeOptions{}, sources...)
		if u.Sent != 1 || u.Failed != 2 || u.Kept != len(files)-2 || !errors.Is(err, ErrExists) || u.Moved != 9 {
			t.Errorf("strong %t, again: %+v, %v", strong, u, err)
		}
		same(t, filepath.Join(root, "run/a"), []byte("1"))
		if _, u, err = uploadTree(t, s.c, TreeOptions{Overwrite: true, Parallel: 3}, sources...); err != nil ||
			u.Sent != len(files)+1 {
			t.Errorf("strong %t, to replace: %+v, %v", strong, u, err)
		}
		same(t, filepath.Join(root, "run/sub/large"), randomBytes(4, 2*chunkSize+7))
		s.uploads.mu.Lock()
		if n := len(s.uploads.small.paths); n > 0 || s.uploads.small.bytes > 0 {
			t.Errorf("strong %t: %d files of %d bytes still count as under way", strong, n, s.uploads.small.bytes)
		}
		s.uploads.mu.Unlock()
		// For the next round.
		if err := errors.Join(os.RemoveAll(filepath.Join(root, "run")),
			os.Remove(filepath.Join(root, "one.bin"))); err != nil {
			t.Fatal(err)
		}
		for n, b := range files {
			write(t, filepath.Join(local, n), b)
		}
	}
}

// A source may be a link; below it, none is followed. Files that cannot be read fail, and the
// others are uploaded.
func TestUploadTreeFailures(t *testing.T) {
	root, local := t.TempDir(), t.TempDir()
	for _, n := range []string{"a/b", "a/c", "d", "longer/" + strings.Repeat("x", 250), "\xff", "x.partial", ".dot"} {
		write(t, filepath.Join(local, n), []byte(n))
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(local, link); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "a"), []byte("a file")) // where a directory is needed
	s := serve(t, Options{Root: root, Writable: true})
	got, _, err := uploadTree(t, s.c, TreeOptions{}, TreeSource{link, ""})
	want := map[string]MirrorAction{"a/b": MirrorFailed, "a/c": MirrorFailed, "d": MirrorSent, "longer/" +
		strings.Repeat("x", 250): MirrorFailed, "\xff": MirrorFailed, "x.partial": MirrorFailed, ".dot": MirrorFailed}
	if err == nil || !strings.Contains(err.Error(), "6 of 7 files failed") || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	same(t, filepath.Join(root, "d"), []byte("d"))
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want    error
		sources []TreeSource
	}{
		{os.ErrNotExist, []TreeSource{{local, "x/"}, {filepath.Join(local, "none"), "y"}}},
		{ErrUnsafe, []TreeSource{{local, "x/"}, {pipe, "y"}}},
		{ErrExists, []TreeSource{{filepath.Join(local, "a"), "x/"}, {filepath.Join(local, "d"), "x/c"}}},
	} {
		if got, u, err := uploadTree(t, s.c, TreeOptions{}, c.sources...); !errors.Is(err, c.want) || u != nil ||
			len(got) > 0 {
			t.Errorf("%v: %v, %v", c.sources, got, err)
		}
	}
	only(t, root, stagingDir, "a", "d")
}

func TestUploadTreeFilter(t *testing.T) {
	local := t.TempDir()
	for _, n := range []string{"a.bin", "a.tmp", "cache/x.bin", "cache/keep/y.bin", "b/c.bin", "b/c.tmp"} {
		write(t, filepath.Join(local, n), []byte(n))
	}
	s := serve(t, Options{Root: t.TempDir(), Writable: true})
	tmp := TreeSource{filepath.Join(local, "a.tmp"), "other.tmp"}
	for i, c := range []struct{ rules, want string }{
		{"-*.tmp -cache/", "a.bin b/c.bin"},
		{"+cache/keep -cache -*.tmp", "a.bin b/c.bin cache/keep/y.bin"},
		// below the source, nothing is called so
		{"-run", "a.bin a.tmp b/c.bin b/c.tmp cache/keep/y.bin cache/x.bin other.tmp"},
	} {
		prefix := fmt.Sprint("run", i, "/")
		got, _, err := uploadTree(t, s.c, TreeOptions{Filter: filterOf(t, strings.Fields(c.rules)...)},
			TreeSource{local, prefix + "run/"}, tmp)
		var names []string
		for n := range got {
			names = append(names, strings.TrimPrefix(n, prefix+"run/"))
		}
		slices.Sort(names)
		if err != nil || strings.Join(names, " ") != c.want {
			t.Errorf("%q: %q, %v", c.rules, names, err)
		}
	}
}

// When the other side takes no uploads, or is gone, all that is left fails with that. A context
// that ends leaves what is under way in no count.
func TestUploadTreeStops(t *testing.T) {
	local := t.TempDir()
	const n = (putsAtOnce + 4) * batchFiles // more than are under way at once
	for i := range n {
		write(t, filepath.Join(local, fmt.Sprint(i)), []byte("x"))
	}
	s := serve(t, Options{Root: t.TempDir()})
	if _, u, err := uploadTree(t, s.c, TreeOptions{}, TreeSource{local, ""}); !errors.Is(err, ErrRefused) ||
		u.Failed != n {
		t.Errorf("%+v, %v", u, err)
	}
	s = serve(t, Options{Root: t.TempDir(), Writable: true})
	ctx, cancel := context.WithCancel(testCtx(t))
	u, err := UploadTree(ctx, s.c, []TreeSource{{local, ""}}, TreeOptions{OnFile: func(MirrorFile) { cancel() }})
	if !errors.Is(err, context.Canceled) || u.Sent == 0 || u.Sent == n || u.Failed > 0 {
		t.Errorf("%+v, %v", u, err)
	}
	s = serve(t, Options{Root: t.TempDir(), Writable: true})
	u, err = UploadTree(testCtx(t), s.c, []TreeSource{{local, ""}}, TreeOptions{OnFile: func(f MirrorFile) {
		if f.Action == MirrorSent {
			s.peer.Close()
		}
	}})
	if err == nil || u.Failed == 0 || u.Sent+u.Failed != n {
		t.Errorf("%+v, %v", u, err)
	}
}

// UploadFile takes all of an open file that has no name any more, wherever it is read next.
func TestUploadFile(t *testing.T) {
	root := t.TempDir()
	s := serve(t, Options{Root: root, Writable: true})
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := randomBytes(1, chunkSize+5)
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if _, err := UploadFile(testCtx(t), s.c, f, "x", UploadOptions{}); err != nil {
		t.Fatal(err)
	}
	same(t, filepath.Join(root, "x"), b)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := UploadFile(testCtx(t), s.c, r, "y", UploadOptions{}); !errors.Is(err, ErrUnsafe) {
		t.Error(err)
	}
}

// At a low rate progress comes in small steps, in each direction.
func TestLowRate(t *testing.T) {
	ctx, file := testCtx(t), filepath.Join(t.TempDir(), "f")
	write(t, file, randomBytes(1, 3*chunkSize))
	s := serve(t, Options{Root: t.TempDir(), Writable: true})
	for rate, want := range map[uint64]int{0: 3, inFlight * window: 3, inFlight*window - 1: 4} {
		n := testNode(t, transfer.Options{Name: "limited",
			Limits: transfer.Limits{Node: transfer.Quota{Out: sched.Limits{Rate: rate}}}})
		p, err := n.Dial(ctx, s.node.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		c, name := Over(p), fmt.Sprint(rate)
		var seen []uint64
		progress := func(p Progress) { seen = append(seen, p.Bytes) }
		for what, move := range map[string]func() error{
			"upload": func() error {
				_, err := Upload(ctx, c, file, name, UploadOptions{Progress: progress, Overwrite: true})
				return err
			},
			"fetch": func() error {
				if _, err := Upload(ctx, c, file, name, UploadOptions{Overwrite: true}); err != nil {
					return err
				}
				_, err := Fetch(ctx, c, name, FetchOptions{Output: filepath.Join(t.TempDir(), name),
					Progress: progress})
				return err
			},
		} {
			seen = nil
			if err := move(); err != nil {
				t.Fatal(err)
			}
			if len(seen) != want || seen[len(seen)-1] != 3*chunkSize {
				t.Errorf("%s at %d bytes per second: progress %v", what, rate, seen)
			}
		}
	}
}
