package share

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

// TestMirrorBatches mirrors more small files than a batch has, in several directories, and larger
// ones beside them. Times and permissions are those of the other side; the server counts each read;
// changed files replace the old ones.
func TestMirrorBatches(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), filepath.Join(t.TempDir(), "out")
	content := map[string][]byte{}
	modes := []fs.FileMode{0o644, 0o755, 0o400, 0o600}
	at := time.Unix(1_600_000_000, 123_456_000)
	put := func(i int, n string, b []byte) {
		t.Helper()
		p := filepath.Join(root, n)
		os.Remove(p)
		write(t, p, b)
		if err := errors.Join(os.Chmod(p, modes[i%len(modes)]),
			os.Chtimes(p, at, at.Add(time.Duration(i)*time.Hour))); err != nil {
			t.Fatal(err)
		}
		content[n] = b
	}
	for i := range batchFiles + 100 {
		put(i, fmt.Sprintf("d%d/e/f%03d", i%3, i), randomBytes(uint64(i), i*17%5000)) // some are empty
	}
	for i := range 40 { // more bytes than a batch has
		put(i, fmt.Sprintf("m/%02d", i), randomBytes(uint64(i), smallFile))
	}
	put(1, "large", randomBytes(1, smallFile+1))
	var b accessLog
	s := serve(t, Options{Root: root, OnAccess: b.add})
	check := func() {
		t.Helper()
		for n, want := range content {
			same(t, filepath.Join(dir, n), want)
			here, err := os.Stat(filepath.Join(dir, n))
			there, terr := os.Stat(filepath.Join(root, n))
			if err := errors.Join(err, terr); err != nil {
				t.Fatal(err)
			}
			if here.Mode() != there.Mode() || !here.ModTime().Equal(there.ModTime()) {
				t.Errorf("%s: %v of %v, expected %v of %v", n, here.Mode(), here.ModTime(), there.Mode(),
					there.ModTime())
			}
		}
		only(t, dir, recordName, "d0", "d1", "d2", "large", "m")
	}
	junk := filepath.Join(dir, batchDir, "7") // of a mirror that was killed
	write(t, junk, []byte("junk"))
	var last MirrorProgress
	m, err := Mirror(ctx, s.c, dir, MirrorOptions{Progress: func(p MirrorProgress) { last = p }})
	if err != nil || m.Fetched != len(content) || last.FilesDone != len(content) || last.BytesDone != last.Bytes ||
		m.Moved != last.Bytes {
		t.Fatalf("%+v, %+v, %v", m, last, err)
	}
	check()
	idle(t, s.Server)
	var reads []string
	for _, a := range b.ended(t) {
		if !a.Whole || a.Path == "" || a.Good != uint64(len(content[a.Name])) {
			t.Errorf("%+v", a)
		}
		reads = append(reads, a.Name)
	}
	if n := len(reads); n != len(content) || len(slices.Compact(reads)) != n {
		t.Errorf("%d reads are counted, expected %d", n, len(content))
	}
	for i := range batchFiles / 2 {
		put(i+1, fmt.Sprintf("d%d/e/f%03d", i%3, i), randomBytes(uint64(i+1), 100))
	}
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	if m, err := Mirror(ctx, s.c, dir, MirrorOptions{}); err != nil || m.Fetched != batchFiles/2 ||
		m.Skipped != len(content)-batchFiles/2 {
		t.Fatalf("%+v, %v", m, err)
	}
	check()
}

// TestMirrorOfAChangingBatch changes one file, and removes another, between the listing and the
// fetch of the batch that they are in.
func TestMirrorOfAChangingBatch(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	for i := range 20 {
		write(t, filepath.Join(root, fmt.Sprintf("f%02d", i)), []byte("old"))
	}
	write(t, filepath.Join(dir, "mine"), nil)
	// fails before the batch is fetched: so the test gets in between
	write(t, filepath.Join(root, "mine"), []byte("theirs"))
	s := serve(t, Options{Root: root})
	m, err := Mirror(ctx, s.c, dir, MirrorOptions{OnFile: func(f MirrorFile) {
		if f.Name == "mine" {
			replaceFile(t, filepath.Join(root, "f03"), []byte("newer"))
			if err := os.Remove(filepath.Join(root, "f05")); err != nil {
				t.Error(err)
			}
		}
	}})
	if m == nil || m.Fetched != 19 || m.Failed != 2 {
		t.Fatalf("%+v, %v", m, err)
	}
	for _, f := range m.Failures {
		if f.Name == "mine" && errors.Is(f.Err, ErrExists) || f.Name == "f05" && errors.Is(f.Err, control.NotFound) {
			continue
		}
		t.Errorf("%+v", f)
	}
	same(t, filepath.Join(dir, "f03"), []byte("newer"))
	same(t, filepath.Join(dir, "f04"), []byte("old"))
}

// TestMirrorOfACanceledBatch ends a mirror while a batch is fetched. Files that the user then makes
// under the names of the batch, of the sizes that its files have, stay.
func TestMirrorOfACanceledBatch(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	for i := range 5 {
		write(t, filepath.Join(root, fmt.Sprint(i)), []byte("theirs"))
	}
	short, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	s := serve(t, Options{Root: root, OnAccess: func(Access) {
		cancel()
		<-ended
	}})
	m, err := Mirror(short, s.c, dir, MirrorOptions{})
	close(ended)
	if !errors.Is(err, context.Canceled) || m.Fetched+m.Skipped+m.Failed != 0 {
		t.Fatalf("%+v, %v", m, err)
	}
	write(t, filepath.Join(dir, "3"), []byte("mine!!"))
	if m, err := Mirror(ctx, s.c, dir, MirrorOptions{}); !errors.Is(err, ErrExists) || m.Fetched != 4 || m.Failed != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	same(t, filepath.Join(dir, "3"), []byte("mine!!"))
}

// TestMirrorOfANodeWithoutShare mirrors exports of a node that answers no calls: they are fetched
// one by one.
func TestMirrorOfANodeWithoutShare(t *testing.T) {
	ctx, dir := testCtx(t), t.TempDir()
	n := testNode(t, transfer.Options{Name: "plain", Listen: []string{"tcp://127.0.0.1:0"}})
	r, err := mem.Alloc(mem.Options{Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	for i := range 5 {
		if _, err := n.Export(r.All(), transfer.ExportOptions{Name: fmt.Sprint("x", i), Rights: path.Read,
			Tag: Tag{byte(i + 1)}}); err != nil {
			t.Fatal(err)
		}
	}
	p, err := testNode(t, transfer.Options{Name: "client"}).Dial(ctx, n.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if m, err := Mirror(ctx, Over(p), dir, MirrorOptions{}); err != nil || m.Fetched != 5 {
		t.Errorf("%+v, %v", m, err)
	}
	same(t, filepath.Join(dir, "x3"), r.All().Bytes())
}

// TestStatRights has peers ask what names stand for: without the right to read that is refused, and
// a name is none without its tag.
func TestStatRights(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	write(t, filepath.Join(root, "a"), []byte("1234"))
	s := serve(t, Options{Root: root})
	e, err := Find(ctx, s.c, "a")
	if err != nil {
		t.Fatal(err)
	}
	out, err := askStat(ctx, s.peer, "", []statName{{"a", e.Tag}, {"a", Tag{1}}, {"b", e.Tag}, {"../a", e.Tag}})
	if err != nil || len(out) != 4 || !out[0].same || out[1].same || out[2].same || out[3].same {
		t.Errorf("%+v, %v", out, err)
	}
	n := testNode(t, transfer.Options{Name: "closed", Anonymous: identity.List, Listen: []string{"tcp://127.0.0.1:0"}})
	closed, err := Serve(ctx, n, Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed.Close() })
	p, err := testNode(t, transfer.Options{Name: "client"}).Dial(ctx, n.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := askStat(ctx, p, "", []statName{{"a", e.Tag}}); !errors.Is(err, control.NotPermitted) {
		t.Errorf("without the right to read: %v", err)
	}
	many := make([]statName, maxStat+1)
	for i := range many {
		many[i].name = strings.Repeat("x", i%MaxName) + "a" // they take several calls
	}
	if out, err := askStat(ctx, s.peer, "", many); err != nil || len(out) != len(many) {
		t.Errorf("%d names: %d answers, %v", len(many), len(out), err)
	}
	for i := range many {
		many[i].name = "a"
	}
	if _, err := s.peer.Call(ctx, statService, appendStat(nil, "", many)); !errors.Is(err, control.BadRequest) {
		t.Errorf("%d names in one call: %v", len(many), err)
	}
}

// appendStat makes the call of a caller that keeps to no limit.
func appendStat(b []byte, via string, names []statName) []byte {
	b = append(append(b, byte(len(via))), via...)
	for _, n := range names {
		b = append(append(b, byte(len(n.name))), n.name...)
		b = append(b, n.tag[:]...)
	}
	return b
}

func FuzzStatWire(f *testing.F) {
	f.Add(appendStat(nil, "tcp", []statName{{"a", Tag{1}}, {"b/c", Tag{2}}}), 2)
	f.Add(appendStat(nil, "", []statName{{strings.Repeat("x", MaxName), Tag{1}}}), 1)
	f.Add(appendStat(nil, "\xff", []statName{{"a", Tag{1}}}), 0)
	f.Add(appendStatAnswer(appendStatAnswer(nil, stat{}), stat{true, like{time.Unix(1, 2), 0o644}}), 2)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		if via, names, err := parseStat(b); err == nil {
			if !utf8.ValidString(via) {
				t.Errorf("%q", via)
			}
			if again := appendStat(nil, via, names); string(again) != string(b) {
				t.Errorf("%x is read and written as %x", b, again)
			}
		}
		out, err := parseStatAnswer(b, min(max(n, 0), maxStat))
		if err != nil {
			return
		}
		var again []byte
		for _, s := range out {
			again = appendStatAnswer(again, s)
		}
		if len(again) != len(b) {
			t.Errorf("%x is read and written as %x", b, again)
		}
	})
}
