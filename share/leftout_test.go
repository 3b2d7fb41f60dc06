package share

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLeftOut asks what a share has and does not serve, by prefix, and more than an answer has room for. A mirror knows it, too.
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
	if err != nil || total != 401 || len(list) < 100 || len(list) >= total || list[0].Path != "links/000"+strings.Repeat("x", 180) {
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

func FuzzLeftOut(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02\x00\x01a\x00\x03why"))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, total, ok := parseLeftOut(b)
		n := 4
		for _, s := range list {
			n += 4 + len(s.Path) + len(s.Reason)
		}
		if ok && (n != len(b) || len(list) > total) {
			t.Errorf("%x is read as %q, %d", b, list, total)
		}
	})
}
