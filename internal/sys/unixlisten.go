package sys

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// Listen is that of lc, and takes a Unix socket over that a process left behind when it was killed: one that no process answers at.
func Listen(ctx context.Context, lc *net.ListenConfig, network, addr string) (net.Listener, error) {
	l, err := lc.Listen(ctx, network, addr)
	if network != "unix" || !errors.Is(err, EADDRINUSE) {
		return l, err
	}
	// Two processes that find the same stale socket must not remove each other's: the one that locks the directory goes on. It does not wait for the lock,
	// which any user who can read the directory may hold.
	dir, oerr := os.Open(filepath.Dir(addr))
	if oerr != nil {
		return nil, err
	}
	defer dir.Close()
	if locked, lerr := TryFileLock(dir); !locked || lerr != nil || !stale(ctx, addr) || os.Remove(addr) != nil {
		return nil, err
	}
	return lc.Listen(ctx, network, addr)
}

// stale reports whether a path is a Unix socket that no process listens at.
func stale(ctx context.Context, addr string) bool {
	if fi, err := os.Lstat(addr); err != nil || fi.Mode().Type() != fs.ModeSocket {
		return false
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", addr)
	if err == nil {
		c.Close()
	}
	return errors.Is(err, ECONNREFUSED)
}
