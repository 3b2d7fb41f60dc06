package peers

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// freePort asks the kernel for a TCP port of the loopback address that no socket uses now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("peers: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// waitListening waits until the program itself listens on a TCP port. There is no event for another
// program's listen, so the kernel's tables are looked at.
func (p *child) waitListening(port int) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !p.listens(port) {
		select {
		case <-p.done:
			if p.ctx.Err() != nil {
				return fmt.Errorf("it does not listen on port %d: %w", port, p.failure(context.Cause(p.ctx)))
			}
			return p.failure(fmt.Errorf("%w on port %d (%v)", errNoPort, port, p.err))
		case <-tick.C:
		}
	}
	return nil
}

// listens reports whether a socket that listens on the port belongs to the program.
func (p *child) listens(port int) bool {
	inodes := listeners(port)
	if len(inodes) == 0 {
		return false
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.pid))
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && inodes[target] {
			return true
		}
	}
	return false
}

// listeners are the TCP sockets that listen on a port, as the links in /proc/PID/fd name them
// (proc(5), /proc/net/tcp; state 0A).
func listeners(port int) map[string]bool {
	suffix := fmt.Sprintf(":%04X", port)
	var inodes map[string]bool
	for _, f := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if x := strings.Fields(line); len(x) > 9 && x[3] == "0A" && strings.HasSuffix(x[1], suffix) {
				if inodes == nil {
					inodes = map[string]bool{}
				}
				inodes["socket:["+x[9]+"]"] = true
			}
		}
	}
	return inodes
}
