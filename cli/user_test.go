package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
)

// otherUser is neither root nor the one that stands for users without a number.
const otherUser = 65533

// TestServeToOtherUsers has another user overwrite and read the files of a server that listens on
// loopback: it gets in by --allow-uid on both sides, and not without.
func TestServeToOtherUsers(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), []byte("before"))
	// other runs the program as the other user.
	other := func(args ...string) (string, int) {
		t.Helper()
		p := proc.Start(t, program(args...).As(t, otherUser))
		e, err := p.Wait(limit(t))
		if err != nil {
			t.Fatal(err)
		}
		return p.Output(), e.Code
	}
	theirs := filepath.Join(t.TempDir(), "a")
	write(t, theirs, []byte("after!"))
	for _, d := range []string{filepath.Dir(theirs), filepath.Dir(filepath.Dir(theirs))} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	content := func() string {
		b, err := os.ReadFile(filepath.Join(dir, "a"))
		if err != nil {
			t.Fatal(err)
		}
		return string(bytes.TrimSpace(b))
	}

	_, addr := serve(t, dir, "--writable", "--identity", "none")
	for _, args := range [][]string{{"ls", addr}, {"get", addr + "/a", "-o", "-"},
		{"put", theirs, addr + "/a", "--force"}} {
		args = append(args, "--identity", "none", "--retry", "0")
		if out, status := other(append(args, "--allow-uid", "0")...); status != exitNotPermitted ||
			!strings.Contains(out, "its own user") || strings.Contains(out, "before") {
			t.Errorf("%v of another user: status %d, %s", args, status, out)
		}
		// Nor does that user trust the server.
		if out, status := other(args...); status != exitNotPermitted || !strings.Contains(out, "own user") &&
			!strings.Contains(out, "has user 0") {
			t.Errorf("%v of another user: status %d, %s", args, status, out)
		}
	}
	if content() != "before" {
		t.Errorf("another user wrote %q", content())
	}

	_, addr = serve(t, dir, "--writable", "--identity", "none", "--allow-uid", "1,65533")
	if out, status := other("get", addr+"/a", "-o", "-", "--identity", "none", "--allow-uid", "any"); status != 0 ||
		!strings.Contains(out, "before") {
		t.Errorf("get of a user who is let in: status %d, %s", status, out)
	}
	if out, status := other("put", theirs, addr+"/a", "--force", "--identity", "none", "--allow-uid",
		"any"); status != 0 || content() != "after!" {
		t.Errorf("put of a user who is let in: status %d, %s", status, out)
	}
	run(t, exitUsage, "--allow-uid", "serve", dir, "--allow-uid", "root")
}
