package peers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// RDMATest is a run of a program of perftest between two processes that reach each other by IP,
// both on this machine.
type RDMATest struct {
	Program    string // ib_write_bw, ib_read_bw, ib_send_bw, ib_write_lat, ib_read_lat, ib_send_lat, ib_atomic_lat ...
	Device     string // "rxe0"
	GIDIndex   int    // of the address in the port's table: 1 for IPv4 over RoCE v2 on soft RoCE
	Server     string // IP address of the server, for the exchange of what the two need to know; "" is 127.0.0.1
	Size       uint64 // bytes of a message, a power of two; 0 for all sizes from 2 bytes to 8 MiB, and for atomics
	Iterations int    // messages of each size, at least 5
	MTU        int    // bytes; 0 leaves it to the device
	Depth      int    // requests under way at once, of a throughput test; 0 leaves it to the program, which has 128
	List       int    // requests of one call, of a throughput test; 0 or 1: each for itself
	Inline     int    // messages up to so many bytes go with their request; 0: none
	// sleeps until a completion comes, where the program can (not by writes, which have none at the
	// receiver)
	Events bool
}

// Command is the server's command line, for a start by hand; the client has the server's address
// behind it.
func (o RDMATest) Command() string { return strings.Join(o.args(o.Program, 0), " ") }

// args are what the server and the client have in common.
func (o *RDMATest) args(bin string, port int) []string {
	args := []string{bin, "-d", o.Device, "-x", strconv.Itoa(o.GIDIndex), "-n", strconv.Itoa(o.Iterations), "-F"}
	if port != 0 {
		args = append(args, "-p", strconv.Itoa(port))
	}
	switch {
	case o.Size != 0:
		args = append(args, "-s", strconv.FormatUint(o.Size, 10))
	case !strings.HasPrefix(o.Program, "ib_atomic"):
		args = append(args, "-a")
	}
	if o.MTU != 0 {
		args = append(args, "-m", strconv.Itoa(o.MTU))
	}
	if o.Depth != 0 {
		args = append(args, "-t", strconv.Itoa(o.Depth))
	}
	if o.List > 1 {
		args = append(args, "-l", strconv.Itoa(o.List))
	}
	// Reads have no inline data, and the programs refuse the option.
	if !strings.HasPrefix(o.Program, "ib_read") && !strings.HasPrefix(o.Program, "ib_atomic") {
		args = append(args, "-I", strconv.Itoa(o.Inline))
	}
	if o.Events {
		args = append(args, "-e")
	}
	return args
}

// rdmaPrograms are the programs of perftest that are used here.
var rdmaPrograms = []string{"ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_write_lat", "ib_read_lat", "ib_send_lat",
	"ib_atomic_bw", "ib_atomic_lat"}

// RDMARow is a line of perftest's table. A throughput test fills the first group, a latency test
// the second.
type RDMARow struct {
	Size       uint64 // bytes
	Iterations int

	PeakGBps, GBps float64 // 1e9 bytes per second; the peak is 0 when it was not measured
	MessagesPerS   float64

	// Microseconds: one way for write and send, both ways for read and atomics.
	Min, Max, Typical, Mean, Deviation, P99, P999 float64
}

// errClock says that perftest divided by a clock of 0 Hz. It compares the processor's counter with
// the time of day at its start, and where other work on the machine spoils that (the guest of an
// emulator, say) it takes the frequency for 0 and goes on.
var errClock = errors.New("perftest did not find out the frequency of the processor's counter")

// clockTries is how often a run is made before errClock is believed.
const clockTries = 8

// RDMA runs a program of perftest, again where it could not calibrate its clock. It needs an RDMA
// device; without one the program says that it cannot find it.
func RDMA(ctx context.Context, o RDMATest) ([]RDMARow, error) {
	return calibrated(ctx, o.run)
}

func calibrated(ctx context.Context, run func(context.Context) ([]RDMARow, error)) ([]RDMARow, error) {
	for try := 1; ; try++ {
		rows, err := run(ctx)
		if !errors.Is(err, errClock) || try == clockTries || ctx.Err() != nil {
			return rows, err
		}
	}
}

func (o RDMATest) run(ctx context.Context) ([]RDMARow, error) {
	if !slices.Contains(rdmaPrograms, o.Program) {
		return nil, fmt.Errorf("peers: perftest has no program %q here: expected one of %s", o.Program,
			strings.Join(rdmaPrograms, ", "))
	}
	p, err := Get("perftest")
	if err != nil {
		return nil, err
	}
	bin, err := p.tool(o.Program)
	if err != nil {
		return nil, err
	}
	address := o.Server
	if address == "" {
		address = "127.0.0.1"
	}
	out, err := pair{command: func(port int) (server, client []string) {
		args := o.args(bin, port)
		return args, append(args[:len(args):len(args)], address)
	}}.run(ctx)
	if err != nil {
		return nil, err
	}
	return parseRDMA(out)
}

// parseRDMA reads the table of a program of perftest: after a header that begins with "#bytes" a
// line for each size. In the table of throughput MB are 2^20 bytes.
func parseRDMA(out []byte) ([]RDMARow, error) {
	const rates, times = 5, 9 // columns
	var rows []RDMARow
	columns, ended := 0, false
	for l := range strings.Lines(string(out)) {
		l = strings.TrimSpace(l)
		if strings.HasPrefix(l, "#bytes") {
			switch {
			case strings.Contains(l, "BW average[MB/sec]") && strings.Contains(l, "MsgRate[Mpps]"):
				columns = rates
			case strings.Contains(l, "t_typical[usec]") && strings.Contains(l, "99.9% percentile[usec]"):
				columns = times
			default:
				return nil, fmt.Errorf("peers: perftest: %w: unknown table %q", ErrOutput, l)
			}
			continue
		}
		if columns == 0 {
			continue
		}
		if strings.HasPrefix(l, "---") {
			ended = true
			break
		}
		row, err := parseRDMARow(strings.Fields(l), columns)
		if err != nil {
			return nil, fmt.Errorf("peers: perftest: %w: %q: %w", ErrOutput, l, err)
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 || !ended {
		return nil, fmt.Errorf("peers: perftest: %w: expected a table that begins with #bytes and ends with a line: %s",
			ErrOutput, tail(out))
	}
	return rows, nil
}

func parseRDMARow(f []string, columns int) (r RDMARow, err error) {
	if len(f) != columns {
		return r, fmt.Errorf("%d columns; expected %d", len(f), columns)
	}
	if r.Size, err = strconv.ParseUint(f[0], 10, 63); err != nil {
		return r, err
	}
	if r.Iterations, err = strconv.Atoi(f[1]); err != nil {
		return r, err
	}
	if columns == 9 && strings.TrimPrefix(f[6], "-") == "nan" {
		f[6] = "0" // perftest's deviation, where its sum of squares is a little below 0
	}
	var v [7]float64
	for i, s := range f[2:] {
		if v[i], err = strconv.ParseFloat(s, 64); err != nil {
			return r, err
		}
		if math.IsInf(v[i], 0) || math.IsNaN(v[i]) {
			return r, fmt.Errorf("%q: %w", s, errClock)
		}
		if !(v[i] >= 0 && v[i] < 1e18) {
			return r, fmt.Errorf("%q is no measure", s)
		}
	}
	if columns == 5 {
		r.PeakGBps, r.GBps, r.MessagesPerS = v[0]*(1<<20)/1e9, v[1]*(1<<20)/1e9, v[2]*1e6
		// The smallest sizes are so slow on emulated devices that their rate is printed as 0.00;
		// the message rate is not.
		if !(r.MessagesPerS > 0) {
			return r, fmt.Errorf("a message rate of %v: %w", v[2], errClock)
		}
		return r, nil
	}
	r.Min, r.Max, r.Typical, r.Mean, r.Deviation, r.P99, r.P999 = v[0], v[1], v[2], v[3], v[4], v[5], v[6]
	if !(r.Min > 0 && r.Min <= r.Typical && r.Typical <= r.Max && r.Min <= r.Mean && r.Mean <= r.Max) {
		return r, fmt.Errorf("times are out of order")
	}
	return r, nil
}
