package filewatch

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// await waits until the Watcher reports a change after which the file has that content.
func await(t *testing.T, w *Watcher, path, want string) {
	t.Helper()
	end := time.After(time.Minute)
	for {
		select {
		case <-w.C():
			if b, err := os.ReadFile(path); err == nil && string(b) == want || err != nil && want == "" {
				return
			}
		case <-end:
			t.Fatalf("waited a minute to be told that the file says %q", want)
		}
	}
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	do(t, os.WriteFile(path, []byte(text), 0o600))
}

func open(t *testing.T, path string) *Watcher {
	t.Helper()
	w, err := New(path)
	do(t, err)
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if _, ok := <-w.C(); ok {
			t.Error("a change is told after Close")
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// A file that is written to, replaced as editors do, removed and made again.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, "a")
	w := open(t, path)
	write(t, path, "b")
	await(t, w, path, "b")
	write(t, path+".new", "c")
	do(t, os.Rename(path+".new", path))
	await(t, w, path, "c")
	do(t, os.Remove(path))
	await(t, w, path, "")
	write(t, path, "d")
	await(t, w, path, "d")
}

// The way of Kubernetes: the file is a link through a link, which is replaced by a rename.
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	make := func(version, text string) {
		do(t, os.Mkdir(filepath.Join(dir, version), 0o700))
		write(t, filepath.Join(dir, version, "f"), text)
	}
	make("..1", "a")
	do(t, os.Symlink("..1", filepath.Join(dir, "..data")))
	path := filepath.Join(dir, "f")
	do(t, os.Symlink(filepath.Join("..data", "f"), path))
	w := open(t, path)
	for _, v := range []string{"..2", "..3"} {
		make(v, "of "+v)
		do(t, os.Symlink(v, filepath.Join(dir, "..tmp")))
		do(t, os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
		await(t, w, path, "of "+v)
	}
	do(t, os.RemoveAll(filepath.Join(dir, "..1")))
	write(t, filepath.Join(dir, "..3", "f"), "in place") // where the links lead now
	await(t, w, path, "in place")
}

// Directories that are not there yet, that go and come back.
func TestDirectories(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x", "y")
	path := filepath.Join(dir, "f")
	w := open(t, path)
	do(t, os.MkdirAll(dir, 0o700))
	write(t, path, "a")
	await(t, w, path, "a")
	do(t, os.Rename(dir, dir+"z"))
	await(t, w, path, "")
	do(t, os.MkdirAll(dir, 0o700))
	write(t, path, "b")
	await(t, w, path, "b")
}

// Links in a circle end.
func TestCircle(t *testing.T) {
	dir := t.TempDir()
	do(t, os.Symlink("b", filepath.Join(dir, "a")))
	do(t, os.Symlink("a", filepath.Join(dir, "b")))
	w := open(t, filepath.Join(dir, "a"))
	write(t, filepath.Join(dir, "c"), "x")
	do(t, os.Rename(filepath.Join(dir, "c"), filepath.Join(dir, "a")))
	await(t, w, filepath.Join(dir, "a"), "x")
}

// The Watcher ignores what is beside the file: it reports only changes of the file itself, once for
// what comes together.
func TestOthers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	write(t, path, "a")
	w := open(t, path)
	for range 100 {
		write(t, filepath.Join(dir, "other"), "x")
	}
	write(t, path, "b")
	await(t, w, path, "b")
}
