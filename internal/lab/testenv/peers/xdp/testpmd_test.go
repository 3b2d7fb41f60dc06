package xdp_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	testpeers "github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers/xdp"
	"github.com/penstock-io/penstock/internal/peers"
	"github.com/penstock-io/penstock/internal/sys"
)

// testpmd is the second reference: DPDK's net_af_xdp, on the second of two hosts.
func testpmd(t *testing.T, n *netns.Net, mode string, size int) (*peers.PacketRun, error) {
	t.Helper()
	var cpus peers.CPUs
	var err error
	if cpus.Client, err = sys.Processor(0); err != nil {
		t.Fatal(err)
	}
	if cpus.Server, err = sys.Processor(1); err != nil {
		testenv.Missing(t, "two processors: testpmd prints on one and forwards on another", err)
	}
	return peers.StartPackets(t.Context(), peers.PacketTest{Devices: []string{"net_af_xdp0,iface=eth0",
		"net_af_xdp1,iface=eth1"}, Forward: mode,
		NoFirst: true, Size: size, Mbufs: 16384, Burst: 64, Descriptors: 2048, CPUs: cpus, In: n.Hosts[1].Do,
		Duration: time.Second})
}

// It forwards and sends packets of one chunk, to the program in C at the other end.
func TestTestpmd(t *testing.T) {
	testenv.Once(t)
	xdp.Need(t)
	testpeers.Need(t, "testpmd")
	for _, size := range []int{64, 1400} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			n := netns.New(t, netns.Topology{Rails: 2, Neighbours: true})
			load := start(t, n.Hosts[0], xdp.Config{Interfaces: []string{"eth0"}, CPU: -1, Size: size})
			sink := start(t, n.Hosts[0], xdp.Config{Interfaces: []string{"eth1"}, CPU: -1, Size: size, Poll: true})
			const packets = 1000 // fewer than wait in its rings, whatever it does meanwhile
			r, err := testpmd(t, n, "mac", 0)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if err := sink.Begin(xdp.Command{Op: xdp.Receive, Live: true, Packets: packets}); err != nil {
				t.Fatal(err)
			}
			// Between two processors veth's ring of 256 packets can be full, so some may be lost on
			// the way: others are sent then.
			type outcome struct {
				got xdp.Result
				err error
			}
			over := make(chan outcome, 1)
			go func() {
				got, err := sink.Wait(t.Context())
				over <- outcome{got, err}
			}()
			var x outcome
			for rounds := 1; ; rounds++ {
				do(t, load, xdp.Command{Op: xdp.Send, Packets: packets, Check: true})
				select {
				case x = <-over:
				case <-time.After(100 * time.Millisecond):
					if rounds < 600 {
						continue
					}
					t.Fatal("what testpmd forwards does not arrive")
				}
				break
			}
			got, err := x.got, x.err
			if err != nil || got.Packets < packets {
				t.Errorf("%+v, %v", got, err)
			}
			ports, err := r.Stop()
			if err != nil || len(ports) != 2 || ports[0].RX < packets || ports[1].TX < packets {
				t.Errorf("%+v, %v", ports, err)
			}
			if err := sink.Begin(xdp.Command{Op: xdp.Receive, Live: true, Packets: packets}); err != nil {
				t.Fatal(err)
			}
			if r, err = testpmd(t, n, "txonly", size); err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			got, err = sink.Wait(t.Context())
			if err != nil || got.Packets < packets {
				t.Errorf("%+v, %v", got, err)
			}
			if ports, err = r.Stop(); err != nil || len(ports) != 2 || ports[1].TX < packets {
				t.Errorf("%+v, %v", ports, err)
			}
		})
	}
}

// net_af_xdp cannot have packets of several chunks: it loads a program without fragments, which an
// interface with a large MTU refuses.
func TestTestpmdJumbo(t *testing.T) {
	testenv.Once(t)
	testpeers.Need(t, "testpmd")
	n := netns.New(t, netns.Topology{Rails: 2, Neighbours: true, Link: netns.LinkSpec{MTU: 9000}})
	r, err := testpmd(t, n, "rxonly", 0)
	if r != nil || !errors.Is(err, peers.ErrDevice) || !strings.Contains(err.Error(), "net_af_xdp") &&
		!strings.Contains(err.Error(), "Numerical result out of range") {
		t.Errorf("%v, %v", r, err)
	}
}
