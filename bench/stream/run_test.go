package stream

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
)

// checkRows looks at what every result promises: rows whose packets are accounted for, a file that
// can be read, a table of 80 columns.
func checkRows(t *testing.T, r *Result, rows int) {
	t.Helper()
	if len(r.Rows) != rows {
		t.Errorf("%d rows, want %d; missing: %v", len(r.Rows), rows, r.Missing)
	}
	for _, x := range r.Rows {
		y := x.Traffic
		if y == nil || y.Sent == 0 || y.Received == 0 || y.Sent != y.Received+y.Lost || x.Ours.Verified == 0 ||
			y.ReceiveNS == 0 {
			t.Errorf("%s: %+v", x.Name, y)
		}
	}
	var file, table bytes.Buffer
	if err := errors.Join(r.Write(&file), r.Table(&table)); err != nil {
		t.Fatal(err)
	}
	back, err := paired.Read(&file)
	if err != nil || len(back.Rows) != len(r.Rows) || rows > 0 && *back.Rows[0].Traffic != *r.Rows[0].Traffic {
		t.Fatalf("the result file: %v", err)
	}
	for line := range strings.Lines(table.String()) {
		if n := len(strings.TrimSuffix(line, "\n")); n > columns {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	if t.Failed() {
		t.Log(table.String())
	}
}

func limit(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// smoke are options of a run that is short and tells nothing.
func smoke(engines ...string) Options {
	return Options{Engines: engines, Trial: 4 * time.Millisecond, Settle: 10 * time.Millisecond, Samples: 1,
		Resolution: 0.3, Verify: 1, Retry: 3, Load: 0.1}
}

// Every test of every kind on the simulator and on sockets.
func TestRun(t *testing.T) {
	o := smoke("sim", "socket")
	o.Tests, o.Workloads, o.Sizes = Tests(), []Workload{GEMM}, []int{64, 1518}
	o.Longest = 1000
	o.MaxLoss = 0.999 // a busy machine may lose anything; that a search works is shown elsewhere
	r, err := Run(limit(t), o)
	if err != nil {
		t.Fatal(err)
	}
	// Of the two cells of each engine one is too small for its workload.
	checkRows(t, r, 2*3)
	if len(r.Missing) != 2 || !strings.Contains(r.Missing[0], "needs packets of 128") {
		t.Errorf("missing: %v", r.Missing)
	}
	if n := len(r.lines); n != 2*5 {
		t.Errorf("%d lines", n)
	}
	var table bytes.Buffer
	r.Table(&table)
	for _, want := range []string{"throughput   size burst  q", "latency, us  size", "flood        size",
		"loss         size", "burst        size", "sim gemm     1518", "udp gemm     1518"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("%q is not in the table:\n%s", want, &table)
		}
	}
}

func TestTCPAndQueues(t *testing.T) {
	o := smoke("socket")
	o.Tests, o.Protocols, o.Sizes, o.Bursts, o.Queues, o.Rate = []string{Latency, Flood}, []string{"udp", "tcp"},
		[]int{1518}, []int{1, 512}, []int{1, 3}, 2000
	r, err := Run(limit(t), o)
	if err != nil {
		t.Fatal(err)
	}
	checkRows(t, r, 16)
	for _, x := range r.Rows {
		if strings.Contains(x.Note, "by queue: ") != (x.Peers == 3) {
			t.Errorf("%s: %s", x.Name, x.Note)
		}
	}
	for _, x := range r.Rows {
		// TCP loses nothing, whatever happens.
		if y := x.Traffic; x.Path == "tcp socket" && y.Lost+y.Duplicates+y.Damaged+y.Reordered+y.Foreign > 0 {
			t.Errorf("%s: %+v", x.Name, y)
		}
	}
}

// Frames over a veth pair: packet sockets and AF_XDP, one way and there and back, small and jumbo,
// with the queue chosen by rules.
func TestFrames(t *testing.T) {
	testenv.Once(t)
	_, _, stop, err := netns.Cable(1500)
	if err != nil {
		testenv.Missing(t, "network namespaces", err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for size, back := range map[int]bool{64: false, 9000: true} {
		o := smoke("afpacket", "xdp")
		o.Cable = netns.Cable
		o.Tests, o.Sizes, o.Queues, o.Rate, o.RoundTrip = []string{Latency}, []int{size}, []int{2}, 3000, back
		r, err := Run(limit(t), o)
		if err != nil {
			t.Fatal(err)
		}
		checkRows(t, r, 2)
		for _, x := range r.Rows {
			if y := x.Traffic; y.Duplicates+y.Damaged+y.Reordered+y.Foreign > 0 {
				t.Errorf("%s: %+v", x.Name, y)
			}
		}
	}
}

func TestAgainstIperf3(t *testing.T) {
	testenv.Once(t)
	peers.Need(t, "iperf3")
	o := smoke("socket")
	o.Tests, o.Rate, o.Against, o.Sizes, o.Pairs = []string{Latency}, 1000, []string{"iperf3"}, []int{1518}, 1
	r, err := Run(limit(t), o)
	if err != nil {
		t.Fatal(err)
	}
	checkRows(t, r, 2)
	if x := r.Rows[len(r.Rows)-1]; len(x.Theirs) != 1 || x.Theirs[0].Error != "" || x.Theirs[0].Ratio == nil ||
		x.Theirs[0].Ratio.Verdict != paired.Inconclusive {
		t.Errorf("%+v", x.Theirs)
	}
}

// Streams that a hash spreads over queues come whole, whichever queue they come to.
func TestSpreadQueues(t *testing.T) {
	c := cell{Engine: "socket", Protocol: "udp", Size: 64, Burst: 4, Queues: 4, Flows: 8, Seed: 1}
	g := openBoth(t, c, &place{address: ":0"}, &place{address: socketAddress(&c, "")}, 2)
	defer func() {
		if err := g.close(); err != nil {
			t.Error(err)
		}
	}()
	x := g.must(t, order{rate: 20000, duration: 50 * time.Millisecond})
	used := 0
	for _, n := range x.Queues {
		if n > 0 {
			used++
		}
	}
	if len(x.Queues) != 4 || used < 2 || x.Arrived != x.Received { // 32 flows on one of 4 queues: 1 in 10^18
		t.Errorf("queues: %v, %+v", x.Queues, x.Counts)
	}
	if drops := x.InDrops.Total() + x.OutDrops.Total(); drops != x.Lost {
		t.Errorf("lost %d, the engine counted %d", x.Lost, drops)
	}
}

func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		`engine "gpunetio"`:        {Engines: []string{"gpunetio"}},
		`test "speed"`:             {Tests: []string{"speed"}},
		`protocol "sctp"`:          {Protocols: []string{"sctp"}},
		"63 bytes":                 {Sizes: []int{63}},
		"size 64 twice":            {Sizes: []int{64, 64}},
		"513 packets":              {Bursts: []int{513}},
		"65 queues":                {Queues: []int{65}},
		"load 2":                   {Load: 2},
		"step 1":                   {Step: 1},
		"trials of 1ns":            {Trial: 1},
		"settle 1h":                {Settle: time.Hour},
		"bursts of up to":          {Longest: 1 << 40},
		"rate -1":                  {Rate: -1},
		"packets in a trial":       {Rate: 1e9, Trial: time.Hour},
		"loss of 1":                {MaxLoss: 1},
		"not reflected":            {Engines: []string{"socket"}, Protocols: []string{"tcp"}, RoundTrip: true},
		"name it":                  {From: "eth0"},
		"the one engine":           {Server: "127.0.0.1:1"},
		"knows its own address":    {Server: "127.0.0.1:1", Engines: []string{"socket"}, To: ":1"},
		"expected both interfaces": {Engines: []string{"afpacket"}, From: "eth0"},
		`against "ping"`:           {Against: []string{"ping"}},
		"-1 samples":               {Samples: -1},
	} {
		r, err := Run(t.Context(), o)
		if !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), want) || r != nil && len(r.Rows) > 0 {
			t.Errorf("%s: %v", want, err)
		}
	}
	if s := Sizes(); !slices.IsSorted(s) || s[0] != MinSize {
		t.Error(s)
	}
}

func TestRates(t *testing.T) {
	// 10 Gbit/s carry 14,880,952 frames of 64 bytes, as every table says.
	if r := L1(64, 14880952.38); r < 9.9999e9 || r > 10.0001e9 {
		t.Error(r)
	}
	if L2(1518, 1e6) != 12.144e9 {
		t.Error(L2(1518, 1e6))
	}
}

// What others send to the receiver is counted apart, and does not keep a trial from ending.
func TestForeignTraffic(t *testing.T) {
	c := cell{Engine: "socket", Protocol: "udp", Size: 512, Burst: 1, Queues: 1, Flows: 1}
	h, at, err := openFar(t.Context(), &place{address: socketAddress(&c, "")}, &c, newClock())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := h.close(); err != nil {
			t.Error(err)
		}
	}()
	if err := h.begin(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	other, err := net.Dial("udp", at.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ctx, cancel := context.WithCancel(limit(t))
	done := make(chan struct{})
	first := make(chan struct{}, 1)
	go func() { // until the trial is over, much oftener than settle
		defer close(done)
		for ctx.Err() == nil {
			other.Write([]byte("hello"))
			select {
			case first <- struct{}{}:
			default:
			}
		}
	}()
	<-first
	a, err := h.end(ctx, []uint64{5}, 30*time.Millisecond)
	ended := ctx.Err() == nil
	cancel()
	<-done
	if err != nil || !ended || a.Foreign == 0 || a.Foreign != a.Arrived || a.Received != 0 {
		t.Errorf("%+v, %v", a, err)
	}
}
