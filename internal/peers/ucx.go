package peers

import (
	"context"
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"
)

// CPUs are the processors that the two sides of a measurement are pinned to.
type CPUs struct{ Client, Server int }

// UCXTest is a run of ucx_perftest over the loopback device or shared memory.
type UCXTest struct {
	Transports string // as in UCX_TLS: "tcp", "posix", "posix,cma"
	Test       string // tag_bw, tag_lat, ucp_put_bw, ...
	Size       uint64 // bytes of a message
	Messages   int
	Percentile float64 // which percentile of the latency is wanted, 0 to 100
	CPUs       CPUs
}

// UCXResult is the final line of ucx_perftest.
type UCXResult struct {
	Percentile   float64 // microseconds, one way
	GBps         float64 // overall, 1e9 bytes per second
	MessagesPerS float64 // overall
}

// UCX runs ucx_perftest.
func UCX(ctx context.Context, o UCXTest) (UCXResult, error) {
	p, err := Get("ucx")
	if err != nil {
		return UCXResult{}, err
	}
	bin, err := p.tool("ucx_perftest")
	if err != nil {
		return UCXResult{}, err
	}
	out, err := pair{
		env: []string{"UCX_TLS=" + o.Transports, "UCX_NET_DEVICES=lo"},
		command: func(port int) (server, client []string) {
			at := strconv.Itoa(port)
			return []string{bin, "-p", at, "-c", strconv.Itoa(o.CPUs.Server), "-f"},
				[]string{bin, "127.0.0.1", "-p", at, "-c", strconv.Itoa(o.CPUs.Client), "-t", o.Test, "-s",
					strconv.FormatUint(o.Size, 10),
					"-n", strconv.Itoa(o.Messages), "-w", strconv.Itoa(max(1, o.Messages/10)),
					"-R", strconv.FormatFloat(o.Percentile, 'f', -1, 64), "-f", "-v"}
		},
	}.run(ctx)
	if err != nil {
		return UCXResult{}, err
	}
	return parseUCX(out)
}

// parseUCX reads the output of ucx_perftest -f -v: a header and one line of values. Its MB are 2^20
// bytes.
func parseUCX(out []byte) (UCXResult, error) {
	var lines []string
	for l := range strings.Lines(string(out)) {
		if strings.Contains(l, ",") && !strings.HasPrefix(l, "[") {
			lines = append(lines, l)
		}
	}
	rows, err := csv.NewReader(strings.NewReader(strings.Join(lines, ""))).ReadAll()
	if err != nil || len(rows) != 2 {
		return UCXResult{}, fmt.Errorf("peers: ucx_perftest: %w: expected a header and one line of values: %s",
			ErrOutput, tail(out))
	}
	get := func(match func(string) bool) (float64, error) {
		for i, name := range rows[0] {
			if match(strings.TrimSpace(name)) {
				v, ok := positive(rows[1][i])
				if !ok {
					return 0, fmt.Errorf("peers: ucx_perftest: %w: column %s is %q", ErrOutput, name, rows[1][i])
				}
				return v, nil
			}
		}
		return 0, fmt.Errorf("peers: ucx_perftest: %w: a column is missing in %.200q", ErrOutput, rows[0])
	}
	var r UCXResult
	if r.Percentile, err = get(func(s string) bool { return strings.HasSuffix(s, "_percentile_lat") }); err != nil {
		return UCXResult{}, err
	}
	if r.GBps, err = get(func(s string) bool { return s == "overall_bw" }); err != nil {
		return UCXResult{}, err
	}
	r.GBps *= (1 << 20) / 1e9
	if r.MessagesPerS, err = get(func(s string) bool { return s == "overall_mr" }); err != nil {
		return UCXResult{}, err
	}
	return r, nil
}

// positive reads a decimal number above 0, the only kind that a measurement can have.
func positive(s string) (float64, bool) {
	v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	return v, err == nil && v > 0 && v < 1e18
}
