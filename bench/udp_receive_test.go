package bench

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

const (
	udpMagic  = 0x70e257070bad5eed
	udpBuffer = 4 << 20
	udpFilled = 256 << 20 // for what is sent before it is received
	udpPort   = 5701
)

// udpRig is a sender and a receiver on a veth pair.
type udpRig struct {
	bin  string // testdata/udp.c
	a, b *netns.Host
	size int
	ms   int // of one run; 0 receives what is in the buffer already, so that the sender is no part of it
	cpu  bool
}

func (r *udpRig) buffer() int {
	if r.ms == 0 {
		return udpFilled
	}
	return udpBuffer
}

// fill sends what is to be received by a run with ms 0.
func (r *udpRig) fill(ctx context.Context) error {
	segments := min(64, 65507/r.size)
	calls := (24 << 20) / (r.size * segments * max(64/segments, 1))
	_, err := r.a.Output(ctx, r.bin, "send", r.b.Link().IPv4.String(), strconv.Itoa(udpPort), strconv.Itoa(r.size),
		strconv.Itoa(-calls), strconv.Itoa(segments), "0")
	return err
}

// udpResult is what a receiver counted.
type udpResult struct{ packets, bytes, bad, wall, cpu uint64 }

// sample is the goodput in GB/s, of wall clock or of the receiving thread's processor time.
func (r *udpRig) sample(u udpResult) (paired.Sample, error) {
	if u.bad > 0 || u.packets == 0 {
		return paired.Sample{}, fmt.Errorf("%d of %d packets are wrong", u.bad, u.packets)
	}
	ns := u.wall
	if r.cpu {
		ns = u.cpu
	}
	return paired.Sample{Value: float64(u.bytes) / float64(ns), Verified: u.bytes}, nil
}

// send starts the sender.
func (r *udpRig) send(port int) (stop func(), err error) {
	segments := min(64, 65507/r.size)
	cmd := r.a.Command(r.bin, "send", r.b.Link().IPv4.String(), strconv.Itoa(port), strconv.Itoa(r.size), "20000",
		strconv.Itoa(segments), "0")
	if err := r.a.Start(cmd); err != nil {
		return nil, err
	}
	return func() { cmd.Process.Kill(); cmd.Wait() }, nil
}

// theirs is a run of the program in C.
func (r *udpRig) theirs(ctx context.Context) (paired.Sample, error) {
	cmd := r.b.Command(r.bin, "recv", r.b.Link().IPv4.String(), strconv.Itoa(udpPort), strconv.Itoa(r.size),
		strconv.Itoa(r.ms), strconv.Itoa(r.buffer()), "1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return paired.Sample{}, err
	}
	input, err := cmd.StdinPipe()
	if err == nil {
		err = r.b.Start(cmd)
	}
	if err != nil {
		return paired.Sample{}, err
	}
	defer cmd.Wait()
	in := bufio.NewReader(out)
	if _, err := in.ReadString('\n'); err != nil {
		return paired.Sample{}, err
	}
	stop := func() {}
	if r.ms == 0 {
		if err = r.fill(ctx); err == nil {
			_, err = input.Write([]byte("\n"))
		}
	} else {
		stop, err = r.send(udpPort)
	}
	if err != nil {
		cmd.Process.Kill()
		return paired.Sample{}, err
	}
	defer stop()
	var u udpResult
	if _, err := fmt.Fscan(in, &u.packets, &u.bytes, &u.bad, &u.wall, &u.cpu); err != nil {
		return paired.Sample{}, err
	}
	io.Copy(io.Discard, in)
	return r.sample(u)
}

// ours is a run of engine/socket.
func (r *udpRig) ours(ctx context.Context) (paired.Sample, error) {
	var port engine.Port
	err := r.b.Do(func() (err error) {
		port, err = socket.New().OpenPort(ctx, engine.PortSpec{Address: fmt.Sprintf("udp://%s:%d", r.b.Link().IPv4,
			udpPort),
			Options: socket.UDPOptions{ReceiveBuffer: r.buffer()}})
		return err
	})
	if err != nil {
		return paired.Sample{}, err
	}
	defer port.Close()
	pool, err := mem.NewPool(mem.PoolOptions{Name: "udp", SlotSize: r.size, Slots: 1024})
	if err != nil {
		return paired.Sample{}, err
	}
	defer pool.Close()
	q, err := port.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}})
	if err != nil {
		return paired.Sample{}, err
	}
	stop := func() {}
	if r.ms == 0 {
		err = r.fill(ctx)
	} else {
		stop, err = r.send(udpPort)
	}
	if err != nil {
		return paired.Sample{}, err
	}
	defer stop()
	type result struct {
		u   udpResult
		err error
	}
	c := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its pinning
		sys.PinThread(1)
		u, err := r.loop(q)
		q.Close()
		c <- result{u, err}
	}()
	got := <-c
	if got.err != nil {
		return paired.Sample{}, got.err
	}
	return r.sample(got.u)
}

// loop is the loop of the program in C.
func (r *udpRig) loop(q engine.RxQueue) (u udpResult, err error) {
	b := burst.New(64)
	began := time.Now()
	start := time.Duration(-1) // since began, of what is measured
	var cpu time.Duration
	if r.ms == 0 {
		start = 0
		cpu, _ = sys.ThreadCPU()
	}
	for polls := 1; ; polls++ {
		n, err := q.TryRecv(b)
		if err != nil {
			return u, err
		}
		for i := range n {
			p := b.Bytes(i, 0)
			if len(p) != r.size || binary.LittleEndian.Uint64(p) != udpMagic {
				u.bad++
			}
			u.bytes += uint64(len(p))
		}
		u.packets += uint64(n)
		b.Release()
		if n == 0 || r.ms > 0 && polls&15 == 0 {
			now := time.Since(began) // reads one clock, as the program in C does; time.Now reads two
			if start < 0 {
				if u.packets > 0 {
					u, start = udpResult{}, now
					cpu, _ = sys.ThreadCPU()
				} else if now > 10*time.Second {
					return u, fmt.Errorf("nobody sends")
				}
			} else if now-start >= time.Duration(r.ms)*time.Millisecond {
				end, err := sys.ThreadCPU()
				u.wall, u.cpu = uint64(now-start), uint64(end-cpu)
				return u, err
			}
		}
	}
}

// iperf3 is a run of iperf3 -u.
func (r *udpRig) iperf3(ctx context.Context) (paired.Sample, error) {
	server := r.b.Command("iperf3", "-s", "-1", "-p", "5702", "-A", "1")
	if err := r.b.Start(server); err != nil {
		return paired.Sample{}, err
	}
	defer func() { server.Process.Kill(); server.Wait() }()
	ready := time.Now()
	for { // iperf3 listens a moment later
		c, err := r.a.Dial(ctx, "udp", r.b.Link().IPv4.String()+":5702")
		if err == nil {
			c.Close()
		}
		out, err := r.a.Output(ctx, "iperf3", "-u", "-b", "0", "-l", strconv.Itoa(r.size), "-t", "1", "-c",
			r.b.Link().IPv4.String(), "-p", "5702", "-A", "0", "-w", "4M", "-J")
		var res struct {
			End struct {
				Sum struct {
					Seconds float64 `json:"seconds"`
					Packets float64 `json:"packets"`
					Lost    float64 `json:"lost_packets"`
				} `json:"sum"`
				Received struct {
					Bits float64 `json:"bits_per_second"`
				} `json:"sum_received"`
			} `json:"end"`
		}
		if err != nil || json.Unmarshal(out, &res) != nil || !(res.End.Sum.Packets > 0) {
			if time.Since(ready) < 5*time.Second {
				continue
			}
			return paired.Sample{}, fmt.Errorf("iperf3: %w: %s", err, out)
		}
		rate := res.End.Received.Bits / 8e9
		if rate == 0 {
			rate = (res.End.Sum.Packets - res.End.Sum.Lost) * float64(r.size) / res.End.Sum.Seconds / 1e9
		}
		return paired.Sample{Value: rate}, nil
	}
}

// BenchmarkUDPReceive compares engine/socket with the same loop in C, and with iperf3 -u, in
// interleaved pairs over veth: a sender in another network namespace sends more than either takes.
// The figures are per second of wall clock, per second of the receiving thread's processor time,
// and the latter with everything sent before (filled), which other programs on the machine disturb
// least. Each row is one run of all its pairs:
//
//	go test ./bench -run '^$' -bench UDPReceive -benchtime 1x -timeout 30m
func BenchmarkUDPReceive(b *testing.B) {
	bin, err := testenv.Compile("udp", []string{"testdata/udp.c"}, "-O2")
	if err != nil {
		testenv.Missing(b, "a C compiler", err)
	}
	n := netns.New(b, netns.Topology{Link: netns.LinkSpec{MTU: 9000}, Neighbours: true})
	for _, size := range []int{1400, 8972} {
		for _, of := range []struct {
			name  string
			ms    int
			cpu   bool
			pairs int
		}{{"wall", 300, false, 60}, {"cpu", 300, true, 0}, {"filled", 0, true, 400}, {"iperf3", 300, false, 0}} {
			b.Run(fmt.Sprintf("%dB/%s", size, of.name), func(b *testing.B) {
				if of.name == "iperf3" {
					if _, err := exec.LookPath("iperf3"); err != nil {
						testenv.Missing(b, "iperf3", err)
					}
				}
				r := &udpRig{bin: bin, a: n.Hosts[0], b: n.Hosts[1], size: size, ms: of.ms, cpu: of.cpu}
				for range b.N {
					plan := paired.Plan{Name: fmt.Sprintf("UDP receive, %d B, %s", size, of.name), Pairs: of.pairs,
						Unit: paired.GBs, Target: 0.97, Margin: 0.03,
						Gate: &paired.Gate{}, Seed: 1,
						Ours:   paired.Contender{Name: "engine/socket", Run: r.ours},
						Theirs: []paired.Contender{{Name: "recvmmsg in C", Run: r.theirs}}}
					if of.name == "iperf3" {
						plan.Theirs[0] = paired.Contender{Name: "iperf3 -u",
							Unchecked: "iperf3 looks at its own headers only", Run: r.iperf3}
					}
					row, err := paired.Run(b.Context(), plan)
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(row.Ours.Stats.Median, "GB/s")
					for i, t := range row.Theirs {
						if t.Ratio == nil {
							b.Logf("%s: %s", t.Name, t.Error)
							continue
						}
						b.ReportMetric(t.Ratio.Median, fmt.Sprintf("ratio%d", i))
						b.Logf("%s: ours %.2f GB/s, %s %.2f GB/s, ratio %.3f [%.3f, %.3f], %s", row.Name,
							row.Ours.Stats.Median, t.Name, t.Stats.Median,
							t.Ratio.Median, t.Ratio.Interval.Low, t.Ratio.Interval.High, t.Ratio.Verdict)
					}
				}
			})
		}
	}
}
