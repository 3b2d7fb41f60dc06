package cli

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The agent refuses what it cannot serve at, and takes over neither the socket of a process that listens nor a file.
func TestAgentRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	taken := filepath.Join(dir, "taken")
	l, err := net.Listen("unix", taken)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"agent", exitUsage, "--fd or --socket"},
		{"agent --fd 3 --socket " + taken, exitUsage, "--fd or --socket"},
		{"agent --fd 0", exitUsage, "3 or more"},
		{"agent --fd 99999", exitUsage, "99999"},
		{"agent --socket " + taken, exitFailure, "address already in use"},
		{"agent --socket " + file, exitFailure, "address already in use"},
	} {
		_, errOut, status := penstock(t, strings.Fields(c.args)...)
		if status != c.status || !strings.Contains(errOut, c.says) {
			t.Errorf("penstock %s: status %d, %q", c.args, status, errOut)
		}
	}
	if fi, err := os.Stat(file); err != nil || !fi.Mode().IsRegular() {
		t.Errorf("the file is gone: %v", err)
	}
}
