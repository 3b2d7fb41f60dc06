package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// try connects two ends and says how that failed; ends that came about are closed.
func try(t testing.TB, d *Driver) error {
	t.Helper()
	c := setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)}
	a, b, err := connect(t.Context(), d, c, c)
	if err != nil {
		return err
	}
	return errors.Join(a.Close(), b.Close())
}

// TestSetupFails lets each call of the library fail that setting a path up makes, the first of its
// kind, the second and so on. Nothing stays behind, and the next try works.
func TestSetupFails(t *testing.T) {
	setupFails(t)
}

func setupFails(t *testing.T) {
	w := newWorld(t, "")
	d := New(Options{Library: w.lib, Device: "fake0"})
	for _, call := range []string{"ibv_open_device", "ibv_query_device", "ibv_query_port", "ibv_alloc_pd", "ibv_reg_mr",
		"ibv_create_comp_channel", "ibv_create_cq",
		"ibv_modify_qp", "ibv_post_recv"} {
		failed, harmless := 0, 0
		for k := 1; ; k++ {
			before := w.counted(t, call)
			w.do(t, fmt.Sprintf("fail %s %d ENOMEM", call, k))
			err := try(t, d)
			if err == nil {
				w.clean(t)
				if w.counted(t, call)-before < k {
					break
				}
				// Some can be done without: package ibv asks what the device can do, Close stops
				// two queue pairs that are destroyed next.
				w.do(t, "reset")
				if harmless++; harmless > 2 {
					t.Errorf("%s: call %d fails, and setting up does not notice", call, k)
				}
				continue
			}
			failed++
			w.clean(t)
			if !strings.Contains(err.Error(), "memory") && !errors.Is(err, ibv.ErrMemlock) &&
				!errors.Is(err, context.Canceled) {
				t.Errorf("%s, call %d: %v", call, k, err)
			}
			w.do(t, "reset")
			if err := try(t, d); err != nil {
				t.Fatalf("after a failure of %s: %v", call, err)
			}
		}
		w.do(t, "reset")
		if failed == 0 {
			t.Errorf("%s: no failure of it did any harm", call)
		}
		t.Logf("%s: %d failures", call, failed)
	}
}

// TestMissing: what is missing on the machine is said, with the way to get it.
func TestMissing(t *testing.T) {
	w := newWorld(t, "")
	index := 99
	for _, c := range []struct {
		script string
		o      Options
		want   string
	}{
		{"", Options{Library: "/nonexistent/libibverbs.so.1"}, "libibverbs"},
		{"", Options{Library: w.lib, Device: "mlx5_7"}, `no RDMA device "mlx5_7"`},
		{"", Options{Library: w.lib, Port: 2, Device: "fake0"}, "port"},
		{"port 0 down; port 1 down", Options{Library: w.lib}, "set its interface up"},
		{"", Options{Library: w.lib, GID: &index}, "99"},
		{"", Options{Library: w.lib, Depth: 5}, "Depth"},
		{"", Options{Library: w.lib, QueuePairs: 9}, "QueuePairs"},
		{"", Options{Library: w.lib, Timeout: 32}, "Timeout"},
		{"", Options{Library: w.lib, Tuning: Tuning{Signal: just(65)}}, "Signal"},
		{"", Options{Library: w.lib, Tuning: Tuning{Piece: just(1 << 40)}}, "Piece"},
	} {
		w.do(t, "reset")
		w.do(t, c.script)
		_, err := New(c.o).Endpoint(setup.Config{Rights: both, Exports: new(path.Exports)}, nil)
		if !errors.Is(err, path.ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q, %+v: %v; expected one with %q that wraps ErrUnavailable", c.script, c.o, err, c.want)
		}
	}
}

// TestConfigs: wrong configurations are errors that name the field.
func TestConfigs(t *testing.T) {
	w := newWorld(t, "")
	d := New(Options{Library: w.lib})
	x := new(path.Exports)
	for _, c := range []struct {
		cfg  setup.Config
		want string
	}{
		{setup.Config{}, "Exports"}, {setup.Config{Rights: both, Exports: x, Window: -1}, "Window"},
		{setup.Config{Rights: both, Exports: x, Streams: -1}, "Streams"},
	} {
		if _, err := d.Endpoint(c.cfg, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("an endpoint with %+v: %v", c.cfg, err)
		}
	}
}

// TestDescriptions: an end does not connect to a description that it does not understand, or that
// does not fit, on either side; the error says why, and nothing is left.
func TestDescriptions(t *testing.T) {
	w := newWorld(t, "")
	d := New(Options{Library: w.lib})
	cfg := setup.Config{Rights: both, Exports: new(path.Exports), Streams: 2}
	e, err := d.Endpoint(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	good := e.Description()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	change := func(f func(d *description)) []byte {
		var x description
		if err := x.parse(good); err != nil {
			t.Fatal(err)
		}
		f(&x)
		return x.append(nil)
	}
	other := slices.Clone(good)
	other[5] = 77
	for _, c := range []struct {
		peer []byte
		want string
		is   error
	}{
		{[]byte("tcp://host"), "no description", path.ErrProtocol},
		{good[:len(good)-1], "bytes", path.ErrProtocol},
		{append(slices.Clone(good), 0), "bytes", path.ErrProtocol},
		{other, fmt.Sprintf("the peer speaks version 77 of the protocol of verbs paths, this side version %d", version), path.ErrUnavailable},
		{change(func(d *description) { d.gid = netip.MustParseAddr("2001:db8::9").As16() }), "Insecure", path.ErrUnavailable},
		{change(func(d *description) { d.dataQPs = 3 }), "3", nil},
		{change(func(d *description) { d.data[1].qpn = 1 << 24 }), "24 bits", path.ErrProtocol},
	} {
		if _, err := d.Endpoint(cfg, c.peer); err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil &&
			!errors.Is(err, c.is) {
			t.Errorf("Endpoint for the peer %x: %v; expected one with %q", c.peer, err, c.want)
		}
		e, err := d.Endpoint(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Connect(t.Context(), c.peer); err == nil || !strings.Contains(err.Error(), c.want) ||
			c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("Connect to the peer %x: %v; expected one with %q", c.peer, err, c.want)
		}
	}
	w.clean(t)
}

// TestPeerNeverConnects: an endpoint whose peer does not come is given up when its context ends,
// and one that nobody connects when it is closed.
func TestPeerNeverConnects(t *testing.T) {
	w := newWorld(t, "timers instant")
	d := New(Options{Library: w.lib})
	cfg := setup.Config{Rights: both, Exports: new(path.Exports)}
	for asks := range 2 {
		a, err := d.Endpoint(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := d.Endpoint(cfg, a.Description())
		if err != nil {
			t.Fatal(err)
		}
		waits, gone := b, a
		if asks == 1 {
			waits, gone = a, b
		}
		description := gone.Description()
		if err := gone.Close(); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if p, err := waits.Connect(ctx, description); err == nil {
			p.Close()
			t.Errorf("it is connected with an end that is gone")
		}
		cancel()
		w.clean(t)
	}
}

// TestLimits: an export or a local region that cannot be pinned fails its operations, with the
// reason, and nothing else.
func TestLimits(t *testing.T) {
	w := newWorld(t, "")
	r := newRig(t, w, Options{}, 1)
	small, large := r.A.Region(4096), r.A.Region(64<<20)
	here, there := r.B.Export(r.B.Region(4096), both), r.B.Export(r.B.Region(64<<20), both)
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(small, here, 0, 4096)})
	w.do(t, "memlock 16M")
	if e := r.A.Do(path.Op{Kind: path.Put, Copies: copyTo(small, there, 0, 4096)}); !errors.Is(e.Err,
		path.ErrUnavailable) {
		t.Errorf("put into an export that cannot be registered: %v", e.Err)
	}
	found := false
	for _, l := range r.b.Explain() {
		found = found || strings.Contains(l, "could not be registered")
	}
	if !found {
		t.Errorf("the owner does not explain it: %q", r.b.Explain())
	}
	if e := r.A.Do(path.Op{Kind: path.Put, Copies: copyTo(large, here, 0, 4096)}); e.Err == nil ||
		!strings.Contains(e.Err.Error(), "RLIMIT_MEMLOCK") {
		t.Errorf("put from a region that cannot be registered: %v", e.Err)
	}
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(small, here, 0, 4096)})
	w.do(t, "memlock 1G")
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(small, there, 0, 4096)})
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(large, here, 0, 4096)})
}

// TestDeviceFails: both ends go down and say so, also when their owners sleep.
func TestDeviceFails(t *testing.T) {
	for _, c := range []struct {
		script, want string
	}{
		{"event 0 DEVICE_FATAL", "device failed"},
		{"timers instant; cable 0 cut", "retr"},
	} {
		t.Run(c.script, func(t *testing.T) {
			w := newWorld(t, "")
			r := newRig(t, w, Options{}, 1)
			e := r.B.Export(r.B.Region(4096), both)
			local := r.A.Region(4096)
			r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
			w.do(t, c.script)
			put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})[0]
			for r.A.Down == nil {
				if r.A.Poll() == 0 && !r.a.Arm() {
					if _, err := sys.PollIn(-1, r.a.FD()); err != nil {
						t.Fatal(err)
					}
				}
			}
			if !strings.Contains(r.A.Down.Error(), c.want) {
				t.Errorf("down: %v; expected one with %q", r.A.Down, c.want)
			}
			if put.Times != 1 {
				t.Errorf("the put ended %d times", put.Times)
			}
			w.do(t, "cable 0 mend")
		})
	}
}
