package netif

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seen is an interface under watch, and a channel that says when something has changed.
type seen struct {
	*Interface
	t     *testing.T
	host  *netns.Host
	wakes chan struct{}
}

// watch opens an interface of a host.
func watch(t *testing.T, h *netns.Host, name string) *seen {
	t.Helper()
	s := &seen{t: t, host: h, wakes: make(chan struct{}, 1)}
	if err := h.Do(func() (err error) { s.Interface, err = Open(name, 0); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Watch(func() {
		select {
		case s.wakes <- struct{}{}:
		default:
		}
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

// until waits for a condition, and looks at it only when something has changed.
func (s *seen) until(what string, ok func() bool) {
	s.t.Helper()
	end := time.After(time.Minute)
	for !ok() {
		select {
		case <-s.wakes:
		case <-end:
			s.t.Fatalf("waited a minute for %s: %+v", what, s.Info())
		}
	}
}

func (s *seen) ip(args string) {
	s.t.Helper()
	if out, err := s.host.Output(s.t.Context(), "ip", strings.Fields(args)...); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
}

func TestWhatIsThere(t *testing.T) {
	n := netns.New(t, netns.Topology{Link: netns.LinkSpec{MTU: 1700, Queues: 3}})
	l := n.Hosts[0].Link()
	i := watch(t, n.Hosts[0], "eth0")
	if i.Name() != "eth0" || i.MTU() != 1700 || i.MAC() != packet.MAC(l.MAC) || !i.Up() || i.Gone() ||
		i.RxQueues() != 3 || i.Changes() != 0 || i.Index() < 1 {
		t.Errorf("%s %d: MTU %d, %v, up %t, gone %t, %d queues, %d changes", i.Name(), i.Index(), i.MTU(), i.MAC(),
			i.Up(), i.Gone(), i.RxQueues(), i.Changes())
	}
	info := i.Info()
	has := func(a netip.Addr) (found bool) {
		for _, p := range info.IPs {
			found = found || p.Addr() == a
		}
		return found
	}
	if info.Device != "eth0" || info.MTU != 1700 || !info.Up || info.NUMA != -1 || info.Speed != 10e9 || !has(l.IPv4) ||
		!has(l.IPv6) {
		// a veth says 10 Gb/s
		t.Errorf("%+v", info)
	}
	if err := i.Watch(func() {}); !errors.Is(err, engine.ErrExists) {
		t.Errorf("watched twice: %v", err)
	}
	for _, c := range []struct {
		name string
		mtu  int
		want error
	}{{"eth9", 0, engine.ErrNotFound}, {"", 0, engine.ErrInvalid}, {"eth0", 1701, engine.ErrInvalid}} {
		err := n.Hosts[0].Do(func() error { _, err := Open(c.name, c.mtu); return err })
		if !errors.Is(err, c.want) {
			t.Errorf("%q with an MTU of %d: %v", c.name, c.mtu, err)
		}
	}
	if err := i.Close(); err != nil {
		t.Error(err)
	}
	if err := i.Watch(func() {}); !errors.Is(err, engine.ErrClosed) || i.MTU() != 1700 {
		t.Errorf("after Close: %v", err)
	}
}

// In a namespace whose sysfs is not mounted, the files are those of another device of the name:
// they are not believed.
func TestOtherSysfs(t *testing.T) {
	n := netns.New(t, netns.Topology{Hosts: 2})
	for k, queues := range []string{"2", "5"} {
		if _, err := n.Hosts[k].Output(t.Context(), "ip", "link", "add", "dev", "same0", "numrxqueues", queues, "type",
			"veth", "peer", "name", "peer0"); err != nil {
			t.Fatal(err)
		}
		if k == 0 { // another number than in the other namespace
			if _, err := n.Hosts[k].Output(t.Context(), "ip", "link", "del", "same0"); err != nil {
				t.Fatal(err)
			}
			if _, err := n.Hosts[k].Output(t.Context(), "ip", "link", "add", "dev", "same0", "index", "777",
				"numrxqueues", queues, "type", "veth", "peer", "name", "peer0"); err != nil {
				t.Fatal(err)
			}
		}
	}
	var there *os.File
	if err := n.Hosts[1].Do(func() (err error) {
		there, err = os.Open("/proc/thread-self/ns/net")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	if err := n.Hosts[0].Do(func() error {
		here, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer here.Close()
		if err := sys.JoinNetwork(there); err != nil {
			return err
		}
		defer sys.JoinNetwork(here)
		i, err := Open("same0", 0)
		if err != nil {
			return err
		}
		defer i.Close()
		if i.RxQueues() != 5 {
			return fmt.Errorf("%d queues: expected 5", i.RxQueues())
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestChanges(t *testing.T) {
	n := netns.New(t, netns.Topology{})
	i := watch(t, n.Hosts[0], "eth0")
	index := i.Index()
	i.ip("link set eth0 mtu 1300")
	i.until("the MTU", func() bool { return i.MTU() == 1300 })
	for k := range 3 {
		i.ip("link set eth0 down")
		i.until("down", func() bool { return !i.Up() })
		i.ip("link set eth0 up")
		i.until("up", i.Up)
		if c := i.Changes(); c != uint64(2*k+2) {
			t.Errorf("%d changes after going down and up %d times", c, k+1)
		}
	}
	i.ip("link set eth0 address 02:77:00:00:00:77")
	i.until("the address", func() bool { return i.MAC() == packet.MAC{2, 0x77, 0, 0, 0, 0x77} })
	// Its new name, and what the kernel reports under it.
	i.ip("link set eth0 down")
	i.ip("link set eth0 name other0")
	i.ip("link set other0 up mtu 1400")
	i.until("the name", func() bool { return i.Name() == "other0" && i.MTU() == 1400 && i.Up() })
	if i.Index() != index || i.Gone() || i.Info().Device != "other0" {
		t.Errorf("renamed: number %d, it was %d; %+v", i.Index(), index, i.Info())
	}
	// The Interface asks by its number: another device has the old name.
	i.ip("link add eth0 type veth peer name eth9")
	i.look()
	i.note(link{index: index + 1, name: "eth0", gone: true}) // of another one
	if i.Gone() || i.Name() != "other0" || i.MTU() != 1400 {
		t.Errorf("somebody else has its name: gone %t, %+v", i.Gone(), i.Info())
	}
	// The cable is cut at the other end.
	if _, err := n.Hosts[1].Output(t.Context(), "ip", "link", "set", "eth0", "down"); err != nil {
		t.Fatal(err)
	}
	i.until("no carrier", func() bool { return !i.Up() })
}

// What is gone stays so, whatever device comes under its name or its number.
func TestGone(t *testing.T) {
	for _, c := range []struct {
		what         string
		leave, again []string // the interface goes, and one of its name comes; %d is its number
	}{
		{"deleted", []string{"link del eth0"}, nil},
		{"deleted and made again", []string{"link del eth0"}, []string{"link add eth0 type veth peer name eth7"}},
		{"deleted and made again with its number", []string{"link del eth0"}, []string{"link add eth0 index %d type veth peer name eth7"}},
		{"moved", []string{"netns add NS", "link set eth0 netns NS"}, []string{"-n NS link del eth0"}},
		{"moved and back", []string{"netns add NS", "link set eth0 netns NS"}, []string{"-n NS link set eth0 netns PID"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := netns.New(t, netns.Topology{})
			i := watch(t, n.Hosts[0], "eth0")
			// The other namespace is that of the other host.
			run := func(line string) {
				t.Helper()
				var other, own int
				for k, to := range []*int{&own, &other} {
					cmd := n.Hosts[k].Command("sleep", "60")
					if err := n.Hosts[k].Start(cmd); err != nil {
						t.Fatal(err)
					}
					defer func() { cmd.Process.Kill(); cmd.Wait() }()
					*to = cmd.Process.Pid
				}
				h := n.Hosts[0]
				switch {
				case strings.HasPrefix(line, "netns add"):
					// The name is taken there.
					if _, err := n.Hosts[1].Output(t.Context(), "ip", "link", "set", "eth0", "name",
						"near0"); err != nil {
						// Names of devices that are up can be changed since Linux 6.3.
						t.Fatal(err)
					}
					return
				case strings.HasPrefix(line, "-n NS "):
					h, line = n.Hosts[1], strings.TrimPrefix(line, "-n NS ")
				}
				if strings.Contains(line, "%d") {
					line = fmt.Sprintf(line, i.Index())
				}
				line = strings.NewReplacer("netns NS", fmt.Sprint("netns ", other), "netns PID",
					fmt.Sprint("netns ", own)).Replace(line)
				if _, err := h.Output(t.Context(), "ip", strings.Fields(line)...); err != nil {
					t.Fatal(err)
				}
			}
			for _, line := range c.leave {
				run(line)
			}
			i.until("it to be gone", i.Gone)
			if i.Up() || i.Changes() != 1 || i.Name() != "eth0" {
				t.Errorf("gone: up %t, %d changes, name %q", i.Up(), i.Changes(), i.Name())
			}
			for _, line := range c.again {
				run(line)
			}
			if c.again != nil {
				// Another Interface opens the new device before this one asks again.
				_ = n.Hosts[0].Do(func() error {
					if x, err := Open("eth0", 0); err == nil {
						x.Close()
					}
					return nil
				})
			}
			i.look()
			i.note(link{index: i.Index(), name: "eth0", mtu: 9000, up: true})
			if !i.Gone() || i.Up() || i.MTU() == 9000 || i.Changes() != 1 {
				t.Errorf("it is back: up %t, MTU %d, %d changes", i.Up(), i.MTU(), i.Changes())
			}
		})
	}
}

// After lost changes the Interface asks the kernel, and finds that it has gone meanwhile.
func TestLost(t *testing.T) {
	n := netns.New(t, netns.Topology{})
	var i *Interface
	if err := n.Hosts[0].Do(func() (err error) { i, err = Open("eth0", 0); return err }); err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	for _, line := range []string{"link set eth0 mtu 1234", "link set eth0 name other0", "link del other0"} {
		// without Watch: nothing reads the kernel's events
		if _, err := n.Hosts[0].Output(t.Context(), "ip", strings.Fields(line)...); err != nil {
			t.Fatal(err)
		}
		i.look()
		if i.MTU() != 1234 || i.Gone() != strings.Contains(line, "del") {
			t.Errorf("%s: MTU %d, gone %t", line, i.MTU(), i.Gone())
		}
	}
}

// A reader sees that the interface went down together with the count of it: who compares two states
// would take the count alone for another change.
func TestStateIsOne(t *testing.T) {
	const changes = 20_000
	i := &Interface{index: 1}
	i.link.Begin(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for k := range changes {
			i.note(link{index: 1, up: k%2 != 0})
		}
	}()
	for last := uint64(0); last < changes; {
		s := i.State()
		if s.Up != (s.Changes%2 == 0) {
			t.Fatalf("%+v", s)
		}
		last = s.Changes
	}
	<-done
}
