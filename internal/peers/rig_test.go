package peers_test

import (
	"os"
	"slices"
	"testing"

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
