package penstock

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/internal/testenv/netns"
)

// linkLog collects what OnLink says.
type linkLog struct {
	mu  sync.Mutex
	all []string
}

func (l *linkLog) note(e LinkEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, fmt.Sprintf("%s %s", e.Interface, e.Change))
}

func (l *linkLog) read() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// ipIn runs ip in a host of the lab.
func ipIn(t *testing.T, h *netns.Host, args ...string) {
	t.Helper()
	if err := h.Run(h.Command("ip", args...)); err != nil {
		t.Fatalf("ip %v: %v", args, err)
	}
}

// Links that go down and come back are told of, also when that is over before it is looked at; one that is down at the beginning too.
func TestLinkEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, err := sim.NewNetwork(sim.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		l, err := n.Link("a", "b")
		if err != nil {
			t.Fatal(err)
		}
		table, err := engine.NewTable(n)
		if err != nil {
			t.Fatal(err)
		}
		l.SetUp(false)
		var log linkLog
		s := mustOpen(t, twoRegions+"  interfaces: [{name: x, engine: sim, address: a, rx: {queues: [{memory_regions: [a]}]}}]\n", Options{Engines: table, OnLink: log.note, Logger: silent})
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if got := log.read(); !slices.Equal(got, want) {
				t.Errorf("%q, expected %q", got, want)
			}
		}
		expect("x down")
		l.SetUp(true)
		expect("x down", "x up")
		l.SetUp(false)
		expect("x down", "x up", "x down")
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		l.SetUp(true)
		expect("x down", "x up", "x down")
	})
	for _, c := range []struct {
		was, now engine.LinkState
		want     []LinkChange
	}{
		{engine.LinkState{Up: true}, engine.LinkState{Up: true}, nil},
		{engine.LinkState{Up: true}, engine.LinkState{Up: true, Changes: 2}, []LinkChange{LinkDown, LinkUp}},
		{engine.LinkState{Changes: 1}, engine.LinkState{Changes: 3}, []LinkChange{LinkUp, LinkDown}},
		{engine.LinkState{Up: true}, engine.LinkState{Gone: true, Changes: 1}, []LinkChange{LinkLost}},
		{engine.LinkState{Gone: true}, engine.LinkState{Gone: true, Changes: 1}, nil},
		{engine.LinkState{Gone: true}, engine.LinkState{Up: true, Reopened: 1}, []LinkChange{LinkReopened}},
		{engine.LinkState{Up: true}, engine.LinkState{Changes: 4, Reopened: 1}, []LinkChange{LinkLost, LinkReopened, LinkDown}},
	} {
		if got := linkChanges(c.was, c.now); !slices.Equal(got, c.want) {
			t.Errorf("from %+v to %+v: %q, expected %q", c.was, c.now, got, c.want)
		}
	}
}

// The kernel tells of the links of real interfaces.
func TestLinkEventsOnInterfaces(t *testing.T) {
	for _, name := range []string{"afpacket", "xdp", "socket"} {
		t.Run(name, func(t *testing.T) {
			n := netns.New(t, netns.Topology{})
			port := "engine: " + name + ", address: eth0"
			if name == "socket" {
				port = fmt.Sprintf(`engine: socket, address: "udp://%s:4096?interface=eth0"`, n.Hosts[1].Link().IPv4)
			}
			var log linkLog
			openWith(t, n.Hosts[1], Options{OnLink: log.note, Logger: silent}, "penstock: {memory_regions: [{name: m, kind: host, num_bufs: 4096, buf_size: 2KiB}], interfaces: [{name: x, "+port+", rx: {queues: [{memory_regions: [m]}]}}]}\n")
			for k, state := range []string{"down", "up"} {
				ipIn(t, n.Hosts[1], "link", "set", "eth0", state)
				until(t, "the event", func() bool { return len(log.read()) > k })
			}
			if got := log.read(); !slices.Equal(got, []string{"x down", "x up"}) {
				t.Errorf("%q", got)
			}
		})
	}
}
