package cli

import (
	"path/filepath"
	"strings"
	"testing"
)

// A file of a session over a Unix socket comes by tcp, and where only shm may be used the reason
// names served files.
func TestGetOverUnixSocket(t *testing.T) {
	served, out := t.TempDir(), t.TempDir()
	b := content(100_000, 3)
	write(t, filepath.Join(served, "f"), b)
	socket := filepath.Join(t.TempDir(), "s")
	serve(t, served, "--identity", "none", "--listen", "unix://"+socket)
	to := filepath.Join(out, "f")
	if stdout, stderr, status := penstock(t, "get", "unix://"+socket+"/f", "-o", to, "--identity", "none", "--path",
		"shm"); status != exitUnfit || !strings.Contains(stderr, "served file") {
		t.Errorf("by shm alone: %d: %s%s", status, stdout, stderr)
	}
	stdout, stderr, status := penstock(t, "get", "unix://"+socket+"/f", "-o", to, "--identity", "none")
	if status != 0 || !strings.Contains(stdout+stderr, "over tcp") {
		t.Fatalf("%d: %s%s", status, stdout, stderr)
	}
	same(t, to, b)
}
