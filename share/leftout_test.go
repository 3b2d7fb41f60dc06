package share

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
)

// TestLeftOut asks what a share has and does not serve, by prefix, and more than an answer has room
// for. A mirror knows it, too.
func TestLeftOut(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	write(t, filepath.Join(root, "a"), []byte("1"))
	for i := range 400 {
		p := filepath.Join(root, "links", fmt.Sprintf("%03d%s", i, strings.Repeat("x", 180)))
		os.MkdirAll(filepath.Dir(p), 0o755)
		if err := os.Symlink("../a", p); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(root, "\xff"), []byte("no UTF-8"))
	s := serve(t, Options{Root: root})
	list, total, err := LeftOut(ctx, s.c, "")
	if err != nil || total != 401 || len(list) < 100 || len(list) >= total ||
		list[0].Path != "links/000"+strings.Repeat("x", 180) {
		t.Fatalf("%d of %d, %v", len(list), total, err)
	}
	list, total, err = LeftOut(ctx, s.c, "links/00")
	if err != nil || total != 10 || len(list) != total || list[3].Reason != "it is a symbolic link" {
		t.Errorf("%d of %d, %v, %v", len(list), total, list, err)
	}
	m, err := Mirror(ctx, s.c, t.TempDir(), MirrorOptions{Prefix: "links/39"})
	if err != nil || m.LeftOutTotal != 10 || len(m.LeftOut) != 10 || m.Incomplete != nil {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestLeftOutIsLogged: a server that no peer is connected to logs and counts what it leaves out
// when a scan finds it, and logs it once.
func TestLeftOutIsLogged(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	long := strings.Repeat("x", 200)
	write(t, filepath.Join(root, long, long, "f"), nil)
	write(t, filepath.Join(root, "a"), nil)
	write(t, filepath.Join(root, "b"), nil)
	if err := os.Symlink("/etc/passwd", filepath.Join(root, "out")); err != nil {
		t.Fatal(err)
	}
	n := testNode(t, transfer.Options{Name: "server", Anonymous: identity.All, Listen: []string{"tcp://127.0.0.1:0"}})
	var log string
	s, err := Serve(ctx, n, Options{Root: root, MaxFiles: 3, FollowLinks: true,
		Logger: slog.New(slog.NewTextHandler(onLine(func(l string) {
			log += l
		}), nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	said := func(want ...string) {
		t.Helper()
		if n := strings.Count(log, "left out"); n != len(want) {
			t.Errorf("%d lines, expected %d: %s", n, len(want), log)
		}
		for _, w := range want {
			if !strings.Contains(log, w) {
				t.Errorf("the log does not say %q: %s", w, log)
			}
		}
		log = ""
	}
	said(`reason="a name of 403 bytes, expected 1 to 255"`,
		`level=INFO msg="left out" path=out reason="it is a symbolic link that leads to nothing below`)
	expectCounts(t, s, map[string]float64{"left_out[]": 2})
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	said()
	for _, n := range []string{"0\xff", "c", "d"} {
		write(t, filepath.Join(root, n), nil)
	}
	if err := os.Remove(filepath.Join(root, "out")); err != nil {
		t.Fatal(err)
	}
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	// for another reason now
	said(`level=INFO msg="left out" path="0\xff" reason="a name that is not UTF-8"`,
		`level=WARN msg="left out" path=d reason="more than 3 files`, `level=WARN msg="left out" path=xxx`)
	expectCounts(t, s, map[string]float64{"left_out[]": 3})
}

func FuzzLeftOut(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02\x00\x01a\x00\x03why"))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, total, err := parseLeftOut(b)
		n := 4
		for _, s := range list {
			n += 4 + len(s.Path) + len(s.Reason)
		}
		if err == nil && (n != len(b) || len(list) > total) {
			t.Errorf("%x is read as %q, %d", b, list, total)
		}
	})
}
