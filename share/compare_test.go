package share

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestMirrorChecksum mirrors into a directory that has some of the files already, as another tool
// would have left them: those with the same content are kept and counted as the mirror's, the
// others fail, or are replaced with Force.
func TestMirrorChecksum(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	large := randomBytes(1, 3<<20)
	for n, b := range map[string][]byte{"same": []byte("same"), "large": large, "empty": nil, "other": []byte("1234"),
		"longer": []byte("12345"), "new": []byte("new")} {
		write(t, filepath.Join(root, n), b)
	}
	for n, b := range map[string][]byte{"same": []byte("same"), "large": large, "empty": nil, "other": []byte("abcd"),
		"longer": []byte("1")} {
		write(t, filepath.Join(dir, n), b)
		if err := os.Chtimes(filepath.Join(dir, n), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
	}
	s := serve(t, Options{Root: root})
	mirror := func(o MirrorOptions, fetched, skipped, failed int) {
		t.Helper()
		m, err := Mirror(ctx, s.c, dir, o)
		if m == nil || m.Fetched != fetched || m.Skipped != skipped || m.Failed != failed ||
			(failed > 0) != errors.Is(err, ErrExists) {
			t.Fatalf("%+v, %v, expected %d, %d, %d", m, err, fetched, skipped, failed)
		}
	}
	mirror(MirrorOptions{DryRun: true}, 1, 0, 5)
	mirror(MirrorOptions{DryRun: true, Checksum: true}, 1, 3, 2)
	mirror(MirrorOptions{DryRun: true, Checksum: true, Force: true}, 3, 3, 0)
	mirror(MirrorOptions{Checksum: true}, 1, 3, 2)
	here, err := os.Stat(filepath.Join(dir, "large"))
	there, terr := os.Stat(filepath.Join(root, "large"))
	if err := errors.Join(err, terr); err != nil || !here.ModTime().Equal(there.ModTime()) {
		t.Errorf("%v, expected the time %v (%v)", here.ModTime(), there.ModTime(), err)
	}
	same(t, filepath.Join(dir, "other"), []byte("abcd"))
	mirror(MirrorOptions{}, 0, 4, 2) // they are the mirror's now
	mirror(MirrorOptions{Force: true}, 2, 4, 0)
	same(t, filepath.Join(dir, "other"), []byte("1234"))
	same(t, filepath.Join(dir, "longer"), []byte("12345"))
	// Only its times have changed there: nothing is fetched.
	if err := os.Chtimes(filepath.Join(root, "large"), time.Unix(2, 0), time.Unix(2, 0)); err != nil {
		t.Fatal(err)
	}
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	m, err := Mirror(ctx, s.c, dir, MirrorOptions{Checksum: true})
	if err != nil || m.Skipped != 6 || m.Moved != 0 {
		t.Errorf("%+v, %v", m, err)
	}
	// Links and directories are not replaced, whatever is asked for.
	for _, n := range []string{"same", "other"} {
		if err := os.Remove(filepath.Join(dir, n)); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(t.TempDir(), "out")
	write(t, out, []byte("same"))
	if err := errors.Join(os.Symlink(out, filepath.Join(dir, "same")),
		os.Mkdir(filepath.Join(dir, "other"), 0o755)); err != nil {
		t.Fatal(err)
	}
	mirror(MirrorOptions{Checksum: true, Force: true}, 0, 4, 2)
	same(t, out, []byte("same"))
}
