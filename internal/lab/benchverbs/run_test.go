package benchverbs

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
)

// fakeVerbs is a run on the fake library: quick, and without perftest, which cannot use it.
func fakeVerbs(t *testing.T, o Options) Options {
	t.Helper()
	path, err := verbs.Build()
	if errors.Is(err, verbs.ErrMissing) {
		testenv.Missing(t, "the headers of libibverbs", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	o.Library, o.GID, o.Alone = path, AnyGID, true
	if o.Pairs == 0 {
		o.Pairs, o.Budget, o.Trips, o.Depth = 2, 100*time.Microsecond, 20, 16
		o.Sizes, o.Regions = []uint64{1, 4096}, []uint64{4096}
	}
	return o
}

// On the fake every class comes to its rows, and every byte that was moved was looked at.
func TestVerbsOnTheFake(t *testing.T) {
	r, err := Run(t.Context(), fakeVerbs(t, Options{}))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, x := range r.Rows {
		names = append(names, x.Name)
		if x.Ours.Verified == 0 && x.Ours.Unchecked == "" || x.Failed != "" || len(x.Ours.Samples) != 2 {
			t.Errorf("%s: %+v", x.Name, x)
		}
	}
	want := "post 8 B inline, 1 by one call; post 8 B inline, 8 by one call; poll, nothing there; write 8 B inline, " +
		"1 by one call; write 8 B inline, 8 by one call; write 1 B; write 4 KiB; read 1 B; read 4 KiB; send 1 B; " +
		"send 4 KiB; " +
		"write 8 B and one back, inline; write 8 B and one back; send 8 B and one back, asleep; registration of 4 " +
		"KiB; path: put 1 B; path: put 4 KiB; path: get 1 B; path: get 4 KiB; path: put 8 B and its acknowledgement; " +
		"path: put 8 B, notified, and one back"
	if got := strings.Join(names, "; "); got != want {
		t.Errorf("rows %s\nexpected %s", got, want)
	}
	if err := r.Table(new(strings.Builder)); err != nil {
		t.Error(err)
	}
}

// A request for what is not here fails with an error that says what is.
func TestVerbsRefusals(t *testing.T) {
	for _, x := range []struct {
		o    Options
		is   error
		want string
	}{
		{Options{Device: "mlx5_9"}, ibv.ErrUnavailable, `no RDMA device "mlx5_9": expected one of fake0`},
		{Options{Port: 7}, nil, "has no port 7"},
		{Options{Classes: []string{"speed"}}, nil, "expected some of cost, write"},
		{Options{Sizes: []uint64{3}}, nil, "power of two"},
		{Options{Regions: []uint64{0}}, nil, "regions of 0 bytes"},
		{Options{Depth: -1}, nil, "under way"},
		{Options{Chain: 17}, nil, "expected 1 to 16"},
		{Options{Pairs: -1}, nil, "more than nothing"},
	} {
		o := fakeVerbs(t, x.o)
		if x.o.Pairs < 0 || x.o.Depth < 0 || x.o.Sizes != nil || x.o.Regions != nil {
			o.Pairs, o.Depth, o.Sizes, o.Regions = x.o.Pairs, x.o.Depth, x.o.Sizes, x.o.Regions
		}
		r, err := Run(t.Context(), o)
		if r != nil || err == nil || !strings.Contains(err.Error(), x.want) || x.is != nil && !errors.Is(err, x.is) {
			t.Errorf("%+v: %v, %v", x.o, r, err)
		}
	}
	if _, err := Run(t.Context(), Options{Library: "/nowhere/libibverbs.so.1"}); !errors.Is(err, ibv.ErrUnavailable) {
		t.Errorf("without a library: %v", err)
	}
	index := 200
	o := fakeVerbs(t, Options{})
	o.GID = index
	if _, err := Run(t.Context(), o); !errors.Is(err, ibv.ErrNoGID) {
		t.Errorf("an address that is not there: %v", err)
	}
}

// verbsOf opens the fake's device.
func verbsOf(t *testing.T) (*verbsBench, *verbsDevice) {
	t.Helper()
	o := fakeVerbs(t, Options{})
	if err := o.Check(); err != nil {
		t.Fatal(err)
	}
	d, err := o.find()
	if err != nil {
		t.Fatal(err)
	}
	return &verbsBench{o: &o, r: o.Begin("verbs"), d: d}, d
}

// Bytes that did not arrive, and a message that is another one, fail a run.
func TestVerbsFindsWrongBytes(t *testing.T) {
	b, _ := verbsOf(t)
	f, err := b.openFlow("write", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.p.close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := f.sample(t.Context(), f.signal); err != nil {
		t.Fatal(err)
	}
	f.dst = make([]byte, 4096) // where nothing arrives
	if _, err := f.sample(t.Context(), f.signal); !errors.Is(err, paired.ErrFailed) {
		t.Errorf("bytes that did not arrive: %v", err)
	}
	p, err := b.d.pair(verbsShape{size: 4096, depth: pingSlots, chain: 1, recvs: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}()
	g := &verbsPing{p: p}
	if err := g.say(t.Context(), &p.a, &p.b, 7); err != nil {
		t.Fatal(err)
	}
	if err := g.hear(t.Context(), &p.b, 7); err != nil {
		t.Error(err)
	}
	if err := g.hear(t.Context(), &p.b, 6); !errors.Is(err, paired.ErrFailed) {
		t.Errorf("message 7 where 6 was due: %v", err)
	}
}

// Who waits in vain is called off, in each way of waiting.
func TestVerbsIsCalledOff(t *testing.T) {
	b, _ := verbsOf(t)
	for _, events := range []bool{false, true} {
		p, err := b.d.pair(verbsShape{size: 4096, depth: pingSlots, chain: 1, recvs: 1, events: events})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		cancel(why)
		if err := (&verbsPing{p: p, events: events}).hear(ctx, &p.a, 1); !errors.Is(err, why) {
			t.Errorf("events %t: %v", events, err)
		}
		if _, err := p.a.await(ctx, p.a.sendCQ); !errors.Is(err, why) {
			t.Errorf("completions: %v", err)
		}
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}
}

// What the clock takes is taken off, and no time is less than nothing.
func TestMicroseconds(t *testing.T) {
	for _, c := range []struct {
		d, clock time.Duration
		want     float64
	}{{10 * time.Microsecond, 4 * time.Microsecond, 6}, {1500, 0, 1.5}, {3, 4, 0}} {
		if got := microseconds(c.d, c.clock); got != c.want {
			t.Errorf("%v by a clock that takes %v: %v, expected %v", c.d, c.clock, got, c.want)
		}
	}
	if d := clockTakes(); d <= 0 || d > time.Second {
		t.Errorf("the clock takes %v", d)
	}
}
