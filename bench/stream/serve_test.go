package stream

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/packet/burst"
)

type burstOf = *burst.Burst

const serveEnv = "PENSTOCK_STREAM_TEST_SERVE"

// serveRole makes this test binary the far end when serveEnv is set.
func serveRole() {
	if os.Getenv(serveEnv) == "" {
		return
	}
	err := Serve(context.Background(), ServeOptions{Engine: "socket", Listen: "127.0.0.1:0", Ready: func(a net.Addr) {
		fmt.Println("control at", a)
	}})
	fmt.Println(err)
	os.Exit(1)
}

// serve is a server in this process.
func serve(t *testing.T, o ServeOptions) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	at, done := make(chan net.Addr, 1), make(chan error, 1)
	o.Listen, o.Ready = "127.0.0.1:0", func(a net.Addr) { at <- a }
	go func() { done <- Serve(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return (<-at).String()
}

// Two processes: every number is accounted for, one-way times are there because both share a clock,
// and a reflector sends back.
func TestTwoProcesses(t *testing.T) {
	p := proc.Start(t, proc.Self(t, serveEnv+"=1"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m, err := p.WaitLine(ctx, regexp.MustCompile(`control at (\S+)`))
	if err != nil {
		t.Fatal(err)
	}
	for _, back := range []bool{false, true} {
		r, err := Run(ctx, Options{Engines: []string{"socket"}, Server: m[1], Sizes: []int{64, 1518}, Bursts: []int{4},
			Queues: []int{1, 2}, Tests: []string{Latency}, Rate: 2000,
			Trial: 20 * time.Millisecond, Settle: 100 * time.Millisecond, Samples: 2, RoundTrip: back})
		if err != nil {
			t.Fatal(err)
		}
		checkRows(t, r, 4)
		for _, x := range r.Rows {
			// Clocks that are not the same differ by more than an hour.
			if x.Latency == nil || x.Latency.N != int(x.Traffic.Received) || x.Latency.Max > 3.6e9 {
				t.Errorf("%s: %+v, latency %+v", x.Name, x.Traffic, x.Latency)
			}
			if strings.Contains(x.Name, "reflected") != back {
				t.Error(x.Name)
			}
		}
	}
	// The far end dies during a trial: that is an error, soon.
	c, err := dial(ctx, m[1])
	if err != nil {
		t.Fatal(err)
	}
	defer c.hangUp()
	x := cell{Engine: "socket", Protocol: "udp", Size: 64, Burst: 1, Queues: 1, Flows: 1}
	d, err := c.prepare(ctx, &x, time.Second)
	if err != nil || !d.sharedClock {
		t.Fatal(d, err)
	}
	if err := d.begin(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.end(ctx, []uint64{10}, time.Second); err == nil || ctx.Err() != nil {
		t.Errorf("the end of a trial with a dead server: %v", err)
	}
	if err := d.close(); err == nil {
		t.Error("a dead server closed a cell")
	}
	if _, err := Run(ctx, Options{Engines: []string{"socket"}, Server: m[1]}); err == nil ||
		!strings.Contains(err.Error(), "--serve") {
		t.Errorf("%v", err)
	}
}

// A session that is lost leaves nothing behind, and the next one can begin. A second one at a time
// is refused.
func TestSessions(t *testing.T) {
	at := serve(t, ServeOptions{Engine: "socket", Address: "127.0.0.1:0"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	open := func() (*client, error) {
		for {
			c, err := dial(ctx, at)
			if err == nil || !strings.Contains(err.Error(), "another session") {
				return c, err
			}
		}
	}
	x := cell{Engine: "socket", Protocol: "tcp", Size: 64, Burst: 1, Queues: 2, Flows: 1}
	for range 3 {
		c, err := open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := dial(ctx, at); err == nil || !strings.Contains(err.Error(), "another session") {
			t.Errorf("a second session: %v", err)
		}
		d, err := c.prepare(ctx, &x, time.Second)
		if err == nil {
			err = d.begin(ctx, 1)
		}
		if err != nil {
			t.Fatal(err)
		}
		c.conn.Close() // in the middle of a trial
	}
	c, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.hangUp()
	// What it must not do it refuses, and goes on.
	bad := []request{{Do: "begin"}, {Do: "end"}, {Do: "format"}, {Do: "prepare"},
		{Do: "prepare", Cell: &cell{Engine: "xdp", Protocol: "udp", Size: 64, Burst: 1, Queues: 1, Flows: 1}},
		{Do: "prepare", Cell: &cell{Engine: "socket", Protocol: "udp", Size: 64, Burst: 1, Queues: 1 << 20, Flows: 1}},
		{Do: "prepare", Cell: &cell{Engine: "socket", Protocol: "udp", Size: 1 << 30, Burst: 1, Queues: 1, Flows: 1}}}
	for _, q := range bad {
		if _, err := c.ask(ctx, q, replyTime); err == nil {
			t.Errorf("%+v was done", q)
		}
	}
	d, err := c.prepare(ctx, &x, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.end(ctx, []uint64{1, 1}, time.Millisecond); err == nil {
		t.Error("the end of a trial that did not begin")
	}
	if err := d.begin(ctx, 5); err != nil {
		t.Fatal(err)
	}
	if _, err := d.end(ctx, []uint64{1}, time.Millisecond); err == nil {
		t.Error("one stream of two")
	}
	if a, err := d.end(ctx, []uint64{1, 1}, time.Millisecond); err != nil || a.Arrived != 0 {
		t.Errorf("%+v, %v", a, err)
	}
	if err := d.close(); err != nil {
		t.Error(err)
	}
}

// A server that does not answer, or nonsense, is an error in bounded time.
func TestHostileServer(t *testing.T) {
	for name, answer := range map[string]string{"silence": "", "nonsense": "hello\n",
		"another protocol": `{"version":99}` + "\n", "a long line": strings.Repeat("x", maxLine+8192)} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			c.Write([]byte(answer))
			bufio.NewReader(c).ReadString(0)
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if answer != "" {
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		}
		c, err := dial(ctx, l.Addr().String())
		if err == nil {
			c.hangUp()
			t.Errorf("%s: connected", name)
		}
		if name == "a long line" && !strings.Contains(err.Error(), "a line of more than") {
			t.Errorf("%s: %v", name, err)
		}
		if answer == "" != errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		l.Close()
		<-done
	}
}

func TestServeOptions(t *testing.T) {
	for _, o := range []ServeOptions{{}, {Engine: "sim", Listen: ":0"}, {Engine: "socket"},
		{Engine: "xdp", Listen: ":0"}} {
		if err := Serve(t.Context(), o); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// Everything that would be allocated for is bounded before anything else is done with it.
func TestRequestBounds(t *testing.T) {
	good := cell{Engine: "socket", Protocol: "udp", Size: 64, Burst: 1, Queues: 1, Flows: 1}
	try := func(change func(q *request)) error {
		c := good
		q := request{Do: "prepare", Cell: &c, Sent: []uint64{1}}
		change(&q)
		b, err := json.Marshal(q)
		if err != nil {
			t.Fatal(err)
		}
		_, err = parseRequest(b)
		return err
	}
	if err := try(func(*request) {}); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*request){
		"size":     func(q *request) { q.Cell.Size = MaxSize + 1 },
		"burst":    func(q *request) { q.Cell.Burst = MaxBurst + 1 },
		"queues":   func(q *request) { q.Cell.Queues = MaxQueues + 1 },
		"flows":    func(q *request) { q.Cell.Flows = MaxStreams + 1 },
		"negative": func(q *request) { q.Cell.Flows = -1 },
		"workload": func(q *request) { q.Cell.Workload = 200 },
		"spin":     func(q *request) { q.Cell.Spin = time.Hour },
		"streams":  func(q *request) { q.Sent = make([]uint64, MaxStreams+1) },
		"packets":  func(q *request) { q.Sent[0] = MaxPackets + 1 },
		"trial":    func(q *request) { q.Trial = 2 * time.Hour },
		"settle":   func(q *request) { q.Settle = -1 },
		"no cell":  func(q *request) { q.Cell = nil },
	} {
		if err := try(change); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func FuzzRequest(f *testing.F) {
	for _, q := range []request{{Do: "hello", Version: 1}, {Do: "prepare", Cell: &cell{Engine: "socket",
		Protocol: "udp", Size: 64, Burst: 1, Queues: 1, Flows: 1}}, {Do: "end", Sent: []uint64{5}}} {
		b, _ := json.Marshal(q)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := parseRequest(b)
		if err != nil {
			if q != nil {
				t.Fatal("a request besides an error")
			}
			return
		}
		// What passes is bounded: so much memory and no more would be taken for it.
		if c := q.Cell; c != nil && (c.Queues*c.Flows > MaxStreams || c.Queues > MaxQueues || c.Size > MaxSize ||
			c.Burst > MaxBurst || c.Size < MinSize) || len(q.Sent) > MaxStreams {
			t.Fatalf("%+v", q)
		}
	})
}
