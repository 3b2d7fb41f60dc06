package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
)

func TestAddresses(t *testing.T) {
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	from := func(s string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(s), 0) }
	type options struct {
		device string
		gid    string
		how    Transport
		by     Connector
	}
	for s, want := range map[string]struct {
		address
		options
	}{
		"roce://10.0.0.1:4096?listen=1": {address{listen: true, local: at("10.0.0.1:4096")},
			options{}},
		"rdma://:4096?listen=true&device=mlx5_0&gid=0": {address{listen: true, local: at("[::]:4096")},
			options{device: "mlx5_0", gid: "0"}},
		"roce://10.0.0.1":    {address{local: from("10.0.0.1")}, options{}},
		"roce://fe80::1":     {address{local: from("fe80::1")}, options{}},
		"roce://[fd00::1]:7": {address{remote: at("[fd00::1]:7")}, options{}},
		"roce://10.0.0.2:4096?local=10.0.0.1&transport=uc": {address{remote: at("10.0.0.2:4096"),
			local: from("10.0.0.1")}, options{how: UC}},
		"roce://10.0.0.2:4096?connect=CM": {address{remote: at("10.0.0.2:4096")},
			options{by: ByCM}},
		"roce://10.0.0.2:1?engine=ibverbs": {address{remote: at("10.0.0.2:1")}, options{}},
		"roce://?local=10.0.0.1":           {address{local: from("10.0.0.1")}, options{}},
		"roce://[::ffff:10.0.0.2]:9?local=::ffff:10.0.0.1&gid=3": {address{remote: at("10.0.0.2:9"),
			local: from("10.0.0.1")}, options{gid: "3"}},
	} {
		a, o, err := resolve(engine.PortSpec{Address: s})
		gid := ""
		if o.GID != nil {
			gid = fmt.Sprint(*o.GID)
		}
		if got := (options{o.Device, gid, o.Transport, o.Connect}); err != nil || a.listen != want.listen ||
			a.local != want.local || a.remote != want.remote || got != want.options {
			t.Errorf("%s: %+v, %+v, %v; expected %+v", s, a, got, err, want)
		}
	}
	for s, want := range map[string]string{
		"tcp://10.0.0.1:1": "expected roce://", "eth0": "expected roce://", "roce://": "expected an IP address",
		"roce://host:1": `host "host"`, "roce://10.0.0.1:70000": `port "70000"`,
		"roce://10.0.0.1:0": "a port to connect to", "roce://:1": "an address and a port",
		"roce://10.0.0.1?listen=1": "expected a port", "roce://10.0.0.1:1?listen=2": "listen",
		"roce://10.0.0.1:1?x=1": `x: there is no such key`, "roce://10.0.0.1:1?local=a": "local",
		"roce://10.0.0.1:1?listen=1&local=10.0.0.2": "for a port that connects", "roce://10.0.0.1:1?gid=-1": "gid",
		"roce://10.0.0.1:1?device=a/b": "device", "roce://10.0.0.1:1?transport=XRC": "RC, UC, UD",
		"roce://10.0.0.1:1?connect=udp": "tcp, cm", "roce://10.0.0.1:1?engine=dpdk": "ibverbs",
		"roce://10.0.0.1:1?gid=1&gid=2": "twice",
		"roce://10.0.0.1:1?device=%zz":  "escaped", "roce://10.0.0.1?local=10.0.0.2": "expected a port",
	} {
		if _, _, err := resolve(engine.PortSpec{Address: s}); !errors.Is(err, engine.ErrInvalid) ||
			!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), s) {
			t.Errorf("%s: %v; expected %q", s, err, want)
		}
	}
}

func FuzzAddress(f *testing.F) {
	f.Add("roce://10.0.0.2:4096?local=10.0.0.1&device=mlx5_0")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseAddress(s)
		if err != nil {
			return
		}
		if a.listen == a.remote.IsValid() && (a.listen || !a.local.IsValid()) {
			t.Errorf("%q: %+v", s, a)
		}
	})
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Transport: 3}, {Connect: 2}, {Port: -1}, {GID: new(-1)}, {SendDepth: -1},
		{SendDepth: maxDepth + 1}, {SignalEvery: -1}, {Segments: -1}, {Retries: 8}, {AckTimeout: -1},
		{Linger: -1}, {MTU: 1500}, {Options: conns.Options{MaxConns: -1}},
		{Options: conns.Options{BackoffMin: 2, BackoffMax: 1}}} {
		if err := o.complete(); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for by, pause := range map[Connector]time.Duration{ByTCP: 10 * time.Microsecond, ByCM: 640 * time.Microsecond} {
		o := Options{Connect: by}
		if err := o.complete(); err != nil || o.MinRNR != pause {
			t.Errorf("%v: a pause of %v, %v; expected %v", by, o.MinRNR, err, pause)
		}
	}
	o := Options{SendDepth: 2}
	if err := o.complete(); err != nil || o.SignalEvery != 1 || o.Retries != 6 {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestPauses: no pause that was asked for becomes the longest one, whose code is 0.
func TestPauses(t *testing.T) {
	for d, want := range map[time.Duration]uint8{0: 1, time.Microsecond: 1, 10 * time.Microsecond: 1,
		11 * time.Microsecond: 2, 640 * time.Microsecond: 12, time.Second: 31} {
		if got := rnrCode(d); got != want {
			t.Errorf("pause of %v: code %d, expected %d", d, got, want)
		}
	}
	for d, want := range map[time.Duration]uint8{0: 1, 67 * time.Millisecond: 14, 67109 * time.Microsecond: 15,
		8192 * time.Nanosecond: 1, 9 * time.Microsecond: 2, time.Hour * 1000: 31} {
		if got := ackCode(d); got != want {
			t.Errorf("acknowledgement after %v: code %d, expected %d", d, got, want)
		}
	}
}
