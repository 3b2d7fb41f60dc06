package pace

import (
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/burst"
)

// What the qdiscs of a device say about it.
func TestSupport(t *testing.T) {
	const root = sys.QdiscRoot
	etf := sys.Qdisc{Kind: "etf", Parent: root, Clock: sys.ClockTAI, Delta: 300 * time.Microsecond}
	fq := sys.Qdisc{Kind: "fq", Parent: root, Clock: sys.ClockMonotonic, Horizon: 10 * time.Second}
	with := func(q sys.Qdisc, f func(q *sys.Qdisc)) sys.Qdisc { f(&q); return q }
	leaf := func(q sys.Qdisc) sys.Qdisc { return with(q, func(q *sys.Qdisc) { q.Parent = 0x80010001 }) }
	mq := sys.Qdisc{Kind: "mq", Parent: root, Handle: 0x80010000}
	for _, c := range []struct {
		name string
		qs   []sys.Qdisc
		want Support
		why  string
	}{
		{"nothing", nil, Support{}, "no qdisc"},
		{"noqueue", []sys.Qdisc{{Kind: "noqueue", Parent: root}}, Support{}, "noqueue of dev0 does not hold"},
		{"ingress only", []sys.Qdisc{{Kind: "fq", Parent: 0xffff0000}}, Support{}, "no qdisc"},
		{"fq", []sys.Qdisc{fq}, Support{Qdisc: "fq", Horizon: 10 * time.Second, clock: sys.ClockMonotonic}, ""},
		{"etf", []sys.Qdisc{etf}, Support{Qdisc: "etf", Delta: 300 * time.Microsecond, clock: sys.ClockTAI}, ""},
		{"etf in the NIC", []sys.Qdisc{with(etf, func(q *sys.Qdisc) { q.Offload = true })}, Support{Qdisc: "etf", clock: sys.ClockTAI}, ""},
		{"etf deadline", []sys.Qdisc{with(etf, func(q *sys.Qdisc) { q.Deadline = true })}, Support{}, "deadline mode"},
		{"etf without delta", []sys.Qdisc{with(etf, func(q *sys.Qdisc) { q.Delta = 0 })}, Support{}, "drops all"},
		{"mq of fq", []sys.Qdisc{mq, leaf(fq), leaf(with(fq, func(q *sys.Qdisc) {
			q.Horizon = time.Second
		}))}, Support{Qdisc: "fq", Horizon: time.Second, clock: sys.ClockMonotonic}, ""},
		{"mq of two kinds", []sys.Qdisc{mq, leaf(fq), leaf(etf)}, Support{}, "different qdiscs"},
		{"mq with a plain one", []sys.Qdisc{mq, leaf(fq), leaf(sys.Qdisc{Kind: "pfifo_fast"})}, Support{}, "pfifo_fast"},
		{"mq of nothing", []sys.Qdisc{mq}, Support{}, "qdisc mq"},
	} {
		got := support("dev0", c.qs)
		reason := got.Reason
		c.want.Device, got.Reason = "dev0", ""
		if got != c.want || (c.why == "") != (reason == "") || !strings.Contains(reason, c.why) {
			t.Errorf("%s: %+v, %q; want %+v, %q", c.name, got, reason, c.want, c.why)
		}
	}
}

func TestDescribe(t *testing.T) {
	for _, device := range []string{"", "no-such-device"} {
		s := Probe(device)
		var c engine.Capabilities
		s.Describe(&c)
		if !c.Pacing || !c.SendAt || c.SendAtIn != "software" || len(c.Notes) != 1 ||
			!strings.Contains(c.Notes[0], s.Reason) || s.Reason == "" {
			t.Errorf("%q: %+v", device, c)
		}
		if _, err := s.Enable(0); !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), s.Reason) {
			t.Error(err)
		}
	}
	var c engine.Capabilities
	(&Support{Qdisc: "fq"}).Describe(&c)
	if c.SendAtIn != "qdisc fq" || c.Notes != nil {
		t.Errorf("%+v", c)
	}
	// A real device whose qdisc does not wait.
	if s := Probe("lo"); s.Qdisc != "" || s.Reason == "" || strings.Contains(s.Reason, "ioctl") {
		t.Errorf("%+v", s)
	}
}

func stamp(t *testing.T, x *TxTime, ns int64, ok bool) (int64, bool) {
	t.Helper()
	var c [ControlSize]byte
	switch x.Control(c[:], ns, ok) {
	case 0:
		return 0, false
	case ControlSize:
		return int64(binary.NativeEndian.Uint64(c[16:])), true
	}
	t.Fatal("a control message of another length")
	return 0, false
}

// Times are by the qdisc's clock, later by its delta, and never go back.
func TestControl(t *testing.T) {
	x := newTxTime(Support{Qdisc: "etf", Delta: 300, clock: sys.ClockTAI})
	x.now, x.offset = 1e18, 37e9
	for _, c := range []struct {
		ns   int64
		ok   bool
		want int64
	}{{1e18 - 5, true, 0}, {0, false, 0}, {1e18 + 500, true, 500}, {1e18 - 5, true, 500}, {0, false, 500},
		{1e18 + 501, true, 501}} {
		if got, ok := stamp(t, x, c.ns, c.ok); !ok || got != 1e18+37e9+300+c.want {
			t.Errorf("%d %v: %d, want %d", c.ns, c.ok, got-1e18-37e9-300, c.want)
		}
	}
	// fq sends at once what has no time, unless something waits.
	x = newTxTime(Support{Qdisc: "fq", clock: sys.ClockMonotonic})
	x.now, x.offset = 1e18, -1e18+77
	for _, c := range []struct {
		ns   int64
		ok   bool
		want int64
	}{{0, false, 0}, {1e18 - 1, true, 0}, {1e18, true, 0}, {1e18 + 9, true, 86}, {0, false, 86}} {
		if got, ok := stamp(t, x, c.ns, c.ok); ok != (c.want != 0) || got != c.want {
			t.Errorf("%d %v: %d, want %d", c.ns, c.ok, got, c.want)
		}
	}
	x.now += 9
	if _, ok := stamp(t, x, 0, false); ok {
		t.Error("a time although nothing waits")
	}
}

// The difference of two clocks is right: what is converted lies between two looks at the clock.
func TestOffset(t *testing.T) {
	for _, clock := range []int32{sys.ClockMonotonic, sys.ClockTAI, sys.ClockRealtime} {
		ok := false
		for range 1000 { // another process may set the clock meanwhile
			x := newTxTime(Support{Qdisc: "etf", clock: clock})
			before := sys.ClockNow(clock)
			now := time.Now()
			x.begin(now)
			after := sys.ClockNow(clock)
			const error = 1e5 // of the measurement: half of the time that one look takes
			at, _ := stamp(t, x, 0, false)
			if ok = at >= before-error && at <= after+error; ok {
				break
			}
		}
		if !ok {
			t.Errorf("clock %d: the conversion is wrong", clock)
		}
	}
}

// With a qdisc packets are handed over ahead of their time, but not beyond half of the qdisc's
// horizon.
func TestAhead(t *testing.T) {
	for _, c := range []struct {
		ahead, horizon, want time.Duration
	}{{0, 0, 50e6}, {0, 10e9, 50e6}, {0, 60e6, 30e6}, {1e9, 10e9, 1e9}, {9e9, 10e9, 5e9}} {
		synctest.Test(t, func(t *testing.T) {
			x := newTxTime(Support{Qdisc: "fq", Horizon: c.horizon, clock: sys.ClockMonotonic})
			r := newRig(t, &device{}, Options{SendAt: true, Kernel: x, Ahead: c.ahead})
			start := time.Now()
			r.add(100, start.Add(20*time.Second))
			r.send()
			r.done()
			if got := 20*time.Second - r.dev.log[0].at.Sub(start); got != c.want {
				t.Errorf("ahead %v, horizon %v: handed over %v before its time, want %v", c.ahead, c.horizon, got,
					c.want)
			}
			// What the kernel reported is not among the packets that left.
			x.missed.Add(2)
			x.invalid.Add(1)
			s := engine.TxStats{Packets: 10}
			r.p.AddStats(&s)
			if s.Packets != 7 || s.Drops[engine.DropLate] != 2 || s.Drops[engine.DropRefused] != 1 ||
				s.TimedPackets != 1 || s.TooEarly != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// What the kernel does not take now gets its own time later, not that of the packets behind it.
func TestControlAgain(t *testing.T) {
	x := newTxTime(Support{Qdisc: "fq", clock: sys.ClockRealtime})
	d := &kernel{t: t, x: x, room: 2}
	p, err := New(d, Options{SendAt: true, Kernel: x, Ahead: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	b := burst.New(8)
	src := burst.NewSource(nil, nil, nil)
	start := time.Now().Add(time.Minute).UnixNano()
	for i, at := range []int64{0, 10, 5, 20, 30, 25} {
		b.Builder().Add(src, burst.Segment{Handle: burst.NoHandle, Len: 1})
		if i > 0 {
			b.SetTime(i, start+at*1e9)
		}
	}
	for from := 0; from < b.Len(); {
		from, _ = p.Transmit(b, from, b.Len())
	}
	want := []int64{0, 10, 10, 20, 30, 30}
	for i, at := range d.times {
		// The difference of the clocks is measured, so it may be a little off.
		if i == 0 && at != 0 || i > 0 && (at-start-want[i]*1e9+5e8)/1e9 != 0 {
			t.Errorf("packet %d got the time %d, want %d s", i, at-start, want[i])
		}
	}
	if len(d.times) != len(want) {
		t.Error(d.times)
	}
}

// kernel is a device that makes the control messages of all packets and takes two of them.
type kernel struct {
	t     *testing.T
	x     *TxTime
	room  int
	times []int64
}

func (d *kernel) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	for i := from; i < to; i++ {
		ns, ok := b.Time(i)
		at, _ := stamp(d.t, d.x, ns, ok)
		if i < from+d.room {
			d.times = append(d.times, at)
		}
	}
	return min(to, from+d.room), time.Time{}
}

// A socket takes the times also where no qdisc waits for them, which is why Probe reads the qdisc.
func TestNotEnforced(t *testing.T) {
	fd, err := sys.SocketUDP(false)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(fd)
	if err := sys.SetTxTime(fd, sys.ClockMonotonic); err != nil {
		t.Fatal(err)
	}
	x := newTxTime(Support{})
	x.ReadReports(fd)
	if m, i := x.Reports(); m+i != 0 {
		t.Error("reports of nothing")
	}
	if err := (&Support{Qdisc: "fq", clock: 99}).enableError(-1); err == nil {
		t.Error("a descriptor that is none")
	}
}

func (s *Support) enableError(fd int) error { _, err := s.Enable(fd); return err }

// fq of the machine's own kernel, where it has one; where not, the guest has it.
func TestProbeReal(t *testing.T) {
	tc, err := testenv.Tool("tc", "iproute2")
	if err != nil {
		testenv.Missing(t, "tc", err)
	}
	h := netns.New(t, netns.Topology{}).Hosts[0]
	probe := func() (s Support) {
		if err := h.Do(func() error { s = Probe("eth0"); return nil }); err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := probe(); s.Qdisc != "" || !strings.Contains(s.Reason, "eth0") {
		t.Errorf("a plain veth: %+v", s)
	}
	if _, err := h.Output(t.Context(), tc, "qdisc", "replace", "dev", "eth0", "root", "fq", "horizon",
		"7s"); err != nil {
		if !strings.Contains(err.Error(), "qdisc kind is unknown") && !strings.Contains(err.Error(), "No such file") {
			t.Fatal(err)
		}
		t.Logf("no qdisc fq here: %v", err)
		return
	}
	if s := probe(); s.Qdisc != "fq" || s.In() != "qdisc fq" || s.Horizon != 7*time.Second || s.Reason != "" {
		t.Errorf("%+v", s)
	}
}

// The hot path allocates nothing, whatever is asked for.
func TestAllocs(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace|testenv.WithInvariants, "this build allocates for its checks")
	x := newTxTime(Support{Qdisc: "etf", clock: sys.ClockTAI})
	var c [ControlSize]byte
	for name, o := range map[string]Options{
		"rate": {Rate: 1 << 50}, "times": {SendAt: true, DropLate: true, Late: time.Hour},
		"both":  {Rate: 1 << 50, SendAt: true, Spin: maxSpin},
		"qdisc": {SendAt: true, Kernel: x, Ahead: time.Minute}} {
		d := &null{}
		if o.Kernel != nil {
			d.f = func(b *burst.Burst, i int) {
				ns, ok := b.Time(i)
				x.Control(c[:], ns, ok)
			}
		}
		p, err := New(d, o)
		if err != nil {
			t.Fatal(err)
		}
		b := burst.New(256)
		src := burst.NewSource(nil, nil, nil)
		for range 256 {
			b.SetTime(b.Builder().Add(src, burst.Segment{Handle: burst.NoHandle, Len: 1000}), time.Now().UnixNano())
		}
		if n := testing.AllocsPerRun(100, func() {
			x.read = time.Time{} // measure the clocks each time
			p.Transmit(b, 0, b.Len())
		}); n != 0 || d.n < 100*256 {
			t.Errorf("%s: %v allocations, %d packets", name, n, d.n)
		}
	}
}

// null is a device that takes everything.
type null struct {
	n int
	f func(b *burst.Burst, i int)
}

func (d *null) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	d.n += to - from
	if d.f != nil {
		for i := from; i < to; i++ {
			d.f(b, i)
		}
	}
	return to, time.Time{}
}

// What a packet costs, in bursts of 64.
func BenchmarkPacer(b *testing.B) {
	for _, c := range []struct {
		name string
		o    Options
	}{{"Rate", Options{Rate: 1 << 50}}, {"Times", Options{SendAt: true}},
		{"Both", Options{Rate: 1 << 50, SendAt: true}}} {
		b.Run(c.name, func(b *testing.B) {
			p, err := New(&null{}, c.o)
			if err != nil {
				b.Fatal(err)
			}
			bu := burst.New(64)
			src := burst.NewSource(nil, nil, nil)
			for range 64 {
				bu.SetTime(bu.Builder().Add(src, burst.Segment{Handle: burst.NoHandle, Len: 1000}), 1)
			}
			b.ReportAllocs()
			for b.Loop() {
				p.Transmit(bu, 0, 64)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*64), "ns/packet")
		})
	}
}

// How late packets leave in software: a packet each 5 ms, with and without looking at the clock
// before.
func BenchmarkLateness(b *testing.B) {
	for _, c := range []struct {
		name string
		spin time.Duration
	}{{"Sleep", 0}, {"Spin200us", 200 * time.Microsecond}, {"Spin2ms", maxSpin}} {
		b.Run(c.name, func(b *testing.B) {
			r := newRig(b, &device{}, Options{SendAt: true, Spin: c.spin})
			for b.Loop() {
				r.add(100, time.Now().Add(5*time.Millisecond))
				r.send()
				if err := r.out.Drain(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			r.done()
			s := r.stats()
			b.ReportMetric(float64(s.LateSum)/float64(s.TimedPackets), "mean-ns")
			b.ReportMetric(float64(s.LateMax), "max-ns")
			b.ReportMetric(float64(s.TooEarly), "early")
		})
	}
}

// The share of a rate that is reached in real time, with the default burst.
func BenchmarkRateReached(b *testing.B) {
	const rate, bytes = 1e9, 1250 // 10 us for each packet
	r := newRig(b, &device{}, Options{Rate: rate})
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		for r.out.Free() > 0 {
			r.add(bytes, time.Time{})
			n++
		}
		r.send()
		for r.out.Free() < rigDepth/2 {
			runtime.Gosched()
		}
	}
	if err := r.out.Drain(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	burst := int(float64(rate)/8*slack.Seconds()) + slackBytes // the default
	b.ReportMetric(float64(8*(n*bytes-burst))/b.Elapsed().Seconds()/rate, "of-rate")
	r.done()
}
