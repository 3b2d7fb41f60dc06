package share

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
)

// linkTo puts a link at a path, in place of what is there.
func linkTo(t testing.TB, to, at string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(at), os.MkdirAll(filepath.Dir(at), 0o755), os.Symlink(to, at)); err != nil {
		t.Fatal(err)
	}
}

// leads checks the text of a link.
func leads(t testing.TB, at, to string) {
	t.Helper()
	if got, err := os.Readlink(at); err != nil || got != to {
		t.Errorf("%s leads to %q, expected %q: %v", at, got, to, err)
	}
}

// answer is an answer of linksService.
func answer(links ...link) []byte {
	b := []byte{0}
	for _, l := range links {
		b = append(append(b, byte(len(l.name))), l.name...)
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(l.to))), l.to...)
	}
	return b
}

func FuzzLinksWire(f *testing.F) {
	f.Add([]byte("\x01ab"))
	f.Add(answer(link{"a", "b"}, link{"c", ""}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if after, prefix, err := parseLinks(b); err == nil &&
			string(b) != string([]byte{byte(len(after))})+after+prefix {
			t.Fatalf("%x is read as %q, %q", b, after, prefix)
		}
		if links, more, err := parseLinkPage(b, "", true); err == nil &&
			(more != (b[0] == 1) || string(answer(links...)[1:]) != string(b[1:])) {
			t.Fatalf("%x is read as %q", b, links)
		}
	})
}

func TestLinksAnswerIsChecked(t *testing.T) {
	for _, b := range []string{"", "\x02", "\x01", "\x00\x01", "\x00\x01b", "\x00\x01b\x00", "\x00\x01b\x00\x02x",
		"\x00\xffb\xff\xff", "\x00\x00\x00\x01x", "\x00\x01a\x00\x01x", "\x00\x01c\x00\x00\x01b\x00\x00"} {
		if links, _, err := parseLinkPage([]byte(b), "a", true); err == nil { // what no share answers after "a"
			t.Errorf("%q is read as %q", b, links)
		}
	}
}

func TestUnfitLinks(t *testing.T) {
	for _, l := range []link{{"a", "b"}, {"a", "."}, {"a/b", ".."}, {"a/b", "../"}, {"a/b/c", "../..//./x/y"},
		{"a", "x/."}, {"a", strings.Repeat("x/", 2047) + "x"}, {"é", "ü"}} {
		if why := unfitLink(l); why != "" {
			t.Errorf("%q: %s", l, why)
		}
	}
	for _, l := range []link{{"a", ""}, {"a", ".."}, {"a", "/"}, {"a", "/tmp/x"}, {"a/b", "../.."},
		{"a/b", ".././../x"}, {"a/b", "x/.."}, {"a", "b/../c"}, {"a", "\xff"}, {"a", "b\x00c"}, {"a", "b\nc"},
		{"a", strings.Repeat("x/", 2047) + "xx"}, {"a", strings.Repeat("x", 256)}, {"a", batchDir + "/x"},
		{"a", "x" + PartialSuffix}, {"../a", "x"}, {"", "x"}, {"a/", "x"}, {recordName, "x"}} {
		if why := unfitLink(l); why == "" {
			t.Errorf("%q is taken", l)
		}
	}
}

// hub is a directory as a cache of a model hub is.
func hub(t testing.TB) (root string, weights []byte) {
	root, weights = t.TempDir(), randomBytes(7, smallFile+1)
	write(t, filepath.Join(root, "m/blobs/5f1c"), weights)
	write(t, filepath.Join(root, "m/blobs/aa00"), []byte("{}"))
	write(t, filepath.Join(root, "m/refs/main"), []byte("1e0b"))
	linkTo(t, "../../blobs/5f1c", filepath.Join(root, "m/snapshots/1e0b/model.safetensors"))
	linkTo(t, "../../blobs/aa00", filepath.Join(root, "m/snapshots/1e0b/config.json"))
	linkTo(t, "../../blobs/aa00", filepath.Join(root, "m/snapshots/77d2/config.json"))
	return root, weights
}

// TestMirrorKeepsLinks mirrors a cache of a model hub: each blob comes once, links lead to them,
// and a second run moves nothing.
func TestMirrorKeepsLinks(t *testing.T) {
	ctx := testCtx(t)
	root, weights := hub(t)
	linkTo(t, "/etc/hostname", filepath.Join(root, "out"))
	s := serve(t, Options{Root: root})
	for _, parallel := range []int{0, 1} {
		dir := filepath.Join(t.TempDir(), "new")
		var events []MirrorFile
		var last MirrorProgress
		o := MirrorOptions{KeepLinks: true, Delete: true, Parallel: parallel, OnFile: func(f MirrorFile) {
			events = append(events, f)
		}, Progress: func(p MirrorProgress) { last = p }}
		dry := o
		dry.DryRun = true
		bytes := uint64(len(weights) + 6)
		if m, err := Mirror(ctx, s.c, dir, dry); err != nil || m.Fetched != 6 || m.Moved != bytes {
			t.Fatalf("%+v, %v", m, err)
		}
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after a dry run: %v", err)
		}
		events = nil
		m, err := Mirror(ctx, s.c, dir, o)
		if err != nil || m.Fetched != 6 || m.Moved != bytes || last.Files != 6 || last.FilesDone != 6 ||
			last.BytesDone != bytes || last.Bytes != bytes {
			t.Fatalf("%+v, %v, %+v", m, err, last)
		}
		if len(m.LeftOut) != 1 || m.LeftOutTotal != 1 ||
			m.LeftOut[0] != (Skipped{"out", "it is a symbolic link: its path is absolute"}) {
			t.Errorf("left out: %+v of %d", m.LeftOut, m.LeftOutTotal)
		}
		want := MirrorFile{Name: "m/snapshots/1e0b/model.safetensors", Path: "m/snapshots/1e0b/model.safetensors",
			Action: MirrorFetched, Link: "../../blobs/5f1c"}
		if len(events) != 6 || !slices.ContainsFunc(events, func(f MirrorFile) bool {
			return reflect.DeepEqual(f, want)
		}) {
			t.Errorf("%+v", events)
		}
		at := filepath.Join(dir, "m/snapshots/1e0b")
		leads(t, filepath.Join(at, "model.safetensors"), "../../blobs/5f1c")
		same(t, filepath.Join(at, "model.safetensors"), weights)
		same(t, filepath.Join(dir, "m/snapshots/77d2/config.json"), []byte("{}"))
		only(t, dir, recordName, "m")
		only(t, at, "config.json", "model.safetensors")
		if m, err := Mirror(ctx, s.c, dir, o); err != nil || m.Skipped != 6 || m.Fetched+m.Failed+m.Deleted != 0 ||
			m.Moved != 0 {
			t.Errorf("again: %+v, %v", m, err)
		}
		// A tree that was brought by other means counts as made by a mirror where it is the same.
		if err := os.Remove(filepath.Join(dir, recordName)); err != nil {
			t.Fatal(err)
		}
		o.Checksum = true
		for range 2 {
			if m, err := Mirror(ctx, s.c, dir, o); err != nil || m.Skipped != 6 || m.Moved != 0 {
				t.Errorf("without a record: %+v, %v", m, err)
			}
			o.Checksum = false
		}
		m, err = Mirror(ctx, s.c, dir, MirrorOptions{Delete: true, Prefix: "m/snapshots/"})
		if err != nil || m.Deleted != 3 || m.Fetched != 0 || m.LeftOutTotal != 3 { // without KeepLinks they are not had
			t.Errorf("without links: %+v, %v", m, err)
		}
	}
}

// TestMirrorOfChangedLinks has links change, become files and directories, and go.
func TestMirrorOfChangedLinks(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	for _, n := range []string{"x", "y", "to-link", "to-dir-link/f"} {
		write(t, filepath.Join(root, n), []byte(n))
	}
	large := randomBytes(1, smallFile+1)
	for _, n := range []string{"moves", "goes", "to-small", "to-large", "to-dir", "excluded"} {
		linkTo(t, "x", filepath.Join(root, n))
	}
	s := serve(t, Options{Root: root})
	o := MirrorOptions{KeepLinks: true, Filter: filterOf(t, "-excluded")}
	if m, err := Mirror(ctx, s.c, dir, o); err != nil || m.Fetched != 9 || m.Excluded != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
	was, err := os.Lstat(filepath.Join(dir, "to-small"))
	if err != nil {
		t.Fatal(err)
	}
	linkTo(t, "y", filepath.Join(root, "moves"))
	for _, n := range []string{"goes", "to-small", "to-large", "to-dir"} {
		if err := os.Remove(filepath.Join(root, n)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(root, "to-small"), []byte("small"))
	write(t, filepath.Join(root, "to-large"), large)
	write(t, filepath.Join(root, "to-dir/f"), []byte("f"))
	linkTo(t, "x", filepath.Join(root, "to-link"))
	linkTo(t, ".", filepath.Join(root, "to-dir-link"))
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	check := func(m *Mirrored, err error, failed ...string) {
		t.Helper()
		var got []string
		for _, f := range m.Failures {
			got = append(got, f.Name)
		}
		if slices.Sort(got); !slices.Equal(got, failed) || (err == nil) != (len(failed) == 0) {
			t.Errorf("failed: %q, expected %q: %v", got, failed, err)
		}
		leads(t, filepath.Join(dir, "moves"), "y")
		leads(t, filepath.Join(dir, "to-link"), "x")
		same(t, filepath.Join(dir, "x"), []byte("x")) // nothing was written by a link
		same(t, filepath.Join(dir, "to-small"), []byte("small"))
		same(t, filepath.Join(dir, "to-large"), large)
		for _, n := range []string{"to-small", "to-large"} {
			if fi, err := os.Lstat(filepath.Join(dir, n)); err != nil || fi.Mode() != 0o644 || os.SameFile(fi, was) {
				t.Errorf("%s: %v, %v", n, fi.Mode(), err)
			}
		}
	}
	m, err := Mirror(ctx, s.c, dir, o)
	check(m, err, "to-dir-link", "to-dir/f") // what is in the way is still had
	leads(t, filepath.Join(dir, "to-dir"), "x")
	leads(t, filepath.Join(dir, "goes"), "x")
	same(t, filepath.Join(dir, "to-dir-link/f"), []byte("to-dir-link/f"))
	o.Delete = true
	m, err = Mirror(ctx, s.c, dir, o)
	check(m, err)
	if m.Deleted != 3 || m.Fetched != 2 {
		t.Errorf("%+v", m)
	}
	leads(t, filepath.Join(dir, "to-dir-link"), ".")
	only(t, dir, recordName, "moves", "to-dir", "to-dir-link", "to-large", "to-link", "to-small", "x", "y")
	only(t, filepath.Join(dir, "to-dir"), "f")
}

// TestMirrorLeavesLinksOfOthers: a mirror leaves links that it did not make, and takes those that a
// killed mirror made for its own.
func TestMirrorLeavesLinksOfOthers(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	for _, n := range []string{"changed", "mine", "same", "file"} {
		linkTo(t, "x", filepath.Join(root, n))
	}
	s := serve(t, Options{Root: root})
	linkTo(t, "elsewhere", filepath.Join(dir, "mine"))
	linkTo(t, "x", filepath.Join(dir, "same"))
	write(t, filepath.Join(dir, "file"), []byte("mine"))
	o := MirrorOptions{KeepLinks: true, Delete: true}
	m, err := Mirror(ctx, s.c, dir, o)
	if !errors.Is(err, ErrExists) || m.Failed != 2 || m.Skipped != 1 || m.Fetched != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	same(t, filepath.Join(dir, "file"), []byte("mine"))
	linkTo(t, "here", filepath.Join(dir, "changed"))
	o.Force = true
	if m, err := Mirror(ctx, s.c, dir, o); !errors.Is(err, ErrExists) || m.Failed != 2 || m.Skipped != 1 ||
		m.Fetched != 1 {
		// the file is replaced
		t.Errorf("%+v, %v", m, err)
	}
	leads(t, filepath.Join(dir, "file"), "x")
	leads(t, filepath.Join(dir, "mine"), "elsewhere")
	leads(t, filepath.Join(dir, "changed"), "here")
	// A mirror began and made the link, and was killed before it said so. Another one changed the
	// link meanwhile.
	dir = t.TempDir()
	for _, n := range []string{"changed", "mine", "same"} {
		write(t, filepath.Join(dir, recordName), append([]byte(recordMagic),
			recordLine(n, mirrored{1, link{to: "w"}.entry().Tag, fileID{}}, lineBegun)...))
		linkTo(t, "w", filepath.Join(dir, n))
		write(t, filepath.Join(dir, newLink), nil) // of a mirror that was killed
		o := MirrorOptions{KeepLinks: true, Prefix: n}
		if m, err := Mirror(ctx, s.c, dir, o); err != nil || m.Fetched != 1 {
			t.Errorf("%+v, %v", m, err)
		}
		leads(t, filepath.Join(dir, n), "x")
	}
	only(t, dir, recordName, "changed", "mine", "same")
}

// TestMirrorOfHostileLinks mirrors a node that sends links which lead out of the directory, and
// files behind them: nothing is written there.
func TestMirrorOfHostileLinks(t *testing.T) {
	ctx := testCtx(t)
	r, err := mem.Alloc(mem.Options{Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	n := testNode(t, transfer.Options{Name: "hostile", Listen: []string{"tcp://127.0.0.1:0"}})
	for _, name := range []string{"a/b", "in/b", "abs/b"} {
		if _, err := n.Export(r.All(), transfer.ExportOptions{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	above, out := t.TempDir(), t.TempDir()
	dir := filepath.Join(above, "dir")
	write(t, filepath.Join(dir, "real/mine"), nil)
	var links []link
	remove, err := n.Handle(linksService, func(context.Context, *transfer.Peer, []byte) ([]byte, error) {
		return answer(links...), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	p, err := testNode(t, transfer.Options{Name: "client"}).Dial(ctx, n.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	mirror := func(o MirrorOptions) *Mirrored {
		t.Helper()
		o.KeepLinks = true
		m, err := Mirror(ctx, Over(p), dir, o)
		if m == nil {
			t.Fatal(err)
		}
		only(t, above, "dir")
		only(t, out)
		only(t, filepath.Join(dir, "real"), "mine")
		return m
	}
	links = []link{{"a", ".."}, {"abs", out}, {"z\x1b[2J", "x"}, {"z1", "real/../.."}, {"z2", "x\x00y"}}
	m := mirror(MirrorOptions{})
	if m.Fetched != 3 || m.Failed != 0 || m.LeftOutTotal != 5 || len(m.LeftOut) != 5 || m.LeftOut[0].Path != "a" ||
		m.LeftOut[1] != (Skipped{"abs", "its path is absolute"}) {
		t.Errorf("%+v", m)
	}
	for _, name := range []string{"a/b", "in/b", "abs/b"} {
		same(t, filepath.Join(dir, name), make([]byte, 4096))
	}
	// Links that are kept: files behind them fail, in the same run and in the next.
	for _, d := range []string{"a", "in", "abs"} {
		if err := os.RemoveAll(filepath.Join(dir, d)); err != nil {
			t.Fatal(err)
		}
	}
	links = []link{{"in", "real"}, {"new", "real"}, {"new/x", "mine"}}
	m = mirror(MirrorOptions{})
	if m.Failed != 2 || m.Fetched != 4 || !errors.Is(m.Failures[1].Err, ErrUnsafe) {
		// "in" is a directory by then, and there is no new/x
		t.Errorf("%+v", m)
	}
	if err := os.RemoveAll(filepath.Join(dir, "in")); err != nil {
		t.Fatal(err)
	}
	linkTo(t, "real", filepath.Join(dir, "in"))
	for _, o := range []MirrorOptions{{}, {Parallel: 1, Delete: true, Force: true}} {
		m = mirror(o)
		if m.Failed != 2 || !errors.Is(m.Failures[0].Err, ErrUnsafe) || m.Failures[0].Name != "in/b" ||
			m.Failures[1].Name != "new/x" {
			t.Errorf("%+v", m)
		}
	}
	// What is no answer, and links without an end.
	for _, b := range [][]byte{{2}, {1}, answer(link{"b", "x"}, link{"a", "x"})} {
		remove()
		if remove, err = n.Handle(linksService, func(context.Context, *transfer.Peer, []byte) ([]byte, error) {
			return b, nil
		}); err != nil {
			t.Fatal(err)
		}
		if m, err := Mirror(ctx, Over(p), dir, MirrorOptions{KeepLinks: true}); m != nil ||
			!errors.Is(err, control.BadRequest) {
			t.Errorf("%x: %+v, %v", b, m, err)
		}
	}
	remove()
	calls := uint32(0)
	if _, err = n.Handle(linksService, func(context.Context, *transfer.Peer, []byte) ([]byte, error) {
		calls++
		b := answer()
		b[0] = 1
		for i := range uint32(4096) {
			b = append(binary.BigEndian.AppendUint32(append(b, 4), calls<<12|i), 0, 0)
		}
		return b, nil
	}); err != nil {
		t.Fatal(err)
	}
	if m, err := Mirror(ctx, Over(p), dir, MirrorOptions{KeepLinks: true}); m != nil ||
		!errors.Is(err, control.OverBudget) {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestLinksAreListed: many in several answers, by prefix, to whom may list, and by who follows
// none.
func TestLinksAreListed(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	var want []string
	for i := range 300 {
		want = append(want, fmt.Sprintf("%03d", i))
		linkTo(t, strings.Repeat("x/", 150)+"x", filepath.Join(root, want[i]))
	}
	s := serve(t, Options{Root: root})
	names := func(prefix string) (out []string) {
		t.Helper()
		links, err := linksOf(ctx, s.c, prefix)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links {
			out = append(out, l.name)
		}
		return out
	}
	if got := names(""); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := names("12"); !slices.Equal(got, want[120:130]) {
		t.Errorf("%q", got)
	}
	if err := os.Remove(filepath.Join(root, "121")); err != nil {
		t.Fatal(err)
	}
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	if got := names("12"); len(got) != 9 || slices.Contains(got, "121") {
		t.Errorf("%q", got)
	}
	for _, b := range []string{"", "\x02a", "\x00\xff", "\x01\xff", "\x00" + strings.Repeat("x", 256)} {
		if _, err := s.peer.Call(ctx, linksService, []byte(b)); !errors.Is(err, control.BadRequest) {
			t.Errorf("%q: %v", b, err)
		}
	}
	dir, err := os.OpenRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	s.linking = make([]link, maxLinks) // more are not listed, and no mirror takes them for gone
	if s.isLink(ctx, dir, "122", "122"); s.found != lackMore || len(s.linking) != maxLinks {
		t.Errorf("%v, %d links", s.found, len(s.linking))
	}
	// A share that follows links has none.
	followed, _ := hub(t)
	f := serve(t, Options{Root: followed, FollowLinks: true})
	if m, err := Mirror(ctx, f.c, t.TempDir(), MirrorOptions{KeepLinks: true}); err != nil || m.Fetched != 6 ||
		m.LeftOutTotal != 0 {
		t.Errorf("%+v, %v", m, err)
	}
	// A node that is no share says nothing of links.
	n := testNode(t, transfer.Options{Name: "strict", Listen: []string{"tcp://127.0.0.1:0"}, Anonymous: identity.Read})
	p, err := testNode(t, transfer.Options{Name: "other"}).Dial(ctx, n.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := linksOf(ctx, Over(p), ""); !errors.Is(err, control.Unsupported) ||
		!strings.Contains(err.Error(), "no share of this version") {
		t.Error(err)
	}
	srv, err := Serve(ctx, n, Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	if _, err := linksOf(ctx, Over(p), ""); !errors.Is(err, control.NotPermitted) {
		t.Error(err)
	}
}
