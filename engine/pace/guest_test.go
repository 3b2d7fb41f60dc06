package pace

import (
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/penstock-io/penstock/internal/sys"
	"golang.org/x/sys/unix"
)

// TestGuestQdiscs sends at given times through real qdiscs, and looks at the kernel's receive
// times.
func TestGuestQdiscs(t *testing.T) {
	if guest.Enter(t, guest.Spec{Profile: guest.Net}) {
		return
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// A translated processor is slow: etf may take a second to notice that a time has come.
	const delta = time.Second
	t.Run("fq", func(t *testing.T) {
		qdisc(t, "fq", "horizon", "8s")
		s := Probe("lo")
		if s.Qdisc != "fq" || s.Horizon != 8*time.Second || s.Reason != "" {
			t.Fatalf("%+v", s)
		}
		x, got := s.exchange(t, 20)
		if len(got) != 20 {
			t.Errorf("%d of 20 packets arrived", len(got))
		}
		if m, i := x.Reports(); m+i != 0 {
			t.Errorf("%d missed, %d invalid", m, i)
		}
	})
	t.Run("etf", func(t *testing.T) {
		qdisc(t, "etf", "clockid", "CLOCK_TAI", "delta", "1000000000")
		s := Probe("lo")
		if s.Qdisc != "etf" || s.Delta != delta || s.Reason != "" {
			t.Fatalf("%+v", s)
		}
		x, got := s.exchange(t, 20)
		m, i := x.Reports()
		t.Logf("%d arrived, %d missed, %d invalid", len(got), m, i)
		if len(got)+int(m+i) != 20 || len(got) == 0 {
			t.Errorf("%d of 20 packets arrived, %d missed, %d invalid", len(got), m, i)
		}
	})
	t.Run("etf missed", func(t *testing.T) {
		// A delta that no timer keeps: the packets are dropped in the qdisc, and it says so.
		qdisc(t, "etf", "clockid", "CLOCK_TAI", "delta", "1")
		s := Probe("lo")
		x, got := s.exchange(t, 20)
		if m, i := x.Reports(); len(got)+int(m+i) != 20 || m+i == 0 {
			t.Errorf("%d of 20 packets arrived, %d missed, %d invalid", len(got), m, i)
		}
		var st engine.TxStats
		st.Packets = 20
		p, err := New(&null{}, Options{SendAt: true, Kernel: x})
		if err != nil {
			t.Fatal(err)
		}
		if p.AddStats(&st); st.Packets != uint64(len(got)) || st.Packets+st.Drops.Total() != 20 {
			t.Errorf("%+v", st)
		}
	})
	t.Run("none", func(t *testing.T) {
		qdisc(t, "pfifo")
		if s := Probe("lo"); s.Qdisc != "" || s.In() != "software" {
			t.Errorf("%+v", s)
		}
		// The control: without a qdisc that waits, times are taken and mean nothing, so the test
		// above can fail.
		s := Support{Device: "lo", Qdisc: "fq", clock: sys.ClockMonotonic}
		early := 0
		_, got := s.exchangeAt(t, 20, time.Second)
		for _, p := range got {
			if p.received < p.at {
				early++
			}
		}
		if early == 0 {
			t.Error("a qdisc that does not wait sent nothing early")
		}
	})
}

func qdisc(t *testing.T, args ...string) {
	t.Helper()
	// etf cannot be changed, only replaced; there is none at first
	exec.Command("tc", "qdisc", "del", "dev", "lo", "root").Run()
	if out, err := exec.Command("tc", append([]string{"qdisc", "add", "dev", "lo", "root"},
		args...)...).CombinedOutput(); err != nil {
		t.Fatalf("tc qdisc %v: %v: %s", args, err, out)
	}
}

// arrival is a packet that came: its number, when it was to leave and when it was received.
type arrival struct {
	n            byte
	at, received int64
}

// exchange is exchangeAt, and checks that nothing is early or overtakes.
func (s *Support) exchange(t *testing.T, n int) (*TxTime, []arrival) {
	t.Helper()
	x, got := s.exchangeAt(t, n, 25*time.Millisecond)
	var late []time.Duration
	for i, p := range got {
		if i > 0 && p.n <= got[i-1].n {
			t.Errorf("packet %d after %d", p.n, got[i-1].n)
		}
		if p.received < p.at {
			t.Errorf("packet %d was received %v before its time", p.n, time.Duration(p.at-p.received))
		}
		late = append(late, time.Duration(p.received-p.at))
	}
	slices.Sort(late)
	t.Logf("late: %v", late)
	return x, got
}

// exchangeAt sends n packets over lo, whose times are so far apart, and receives until all have
// arrived or are reported lost, or nothing happens any more. Every fourth has the time of an
// earlier one, and one has none.
func (s *Support) exchangeAt(t *testing.T, n int, apart time.Duration) (*TxTime, []arrival) {
	t.Helper()
	to, err := sys.SocketUDP(false)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(to)
	from, err := sys.SocketUDP(false)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(from)
	home := netip.MustParseAddrPort("127.0.0.1:0")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(sys.Bind(to, home, 0))
	check(sys.SetOption(to, unix.SOL_SOCKET, sys.SoTimestamping, sys.TimestampRxSoftware|sys.TimestampSoftware))
	addr, err := sys.LocalAddr(to)
	check(err)
	check(sys.Bind(from, home, 0))
	check(sys.Connect(from, addr, 0))
	x, err := s.Enable(from)
	check(err)

	now := time.Now()
	x.begin(now)
	want := make([]int64, n)
	var control [ControlSize]byte
	for i := range n {
		at := now.Add(time.Duration(i+8) * apart).UnixNano()
		want[i] = at
		if i%4 == 3 {
			at -= int64(2*apart) + 1 // waits behind the one before
			want[i] = want[i-1]
		}
		c := control[:x.Control(control[:], at, i != 5)]
		if i == 5 {
			want[i] = want[4]
		}
		check(unix.Sendmsg(from, []byte{byte(i)}, c, nil, 0))
	}
	var got []arrival
	untimed := 0
	var b [8]byte
	var oob [256]byte
	// Nothing is asserted about how long it takes: the limit is against hanging, and its end shows
	// as packets that are missing.
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		x.ReadReports(from)
		m, i := x.Reports()
		if len(got)+int(m+i) >= n {
			break
		}
		if _, err := sys.PollIn(100, to); err != nil {
			t.Fatal(err)
		}
		k, cn, _, _, err := unix.Recvmsg(to, b[:], oob[:], unix.MSG_DONTWAIT)
		if err == unix.EAGAIN {
			continue
		}
		check(err)
		if k != 1 || int(b[0]) >= n {
			t.Fatalf("%d bytes", k)
		}
		received := sys.ParseReceived(oob[:cn]).Time
		if received == 0 {
			// The kernel begins to take times a moment after it was asked to. This one is no
			// earlier than its own would be.
			received = time.Now().UnixNano()
			untimed++
		}
		got = append(got, arrival{b[0], want[b[0]], received})
	}
	if untimed > 15 && apart < time.Second { // those that come at once may all be too soon
		t.Error("the kernel took no receive times")
	}
	return x, got
}
