package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/path"
)

// try connects two ends and says how that failed; ends that came about are closed.
func try(t testing.TB, d *Driver, limit time.Duration) error {
	t.Helper()
	l, err := d.Listen()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tok := newToken()
	accepted := make(chan error, 1)
	go func() {
		p, err := l.Accept(ctx, tok, path.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)})
		if err != nil {
			cancel() // what is missing here does not come by waiting
		} else {
			err = p.Close()
		}
		accepted <- err
	}()
	p, err := d.Dial(ctx, path.Offer{Addr: l.Addr(), Token: tok}, path.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)})
	if err != nil {
		cancel()
	} else {
		err = p.Close()
	}
	return errors.Join(err, <-accepted, l.Close())
}

// TestSetupFails lets each call of the library fail that setting a path up makes, the first of its kind, the second and so on.
// Nothing stays behind, and the next try works.
func TestSetupFails(t *testing.T) {
	for _, transport := range []Transport{RC, DC} {
		t.Run(transport.String(), func(t *testing.T) { setupFails(t, transport) })
	}
}

func setupFails(t *testing.T, transport Transport) {
	w := newWorld(t, "")
	d := New(Options{Library: w.lib, mlx5: w.lib, Device: "fake0", Transport: transport})
	for _, call := range []string{"ibv_open_device", "ibv_query_device", "ibv_query_port", "ibv_alloc_pd", "ibv_reg_mr", "ibv_create_comp_channel", "ibv_create_cq",
		"ibv_modify_qp", "ibv_create_ah", "ibv_post_recv", "ibv_create_srq", "ibv_post_srq_recv"} {
		if strings.Contains(call, "srq") && transport != DC {
			continue
		}
		failed, harmless := 0, 0
		for k := 1; ; k++ {
			before := w.counted(t, call)
			w.do(t, fmt.Sprintf("fail %s %d ENOMEM", call, k))
			err := try(t, d, time.Minute)
			if err == nil {
				w.clean(t)
				if w.counted(t, call)-before < k {
					break
				}
				// Some can be done without: package ibv asks what the device can do, Close stops two queue pairs that are destroyed next.
				w.do(t, "reset")
				// With DC, where a goodbye is still under way, two initiators are made ready again, in four calls each: one that fails is exchanged.
				most := 2
				if transport == DC {
					most += 2 * 4
				}
				if call == "ibv_post_recv" { // a hello that is sent again, as on a busy machine, takes a receive each time, and one of many may be missing
					most += 16
				}
				if harmless++; harmless > most {
					t.Errorf("%s: call %d fails, and setting up does not notice", call, k)
				}
				continue
			}
			failed++
			w.clean(t)
			if !strings.Contains(err.Error(), "memory") && !errors.Is(err, ibv.ErrMemlock) && !errors.Is(err, context.Canceled) {
				t.Errorf("%s, call %d: %v", call, k, err)
			}
			w.do(t, "reset")
			if err := try(t, d, time.Minute); err != nil {
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
		{"", Options{Library: w.lib, Rails: 9}, "Rails"},
		{"", Options{Library: w.lib, Timeout: 32}, "Timeout"},
		{"", Options{Library: w.lib, Signal: 64}, "Signal"},
		{"", Options{Library: w.lib, Piece: 1 << 40}, "Piece"},
	} {
		w.do(t, "reset")
		w.do(t, c.script)
		_, err := New(c.o).Listen()
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
		cfg  path.Config
		want string
	}{
		{path.Config{}, "Exports"}, {path.Config{Rights: path.Read | path.Write, Exports: x, Window: -1}, "Window"}, {path.Config{Rights: path.Read | path.Write, Exports: x, Streams: -1}, "Streams"},
		{path.Config{Rights: path.Read | path.Write, Exports: x, Secret: []byte("short")}, "Secret"},
	} {
		if _, err := d.Dial(t.Context(), path.Offer{Addr: "::1/0/17/1/5"}, c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("dial with %+v: %v", c.cfg, err)
		}
	}
	if _, err := d.Dial(t.Context(), path.Offer{Addr: "tcp://host"}, path.Config{Rights: path.Read | path.Write, Exports: x}); err == nil || !strings.Contains(err.Error(), addressForm) {
		t.Errorf("dial of nonsense: %v", err)
	}
	far := place{gid: netip.MustParseAddr("2001:db8::9").As16(), qpn: 17, mtu: 5}
	if _, err := d.Dial(t.Context(), path.Offer{Addr: far.String()}, path.Config{Rights: path.Read | path.Write, Exports: x}); err == nil || !strings.Contains(err.Error(), "Insecure") {
		t.Errorf("dial of another machine: %v; expected that Insecure is asked for", err)
	}
}

// TestStrangers: nonsense, hellos with another token or another secret, and repeated ones do not disturb; who comes with the right
// ones gets in.
func TestStrangers(t *testing.T) {
	w := newWorld(t, "")
	d := New(Options{Library: w.lib})
	l, err := d.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dev, err := d.device()
	if err != nil {
		t.Fatal(err)
	}
	u, err := openUD(dev, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { u.close(); dev.put() }()
	at, err := parseAddress(l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	to := params{gid: at.gid, lid: at.lid, udQPN: at.qpn, udQKey: at.qkey}
	secret := make([]byte, path.SecretSize)
	tok := newToken()
	cfg := path.Config{Rights: path.Read | path.Write, Exports: new(path.Exports), Secret: secret}
	got := make(chan path.Path, 1)
	go func() {
		p, err := l.Accept(t.Context(), tok, cfg)
		if err != nil {
			t.Error(err)
		}
		got <- p
	}()
	h := hello{token: newToken(), nonce: 5, params: params{gid: at.gid, rails: 1, window: 4, ctlDepth: 64, msgDepth: 64, mtu: 3, udQPN: u.qp.Num(), udQKey: u.qkey}}
	known := h
	known.token = tok
	for _, b := range [][]byte{{1}, make([]byte, 900), []byte(strings.Repeat("PVRB", 100)), h.append(nil, nil), h.append(nil, secret),
		known.append(nil, nil), known.append(nil, []byte("another secret"))} {
		if err := u.send(&to, b); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range [][]byte{nil, []byte("0123456789abcdef0123456789abcdef")} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		other := cfg
		other.Secret = s
		if p, err := d.Dial(ctx, path.Offer{Addr: l.Addr(), Token: tok}, other); err == nil {
			p.Close()
			t.Errorf("a dialer with the secret %q got in", s)
		}
		cancel()
	}
	p, err := d.Dial(t.Context(), path.Offer{Addr: l.Addr(), Token: tok}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	q := <-got
	if q == nil {
		t.FailNow()
	}
	if b, _ := u.receive(0); b != nil {
		t.Errorf("a stranger got an answer: %x", b)
	}
	p.Close()
	q.Close()
}

// TestLostDatagrams: hello and welcome are lost again and again, and the path comes about all the same, once.
func TestLostDatagrams(t *testing.T) {
	for _, lost := range []string{"drop recv 1", "fail ibv_create_ah 1 ENOMEM"} {
		w := newWorld(t, "")
		d := New(Options{Library: w.lib})
		l, err := d.Listen()
		if err != nil {
			t.Fatal(err)
		}
		tok := newToken()
		cfg := path.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)}
		if strings.HasPrefix(lost, "drop") {
			w.do(t, lost)
		}
		got := make(chan path.Path, 1)
		go func() {
			p, err := l.Accept(t.Context(), tok, cfg)
			if err != nil {
				t.Error(err)
			}
			got <- p
		}()
		p, err := d.Dial(t.Context(), path.Offer{Addr: l.Addr(), Token: tok}, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if q := <-got; q != nil {
			q.Close()
		}
		p.Close()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestLimits: an export or a local region that cannot be pinned fails its operations, with the reason, and nothing else.
func TestLimits(t *testing.T) {
	w := newWorld(t, "")
	r := newRig(t, w, Options{}, 1)
	small, large := r.A.Region(4096), r.A.Region(64<<20)
	here, there := r.B.Export(r.B.Region(4096), both), r.B.Export(r.B.Region(64<<20), both)
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(small, here, 0, 4096)})
	w.do(t, "memlock 16M")
	if e := r.A.Do(path.Op{Kind: path.Put, Copies: copyTo(small, there, 0, 4096)}); !errors.Is(e.Err, path.ErrUnavailable) {
		t.Errorf("put into an export that cannot be registered: %v", e.Err)
	}
	found := false
	for _, l := range r.b.Explain() {
		found = found || strings.Contains(l, "could not be registered")
	}
	if !found {
		t.Errorf("the owner does not explain it: %q", r.b.Explain())
	}
	if e := r.A.Do(path.Op{Kind: path.Put, Copies: copyTo(large, here, 0, 4096)}); e.Err == nil || !strings.Contains(e.Err.Error(), "RLIMIT_MEMLOCK") {
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
		transport    Transport
	}{
		{"event 0 DEVICE_FATAL", "device failed", RC},
		{"timers instant; cable 0 cut", "retr", RC},
		{"event 0 DEVICE_FATAL", "device failed", DC},
		{"timers instant; cable 0 cut", "retr", DC},
	} {
		t.Run(c.transport.String()+"/"+c.script, func(t *testing.T) {
			w := newWorld(t, "")
			r := newRig(t, w, Options{Transport: c.transport}, 1)
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
