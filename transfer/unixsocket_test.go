package transfer

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/identity"
)

// A node takes over the Unix socket of a process that was killed. It leaves the socket of one that
// listens, and what is no socket, alone.
func TestStaleUnixSocket(t *testing.T) {
	open := func(at string) (*Node, error) {
		return Open(ctx(t), Options{Anonymous: identity.All, Listen: []string{"unix://" + at}})
	}
	at := filepath.Join(t.TempDir(), "node.sock")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(at); !errors.Is(err, sys.EADDRINUSE) {
		t.Errorf("beside one that listens: %v", err)
	}
	left.SetUnlinkOnClose(false)
	left.Close() // as the kernel does for a process that is killed: the file stays
	dir, err := os.Open(filepath.Dir(at))
	if err != nil {
		t.Fatal(err)
	}
	if err := sys.FileLock(dir); err != nil { // as any user who can read the directory may
		t.Fatal(err)
	}
	if _, err := open(at); !errors.Is(err, sys.EADDRINUSE) {
		t.Errorf("while the directory is locked: %v", err)
	}
	dir.Close()
	// Of nodes that come at the same time one gets it.
	var wg sync.WaitGroup
	nodes, errs := make([]*Node, 4), make([]error, 4)
	for i := range nodes {
		wg.Go(func() { nodes[i], errs[i] = open(at) })
	}
	wg.Wait()
	good := 0
	for i, n := range nodes {
		switch {
		case errs[i] == nil:
			good++
			defer n.Close()
		case !errors.Is(errs[i], sys.EADDRINUSE):
			t.Error(errs[i])
		}
	}
	if good != 1 {
		t.Fatalf("%d nodes have the socket: %v", good, errs)
	}
	dialer, err := Open(ctx(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dialer.Close()
	if _, err := dialer.Dial(ctx(t), "unix://"+at); err != nil {
		t.Error(err)
	}
	if err := dialer.Err(); err != nil {
		t.Errorf("a node that works: %v", err)
	}
	dialer.Close()
	if err := dialer.Err(); !errors.Is(err, ErrClosed) {
		t.Errorf("a node that is closed: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := open(file); !errors.Is(err, sys.EADDRINUSE) {
		t.Errorf("a file: %v", err)
	}
	if b, err := os.ReadFile(file); string(b) != "mine" {
		t.Errorf("the file has %q, %v", b, err)
	}
}
