package peers

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// Replay is a run of tcpreplay: the packets of a capture file are sent into an interface. It needs
// CAP_NET_RAW.
type Replay struct {
	File      string // pcap
	Interface string
	// PacketsPerSecond is the pace; 0 is as fast as it goes.
	PacketsPerSecond int
	Loops            int // how many times; 0 is once
	// Network is the network namespace of the interface, an open file such as /proc/PID/ns/net; nil
	// is this process's own. It stays the caller's.
	Network *os.File
}

// Replayed is what tcpreplay counted.
type Replayed struct {
	Packets, Bytes     uint64
	Time               time.Duration
	Successful, Failed uint64 // packets
	Truncated, Retried uint64 // packets; retried because the interface was full
}

// TCPReplay runs tcpreplay.
func TCPReplay(ctx context.Context, o Replay) (Replayed, error) {
	p, err := Get("tcpreplay")
	if err != nil {
		return Replayed{}, err
	}
	bin, err := p.tool("tcpreplay")
	if err != nil {
		return Replayed{}, err
	}
	args, err := enter(o.Network)
	if err != nil {
		return Replayed{}, err
	}
	args = append(args, bin, "-i", o.Interface)
	if o.PacketsPerSecond > 0 {
		args = append(args, "--pps="+strconv.Itoa(o.PacketsPerSecond))
	} else {
		args = append(args, "--topspeed")
	}
	if o.Loops > 1 {
		args = append(args, "--loop="+strconv.Itoa(o.Loops))
	}
	out, err := command{args: append(args, o.File)}.run(ctx)
	runtime.KeepAlive(o.Network)
	if err != nil {
		return Replayed{}, err
	}
	return parseReplay(out)
}

// enter is a command that runs what follows it in a network namespace, which takes CAP_SYS_ADMIN.
func enter(network *os.File) ([]string, error) {
	if network == nil {
		return nil, nil
	}
	nsenter, err := sys.Program("nsenter", "util-linux")
	if err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	return []string{nsenter, fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), network.Fd())}, nil
}

var (
	replayActual = regexp.MustCompile(`(?m)^Actual: (\d+) packets \((\d+) bytes\) sent in ([0-9.]+) seconds`)
	replayCount  = regexp.MustCompile(`(?m)^\s*(Successful packets|Failed packets|Truncated packets|Retried packets \(E[A-Z]+\)): +(\d+)$`)
)

// parseReplay reads the statistics that tcpreplay ends with.
func parseReplay(out []byte) (Replayed, error) {
	bad := func() (Replayed, error) {
		return Replayed{}, fmt.Errorf("peers: tcpreplay: %w: expected \"Actual: ...\" and the statistics of a "+
			"device: %s", ErrOutput, tail(out))
	}
	m := replayActual.FindSubmatch(out)
	if m == nil {
		return bad()
	}
	var r Replayed
	var err error
	if r.Packets, err = strconv.ParseUint(string(m[1]), 10, 64); err != nil {
		return bad()
	}
	if r.Bytes, err = strconv.ParseUint(string(m[2]), 10, 64); err != nil {
		return bad()
	}
	s, err := strconv.ParseFloat(string(m[3]), 64)
	if err != nil || s > 1e9 {
		return bad()
	}
	r.Time = seconds(s)
	found := map[string]bool{}
	for _, m := range replayCount.FindAllSubmatch(out, -1) {
		v, err := strconv.ParseUint(string(m[2]), 10, 63)
		if err != nil {
			return bad()
		}
		found[string(m[1])] = true
		switch string(m[1]) {
		case "Successful packets":
			r.Successful = v
		case "Failed packets":
			r.Failed = v
		case "Truncated packets":
			r.Truncated = v
		default:
			r.Retried += v
		}
	}
	if !found["Successful packets"] || !found["Failed packets"] {
		return bad()
	}
	return r, nil
}
