package peers

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// RDMAPing is a run of rping: two processes on this machine connect by rdma_cm and exchange data by
// RDMA reads and writes.
type RDMAPing struct {
	Address string // an IP address of an interface that has an RDMA device
	Count   int    // pings
	Size    int    // bytes of a ping, 64 to 65536; the tool checks each one
}

// RDMAPings runs rping and returns how many pings came back with the right contents, which is the
// Count that was asked for when the error is nil.
func RDMAPings(ctx context.Context, o RDMAPing) (int, error) {
	p, err := Get("rping")
	if err != nil {
		return 0, err
	}
	bin, err := p.tool("rping")
	if err != nil {
		return 0, err
	}
	port, err := freePort()
	if err != nil {
		return 0, err
	}
	args := []string{"-a", o.Address, "-p", strconv.Itoa(port), "-C", strconv.Itoa(o.Count), "-S", strconv.Itoa(o.Size),
		"-V", "-v"}
	srv, err := command{args: append([]string{bin, "-s"}, args...)}.start(ctx)
	if err != nil {
		return 0, err
	}
	defer srv.stop()
	// No table shows that a program listens for RDMA connections, so the client is refused until
	// the server does.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		cl, err := command{args: append([]string{bin, "-c"}, args...)}.start(srv.ctx)
		if err != nil {
			return 0, err
		}
		out, err := cl.wait()
		if err != nil && strings.Contains(string(cl.stderr.bytes()), "RDMA_CM_EVENT_REJECTED") {
			select {
			case <-srv.done:
				return 0, srv.failure(errors.Join(errors.New("ended before it listened"), srv.err))
			case <-tick.C:
				continue
			}
		}
		if err != nil {
			return 0, fmt.Errorf("%w; its server said: %s", err,
				tail(append(srv.stdout.bytes(), srv.stderr.bytes()...)))
		}
		return parseRDMAPings(out, o.Count)
	}
}

var pingLine = regexp.MustCompile(`^ping data: rdma-ping-(\d+): `)

// parseRDMAPings counts the pings of rping -v. The tool ends with 0 also when it failed, so the
// count is what proves.
func parseRDMAPings(out []byte, want int) (int, error) {
	n := 0
	for l := range strings.Lines(string(out)) {
		m := pingLine.FindStringSubmatch(l)
		if m == nil {
			continue
		}
		if m[1] != strconv.Itoa(n) {
			return n, fmt.Errorf("peers: rping: %w: ping %s where %d was due: %s", ErrOutput, m[1], n, tail(out))
		}
		n++
	}
	if n != want {
		return n, fmt.Errorf("peers: rping: %d pings of %d came back: %s", n, want, tail(out))
	}
	return n, nil
}
