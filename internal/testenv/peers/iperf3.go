package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
)

// Iperf3MaxSize is the largest block that iperf3 takes, in bytes.
const Iperf3MaxSize = 1 << 20

// Iperf3Test is a run of iperf3 over the loopback device.
type Iperf3Test struct {
	Size  uint64 // bytes of a write, at most Iperf3MaxSize
	Bytes uint64 // in all
	CPUs  CPUs
}

// Iperf3Result is what iperf3 says at the end.
type Iperf3Result struct {
	GBps        float64 // counted by the receiver; 1e9 bytes per second
	Bytes       uint64  // that the receiver counted
	Retransmits int64   // of the sender
	Congestion  string  // congestion control of the sender, "" when it does not tell
}

// Iperf3 sends the given number of bytes.
func Iperf3(ctx context.Context, o Iperf3Test) (Iperf3Result, error) {
	p, err := Get("iperf3")
	if err != nil {
		return Iperf3Result{}, err
	}
	bin, err := p.tool("iperf3")
	if err != nil {
		return Iperf3Result{}, err
	}
	out, err := pair{command: func(port int) (server, client []string) {
		at := strconv.Itoa(port)
		return []string{bin, "-s", "-1", "-p", at, "-A", strconv.Itoa(o.CPUs.Server)},
			[]string{bin, "-c", "127.0.0.1", "-p", at, "-A", strconv.Itoa(o.CPUs.Client), "-l", strconv.FormatUint(o.Size, 10),
				"-n", strconv.FormatUint(o.Bytes, 10), "-J"}
	}}.run(ctx)
	if err != nil {
		return Iperf3Result{}, err
	}
	return parseIperf3(out)
}

// parseIperf3 reads the JSON of iperf3's client.
func parseIperf3(out []byte) (Iperf3Result, error) {
	var r struct {
		End struct {
			Sent struct {
				Retransmits int64 `json:"retransmits"`
			} `json:"sum_sent"`
			Received struct {
				Bits  float64 `json:"bits_per_second"`
				Bytes uint64  `json:"bytes"`
			} `json:"sum_received"`
			Congestion string `json:"sender_tcp_congestion"`
		} `json:"end"`
		Error string `json:"error"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return Iperf3Result{}, fmt.Errorf("peers: iperf3: %w: %w: %s", ErrOutput, err, tail(out))
	}
	if r.Error != "" {
		return Iperf3Result{}, fmt.Errorf("peers: iperf3: %s", r.Error)
	}
	if !(r.End.Received.Bits > 0) || r.End.Received.Bytes == 0 {
		return Iperf3Result{}, fmt.Errorf("peers: iperf3: %w: end.sum_received has no bits_per_second or no bytes", ErrOutput)
	}
	return Iperf3Result{r.End.Received.Bits / 8e9, r.End.Received.Bytes, r.End.Sent.Retransmits, r.End.Congestion}, nil
}
