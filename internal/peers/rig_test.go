package peers_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	testpeers "github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/internal/peers"
)

// What tcpreplay sends into one end of a cable, tshark sees at the other end.
func TestReplayAndCapture(t *testing.T) {
	testpeers.Need(t, "tcpreplay")
	testpeers.Need(t, "tshark")
	payloads := []string{"one", "two", "three", "four"}
	file := pcap(t, payloads...)
	n := netns.New(t, netns.Topology{})
	var networks [2]*os.File
	for i := range networks {
		err := n.Hosts[i].Do(func() (err error) {
			networks[i], err = os.Open("/proc/thread-self/ns/net")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer networks[i].Close()
	}
	capture, err := peers.StartCapture(t.Context(), networks[1], n.Hosts[1].Link().Name, "udp dst port 5000",
		2*len(payloads))
	if err != nil {
		t.Fatal(err)
	}
	r, err := peers.TCPReplay(t.Context(), peers.Replay{File: file, Interface: n.Hosts[0].Link().Name,
		Network: networks[0], Loops: 2})
	if err != nil {
		capture.Stop()
		t.Fatal(err)
	}
	if r.Packets != 8 || r.Successful != 8 || r.Failed != 0 || r.Bytes != uint64(8*42+2*len("onetwothreefour")) {
		t.Errorf("sent %+v", r)
	}
	packets, err := capture.Packets(t.Context(), "udp.payload")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range packets {
		got = append(got, p.Fields[0])
	}
	once := []string{"6f6e65", "74776f", "7468726565", "666f7572"}
	if want := slices.Concat(once, once); !slices.Equal(got, want) {
		t.Errorf("captured %q; want %q", got, want)
	}
}

// An interface that is not there is an error with the tool's reason.
func TestReplayRefusal(t *testing.T) {
	testpeers.Need(t, "tcpreplay")
	if _, err := peers.TCPReplay(t.Context(), peers.Replay{File: pcap(t, "x"),
		Interface: "nosuchdevice0"}); err == nil {
		t.Error("sent into an interface that does not exist")
	} else {
		t.Log(err)
	}
}

// The tools that need an RDMA device, in a guest that has one.
func TestGuestRDMATools(t *testing.T) {
	profile := guest.Rdma
	profile.NICs = []guest.NIC{{Name: "nic0", Model: "virtio-net-pci", Hub: 1}}
	if guest.ID() == 0 { // the guest takes the host's programs; the ledger is the host's too
		testenv.Once(t)
		testpeers.Need(t, "perftest")
		testpeers.Need(t, "rping")
	}
	if guest.Enter(t, guest.Spec{Profile: profile}) {
		return
	}
	const address, second = "127.0.0.1", "10.9.0.1"
	for _, o := range []peers.RDMATest{
		{Program: "ib_write_bw", Size: 65536, Iterations: 20},
		{Program: "ib_write_lat", Size: 64, Iterations: 50},
		{Program: "ib_read_lat", Size: 64, Iterations: 50},
		{Program: "ib_read_bw", Size: 65536, Iterations: 20, Depth: 16},
		{Program: "ib_send_bw", Size: 65536, Iterations: 20},
		{Program: "ib_send_lat", Size: 64, Iterations: 50, Inline: 64, Events: true},
		{Program: "ib_atomic_bw", Iterations: 50},
		{Program: "ib_atomic_lat", Iterations: 50},
	} {
		o.Device, o.GIDIndex, o.Server = "rxe0", 1, address
		rows, err := peers.RDMA(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if o.Size == 0 { // an atomic
			o.Size = 8
		}
		if len(rows) != 1 || rows[0].Size != o.Size || rows[0].Iterations != o.Iterations ||
			(rows[0].MessagesPerS > 0) == (rows[0].Typical > 0) {
			t.Errorf("%s: %+v", o.Program, rows)
		}
		t.Logf("%s: %+v", o.Program, rows)
	}
	if _, err := peers.RDMA(t.Context(), peers.RDMATest{Program: "ib_raw_bw", Device: "rxe0"}); err == nil ||
		!strings.Contains(err.Error(), "expected one of ib_write_bw") {
		t.Errorf("a program that is none: %v", err)
	}
	if _, err := peers.RDMA(t.Context(), peers.RDMATest{Program: "ib_write_bw", Device: "rxe9", Size: 64,
		Iterations: 10}); err == nil {
		t.Error("a device that does not exist was measured")
	} else {
		t.Log(err)
	}
	// The connection manager finds no device for an address of lo.
	for _, line := range []string{"ip addr add " + second + "/24 dev nic0", "ip link set nic0 up",
		"rdma link add rxe1 type rxe netdev nic0"} {
		f := strings.Fields(line)
		if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
	n, err := peers.RDMAPings(t.Context(), peers.RDMAPing{Address: second, Count: 5, Size: 1000})
	if err != nil || n != 5 {
		t.Errorf("%d pings, %v", n, err)
	}
}
