package cli

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// An agent that can have no more descriptors waits a moment between its tries, and goes on when it
// can.
func TestAgentWithoutDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &starvedAgent{}
		start := time.Now()
		if err := acceptClients(t.Context(), streams{err: io.Discard}, l); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if took := time.Since(start); l.tries != 100 || took != 99*acceptPause {
			t.Errorf("%d tries in %v, expected one for each %v", l.tries, took, acceptPause)
		}
	})
}

// starvedAgent is a listener in a process without descriptors; it is closed after a hundred tries.
type starvedAgent struct{ tries int }

func (l *starvedAgent) AcceptUnix() (*net.UnixConn, error) {
	if l.tries++; l.tries == 100 {
		return nil, net.ErrClosed
	}
	return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
}

// The agent refuses what it cannot serve at, and takes over neither the socket of a process that
// listens nor a file.
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
