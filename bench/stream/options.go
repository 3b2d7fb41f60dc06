package stream

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/engine"
)

// The tests that Options.Tests names.
const (
	Throughput = "throughput" // the highest rate without loss (RFC 2544, section 26.1)
	Latency    = "latency"    // at a part of that rate, or at Options.Rate (section 26.2)
	LossTest   = "loss"       // at rates from what the sender reaches down (section 26.3)
	Burst      = "burst"      // the longest burst without loss (section 26.4)
	Flood      = "flood"      // what comes when the sender does what it can
)

// Tests are the names of all tests.
func Tests() []string { return []string{Throughput, Latency, LossTest, Burst, Flood} }

// Options say what Run measures: every combination of the lists. It is a plain value that a file or
// a command line fills; zero values get defaults.
type Options struct {
	bench.Conditions
	// Engines are of Engines(). nil: all that can run here, those of network interfaces where there
	// is a Cable.
	Engines []string
	// Protocols of engines without frames, of udp and tcp; nil: udp.
	Protocols []string
	// From and To are the addresses of the sending and the receiving end, as the engine names them:
	// an interface for afpacket and xdp, host:port for socket, a name for sim. "" makes both:
	// loopback, a network in memory, or a Cable. Frames need both or none, and with Server From
	// alone.
	From, To string
	// Cable joins two hosts whose interfaces are called eth0 and carry packets of mtu bytes: near
	// and far run a function in the one that sends and the one that receives. Run calls close once.
	// nil: there is no cable, and frames need From and To.
	Cable func(mtu int) (near, far func(func() error) error, close func() error, err error)
	// Server is the control address of Serve, host:port, which is the far end then. "" is this
	// process.
	Server string
	// Sizes of packets in bytes, as Ethernet frames with their check sequence; nil: 64, 512, 1518.
	Sizes  []int
	Bursts []int // packets that are sent back to back; nil: 32
	Queues []int // receive queues of the far end; nil: 1
	// Flows is the number of streams for each queue; 0: 1, or 4 with several queues of sockets,
	// where the kernel chooses the queue by a hash.
	Flows     int
	Workloads []Workload // nil: NoWork
	Tests     []string   // of Tests(); nil: throughput and latency
	// RoundTrip makes the far end a reflector.
	RoundTrip bool
	// Rate is that of the latency test in packets per second; 0: Load, a part of the throughput of
	// the same row, which is measured for it.
	Rate float64
	Load float64 // 0: 0.5
	// Trial is the duration of one trial; 0: 50 ms. RFC 2544 asks for 60 s.
	Trial time.Duration
	// Settle is how long to wait for packets that are late at the end of a trial, after the last
	// that came; 0: 50 ms, and 2 s with a Server.
	Settle  time.Duration
	Samples int // of each row; 0: 3. penstock bench compare wants at least 6 to give a verdict
	// The next four are those of SearchOptions; Resolution 0 is 0.02.
	MaxLoss    float64
	Resolution float64
	Verify     int
	Retry      int
	// Step is that of the loss test; 0: 0.1.
	Step float64
	// Longest is the longest burst that the burst test tries, in packets; 0: 131072.
	Longest uint64
	// Spin is how long a receiver looks at its queue before it sleeps; 0: it sleeps at once.
	Spin time.Duration
	// Against are other tools that flood is paired with: iperf3, in rows of sockets in this
	// process. It adds Flood to Tests.
	Against []string
	Pairs   int // of such a row; 0: paired.MinPairs

}

func orIf[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

// Sizes is the whole grid of sizes: those of RFC 2544, section 9.1, and what is usual with jumbo
// frames.
func Sizes() []int { return []int{64, 128, 256, 512, 1024, 1280, 1400, 1518, 4096, 8900, 9000} }

func (o *Options) complete() error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: stream: %s", engine.ErrInvalid, fmt.Sprintf(format, a...))
	}
	if o.Protocols == nil {
		o.Protocols = []string{"udp"}
	}
	if o.Sizes == nil {
		o.Sizes = []int{64, 512, 1518}
	}
	if o.Bursts == nil {
		o.Bursts = []int{32}
	}
	if o.Queues == nil {
		o.Queues = []int{1}
	}
	if o.Workloads == nil {
		o.Workloads = []Workload{NoWork}
	}
	if o.Tests == nil {
		o.Tests = []string{Throughput, Latency}
	}
	o.Tests = slices.Clone(o.Tests)
	if len(o.Against) > 0 && !slices.Contains(o.Tests, Flood) {
		o.Tests = append(o.Tests, Flood)
	}
	orIf(&o.Load, 0.5)
	orIf(&o.Trial, 50*time.Millisecond)
	orIf(&o.Samples, 3)
	orIf(&o.Pairs, paired.MinPairs)
	orIf(&o.Resolution, 0.02)
	orIf(&o.Step, 0.1)
	orIf(&o.Longest, 1<<17)
	if o.Settle == 0 {
		if o.Settle = 50 * time.Millisecond; o.Server != "" {
			o.Settle = 2 * time.Second
		}
	}
	for _, x := range []struct {
		what         string
		given, known []string
	}{{"engine", o.Engines, Engines()}, {"protocol", o.Protocols, []string{"udp", "tcp"}}, {"test", o.Tests, Tests()},
		{"against", o.Against, []string{"iperf3"}}} {
		for i, g := range x.given {
			if !slices.Contains(x.known, g) {
				return bad("%s %q: expected one of %s", x.what, g, strings.Join(x.known, ", "))
			}
			if slices.Contains(x.given[:i], g) {
				return bad("%s %q twice", x.what, g)
			}
		}
	}
	if err := errors.Join(distinct("size", o.Sizes), distinct("burst", o.Bursts), distinct("queues", o.Queues),
		distinct("workload", o.Workloads)); err != nil {
		return err
	}
	switch {
	case o.Trial < time.Millisecond || o.Trial > time.Hour:
		return bad("trials of %v: expected 1ms to 1h", o.Trial)
	case o.Settle < time.Millisecond || o.Settle > time.Minute:
		return bad("settle %v: expected 1ms to 1m", o.Settle)
	case o.Samples < 1 || o.Samples > 1000 || o.Pairs < 1 || o.Pairs > 1000:
		return bad("%d samples, %d pairs: expected 1 to 1000", o.Samples, o.Pairs)
	case !(o.Rate >= 0 && o.Rate <= maxRate):
		return bad("rate %v: expected up to %g packets per second", o.Rate, maxRate)
	case o.Rate > 0 && o.Rate*o.Trial.Seconds() > MaxPackets:
		return bad("%v of %g packets per second: expected at most %d packets in a trial", o.Trial, o.Rate, MaxPackets)
	case !(o.Load > 0 && o.Load <= 1):
		return bad("load %v: expected a part of the throughput, up to 1", o.Load)
	case !(o.Step > 0 && o.Step <= 0.5):
		return bad("step %v: expected up to 0.5", o.Step)
	case o.Longest > MaxPackets:
		return bad("bursts of up to %d packets: expected at most %d", o.Longest, MaxPackets)
	case o.Flows < 0 || o.Flows > MaxStreams:
		return bad("%d flows: expected 1 to %d", o.Flows, MaxStreams)
	case o.Server != "" && len(o.Engines) != 1:
		return bad("with a server name the one engine that it serves")
	case o.Server != "" && o.To != "":
		return bad("the far end is the server's, which knows its own address: To is for both ends in this process")
	case (o.From != "" || o.To != "") && len(o.Engines) != 1:
		return bad("addresses are those of one engine: name it")
	}
	search := SearchOptions{Low: 1, High: 1, Resolution: o.Resolution, MaxLoss: o.MaxLoss, Verify: o.Verify,
		Retry: o.Retry}
	return search.complete()
}

func distinct[T comparable](what string, v []T) error {
	for i, x := range v {
		if slices.Contains(v[:i], x) {
			return fmt.Errorf("%w: stream: %s %v twice", engine.ErrInvalid, what, x)
		}
	}
	return nil
}

// cells are the combinations that the options ask for, and those that a workload cannot have.
func (o *Options) cells(engines []string) (out []cell, missing []string, err error) {
	for _, name := range engines {
		protocols := o.Protocols
		if frames := (&cell{Engine: name}).frames(); frames {
			protocols = []string{"udp"}
		}
		for _, protocol := range protocols {
			for _, w := range o.Workloads {
				for _, size := range o.Sizes {
					for _, b := range o.Bursts {
						for _, q := range o.Queues {
							c := cell{Engine: name, Protocol: protocol, Size: size, Burst: b, Queues: q, Flows: o.Flows,
								Workload: w, Reflect: o.RoundTrip, Spin: o.Spin}
							if c.Flows == 0 {
								if c.Flows = 1; !c.frames() && q > 1 {
									c.Flows = 4
								}
							}
							if size < w.MinSize() && checkSize(size) == nil {
								missing = append(missing,
									fmt.Sprintf("%s: the workload needs packets of %d bytes", c.title(), w.MinSize()))
								continue
							}
							if err := c.check(); err != nil {
								return nil, nil, err
							}
							out = append(out, c)
						}
					}
				}
			}
		}
	}
	return out, missing, nil
}

// name is the engine's, with the protocol where there are several.
func (c *cell) name() string {
	if !c.frames() {
		return c.Protocol + " " + c.Engine
	}
	return c.Engine
}

// title names a cell, in rows and in messages.
func (c *cell) title() string {
	s := fmt.Sprintf("%s %d B, burst %d, queues %d", c.name(), c.Size, c.Burst, c.Queues)
	if c.Workload != NoWork {
		s += ", " + c.Workload.String()
	}
	if c.Reflect {
		s += ", reflected"
	}
	return s
}
