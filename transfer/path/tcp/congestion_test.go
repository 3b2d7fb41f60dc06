package tcp

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/sys"
)

// The administrator's choice is taken, except that a loopback connection is not paced where another
// algorithm can be had.
func TestLoopbackDoesNotPace(t *testing.T) {
	all := []string{"bbr", "cubic", "reno"}
	for _, c := range []struct {
		host, system string
		available    []string
		want         string
	}{
		{"127.0.0.1", "bbr", all, "cubic"},
		{"::1", "bbr", all, "cubic"},
		{"127.0.0.1", "bbr2", []string{"bbr2", "reno"}, "reno"},
		{"127.0.0.1", "bbr", []string{"bbr"}, ""},
		{"192.0.2.1", "bbr", all, ""},
		{"127.0.0.1", "reno", all, ""},
		{"127.0.0.1", "dctcp", all, ""},
	} {
		if got := unpaced(netip.MustParseAddr(c.host), c.system, c.available); got != c.want {
			t.Errorf("to %s with %s: %q, want %q", c.host, c.system, got, c.want)
		}
	}
}

// TestCongestionControl asks the kernel what the connections of a path have, at both ends, and
// compares what Explain says.
func TestCongestionControl(t *testing.T) {
	system := systemCongestion()
	byDefault := system
	allowed := strings.Fields(sysctl("tcp_allowed_congestion_control")) // to a process without CAP_NET_ADMIN
	if name := unpaced(netip.MustParseAddr("127.0.0.1"), system, availableCongestion()); name != "" &&
		(os.Geteuid() == 0 || slices.Contains(allowed, name)) {
		byDefault = name
	}
	for _, c := range []struct{ option, want, why string }{
		{"", byDefault, "the system's choice"},
		{CongestionSystem, system, "the system's choice, as configured"},
		{"reno", "reno", "as configured"},
	} {
		ca, cb := configs()
		a, b := dialPair(t, Options{CongestionControl: c.option}, ca, cb)
		for _, p := range []*Path{a, b} {
			for _, fd := range p.fds {
				if cc, err := sys.Congestion(fd); err != nil || cc != c.want {
					t.Errorf("%q: a connection has %q, %v; want %q", c.option, cc, err, c.want)
				}
			}
			if s := strings.Join(p.Explain(), "\n"); !strings.Contains(s, "congestion control: "+c.want) ||
				!strings.Contains(s, c.why) {
				t.Errorf("%q explains:\n%s", c.option, s)
			}
			p.Close()
		}
	}
}

// Zero-copy sends are off unless Options asks for them, and Explain gives this reason, whatever the
// peer.
func TestExplainZeroCopyOff(t *testing.T) {
	ca, cb := configs()
	a, b := dialPair(t, Options{}, ca, cb)
	defer a.Close()
	defer b.Close()
	if s := strings.Join(a.Explain(), "\n"); !strings.Contains(s, "zero-copy send: off: it is not asked for") {
		t.Errorf("explained as:\n%s", s)
	}
}

func TestCheckOptions(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, ""},
		{Options{CongestionControl: CongestionSystem}, ""},
		{Options{CongestionControl: "reno"}, ""},
		{Options{CongestionControl: "no-such-thing"}, "congestion control \"no-such-thing\""},
		{Options{CongestionControl: "auto"}, "congestion control \"auto\""},
		{Options{Addr: "localhost"}, "Options.Addr: tcp: address \"localhost\""},
		{Options{Addr: "127.0.0.1:99999"}, "Options.Addr"},
		{Options{KTLS: Off + 1}, "Options.KTLS 3: expected Auto, On or Off"},
	} {
		switch err := c.o.check(); {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
}
