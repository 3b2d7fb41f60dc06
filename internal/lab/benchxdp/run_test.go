package benchxdp

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/engine/dpdk"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	testpeers "github.com/penstock-io/penstock/internal/lab/testenv/peers"
	xdpref "github.com/penstock-io/penstock/internal/lab/testenv/peers/xdp"
)

// Every row of the benchmark runs, with the engine for packet sockets in the place of ours, the
// program in C and testpmd.
func TestXDPRows(t *testing.T) {
	testenv.Once(t)
	xdpref.Need(t)
	testpeers.Need(t, "testpmd")
	for _, name := range Engines() {
		if name == "dpdk" && dpdk.New().Available() != nil {
			continue // a plain build
		}
		t.Run(name, func(t *testing.T) {
			sizes, rows := []int{64, 8900}, 14
			if name == "dpdk" {
				sizes, rows = sizes[:1], 7
			}
			r, err := Run(t.Context(), Options{Engine: name, Sizes: sizes, Touched: []bool{name == "afpacket"},
				Pairs: 1, Burst: 256, Bursts: 1, Time: 5 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Rows) != rows {
				t.Fatalf("%d rows", len(r.Rows))
			}
			checkXDPRows(t, r)
		})
	}
}

func checkXDPRows(t *testing.T, r *paired.Report) {
	t.Helper()
	for _, x := range r.Rows {
		t.Logf("%s: %.3f %s, %+v", x.Name, x.Ours.Stats.Median, x.Unit, len(x.Theirs))
		for _, y := range x.Theirs {
			if live := strings.HasSuffix(x.Name, ", live"); y.Error != "" || y.Failures > 0 && !live {
				// live, a peer that had no processor runs again
				t.Errorf("%s: %s: %d runs failed %s", x.Name, y.Name, y.Failures, y.Error)
			}
		}
	}
}

// lyingSide is a side that does not tell the truth.
type lyingSide struct {
	packetSide
	tell func(*xdpref.Result)
	op   xdpref.Op // in the place of the command's; "": the command's
}

func (l *lyingSide) Begin(c xdpref.Command) error {
	if l.op != "" && c.Op == xdpref.Forward {
		c.Op = l.op
	}
	return l.packetSide.Begin(c)
}

func (l *lyingSide) Wait(ctx context.Context) (xdpref.Result, error) {
	r, err := l.packetSide.Wait(ctx)
	l.tell(&r)
	return r, err
}

// scratch is a side that changes one byte of a packet that it forwards.
type scratch struct{ *worker }

func (s *scratch) Begin(c xdpref.Command) error {
	x := s.loops.(*xskSide)
	if c.Op == xdpref.Forward {
		in := x.ports[0].socket.Rx().Peek(1)
		x.umem.Data(in[0])[60] ^= 1
	}
	return s.worker.Begin(c)
}

// A side that lies, loses or spoils packets does not get a figure.
func TestXDPFailedRuns(t *testing.T) {
	testenv.Once(t)
	xdpref.Need(t)
	for name, c := range map[string]struct {
		op   xdpref.Op
		wrap func(packetSide) packetSide
		want string
	}{
		"one less": {xdpref.Receive, func(s packetSide) packetSide {
			return &lyingSide{s, func(r *xdpref.Result) { r.Packets--; r.Matched-- }, ""}
		}, "and only 0 were counted as lost"},
		"one more": {xdpref.Receive, func(s packetSide) packetSide {
			return &lyingSide{s, func(r *xdpref.Result) { r.Packets++; r.Matched++ }, ""}
		}, "packets came, 64 were sent"},
		"not looked": {xdpref.Receive, func(s packetSide) packetSide {
			return &lyingSide{s, func(r *xdpref.Result) { r.Matched = 0 }, ""}
		}, "headers of 0 packets of 64"},
		"a wrong byte": {xdpref.Receive, func(s packetSide) packetSide {
			return &lyingSide{s, func(r *xdpref.Result) { r.Bad++ }, ""}
		}, "1 packets are wrong"},
		"kept": {xdpref.Forward, func(s packetSide) packetSide {
			return &lyingSide{s, func(*xdpref.Result) {}, xdpref.Receive}
		}, "0 packets came of 64"},
		"spoiled": {xdpref.Forward, func(s packetSide) packetSide {
			return &scratch{s.(*worker)}
		}, "packets are wrong"},
		"none sent": {xdpref.Send, func(s packetSide) packetSide {
			return &lyingSide{s, func(r *xdpref.Result) { r.Packets *= 2 }, ""}
		}, "64 packets came of 128"},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Burst: 64, Bursts: 1}
			if err := o.defaults(); err != nil {
				t.Fatal(err)
			}
			g, err := openXDPRig(t.Context(), o.row(c.op, 64, true, false), false)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := g.close(); err != nil {
					t.Error(err)
				}
			}()
			if s, err := g.sample(t.Context(), openXSK); err != nil || !(s.Value > 0) || s.Verified != 64*128 &&
				s.Verified != 64*64 {
				t.Errorf("without a lie: %+v, %v", s, err)
			}
			s, err := g.sample(t.Context(), func(ctx context.Context, h packetHost, s sideSpec) (packetSide, error) {
				x, err := openXSK(ctx, h, s)
				if err != nil {
					return nil, err
				}
				return c.wrap(x), nil
			})
			if !errors.Is(err, paired.ErrFailed) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v, %v; want %q", s, err, c.want)
			}
		})
	}
}

func TestTally(t *testing.T) {
	for name, c := range map[string]struct {
		t    tally
		want string
	}{
		"all there":      {tally{sent: 5, got: 5, bytes: 10, checked: 10}, ""},
		"lost, counted":  {tally{sent: 5, got: 2, dropped: 1, cable: 2, gaps: 3, bytes: 10, checked: 10}, ""},
		"lost":           {tally{sent: 5, got: 2, dropped: 1, cable: 1}, "only 2 were counted"},
		"too many":       {tally{sent: 5, got: 6}, "6 packets came, 5 were sent"},
		"wrong":          {tally{sent: 5, got: 5, bad: 1}, "1 packets are wrong"},
		"half looked at": {tally{sent: 5, got: 5, bytes: 10, checked: 9}, "9 bytes of 10"},
		"out of order":   {tally{sent: 5, got: 5, bytes: 10, checked: 10, gaps: 2}, "2 gaps"},
	} {
		err := c.t.check()
		if (err == nil) != (c.want == "") || err != nil &&
			(!errors.Is(err, paired.ErrFailed) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every packet and every slot is accounted for.
func TestAccountXDP(t *testing.T) {
	testenv.Once(t)
	xdpref.Need(t)
	for _, o := range []Options{{Engine: "xsk"}, {Engine: "xsk", Sizes: []int{8900}}, {Engine: "afpacket"}} {
		o.Burst, o.Touched = 512, []bool{true}
		a, err := Account(t.Context(), o, 3000)
		if err != nil {
			t.Fatalf("%s: %v", o.Engine, err)
		}
		if a.Sent != 3000 || a.Arrived != 3000 || a.Bursts != 6 || a.Checked != 3000*uint64(a.Size) || a.Slots == 0 {
			t.Errorf("%s: %+v", o.Engine, a)
		}
	}
	good := XDPAccount{Size: 64, Sent: 9, Entered: 9, Arrived: 9, Checked: 9 * 64}
	for name, spoil := range map[string]func(*XDPAccount){
		"one is missing":   func(a *XDPAccount) { a.Arrived-- },
		"one too many":     func(a *XDPAccount) { a.Arrived++; a.Checked += 64 },
		"not counted":      func(a *XDPAccount) { a.Entered-- },
		"not looked at":    func(a *XDPAccount) { a.Checked-- },
		"out of order":     func(a *XDPAccount) { a.Gaps++ },
		"counted as lost":  func(a *XDPAccount) { a.LostOut++ },
		"lost on the road": func(a *XDPAccount) { a.Cables++ },
	} {
		a := good
		if err := a.Exact(); err != nil {
			t.Fatal(err)
		}
		spoil(&a)
		if err := a.Exact(); !errors.Is(err, paired.ErrFailed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestXDPOptions(t *testing.T) {
	for want, o := range map[string]Options{
		`engine "dpdq"`:         {Engine: "dpdq"},
		"net_af_xdp has no":     {Engine: "dpdk", Sizes: []int{8900}},
		"1 to 1024":             {Batch: -1},
		`operation "dance"`:     {Ops: []string{"dance"}},
		`mode "dead"`:           {Modes: []string{"dead"}},
		`--against "the world"`: {Against: []string{"the world"}},
		"frames of 63 bytes":    {Sizes: []int{63}},
		"whole milliseconds":    {Time: time.Microsecond},
	} {
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
}
