package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/afpacket"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// frameRig sends frames as fast as it can from one host, on processor 0, and counts what a receiver
// at the other end of the cable, on processor 1, takes.
type frameRig struct {
	a, b *netns.Host
	size int // bytes of a frame
	time time.Duration
	lend bool // ours borrows the ring's frames
}

func (r *frameRig) open(ctx context.Context, h *netns.Host) (p engine.Port, err error) {
	err = h.Do(func() (err error) {
		p, err = afpacket.New().OpenPort(ctx, engine.PortSpec{Address: h.Link().Name})
		return err
	})
	return p, err
}

// blast sends for a while and returns how many frames left, and how long that took.
func (r *frameRig) blast(ctx context.Context) (sent uint64, took time.Duration, err error) {
	p, err := r.open(ctx, r.a)
	if err != nil {
		return 0, 0, err
	}
	defer p.Close()
	pool, err := mem.NewPool(mem.PoolOptions{Name: "blast", SlotSize: 2048, Slots: 512})
	if err != nil {
		return 0, 0, err
	}
	defer pool.Close()
	q, err := p.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}, Depth: 128})
	if err != nil {
		return 0, 0, err
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its pinning
		sys.PinThread(0)
		b := burst.New(64)
		start := time.Now()
		for time.Since(start) < r.time && err == nil {
			n, _ := q.Alloc(b, 64, r.size)
			for i := range n {
				f := b.Bytes(i, 0)
				copy(f, r.b.Link().MAC)
				copy(f[6:], r.a.Link().MAC)
				f[12], f[13] = 0x88, 0xb5 // local experimental: no stack looks at it
			}
			err = q.Send(b)
		}
		err = errors.Join(err, q.Drain(ctx))
		took = time.Since(start)
		done <- err
	}()
	if err = <-done; err != nil {
		return 0, 0, err
	}
	var s engine.TxStats
	q.Stats(&s)
	q.Close()
	return s.Packets, took, nil
}

func (r *frameRig) sample(got, sent uint64, took time.Duration) (paired.Sample, error) {
	if got == 0 || got > sent {
		return paired.Sample{}, fmt.Errorf("%d frames of %d came", got, sent)
	}
	return paired.Sample{Value: float64(got) / took.Seconds() / 1e6, Verified: got * uint64(r.size)}, nil
}

func (r *frameRig) ours(ctx context.Context) (paired.Sample, error) {
	p, err := r.open(ctx, r.b)
	if err != nil {
		return paired.Sample{}, err
	}
	defer p.Close()
	spec := engine.RxSpec{}
	if !r.lend {
		pool, err := mem.NewPool(mem.PoolOptions{Name: "rx", SlotSize: 2048, Slots: 1024})
		if err != nil {
			return paired.Sample{}, err
		}
		defer pool.Close()
		spec.Pools = []*mem.Pool{pool}
	}
	q, err := p.AddRxQueue(spec)
	if err != nil {
		return paired.Sample{}, err
	}
	var stop atomic.Bool
	got := make(chan uint64)
	go func() {
		runtime.LockOSThread()
		sys.PinThread(1)
		b := burst.New(64)
		n := uint64(0)
		for last := false; ; {
			k, err := q.TryRecv(b)
			for i := range k {
				if f := b.Bytes(i, 0); len(f) == r.size && f[12] == 0x88 && f[13] == 0xb5 {
					n++
				}
			}
			b.Release()
			if err != nil || k == 0 && last {
				q.Close()
				got <- n
				return
			}
			last = k == 0 && stop.Load()
		}
	}()
	sent, took, err := r.blast(ctx)
	stop.Store(true)
	n := <-got
	if err != nil {
		return paired.Sample{}, err
	}
	return r.sample(n, sent, took)
}

var testpmdPackets = regexp.MustCompile(`RX-packets:\s*(\d+)`)

// testpmd is a run of DPDK's net_af_packet, which counts and does not look.
func (r *frameRig) testpmd(ctx context.Context) (paired.Sample, error) {
	stdbuf, err := testenv.Tool("stdbuf", "coreutils")
	if err != nil {
		return paired.Sample{}, err
	}
	cmd := r.b.Command(stdbuf, "-oL", "dpdk-testpmd", "--no-huge", "-m", "64", "--no-pci", "--no-telemetry",
		"--file-prefix=penstock-frames"+strconv.Itoa(os.Getpid()),
		"-l", "0,1", "--main-lcore", "0", "--vdev=net_af_packet0,iface="+r.b.Link().Name+
			",blocksz=4096,framesz=2048,framecnt=4096", "--", "--forward-mode=rxonly",
		"--total-num-mbufs=8192")
	in, err := cmd.StdinPipe()
	if err != nil {
		return paired.Sample{}, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return paired.Sample{}, err
	}
	if err := r.b.Start(cmd); err != nil {
		return paired.Sample{}, err
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	lines, text := bufio.NewReader(out), ""
	for !strings.Contains(text, "nb forwarding cores=") {
		line, err := lines.ReadString('\n')
		if err != nil {
			return paired.Sample{}, fmt.Errorf("testpmd: %w: %s", err, text)
		}
		text += line
	}
	sent, took, err := r.blast(ctx)
	if err != nil {
		return paired.Sample{}, err
	}
	io.WriteString(in, "\n")
	in.Close()
	rest, err := io.ReadAll(lines)
	if err != nil {
		return paired.Sample{}, err
	}
	m := testpmdPackets.FindSubmatch(rest)
	if m == nil {
		return paired.Sample{}, fmt.Errorf("testpmd says no number of packets: %s", rest)
	}
	got, _ := strconv.ParseUint(string(m[1]), 10, 64)
	s, err := r.sample(min(got, sent), sent, took) // the kernel's own few frames count as well
	s.Verified = 0
	return s, err
}

// BenchmarkAFPacketReceive compares engine/afpacket with DPDK's net_af_packet in testpmd, in
// interleaved pairs over veth. Each row is one run of all its pairs:
//
//	go test ./bench -run '^$' -bench AFPacketReceive -benchtime 1x -timeout 30m
func BenchmarkAFPacketReceive(b *testing.B) {
	peers.Need(b, "testpmd")
	if _, err := exec.LookPath("dpdk-testpmd"); err != nil {
		testenv.Missing(b, "dpdk-testpmd on PATH", err)
	}
	n := netns.New(b, netns.Topology{Neighbours: true})
	for _, size := range []int{64, 1400} {
		for _, lend := range []bool{false, true} {
			b.Run(fmt.Sprintf("%dB/%s", size, map[bool]string{false: "pool", true: "borrowed"}[lend]),
				func(b *testing.B) {
					r := &frameRig{a: n.Hosts[0], b: n.Hosts[1], size: size, time: 300 * time.Millisecond, lend: lend}
					for range b.N {
						row, err := paired.Run(b.Context(),
							paired.Plan{Name: b.Name(), Unit: paired.MopsPerSec, Pairs: 120,
								Target: 0.97, Margin: 0.03, Gate: &paired.Gate{}, Seed: 1,
								Ours: paired.Contender{Name: "engine/afpacket", Run: r.ours},
								Theirs: []paired.Contender{{Name: "testpmd net_af_packet",
									Unchecked: "testpmd counts frames and does not look", Run: r.testpmd}}})
						if err != nil {
							b.Fatal(err)
						}
						b.ReportMetric(row.Ours.Stats.Median, "Mpps")
						t := row.Theirs[0]
						if t.Ratio == nil {
							b.Logf("%s: %s", t.Name, t.Error)
							continue
						}
						b.ReportMetric(t.Ratio.Median, "ratio")
						b.Logf("%s: ours %.3f Mpps, %s %.3f Mpps, ratio %.3f [%.3f, %.3f], %s", row.Name,
							row.Ours.Stats.Median, t.Name, t.Stats.Median,
							t.Ratio.Median, t.Ratio.Interval.Low, t.Ratio.Interval.High, t.Ratio.Verdict)
					}
				})
		}
	}
}
