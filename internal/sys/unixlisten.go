package sys

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// Listen is that of lc, and takes a Unix socket over that a process left behind when it was killed:
// one that no process answers at.
func Listen(ctx context.Context, lc *net.ListenConfig, network, addr string) (net.Listener, error) {
	l, err := lc.Listen(ctx, network, addr)
	if network != "unix" || !errors.Is(err, EADDRINUSE) {
		return l, err
	}
	// Two processes that find the same stale socket must not remove each other's: the one that
	// locks the directory goes on. It does not wait for the lock, which any user who can read the
	// directory may hold.
	dir, oerr := os.Open(filepath.Dir(addr))
	if oerr != nil {
		return nil, err
	}
	defer dir.Close()
	if locked, lerr := TryFileLock(dir); !locked || lerr != nil {
		return nil, err
	}
	switch fi, serr := os.Lstat(addr); {
	case serr != nil:
		return nil, err
	case fi.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%w: the file is no socket", err)
	}
	var d net.Dialer
	c, derr := d.DialContext(ctx, "unix", addr)
	if derr == nil {
		c.Close()
		return nil, fmt.Errorf("%w: another process listens there", err)
	}
	if !errors.Is(derr, ECONNREFUSED) || os.Remove(addr) != nil {
		return nil, err
	}
	return lc.Listen(ctx, network, addr)
}
