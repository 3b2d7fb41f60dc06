package share

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
)

func TestMirror(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), filepath.Join(t.TempDir(), "new", "dir")
	files := map[string][]byte{"a": []byte("1"), "b/c": randomBytes(1, 5<<20), "b/d": {},
		"%2E/ b ./caf\u00e9. ": []byte("x"), "e": []byte("5")}
	for n, b := range files {
		write(t, filepath.Join(root, n), b)
	}
	s := serve(t, Options{Root: root})
	mirror := func(o MirrorOptions, fetched, skipped, deleted, failed int) *Mirrored {
		t.Helper()
		m, err := Mirror(ctx, s.c, dir, o)
		if m == nil {
			t.Fatal(err)
		}
		if (err != nil) != (failed > 0) {
			t.Errorf("error %v", err)
		}
		if m.Fetched != fetched || m.Skipped != skipped || m.Deleted != deleted || m.Failed != failed ||
			len(m.Failures) != failed {
			t.Fatalf("%+v, expected %d, %d, %d, %d", m, fetched, skipped, deleted, failed)
		}
		return m
	}
	for range 100 { // in order, however the machine is scheduled
		var names []string
		mirror(MirrorOptions{DryRun: true, OnFile: func(f MirrorFile) { names = append(names, f.Name) }}, 5, 0, 0, 0)
		if !slices.IsSorted(names) || len(names) != 5 {
			t.Fatalf("a dry run says %q", names)
		}
	}
	if _, err := os.Lstat(dir); err == nil {
		t.Error("a dry run made the directory")
	}
	var last MirrorProgress
	calls := 0
	m := mirror(MirrorOptions{Progress: func(p MirrorProgress) {
		last = p
	}, OnFile: func(MirrorFile) { calls++ }}, 5, 0, 0, 0)
	if m.Moved != 5<<20+3 || last.Files != 5 || last.FilesDone != 5 || last.BytesDone != last.Bytes ||
		last.Bytes != 5<<20+3 || calls != 5 {
		t.Errorf("%+v, %+v, %d", m, last, calls)
	}
	for n, b := range files {
		same(t, filepath.Join(dir, n), b)
	}
	if m := mirror(MirrorOptions{Progress: func(p MirrorProgress) {
		last = p
	}}, 0, 5, 0, 0); m.Moved != 0 || last.FilesDone != 5 || last.Bytes != 0 || last.BytesDone != 0 {
		t.Errorf("%+v, %+v", m, last)
	}
	// One changes there, one here, one goes there, one goes here.
	write(t, filepath.Join(root, "b/c"), []byte("changed"))
	write(t, filepath.Join(dir, "a"), []byte("mine"))
	if err := errors.Join(os.Remove(filepath.Join(root, "e")), os.Remove(filepath.Join(dir, "b/d"))); err != nil {
		t.Fatal(err)
	}
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	mirror(MirrorOptions{DryRun: true, Delete: true}, 2, 1, 1, 1)
	m = mirror(MirrorOptions{}, 2, 1, 0, 1)
	if f := m.Failures[0]; f.Name != "a" || !errors.Is(f.Err, ErrExists) {
		t.Errorf("%+v", f)
	}
	same(t, filepath.Join(dir, "a"), []byte("mine"))
	same(t, filepath.Join(dir, "b/c"), []byte("changed"))
	same(t, filepath.Join(dir, "e"), []byte("5"))
	mirror(MirrorOptions{Delete: true}, 0, 3, 1, 1)
	only(t, dir, "%2E", recordName, "a", "b")
	// With another prefix nothing of these is deleted.
	mirror(MirrorOptions{Delete: true, Prefix: "zzz"}, 0, 0, 0, 0)
	only(t, dir, "%2E", recordName, "a", "b")
}

// TestMirrorFilter mirrors what a filter takes. With Delete, what the filter leaves out stays, at
// the peer and here.
func TestMirrorFilter(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	for _, n := range []string{"a.bin", "a.txt", "logs/x.bin", "logs/y.txt"} {
		write(t, filepath.Join(root, n), []byte(n))
	}
	s := serve(t, Options{Root: root})
	if m, err := Mirror(ctx, s.c, dir, MirrorOptions{Filter: filterOf(t, "+logs/x.bin", "-logs",
		"-*.txt")}); err != nil || m.Fetched != 2 || m.Excluded != 2 {
		t.Fatalf("%+v, %v", m, err)
	}
	only(t, dir, recordName, "a.bin", "logs")
	only(t, filepath.Join(dir, "logs"), "x.bin")
	if err := errors.Join(os.Remove(filepath.Join(root, "a.bin")),
		os.RemoveAll(filepath.Join(root, "logs"))); err != nil {
		t.Fatal(err)
	}
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	if m, err := Mirror(ctx, s.c, dir, MirrorOptions{Filter: filterOf(t, "-logs/"), Delete: true}); err != nil ||
		m.Fetched != 1 || m.Deleted != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
	only(t, dir, recordName, "a.txt", "logs")
	only(t, filepath.Join(dir, "logs"), "x.bin")
}

// TestMirrorOfAFileInUse changes a file of the directory while the mirror fetches its new content:
// what was written stays.
func TestMirrorOfAFileInUse(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "a"), []byte("old"))
	s := serve(t, Options{Root: root})
	if _, err := Mirror(ctx, s.c, dir, MirrorOptions{}); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "a"), []byte("new"))
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	at, mine := filepath.Join(dir, "a"), []byte("mine")
	m, err := Mirror(ctx, s.c, dir, MirrorOptions{Progress: func(p MirrorProgress) {
		if p.Current.Name == "a" {
			write(t, at, mine)
		}
	}})
	if !errors.Is(err, ErrExists) || m.Failed != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	same(t, at, mine)
}

// TestMirrorAfterAFailedFetch has a fetch fail, then puts a file of the same size there: it is not
// one that the mirror made.
func TestMirrorAfterAFailedFetch(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "a"), []byte("1234"))
	write(t, filepath.Join(root, "b"), []byte("old"))
	s := serve(t, Options{Root: root})
	if _, err := Mirror(ctx, s.c, dir, MirrorOptions{Prefix: "b"}); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "b"), []byte("newer"))
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithCancel(ctx)
	if m, err := Mirror(short, s.c, dir, MirrorOptions{Parallel: 2, Progress: func(p MirrorProgress) {
		if p.Current.Name != "" {
			cancel()
		}
	}}); !errors.Is(err, context.Canceled) || m.Fetched != 0 {
		t.Fatalf("%+v, %v", m, err)
	}
	write(t, filepath.Join(dir, "a"), []byte("mine"))
	if m, err := Mirror(ctx, s.c, dir, MirrorOptions{}); !errors.Is(err, ErrExists) || m.Failed != 1 || m.Fetched != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	same(t, filepath.Join(dir, "a"), []byte("mine"))
	same(t, filepath.Join(dir, "b"), []byte("newer"))
}

func TestMirrorFollowsNoLinks(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	for _, n := range []string{"a", "b/c", "d"} {
		write(t, filepath.Join(root, n), []byte("new"))
	}
	s := serve(t, Options{Root: root})
	for _, o := range []MirrorOptions{{}, {Parallel: 1}} {
		dir, out := t.TempDir(), t.TempDir()
		victim := filepath.Join(out, "victim")
		write(t, victim, []byte("old"))
		if err := errors.Join(os.Symlink(victim, filepath.Join(dir, "a")), os.Symlink(out, filepath.Join(dir, "b")),
			os.Symlink(victim, filepath.Join(dir, "d"+PartialSuffix)),
			os.Symlink(out, filepath.Join(dir, batchDir))); err != nil {
			t.Fatal(err)
		}
		m, err := Mirror(ctx, s.c, dir, o)
		if failed := 2 + o.Parallel; err == nil || m.Failed != failed { // a batch makes no partial files
			t.Fatalf("%+v, %v, expected %d that failed", m, err, failed)
		}
		same(t, victim, []byte("old"))
		only(t, out, "victim")
	}
}

func TestMirrorRecordSurvivesDamage(t *testing.T) {
	x := mirrored{size: 7, tag: Tag{1, 2}, id: fileID{7, 8, -9, 10}}
	text := recordMagic + recordLine("a b\n\"", x, lineComplete) + recordLine("gone", x, lineComplete) +
		recordLine("cut", mirrored{size: 3}, lineBegun) + recordLine("gone", x, lineDeleted)
	record, begun := parseRecord([]byte(text))
	if len(record) != 1 || record["a b\n\""] != x || begun["cut"] != (mirrored{size: 3}) {
		t.Errorf("%v, %v", record, begun)
	}
	for i := range text { // whatever is damaged is not believed
		b := []byte(text)
		b[i] ^= 1
		record, begun := parseRecord(b)
		for n, y := range record {
			if n != "gone" && (n != "a b\n\"" || y != x) || n == "gone" && y != x {
				t.Fatalf("byte %d: %q %v", i, n, y)
			}
		}
		for n := range begun {
			if n != "cut" {
				t.Fatalf("byte %d: %q", i, n)
			}
		}
	}
}

func FuzzRecord(f *testing.F) {
	f.Add(recordLine("a", mirrored{size: 7, tag: Tag{1, 2}, id: fileID{7, 8, -9, 10}}, lineComplete))
	f.Add(recordLine("a", mirrored{}, lineDeleted))
	f.Fuzz(func(t *testing.T, line string) {
		if name, x, what := parseRecordLine(line); what != 0 && recordLine(name, x, what) != line+"\n" {
			t.Fatalf("%q", line)
		}
	})
}

// TestMirrorOfHostileNode mirrors a node that exports memory under every name that could do harm.
func TestMirrorOfHostileNode(t *testing.T) {
	ctx := testCtx(t)
	n := testNode(t, transfer.Options{Name: "hostile\x1b[2J", Listen: []string{"tcp://127.0.0.1:0"}})
	r, err := mem.Alloc(mem.Options{Size: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	want, refused := map[string]int{}, 1
	if _, err := n.Export(r.All(), transfer.ExportOptions{Name: ".."}); err != nil {
		t.Fatal(err)
	}
	for _, name := range append(harmlessNames, hostileNames...) {
		if name == "" || name == ".." || !utf8.ValidString(name) || len(name) > MaxName {
			continue // cannot be sent
		}
		size := 1 + len(want)
		if _, err := n.Export(mem.Span{Region: r, Len: uint64(size)}, transfer.ExportOptions{Name: name}); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(harmlessNames, name) {
			want[name] = size
		} else {
			refused++
		}
	}
	c := testNode(t, transfer.Options{Name: "client"})
	p, err := c.Dial(ctx, n.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	parent := t.TempDir()
	dir := filepath.Join(parent, "a", "b")
	m, err := Mirror(ctx, Over(p), dir, MirrorOptions{Parts: true})
	if !errors.Is(err, ErrName) || m.Fetched != len(want) || m.Failed != refused {
		t.Fatalf("%+v, %v", m, err)
	}
	for _, f := range m.Failures {
		if !errors.Is(f.Err, ErrName) || !slices.Contains(hostileNames, f.Name) {
			t.Errorf("%q: %v", f.Name, f.Err)
		}
	}
	files := 0
	err = filepath.WalkDir(parent, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !d.Type().IsRegular() {
			t.Errorf("%s is %v", p, d.Type())
		}
		rel, _ := filepath.Rel(dir, p)
		if rel == recordName {
			return nil
		}
		files++
		fi, err := d.Info()
		if err != nil || fi.Size() != int64(want[rel]) {
			t.Errorf("%q: %v, %v", rel, fi, err)
		}
		return nil
	})
	if err != nil || files != len(want) {
		t.Errorf("%d files: %v", files, err)
	}
	only(t, parent, "a")
	only(t, filepath.Join(parent, "a"), "b")
	only(t, parent, "a")
}

// TestMirrorResumes interrupts a mirror and goes on with what is left.
func TestMirrorResumes(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	for i := range 6 {
		write(t, filepath.Join(root, fmt.Sprint(i)), randomBytes(uint64(i), window+chunkSize))
	}
	s := serve(t, Options{Root: root})
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	files := 0
	m, err := Mirror(short, s.c, dir, MirrorOptions{Parallel: 2, OnFile: func(MirrorFile) {
		if files++; files == 2 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) || m.Fetched < 2 || m.Fetched > 3 {
		t.Fatalf("%+v, %v", m, err)
	}
	again, err := Mirror(ctx, s.c, dir, MirrorOptions{})
	if err != nil || again.Skipped != m.Fetched || again.Fetched != 6-m.Fetched {
		t.Fatalf("%+v after %+v: %v", again, m, err)
	}
	for i := range 6 {
		same(t, filepath.Join(dir, fmt.Sprint(i)), randomBytes(uint64(i), window+chunkSize))
	}
}

// TestMirrorAfterCrash has a file that is complete but was not recorded: the crash came in between.
func TestMirrorAfterCrash(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "x"), []byte("12345"))
	s := serve(t, Options{Root: root})
	e, err := Find(ctx, s.c, "x")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, recordName), []byte(recordMagic+
		recordLine("x", mirrored{size: 5, tag: e.Tag}, lineBegun)+"+ torn"))
	write(t, filepath.Join(dir, "x"), []byte("12345"))
	m, err := Mirror(ctx, s.c, dir, MirrorOptions{})
	if err != nil || m.Fetched != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
	if m, err = Mirror(ctx, s.c, dir, MirrorOptions{}); err != nil || m.Skipped != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
}

// The bytes of files that are under way count.
func TestMirrorProgress(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	for _, name := range []string{"a", "b"} {
		write(t, filepath.Join(root, name), randomBytes(8, 3*window))
	}
	s := serve(t, Options{Root: root})
	var last MirrorProgress
	steps := 0
	if _, err := Mirror(ctx, s.c, filepath.Join(t.TempDir(), "m"), MirrorOptions{Progress: func(p MirrorProgress) {
		if p.BytesDone < last.BytesDone || p.BytesDone > p.Bytes {
			t.Errorf("%+v after %+v", p, last)
		}
		if p.FilesDone == 0 && p.BytesDone > last.BytesDone {
			steps++
		}
		last = p
	}}); err != nil {
		t.Fatal(err)
	}
	if steps < 3 || last.BytesDone != 6*window || last.FilesDone != 2 {
		t.Errorf("%d steps in the first files, at last %+v", steps, last)
	}
}

// A file that fails is not done, and one that cannot be deleted is none of those to have.
func TestMirrorProgressOfFailures(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "gone"), make([]byte, 1000))
	s := serve(t, Options{Root: root})
	if _, err := Mirror(ctx, s.c, dir, MirrorOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{filepath.Join(root, "a"), filepath.Join(root, "b"), filepath.Join(dir, "b"),
		filepath.Join(dir, "gone")} {
		write(t, name, []byte("new"))
	}
	if err := os.Remove(filepath.Join(root, "gone")); err != nil {
		t.Fatal(err)
	}
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	var last MirrorProgress
	m, err := Mirror(ctx, s.c, dir, MirrorOptions{Delete: true, Progress: func(p MirrorProgress) {
		if p.Bytes > 6 || p.BytesDone > p.Bytes || p.FilesDone > 1 {
			t.Errorf("%+v", p)
		}
		last = p
	}})
	if !errors.Is(err, ErrExists) || m.Failed != 2 || last.Files != 2 || last.FilesDone != 1 || last.FilesFailed != 1 ||
		last.Bytes != 3 || last.BytesDone != 3 {
		t.Errorf("%+v, %+v, %v", m, last, err)
	}
}
