package netns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// ctx ends long after anything that works would have.
func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return c
}

// datagram sends n bytes in one UDP datagram that must not be cut, and returns the error of
// sending. Without one it has arrived, bytes checked.
func datagram(t *testing.T, from, to *Host, addr func(*Link) netip.Addr, n int) error {
	t.Helper()
	l, err := to.ListenPacket(ctx(t), "udp", netip.AddrPortFrom(addr(to.Link()), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := from.Dial(ctx(t), "udp", l.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		if addr(to.Link()).Is4() {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_PMTUDISC_DO)
		} else {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IPV6, syscall.IPV6_MTU_DISCOVER,
				syscall.IPV6_PMTUDISC_DO)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	msg := make([]byte, n)
	for i := range msg {
		msg[i] = byte(i * 7)
	}
	if _, err := c.Write(msg); err != nil {
		return err
	}
	l.SetReadDeadline(time.Now().Add(time.Minute))
	got := make([]byte, n+1)
	k, _, err := l.ReadFrom(got)
	if err != nil {
		t.Fatalf("a datagram of %d bytes from %s to %s did not come: %v", n, from, to, err)
	}
	if !bytes.Equal(got[:k], msg) {
		t.Fatalf("%d bytes came, expected %d, or the bytes differ", k, n)
	}
	return nil
}

func v4(l *Link) netip.Addr    { return l.IPv4 }
func v6(l *Link) netip.Addr    { return l.IPv6 }
func local(l *Link) netip.Addr { return l.Local }

func TestMTU(t *testing.T) {
	for _, mtu := range []int{1500, 9000} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			n := New(t, Topology{Link: LinkSpec{MTU: mtu}})
			for _, addr := range []func(*Link) netip.Addr{v4, v6} {
				for _, way := range [][2]*Host{{n.Hosts[0], n.Hosts[1]}, {n.Hosts[1], n.Hosts[0]}} {
					if err := datagram(t, way[0], way[1], addr, 1400); err != nil {
						t.Errorf("1400 bytes to %v: %v", addr(way[1].Link()), err)
					}
					err := datagram(t, way[0], way[1], addr, 8900)
					if mtu == 9000 && err != nil || mtu == 1500 && !errors.Is(err, syscall.EMSGSIZE) {
						t.Errorf("8900 bytes to %v at MTU %d: %v", addr(way[1].Link()), mtu, err)
					}
				}
			}
		})
	}
}

// sysfs lists names below the host's /sys/class/net, as its thread and as a program in it see them.
func sysfs(t *testing.T, h *Host, pattern string) []string {
	t.Helper()
	var names []string
	err := h.Do(func() (err error) {
		names, err = filepath.Glob("/sys/class/net/" + pattern)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	out, err := h.Output(ctx(t), "sh", "-c", "ls -d /sys/class/net/"+pattern)
	if err != nil {
		t.Fatal(err)
	}
	if theirs := strings.Fields(string(out)); fmt.Sprint(theirs) != fmt.Sprint(names) {
		t.Errorf("%s sees %v, a program in it %v", h, names, theirs)
	}
	return names
}

func TestQueues(t *testing.T) {
	n := New(t, Topology{Hosts: 2, Link: LinkSpec{Queues: 4}, Each: func(_, host int, s *LinkSpec) {
		if host == 1 {
			s.Queues = 2
		}
	}})
	for i, want := range []int{4, 2} {
		for _, kind := range []string{"rx", "tx"} {
			if q := sysfs(t, n.Hosts[i], "eth0/queues/"+kind+"-*"); len(q) != want {
				t.Errorf("%s has the queues %v, expected %d", n.Hosts[i], q, want)
			}
		}
	}
}

func TestBridge(t *testing.T) {
	n := New(t, Topology{Hosts: 3, Link: LinkSpec{MTU: 9000}})
	for _, a := range n.Hosts {
		for _, b := range n.Hosts {
			for _, addr := range []func(*Link) netip.Addr{v4, v6} {
				if err := datagram(t, a, b, addr, 8900); err != nil {
					t.Errorf("%s to %s: %v", a, b, err)
				}
			}
		}
	}
	if devs := sysfs(t, n.Hosts[2], "*"); len(devs) != 2 {
		t.Errorf("a host on a bridge has the devices %v, expected eth0 and lo", devs)
	}
}

func TestRails(t *testing.T) {
	n := New(t, Topology{Rails: 3, Neighbours: true})
	a, b := n.Hosts[0], n.Hosts[1]
	if len(a.Links) != 3 {
		t.Fatalf("%d links, expected 3", len(a.Links))
	}
	// What is sent to an address of a rail leaves by its device.
	for i, l := range b.Links {
		sent := func() string {
			out := ""
			if err := a.Do(func() error {
				b, err := os.ReadFile("/sys/class/net/" + a.Links[i].Name + "/statistics/tx_packets")
				out = string(b)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return out
		}
		before := sent()
		if err := datagram(t, a, b, func(*Link) netip.Addr { return l.IPv4 }, 100); err != nil {
			t.Error(err)
		}
		if sent() == before {
			t.Errorf("a datagram to %v did not leave by %s", l.IPv4, a.Links[i].Name)
		}
	}
}

func TestDownAndUp(t *testing.T) {
	for _, top := range []Topology{{Neighbours: true, Localnet: true}, {Bridge: true, Localnet: true}} {
		t.Run(fmt.Sprintf("bridge=%t", top.Bridge), func(t *testing.T) {
			n := New(t, top)
			a, b := n.Hosts[0], n.Hosts[1]
			state := func(h *Host) (out string) {
				if err := h.Do(func() error {
					c, err := os.ReadFile("/sys/class/net/eth0/operstate")
					out = strings.TrimSpace(string(c))
					return err
				}); err != nil {
					t.Fatal(err)
				}
				return out
			}
			for range 3 {
				for _, l := range []*Link{a.Link(), b.Link()} {
					if err := l.Down(); err != nil {
						t.Fatal(err)
					}
					if s := state(l.Host()); s != "lowerlayerdown" && s != "down" {
						t.Errorf("a cut link is %q", s)
					}
					out, err := l.Host().Output(ctx(t), "ip", "addr", "show", "dev", "eth0")
					if err != nil {
						t.Fatal(err)
					}
					for _, want := range []string{"NO-CARRIER", l.IPv4.String(), l.IPv6.String(), l.Local.String()} {
						if !strings.Contains(string(out), want) {
							t.Errorf("no %q in:\n%s", want, out)
						}
					}
					if err := l.Up(); err != nil {
						t.Fatal(err)
					}
					for _, addr := range []func(*Link) netip.Addr{v4, v6, local} {
						for _, way := range [][2]*Host{{a, b}, {b, a}} {
							if err := datagram(t, way[0], way[1], addr, 1000); err != nil {
								t.Errorf("%s to %s after the cable was restored: %v", way[0], addr(way[1].Link()), err)
							}
						}
					}
				}
			}
		})
	}
}

// A connection outlives a short cut and delivers what was written meanwhile.
func TestConnectionOutlivesACut(t *testing.T) {
	n := New(t, Topology{})
	a, b := n.Hosts[0], n.Hosts[1]
	l, err := b.Listen(ctx(t), "tcp", netip.AddrPortFrom(b.Link().IPv4, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := a.Dial(ctx(t), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := a.Link().Down(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	s.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) // enough that a cable that was not cut would show
	if k, err := s.Read(make([]byte, 5)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes passed a cut cable: %v", k, err)
	}
	if err := a.Link().Up(); err != nil {
		t.Fatal(err)
	}
	s.SetReadDeadline(time.Now().Add(time.Minute))
	got := make([]byte, 5)
	if _, err := io.ReadFull(s, got); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestLocalnet(t *testing.T) {
	for _, neighbours := range []bool{false, true} {
		n := New(t, Topology{Localnet: true, Neighbours: neighbours})
		a, b := n.Hosts[0], n.Hosts[1]
		if l := b.Link().Local; !l.IsLoopback() || !l.IsValid() {
			t.Errorf("%v is no loopback address", l)
		}
		if err := datagram(t, a, b, local, 1000); err != nil {
			t.Error(err)
		}
	}
}

// The loopback of one host is not that of another, nor of this process.
func TestIsolation(t *testing.T) {
	n := New(t, Topology{})
	outside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	inside, err := n.Hosts[0].Listen(ctx(t), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	dial := func(h *Host, l net.Listener) error {
		c, err := h.Dial(ctx(t), "tcp", l.Addr().String())
		if err == nil {
			c.Close()
		}
		return err
	}
	if err := dial(n.Hosts[0], inside); err != nil {
		t.Errorf("a host does not reach its own loopback: %v", err)
	}
	for _, h := range n.Hosts {
		if err := dial(h, outside); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("from %s to a loopback port of this process: %v, expected a refusal", h, err)
		}
	}
	if err := dial(n.Hosts[1], inside); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("from one host to a loopback port of another: %v, expected a refusal", err)
	}
	// The same port twice.
	again, err := n.Hosts[1].Listen(ctx(t), "tcp", inside.Addr().String())
	if err != nil {
		t.Errorf("a port that another host uses: %v", err)
	} else {
		again.Close()
	}
	if devs, _ := net.InterfaceByName("eth0"); devs != nil && bytes.Equal(devs.HardwareAddr, n.Hosts[0].Link().MAC) {
		t.Error("this process sees the device of a host")
	}
}

func TestRate(t *testing.T) {
	n := New(t, Topology{Link: LinkSpec{Rate: 200e6, MTU: 9000}})
	for _, h := range n.Hosts {
		out, err := h.Output(ctx(t), "tc", "qdisc", "show", "dev", "eth0")
		if err != nil {
			t.Fatal(err)
		}
		if s := string(out); !strings.Contains(s, "tbf") || !strings.Contains(s, "200Mbit") {
			t.Errorf("the queueing discipline of %s: %s", h, s)
		}
	}
	if err := datagram(t, n.Hosts[0], n.Hosts[1], v4, 8900); err != nil {
		t.Error(err)
	}
}

func TestDeviceOptions(t *testing.T) {
	mac := net.HardwareAddr{0x02, 1, 2, 3, 4, 5}
	n := New(t, Topology{Neighbours: true, Link: LinkSpec{NoOffloads: true, Promisc: true},
		Each: func(_, host int, s *LinkSpec) {
			if host == 0 {
				s.MAC, s.IPv4 = mac, netip.MustParsePrefix("10.77.0.99/24")
			} else {
				s.NoOffloads, s.Promisc = false, false
			}
		}})
	a, b := n.Hosts[0], n.Hosts[1]
	show := func(h *Host, prog string, args ...string) string {
		t.Helper()
		out, err := h.Output(ctx(t), prog, args...)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if s := show(a, "ip", "link", "show", "eth0"); !strings.Contains(s, mac.String()) ||
		!strings.Contains(s, "PROMISC") {
		t.Errorf("expected %s and PROMISC: %s", mac, s)
	}
	if s := show(b, "ip", "link", "show", "eth0"); strings.Contains(s, "PROMISC") {
		t.Errorf("host1 was not asked to take everything: %s", s)
	}
	for _, f := range []string{"generic-segmentation-offload", "tcp-segmentation-offload", "tx-checksumming",
		"scatter-gather"} {
		if s := show(a, "ethtool", "-k", "eth0"); !strings.Contains(s, f+": off") {
			t.Errorf("expected %s: off in:\n%s", f, s)
		}
		if s := show(b, "ethtool", "-k", "eth0"); !strings.Contains(s, f+": on") {
			t.Errorf("expected %s: on in:\n%s", f, s)
		}
	}
	if s := show(b, "ip", "neigh", "show"); !strings.Contains(s,
		"10.77.0.99 dev eth0 lladdr "+mac.String()+" PERMANENT") {
		t.Errorf("expected 10.77.0.99 to be known for good: %s", s)
	}
	if err := datagram(t, b, a, v4, 1000); err != nil {
		t.Error(err)
	}
}

func TestSysctl(t *testing.T) {
	n := New(t, Topology{Hosts: 1})
	h := n.Hosts[0]
	read := func() (s string) {
		h.Do(func() error {
			b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_fastopen")
			s = strings.TrimSpace(string(b))
			return err
		})
		return s
	}
	outside, err := os.ReadFile("/proc/sys/net/ipv4/tcp_fastopen")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Sysctl("net.ipv4.tcp_fastopen", "3"); err != nil {
		t.Fatal(err)
	}
	if s := read(); s != "3" {
		t.Errorf("reads %q", s)
	}
	if now, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_fastopen"); string(now) != string(outside) {
		t.Errorf("this process reads %q, before %q", now, outside)
	}
	if err := h.Sysctl("vm.nr_hugepages", "1"); err == nil {
		t.Error("a parameter of the whole machine was accepted")
	}
	if h.Link() != nil {
		t.Error("one host alone has a link")
	}
}

func TestWrongTopologies(t *testing.T) {
	for _, c := range []struct {
		top  Topology
		want string
	}{
		{Topology{Hosts: 201}, "1 to 200"},
		{Topology{Rails: -1}, "1 to 200"},
		{Topology{Link: LinkSpec{MTU: 1000}}, "MTU 1000"},
		{Topology{Link: LinkSpec{MTU: 70000}}, "MTU 70000"},
		{Topology{Link: LinkSpec{Queues: 1000}}, "1000 queues"},
		{Topology{Link: LinkSpec{MAC: net.HardwareAddr{1, 2, 3, 4, 5, 6}}}, "01:02:03:04:05:06"},
		{Topology{Link: LinkSpec{IPv4: netip.MustParsePrefix("fd00::1/64")}}, "one of IPv4"},
	} {
		n, err := Open(c.top)
		if err == nil {
			n.Close()
		}
		var m *MissingError
		if errors.As(err, &m) {
			New(t, c.top) // skips
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, expected an error with %q", c.top, err, c.want)
		}
	}
}

func TestErrorsOfTools(t *testing.T) {
	n := New(t, Topology{Hosts: 1})
	err := n.Hosts[0].ip("link set lo up", "link set nothing up")
	for _, want := range []string{"host0", "ip -batch -", "nothing", `("link set nothing up")`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: expected %q in it", err, want)
		}
	}
	for said, lacks := range map[string]bool{
		"Error: Specified qdisc kind is unknown.":         true,
		"Error: Unknown device type.":                     true,
		"RTNETLINK answers: Operation not permitted":      true,
		"RTNETLINK answers: File exists":                  false,
		"Cannot find device \"eth7\"\nCommand failed -:1": false,
	} {
		var m *MissingError
		if got := errors.As(missing(said, errors.New("exit status 1")), &m); got != lacks {
			t.Errorf("%q means that the machine lacks something: %t, expected %t", said, got, lacks)
		}
	}
}

func TestDo(t *testing.T) {
	n := New(t, Topology{})
	h := n.Hosts[0]
	tid := 0
	sentinel := errors.New("mine")
	// A call inside a call runs at once, and a program can be started from there.
	err := h.Do(func() error {
		tid = sys.ThreadID()
		return h.Do(func() error {
			if sys.ThreadID() != tid {
				t.Error("a call inside a call runs on another thread")
			}
			if _, err := h.Output(ctx(t), "true"); err != nil {
				t.Error(err)
			}
			return sentinel
		})
	})
	if !errors.Is(err, sentinel) {
		t.Errorf("Do returned %v", err)
	}
	if tid == os.Getpid() {
		t.Error("the host is held by the first thread of the process, which never ends")
	}
	wd, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(wd) // long after the host's thread got its own
	if out, err := h.Output(ctx(t), "pwd", "-P"); err != nil || strings.TrimSpace(string(out)) != wd {
		t.Errorf("a program's working directory is %q, expected %s: %v", out, wd, err)
	}
	if _, err := h.Output(ctx(t), "sh", "-c", "echo because >&2; exit 3"); err == nil ||
		!strings.Contains(err.Error(), "because") {
		t.Errorf("a program that failed: %v", err)
	}
	stop, cancel := context.WithCancelCause(t.Context())
	cancel(sentinel)
	if _, err := h.Output(stop, "sleep", "1000"); !errors.Is(err, sentinel) {
		t.Errorf("a program whose time is over: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := h.Do(func() error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("a call on a closed host: %v", err)
	}
	if err := h.Start(h.Command("true")); !errors.Is(err, ErrClosed) {
		t.Errorf("a program in a closed host: %v", err)
	}
}

func TestReceives(t *testing.T) {
	const table = `fd770000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0
fd770000000000000000000000000002 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000002 00000000 80200001     eth0
fd770000000000000000000000000003 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 00000005     eth0
`
	for a, want := range map[string]bool{"fd77::2": true, "fd77::3": false, "fd77::": false, "fd77::4": false} {
		if receives(table, netip.MustParseAddr(a)) != want {
			t.Errorf("%s is received for: %t, expected %t", a, !want, want)
		}
	}
}
