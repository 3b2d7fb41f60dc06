package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Iperf3MaxSize is the largest block that iperf3 takes, in bytes.
const Iperf3MaxSize = 1 << 20

// Iperf3Test is a run of iperf3 over the loopback device.
type Iperf3Test struct {
	Size  uint64 // bytes of a write, at most Iperf3MaxSize
	Bytes uint64 // in all
	CPUs  CPUs
	NoPin bool // both programs run where the kernel puts them, whatever CPUs says
	UDP   bool // datagrams of Size bytes, at most 65,507, as fast as it can
}

// Iperf3Result is what iperf3 says at the end.
type Iperf3Result struct {
	GBps        float64 // counted by the receiver; 1e9 bytes per second
	Bytes       uint64  // that the receiver counted
	Retransmits int64   // of the sender
	Congestion  string  // congestion control of the sender, "" when it does not tell
	// Packets that the receiver counted, how many it missed, and for how long it counted; of UDP.
	Packets, Lost uint64
	Time          time.Duration
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
		server = []string{bin, "-s", "-1", "-p", at}
		client = []string{bin, "-c", "127.0.0.1", "-p", at, "-l", strconv.FormatUint(o.Size, 10), "-J"}
		if !o.NoPin {
			server, client = append(server, "-A", strconv.Itoa(o.CPUs.Server)),
				append(client, "-A", strconv.Itoa(o.CPUs.Client))
		}
		if o.UDP {
			client = append(client, "-u", "-b", "0")
		}
		return server, append(client, "-n", strconv.FormatUint(o.Bytes, 10))
	}}.run(ctx)
	if err != nil {
		return Iperf3Result{}, err
	}
	if o.UDP {
		return parseIperf3UDP(out)
	}
	return parseIperf3(out)
}

// parseIperf3UDP reads the JSON of iperf3's client of datagrams. What the receiver counted is in
// sum_received.
func parseIperf3UDP(out []byte) (Iperf3Result, error) {
	var r struct {
		End struct {
			Received struct {
				Bits    float64 `json:"bits_per_second"`
				Bytes   uint64  `json:"bytes"`
				Packets uint64  `json:"packets"`
				Lost    int64   `json:"lost_packets"`
				Seconds float64 `json:"seconds"`
			} `json:"sum_received"`
		} `json:"end"`
		Error string `json:"error"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return Iperf3Result{}, fmt.Errorf("peers: iperf3: %w: %w: %s", ErrOutput, err, tail(out))
	}
	if r.Error != "" {
		return Iperf3Result{}, fmt.Errorf("peers: iperf3: %s", r.Error)
	}
	// packets is what the highest number says was sent; what came is less by what was lost.
	x := r.End.Received
	// 0 or less where it is no time at all, or none that a Duration can hold
	took := time.Duration(x.Seconds * float64(time.Second))
	if !(x.Bits/8e9 > 0 && x.Seconds > 0 && x.Seconds < 1e9) || took <= 0 || x.Bytes == 0 || x.Lost < 0 ||
		uint64(x.Lost) >= x.Packets {
		return Iperf3Result{}, fmt.Errorf("peers: iperf3: %w: end.sum_received has no bits_per_second, bytes, "+
			"packets or seconds", ErrOutput)
	}
	return Iperf3Result{GBps: x.Bits / 8e9, Bytes: x.Bytes, Packets: x.Packets - uint64(x.Lost), Lost: uint64(x.Lost),
		Time: took}, nil
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
	if !(r.End.Received.Bits/8e9 > 0) || r.End.Received.Bytes == 0 {
		return Iperf3Result{}, fmt.Errorf("peers: iperf3: %w: end.sum_received has no bits_per_second or no bytes",
			ErrOutput)
	}
	return Iperf3Result{GBps: r.End.Received.Bits / 8e9, Bytes: r.End.Received.Bytes,
		Retransmits: r.End.Sent.Retransmits, Congestion: r.End.Congestion}, nil
}
