package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/peers"
	"github.com/penstock-io/penstock/internal/sys"
)

// findTools looks up the programs that are asked for: those that are here with their versions, and
// how to get the others. openSSL says whether there is a program in C for OpenSSL.
func findTools(ctx context.Context, names []string, openSSL bool) (here map[string]bool, versions, missing []string,
	err error) {
	here = map[string]bool{}
	for _, n := range names {
		if n != "ucx" && n != "fi" && n != "iperf3" && n != "openssl" {
			return nil, nil, nil, fmt.Errorf("%w: --against %q: expected ucx, fi, iperf3 or openssl", ErrOptions, n)
		}
		if n == "openssl" && !openSSL {
			missing = append(missing,
				"openssl: its program in C is compiled by the lab's tool: go run ./internal/lab bench transfer "+
					"--against openssl")
			continue
		}
		p, err := peers.Get(n)
		if err != nil {
			return nil, nil, nil, err
		}
		v, err := p.Version(ctx)
		switch {
		case errors.Is(err, peers.ErrAbsent):
			missing = append(missing, fmt.Sprintf("%s: %s is not installed: %s", n, p.Programs[0], p.Install()))
			continue
		case err != nil:
			v = "version unknown: " + err.Error()
		}
		here[n] = true
		versions = append(versions, p.Programs[0]+": "+v)
	}
	return here, versions, missing, nil
}

// CPUs are the processors for a tool's client and server: the same two that ours are pinned to.
func CPUs() peers.CPUs {
	a, err := sys.Processor(0)
	if err != nil {
		return peers.CPUs{Client: 0, Server: 1}
	}
	b, _ := sys.Processor(1)
	return peers.CPUs{Client: a, Server: b}
}

// ucx runs ucx_perftest: test is tag_bw, ucp_put_bw or tag_lat. percentile is the one of the
// latency that is wanted.
func ucx(ctx context.Context, tls, test string, size uint64, n int, percentile float64) (peers.UCXResult, error) {
	return peers.UCX(ctx, peers.UCXTest{Transports: tls, Test: test, Size: size, Messages: n, Percentile: percentile,
		CPUs: CPUs()})
}

// fi runs fi_pingpong of libfabric.
func fi(ctx context.Context, provider string, size uint64, n int) (peers.LibfabricResult, error) {
	return peers.Libfabric(ctx, peers.LibfabricTest{Provider: provider, Size: size, Messages: n, CPUs: CPUs()})
}

// iperf3 sends the given number of bytes with writes of size bytes and returns what the receiver
// counted, in GB/s.
func iperf3(ctx context.Context, size, bytes uint64) (float64, error) {
	r, err := peers.Iperf3(ctx, peers.Iperf3Test{Size: size, Bytes: bytes, CPUs: CPUs()})
	return r.GBps, err
}

// openSSL streams messages over TLS with OpenSSL and returns GB/s.
func openSSL(ctx context.Context, o peers.OpenSSLTest) (float64, error) {
	o.CPUs = CPUs()
	r, err := peers.OpenSSL(ctx, o)
	return r.GBps, err
}
