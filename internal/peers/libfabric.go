package peers

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
)

// LibfabricTest is a run of fi_pingpong over the loopback device or shared memory.
type LibfabricTest struct {
	Provider string // "tcp" or "shm"
	Size     uint64 // bytes of a message
	Messages int
	CPUs     CPUs
}

// LibfabricResult is the line of fi_pingpong for one size.
type LibfabricResult struct {
	GBps         float64 // both directions, one at a time; 1e9 bytes per second
	Microseconds float64 // per message, one way
}

// Libfabric runs fi_pingpong between two reliable datagram endpoints.
func Libfabric(ctx context.Context, o LibfabricTest) (LibfabricResult, error) {
	p, err := Get("fi")
	if err != nil {
		return LibfabricResult{}, err
	}
	bin, err := p.tool("fi_pingpong")
	if err != nil {
		return LibfabricResult{}, err
	}
	taskset, err := sys.Program("taskset", "util-linux")
	if err != nil {
		return LibfabricResult{}, fmt.Errorf("peers: %w", err)
	}
	out, err := pair{command: func(port int) (server, client []string) {
		test := []string{bin, "-p", o.Provider, "-e", "rdm", "-I", strconv.Itoa(o.Messages), "-S",
			strconv.FormatUint(o.Size, 10)}
		server = append([]string{taskset, "-c", strconv.Itoa(o.CPUs.Server)}, append(test, "-B", strconv.Itoa(port))...)
		client = append([]string{taskset, "-c", strconv.Itoa(o.CPUs.Client)},
			append(test, "-P", strconv.Itoa(port), "127.0.0.1")...)
		return server, client
	}}.run(ctx)
	if err != nil {
		return LibfabricResult{}, err
	}
	return parseLibfabric(out)
}

// parseLibfabric reads the table of fi_pingpong: bytes, #sent, #ack, total, time, MB/sec (10^6),
// usec/xfer, Mxfers/sec.
func parseLibfabric(out []byte) (LibfabricResult, error) {
	header := false
	for l := range strings.Lines(string(out)) {
		f := strings.Fields(l)
		if len(f) == 8 && f[0] == "bytes" && f[5] == "MB/sec" && f[6] == "usec/xfer" {
			header = true
			continue
		}
		if !header || len(f) != 8 {
			continue
		}
		mb, ok1 := positive(f[5])
		us, ok2 := positive(f[6])
		if !ok1 || !ok2 {
			break
		}
		return LibfabricResult{mb / 1e3, us}, nil
	}
	return LibfabricResult{}, fmt.Errorf("peers: fi_pingpong: %w: expected a table with MB/sec and usec/xfer: %s",
		ErrOutput, tail(out))
}
