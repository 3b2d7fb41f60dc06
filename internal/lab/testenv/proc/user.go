package proc

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

// As is spec run as another user, by a copy of the program that every user can read. It takes root;
// without that, the test ends as testenv.Missing says.
func (s Spec) As(t testenv.TB, uid int) Spec {
	t.Helper()
	s.public(t)
	s.shape = func(c *exec.Cmd) { sys.AsUser(c, uid) }
	return s
}

// OwnUsers is spec run in a user namespace of its own: as its root, who is the user uid outside, or
// for a negative uid as a user who has no number there. It takes root, as As does.
func (s Spec) OwnUsers(t testenv.TB, uid int) Spec {
	t.Helper()
	s.public(t)
	s.shape = func(c *exec.Cmd) { sys.OwnUsers(c, uid) }
	return s
}

// public puts a copy of the program where every user can run it.
func (s *Spec) public(t testenv.TB) {
	t.Helper()
	if uid := sys.EffectiveUID(); uid != 0 {
		testenv.Missing(t, "root, to start a process of another user",
			fmt.Errorf("this process has user %d: %w", uid, sys.EPERM))
	}
	dir, err := os.MkdirTemp("", "penstock-public-")
	if err != nil {
		t.Fatalf("proc: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	to := filepath.Join(dir, "program")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatalf("proc: %v", err)
	}
	if err := copyFile(s.Path, to); err != nil {
		t.Fatalf("proc: %v", err)
	}
	s.Path, s.Dir = to, "/"
}

func copyFile(from, to string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err = io.Copy(w, r); err == nil {
		err = w.Chmod(0o755)
	}
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	return err
}
