package bench

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	testpeers "github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/internal/peers"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"go.uber.org/goleak"
)

// The test binary is also the second process.
func TestMain(m *testing.M) {
	if kind, ok := os.LookupEnv("PENSTOCK_BENCH_PEER"); ok {
		var d Drivers
		if kind == "liar" {
			d = liars
		}
		if err := ServePeer(context.Background(), os.Stdin, os.Stdout, d); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func quick(t *testing.T, kind string) TransferOptions {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PENSTOCK_BENCH_PEER", kind)
	// Not pinned: on a busy machine two threads that must run at the same time would wait for two
	// given processors.
	return TransferOptions{Command: []string{self}, Quick: true, NoPin: true,
		Conditions: Conditions{Progress: func(l string) {
			t.Log(l)
		}}}
}

func limit(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Two real processes, both paths, both modes: every kind of row is there and its bytes were
// checked.
func TestTransfer(t *testing.T) {
	o := quick(t, "")
	o.Sizes, o.Samples, o.Budget = []uint64{64, 64 << 10}, 2, 200*time.Microsecond
	r, err := Transfer(limit(t), o)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, x := range r.Rows {
		if x.Ours.Verified == 0 || len(x.Ours.Samples) != 2 || x.Warmup != 1 || x.Gate != nil {
			t.Errorf("%s: %+v", x.Name, x)
		}
		seen[x.Name] = true
		switch {
		case x.What == "borrow":
			if x.Latency != nil || x.Cost != nil || x.Ceiling != nil || x.Ours.Verified < x.Size {
				t.Errorf("%s: %+v", x.Name, x)
			}
		case x.Cost == nil || !(x.Cost.CPUPerOp > 0):
			t.Errorf("%s: cost %+v", x.Name, x.Cost)
		case (x.What == "put" || x.What == "get") &&
			(x.Ceiling == nil || x.Ceiling.Enforced || len(x.Ceiling.Samples) != 2):
			t.Errorf("%s: ceiling %+v: expected one that is not enforced at this size", x.Name, x.Ceiling)
		case strings.HasPrefix(x.What, "put + seen") && (x.Latency == nil || x.Latency.N != 100):
			t.Errorf("%s: latency %+v", x.Name, x.Latency)
		}
	}
	for _, want := range []string{"shm put 64 B spin", "shm get 64 KiB event", "tcp put 64 KiB event",
		"tcp get 64 B spin 3 peers", "shm put 1024 x 4 KiB spin",
		"tcp get 1024 x 4 KiB event", "shm borrow 64 KiB", "shm put + seen, one way 64 B spin",
		"tcp put + seen, one way 64 B event", "tcp api put 64 B event"} {
		if !seen[want] {
			t.Errorf("no row %q among %v", want, seen)
		}
	}
}

// The table of targets, without tools: classes, borrow, blocks, lists and killed peers.
func TestTargets(t *testing.T) {
	o := quick(t, "")
	o.Against = []string{}
	o.Samples, o.Pairs, o.Budget = 2, 2, 200*time.Microsecond
	r, err := Targets(limit(t), o)
	if err != nil {
		t.Fatal(err)
	}
	killed, lists := 0, 0
	for _, x := range r.Rows {
		if len(x.Ours.Samples) != 2 {
			t.Errorf("%s: %d samples", x.Name, len(x.Ours.Samples))
		}
		if x.What == "peer killed" {
			killed++
		}
		if x.What == "list" {
			lists++
			if x.Ours.Verified == 0 || len(x.Theirs) != 1 || x.Theirs[0].Verified == 0 || x.Theirs[0].Error != "" {
				t.Errorf("%s: %+v", x.Name, x)
			}
		}
	}
	if lists != 4 || killed != 4 || len(r.Rows) < 12 {
		t.Errorf("%d rows, %d of killed peers, %d of lists", len(r.Rows), killed, lists)
	}
}

// Beside another program: pairs with its version and command, in the same report.
func TestAgainst(t *testing.T) {
	o := quick(t, "")
	o.Paths, o.Modes, o.Sizes, o.Peers, o.Samples = []string{"tcp"}, []string{Event}, []uint64{64}, []int{1}, 1
	o.Budget, o.Against, o.Gate = 200*time.Microsecond, []string{"iperf3"}, &paired.Gate{Budget: -1}
	p, err := peers.Get("iperf3")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Find(); err != nil {
		testenv.Missing(t, "iperf3", err)
	}
	r, err := Transfer(limit(t), o)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(r.Rows, func(x paired.Row) bool { return len(x.Theirs) > 0 })
	if i < 0 || r.Rows[i].Name != "tcp put 1 MiB, as shipped, CRC on" || len(r.Method.Peers) != 1 {
		t.Fatalf("row %d of %+v", i, r.Rows)
	}
	x := r.Rows[i]
	s := x.Theirs[0]
	if s.Name != "iperf3" || s.Version == "" || !strings.HasPrefix(s.Command, "iperf3 -c") || s.Unchecked == "" ||
		s.Verified != 0 || s.Error != "" ||
		len(s.Samples) != 2 || s.Ratio.Target != 1 || s.Ratio.Verdict != paired.Inconclusive {
		t.Errorf("%+v, %+v", s, s.Ratio)
	}
	if g := x.Gate; g == nil || g.Looks != 2 || g.Error != "" || r.Method.Gate == nil || r.Method.Gate.Budget != 0 {
		t.Errorf("%+v, %+v", g, r.Method.Gate)
	}
}

// From 128 MiB on a figure above the ceiling cannot be a cache's.
func TestCeilingIsEnforced(t *testing.T) {
	for size, want := range map[uint64]bool{1 << 20: false, beyondCache - 1: false, beyondCache: true,
		256 << 20: true} {
		if got := CopyCeilingHolds(size); got != want {
			t.Errorf("%s: %v", FormatSize(size), got)
		}
	}
}

func TestBadOptions(t *testing.T) {
	for name, o := range map[string]TransferOptions{
		"path":    {Paths: []string{"rdma"}},
		"mode":    {Modes: []string{"sleepy"}},
		"size":    {Sizes: []uint64{0}},
		"peers":   {Peers: []int{0}},
		"pairs":   {Pairs: -1},
		"command": {},
		"dead":    {Command: []string{"/bin/false"}},
		"library": {Command: []string{"/bin/false"}, Paths: []string{"verbs?library=/nowhere/libibverbs.so.1"}},
		"depth":   {Command: []string{"/bin/false"}, Paths: []string{"verbs?depth=5"}},
		"memory":  {Local: Place{Kind: mem.Foreign}},
		"tools":   {Remote: Place{Kind: mem.Device}, Against: []string{"iperf3"}},
	} {
		if r, err := Transfer(limit(t), o); err == nil {
			t.Errorf("%s passed: %v", name, r)
		}
	}
	if _, err := Transfer(limit(t), TransferOptions{Command: []string{"/bin/false"},
		Paths: []string{"tcp", "verbs?library=/nowhere/libibverbs.so.1"}}); err == nil ||
		!strings.Contains(err.Error(), "libibverbs") {
		t.Errorf("a path that is not here: %v", err)
	}
	if r, err := Targets(limit(t), TransferOptions{Local: Place{Kind: mem.Device}}); err == nil ||
		!strings.Contains(err.Error(), "host memory") {
		t.Errorf("targets on a device: %v, %v", r, err)
	}
}

// enterNetwork must never change the congestion control of the machine.
func TestNetworkOfItsOwn(t *testing.T) {
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	before, err := sys.DefaultCongestion()
	if err != nil {
		t.Fatal(err)
	}
	for _, outside := range []string{"", here} {
		if err := enterNetwork("reno", outside); err == nil {
			t.Errorf("outside %q: entered", outside)
		}
	}
	if after, _ := sys.DefaultCongestion(); after != before {
		t.Errorf("congestion control was changed from %s to %s", before, after)
	}
}

// A path that reports success without moving bytes, or notifies without them, makes the run fail.
func TestNoFakeSuccess(t *testing.T) {
	for _, name := range []string{"put", "get"} {
		t.Run(name, func(t *testing.T) {
			o := quick(t, "liar")
			o.Drivers = liars
			if err := o.defaults(); err != nil {
				t.Fatal(err)
			}
			ctx := limit(t)
			l, err := o.dial(ctx, nodeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer l.close()
			if err := l.openQueues(ctx, "liar", Spin, 1, 0); err != nil {
				t.Fatal(err)
			}
			defer l.closeQueues()
			kind := path.Put
			if name == "get" {
				kind = path.Get
			}
			r := o.Begin("transfer")
			err = o.moveRow(ctx, r, l, kind, shape{what: name, path: "liar", mode: Spin, size: 4096, peers: 1})
			if !errors.Is(err, paired.ErrFailed) || len(r.Rows) != 0 {
				t.Errorf("error %v, rows %v", err, r.Rows)
			}
		})
	}
	t.Run("whole run", func(t *testing.T) {
		o := quick(t, "liar")
		o.Drivers, o.Paths, o.Modes = liars, []string{"liar"}, []string{Spin}
		r, err := Transfer(limit(t), o)
		if !errors.Is(err, paired.ErrFailed) {
			t.Errorf("error %v, report %v", err, r)
		}
		if err != nil && strings.Contains(err.Error(), "deadline") {
			t.Errorf("it took a timeout to fail: %v", err)
		}
	})
}

func liars([]string, bool) ([]setup.Driver, error) { return []setup.Driver{liarDriver{}}, nil }

// liarDriver sets up paths whose operations are done at once and do nothing. Their notifications
// reach the other end in the same way: an answer is invented for each.
type liarDriver struct{}

func (liarDriver) Name() string         { return "liar" }
func (liarDriver) Traits() setup.Traits { return setup.Traits{} }
func (liarDriver) Listen() (setup.Listener, error) {
	return &liarListener{closed: make(chan struct{})}, nil
}
func (liarDriver) Dial(context.Context, setup.Offer, setup.Config) (path.Path, error) {
	return newLiar()
}

type liarListener struct {
	once   sync.Once
	closed chan struct{}
}

func (*liarListener) Addr() string { return "127.0.0.1:1" }
func (*liarListener) Accept(context.Context, setup.Token, setup.Config) (path.Path, error) {
	return newLiar()
}
func (l *liarListener) Close() error { l.once.Do(func() { close(l.closed) }); return nil }

type liar struct {
	fd     int
	closed bool
	events []path.Event
}

func newLiar() (path.Path, error) {
	fd, err := sys.Eventfd()
	return &liar{fd: fd}, err
}

func (p *liar) Name() string                    { return "liar" }
func (p *liar) Capabilities() path.Capabilities { return path.Capabilities{Window: 256} }
func (p *liar) Post(ops []path.Op) (int, error) {
	for _, o := range ops {
		p.events = append(p.events, path.Event{Kind: path.EventDone, Token: o.Token, Bytes: o.Bytes()})
		if o.Notify {
			p.events = append(p.events, path.Event{Kind: path.EventNotify, Imm: o.Imm})
		}
	}
	return len(ops), nil
}
func (p *liar) Poll(events []path.Event) int {
	n := copy(events, p.events)
	p.events = p.events[n:]
	return n
}
func (p *liar) Arm() bool               { return len(p.events) > 0 }
func (p *liar) FD() int                 { return p.fd }
func (p *liar) Cancel(uint64) bool      { return false }
func (p *liar) Reaches(path.Desc) error { return nil }
func (p *liar) Stats() path.Stats       { return path.Stats{} }
func (p *liar) Explain() []string       { return []string{"does nothing"} }
func (p *liar) Close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	return sys.Close(p.fd)
}

// The checks while the clock runs stand on their own: without them only the last message of a run
// would have been looked at.
func TestEachMessageIsChecked(t *testing.T) {
	o := quick(t, "liar")
	o.Drivers = liars
	if err := o.defaults(); err != nil {
		t.Fatal(err)
	}
	ctx := limit(t)
	l, err := o.dial(ctx, nodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	g, err := o.newPing(ctx, l, "liar", Spin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.sample(ctx); !errors.Is(err, paired.ErrFailed) ||
		!strings.Contains(err.Error(), "answer 1 is wrong") {
		t.Errorf("ping-pong: %v", err)
	}
	g.close() // the other side has failed too
	if err := l.openQueues(ctx, "liar", Spin, 1, 0); err != nil {
		t.Fatal(err)
	}
	defer l.closeQueues()
	x, err := l.newLoad(ctx, path.Get, Spin, 4096, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer x.close()
	if err := x.prepare(); err != nil {
		t.Fatal(err)
	}
	if _, err := x.run(ctx, 1); !errors.Is(err, paired.ErrFailed) ||
		!strings.Contains(err.Error(), "brought no bytes") {
		t.Errorf("get: %v", err)
	}
}

// Two real processes: small puts beside a large one, both paths, all bytes checked.
func TestFairness(t *testing.T) {
	q := quick(t, "")
	o := FairnessOptions{Conditions: q.Conditions, Command: q.Command, Streams: 7, Small: 1000, Large: 8 << 20, Puts: 5,
		Pairs: 2, Pauses: []time.Duration{0, time.Millisecond}}
	r, err := Fairness(limit(t), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 4 || len(r.Notes) != 4 {
		t.Fatalf("%d rows, %d notes", len(r.Rows), len(r.Notes))
	}
	for _, x := range r.Rows {
		if x.Ours.Verified == 0 || len(x.Theirs) != 1 || x.Theirs[0].Verified == 0 ||
			x.Theirs[0].Ratio.Target != fairTarget {
			t.Errorf("%s: %+v, %+v", x.Name, x.Ours, x.Theirs)
		}
	}
	o.Large = 1
	if _, err := Fairness(limit(t), o); err == nil {
		t.Error("a large put of one byte was accepted")
	}
}

// The classes with encryption, beside a stream with OpenSSL: both sides checked every byte that
// they say they checked.
func TestEncrypted(t *testing.T) {
	testpeers.Need(t, "openssl")
	o := quick(t, "")
	o.Against, o.Pairs, o.OpenSSL = []string{"openssl"}, 2, testpeers.OpenSSLStream
	r, err := encrypted(limit(t), o, small(classes("", 16<<20, o.OpenSSL)))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 1 || !strings.Contains(r.Rows[0].Name, "encrypted") {
		t.Fatalf("%d rows; expected the one of 1 MiB", len(r.Rows))
	}
	x := r.Rows[0]
	if x.Ours.Verified == 0 || len(x.Theirs) != 1 || x.Theirs[0].Verified == 0 || x.Theirs[0].Error != "" {
		t.Errorf("%+v", x)
	}
}

// encrypted measures the classes with encryption only.
func encrypted(ctx context.Context, o TransferOptions, all []class) (*paired.Report, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	r := o.Begin("encrypted", o.method()...)
	versions, err := o.lookUp(ctx, r)
	for _, c := range all {
		if err == nil && c.sealed {
			err = o.classRow(ctx, r, c, here(c.rivals, versions), versions, "")
		}
	}
	return r.End(err)
}

// BenchmarkEncrypted prints the classes with encryption beside OpenSSL, in 20 pairs.
func BenchmarkEncrypted(b *testing.B) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	b.Setenv("PENSTOCK_BENCH_PEER", "")
	for _, c := range classes("", 256<<20, testpeers.OpenSSLStream) {
		if !c.sealed {
			continue
		}
		b.Run(FormatSize(c.size), func(b *testing.B) {
			r, err := encrypted(b.Context(), TransferOptions{Command: []string{self}, Against: []string{"openssl"},
				OpenSSL: testpeers.OpenSSLStream, Pairs: 20}, []class{c})
			if err != nil {
				b.Fatal(err)
			}
			x := r.Rows[0]
			b.Logf("%s: ours %.2f GB/s, OpenSSL %.2f GB/s, ratio %+v", x.Name, x.Ours.Stats.Median,
				x.Theirs[0].Stats.Median, *x.Theirs[0].Ratio)
		})
	}
}
