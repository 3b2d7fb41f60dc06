package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// PacketTest is a run of dpdk-testpmd over virtual devices.
type PacketTest struct {
	Devices  []string      // as in --vdev: "net_ring0", "net_null0", "net_memif0,role=client,socket=..."
	Duration time.Duration // of the forwarding
	CPUs     CPUs          // Client prints and waits, Server forwards
	NoFirst  bool          // it waits for packets, in place of sending a burst first
}

// PacketPort is what testpmd counted at one port between the start and the end of the forwarding.
type PacketPort struct {
	Port                     int
	RX, RXDropped            uint64  // packets
	TX, TXDropped            uint64  // packets
	RXPerSecond, TXPerSecond float64 // packets per second, by the tool's clock; 0 when it took no second look
	RXErrors, TXErrors       uint64
	RXBytes, TXBytes         uint64 // 0 for devices that do not count bytes (net_ring)
	RXMissed, RXNoBuffer     uint64
}

// ErrDevice says that testpmd could not start one of its devices. The error that wraps it has what
// the driver said.
var ErrDevice = errors.New("a device could not be started")

// PacketRun is a dpdk-testpmd that forwards. One goroutine uses it.
type PacketRun struct {
	run      *child
	home     *home
	commands *os.File
	stopped  sync.Once
}

// Packets runs dpdk-testpmd. Its files are in a directory of its own that goes with it.
func Packets(ctx context.Context, o PacketTest) (ports []PacketPort, err error) {
	r, err := StartPackets(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	timer := time.NewTimer(o.Duration)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.run.done:
	}
	return r.Stop()
}

// StartPackets starts dpdk-testpmd and returns when it forwards; o.Duration is only added to the
// time after which it is killed. The caller closes what it returns.
func StartPackets(ctx context.Context, o PacketTest) (r *PacketRun, err error) {
	p, err := Get("testpmd")
	if err != nil {
		return nil, err
	}
	bin, err := p.tool("dpdk-testpmd")
	if err != nil {
		return nil, err
	}
	// Its standard output must come line by line, so that the time of forwarding can begin when
	// forwarding does.
	stdbuf, err := sys.Program("stdbuf", "coreutils")
	if err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	r = new(PacketRun)
	if r.home, err = newHome("testpmd"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
			r = nil
		}
	}()

	const mbufs = 2048
	megabytes := strconv.Itoa(64 + mbufs/256) // an mbuf has 2,176 bytes, and more go with it
	args := []string{stdbuf, "-oL", bin, "--no-huge", "-m", megabytes, "--no-pci", "--no-telemetry",
		"--file-prefix=penstock", "-l", fmt.Sprintf("%d,%d", o.CPUs.Client, o.CPUs.Server),
		"--main-lcore", strconv.Itoa(o.CPUs.Client)}
	for _, d := range o.Devices {
		args = append(args, "--vdev="+d)
	}
	args = append(args, "--", "-i", "--forward-mode=io", "--total-num-mbufs="+strconv.Itoa(mbufs))

	// A pipe of the system's: no goroutine waits for its end when the program is gone.
	stdin, commands, err := os.Pipe()
	if err != nil {
		return r, fmt.Errorf("peers: %w", err)
	}
	defer stdin.Close()
	r.commands = commands
	forwarding, refused := make(chan struct{}), make(chan struct{})
	seen, told := false, false
	r.run, err = command{args: args, home: r.home, dir: r.home.dir, stdin: stdin, limit: runTime + o.Duration,
		onOutput: func(b []byte) {
			if !seen && bytes.Contains(b, []byte("\n  nb forwarding cores=")) {
				seen = true
				close(forwarding)
			}
		}, onError: func(b []byte) {
			if !told && bytes.Contains(b, []byte("Not all ports were started")) { // it would wait for other commands
				told = true
				close(refused)
			}
		}}.start(ctx)
	if err != nil {
		return r, err
	}
	start := "start\n"
	if !o.NoFirst {
		start = "start tx_first\n" // a ring has nothing to forward before a first packet is in it
	}
	r.tell(start + "show port stats all\n") // where the program does not read, its end says why
	select {
	case <-forwarding:
		return r, nil
	case <-refused:
		r.run.stop()
		return r, r.run.failure(ErrDevice)
	case <-r.run.done:
	}
	if _, err = r.run.wait(); err == nil {
		err = r.run.failure(fmt.Errorf("%w: it ended before it forwarded", ErrOutput))
	}
	return r, err
}

// tell gives testpmd commands. An error here is an early end, which wait tells with its reason.
func (r *PacketRun) tell(s string) { io.WriteString(r.commands, s) }

// Stop ends the forwarding and the program, and returns what each port counted between the start
// and the end of the forwarding.
func (r *PacketRun) Stop() ([]PacketPort, error) {
	r.tell("show port stats all\nstop\nquit\n")
	out, err := r.run.wait()
	if err != nil {
		return nil, err
	}
	return parsePackets(out)
}

// Close kills the program if it runs, and removes its files.
func (r *PacketRun) Close() (err error) {
	r.stopped.Do(func() {
		if r.commands != nil {
			r.commands.Close()
		}
		if r.run != nil {
			r.run.stop()
		}
		err = r.home.remove()
	})
	return err
}

var (
	portHeader    = regexp.MustCompile(`^#+ NIC statistics for port (\d+) +#+$`)
	forwardHeader = regexp.MustCompile(`^-+ Forward statistics for port (\d+) +-+$`)
	counter       = regexp.MustCompile(`([A-Za-z-]+): +(\d+)`)
)

// parsePackets reads what testpmd printed: the last statistics of each NIC, and the statistics of
// the forwarding, which are counted from its start to its end.
func parsePackets(out []byte) ([]PacketPort, error) {
	var ports []PacketPort
	port := func(s string) (*PacketPort, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n > 1023 {
			return nil, fmt.Errorf("peers: testpmd: %w: port %q", ErrOutput, s)
		}
		for i := range ports {
			if ports[i].Port == n {
				return &ports[i], nil
			}
		}
		ports = append(ports, PacketPort{Port: n})
		return &ports[len(ports)-1], nil
	}
	var at *PacketPort
	forward, forwarded := false, 0
	for l := range strings.Lines(string(out)) {
		l = strings.TrimSpace(l)
		var err error
		if m := portHeader.FindStringSubmatch(l); m != nil {
			if at, err = port(m[1]); err != nil {
				return nil, err
			}
			forward = false
			continue
		}
		if m := forwardHeader.FindStringSubmatch(l); m != nil {
			if at, err = port(m[1]); err != nil {
				return nil, err
			}
			forward = true
			forwarded++
			continue
		}
		if at == nil {
			continue
		}
		if l == "" || l[0] == '#' || l[0] == '-' || l[0] == '+' {
			if !strings.HasPrefix(l, "Throughput") && l != "" {
				at = nil
			}
			continue
		}
		for _, m := range counter.FindAllStringSubmatch(l, -1) {
			v, err := strconv.ParseUint(m[2], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("peers: testpmd: %w: %q: %w", ErrOutput, l, err)
			}
			at.set(m[1], v, forward)
		}
	}
	if forwarded == 0 || forwarded != len(ports) {
		return nil, fmt.Errorf("peers: testpmd: %w: expected the forward statistics of every port: %s", ErrOutput,
			tail(out))
	}
	return ports, nil
}

// set takes one counter. Those of the NIC count from its start, so the packets are taken from those
// of the forwarding.
func (p *PacketPort) set(name string, v uint64, forward bool) {
	if forward {
		switch name {
		case "RX-packets":
			p.RX = v
		case "RX-dropped":
			p.RXDropped = v
		case "TX-packets":
			p.TX = v
		case "TX-dropped":
			p.TXDropped = v
		}
		return
	}
	switch name {
	case "RX-missed":
		p.RXMissed = v
	case "RX-errors":
		p.RXErrors = v
	case "RX-nombuf":
		p.RXNoBuffer = v
	case "RX-bytes":
		p.RXBytes = v
	case "TX-errors":
		p.TXErrors = v
	case "TX-bytes":
		p.TXBytes = v
	case "Rx-pps":
		p.RXPerSecond = float64(v)
	case "Tx-pps":
		p.TXPerSecond = float64(v)
	}
}
