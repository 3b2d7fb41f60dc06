package system

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/packet/burst"
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

func count(all []string, one string) (n int) {
	for _, x := range all {
		if x == one {
			n++
		}
	}
	return n
}

// The System reports a link that goes down and comes back, also between two looks, and one that is
// down at the beginning.
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
		s := mustOpen(t, twoRegions+
			"  interfaces: [{name: x, engine: sim, address: a, rx: {queues: [{memory_regions: [a]}]}}]\n",
			Options{Engines: table, OnLink: log.note, Logger: silent})
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

// An interface that is removed under way and comes back is opened again, if the file asks for it:
// the application receives on, by the same flow, and counts go on. Without that its reception ends
// with the error.
func TestReopen(t *testing.T) {
	for _, name := range []string{"afpacket", "xdp"} {
		t.Run(name, func(t *testing.T) {
			n := netns.New(t, netns.Topology{Neighbours: true})
			ipIn(t, n.Hosts[1], "link", "add", "in0", "type", "veth", "peer", "name", "out0")
			up := func() {
				for _, dev := range []string{"in0", "out0"} {
					ipIn(t, n.Hosts[1], "link", "set", dev, "up")
				}
			}
			up()
			const text = `penstock:
  memory_regions: [{name: m, kind: host, num_bufs: 4096, buf_size: 2KiB}]
  interfaces:
    - name: x
      engine: %s
      address: %s
      reopen: %t
      rx:
        flow_isolation: true
        queues: [{memory_regions: [m]%s}]
        flows: [{name: other, match: {udp_dst: 9}, actions: [{type: drop}]}, {name: keep, match: {udp_dst: 7}, actions: [{type: queue, id: 0}]}]
      tx: {queues: [{memory_regions: [m]}]}
`
			var log linkLog
			in := openWith(t, n.Hosts[1], Options{OnLink: log.note, Logger: silent},
				fmt.Sprintf(text, name, "in0", true, ""))
			out := openWith(t, n.Hosts[1], Options{Logger: silent}, fmt.Sprintf(text, name, "out0", true, ""))
			ends := openWith(t, n.Hosts[1], Options{Logger: silent},
				fmt.Sprintf(text, "afpacket", "in0", false, ", poll_mode: direct"))
			ended := make(chan error, 1)
			go func() {
				b := burst.New(64)
				for {
					err := rxOf(t, ends, "x", 0).Recv(context.Background(), b)
					if b.Release(); err != nil {
						ended <- err
						return
					}
				}
			}()
			ids := in.Port("x").Rules().List()
			total, b := uint64(0), burst.New(64)
			pass := func() { // packets come through, and are those of the flow
				t.Helper()
				frame := udpFrame(t, 7, 0)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				for came := false; !came; {
					if s := burst.New(1); true {
						if k, err := txOf(t, out, "x", 0).Alloc(s, 1, len(frame)); k == 1 {
							copy(s.Bytes(0, 0), frame)
							_ = txOf(t, out, "x", 0).Send(s) // it may be away once more
						} else if !errors.Is(err, engine.ErrFull) {
							t.Fatal(err)
						}
					}
					soon, end := context.WithTimeout(ctx, 10*time.Millisecond)
					err := rxOf(t, in, "x", 0).Recv(soon, b)
					end()
					if ctx.Err() != nil || err != nil && soon.Err() == nil {
						t.Fatalf("no packet came: %v", err)
					}
					came = b.Len() > 0
					total += uint64(b.Len())
					b.Release()
				}
			}
			pass()
			for round := 1; round <= 2; round++ {
				ipIn(t, n.Hosts[1], "link", "del", "in0")
				until(t, "the interface to be away", func() bool { return count(log.read(), "x lost") == round })
				if round == 1 {
					if err := <-ended; !errors.Is(err, engine.ErrDown) {
						t.Errorf("without reopen: %v", err)
					}
				}
				ipIn(t, n.Hosts[1], "link", "add", "in0", "type", "veth", "peer", "name", "out0")
				up()
				until(t, "the interface to be open again", func() bool {
					return count(log.read(), "x reopened") == round
				})
				pass()
			}
			if list := in.Port("x").Rules().List(); len(list) != 2 || !list[0].Equal(&ids[0]) ||
				list[0].ID != ids[0].ID || list[1].ID != ids[1].ID {
				t.Errorf("%v, expected %v", list, ids)
			}
			f := in.Snapshot().Interfaces[0]
			waits := f.Rx[0].Stats.Packets - f.Rx[0].Stats.Drops.Total() // in the hand-off perhaps
			if f.Rules[1].Rule.Name != "keep" || f.Rules[1].Packets < total || f.Stats.Rx.Packets < total ||
				waits < total {
				t.Errorf("%d packets came: %+v\n%+v", total, f.Rules, f.Rx[0].Stats)
			}
		})
	}
}

// The kernel reports the links of real interfaces.
func TestLinkEventsOnInterfaces(t *testing.T) {
	for _, name := range []string{"afpacket", "xdp", "socket"} {
		t.Run(name, func(t *testing.T) {
			n := netns.New(t, netns.Topology{})
			port := "engine: " + name + ", address: eth0"
			if name == "socket" {
				port = fmt.Sprintf(`engine: socket, address: "udp://%s:4096?interface=eth0"`, n.Hosts[1].Link().IPv4)
			}
			var log linkLog
			openWith(t, n.Hosts[1], Options{OnLink: log.note, Logger: silent},
				"penstock: {memory_regions: [{name: m, kind: host, num_bufs: 4096, buf_size: 2KiB}], interfaces: "+
					"[{name: x, "+port+", rx: {queues: [{memory_regions: [m]}]}}]}\n")
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
