package ethtool

import (
	"errors"
	"maps"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
)

func TestPauseAndCounters(t *testing.T) {
	c := &card{words: map[uint32][]uint32{cmdPause: {1, 0, 1}},
		names:    map[uint32][]string{stringsStats: {"rx_packets", "", "rx_discards"}},
		counters: []uint64{7, 8, 1 << 40}}
	p, err := c.device().Pause()
	if err != nil || p != (Pause{Auto: true, Tx: true}) {
		t.Errorf("%+v, %v", p, err)
	}
	got, err := c.device().Counters()
	if want := map[string]uint64{"rx_packets": 7, "rx_discards": 1 << 40}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	c.counters = append(c.counters, 9) // a queue came in between
	if got, err := c.device().Counters(); !errors.Is(err, ErrMalformed) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := (&card{}).device().Counters(); !errors.Is(err, ErrNotSupported) {
		t.Errorf("%v, %v", got, err)
	}
}

// The same of a real driver: veth counts what its queues did, and has no pause frames.
func TestCountersOfVeth(t *testing.T) {
	n := netns.New(t, netns.Topology{Link: netns.LinkSpec{Queues: 2}})
	err := n.Hosts[0].Do(func() error {
		d, err := Open("eth0")
		if err != nil {
			return err
		}
		defer d.Close()
		got, err := d.Counters()
		if _, ok := got["rx_queue_1_xdp_packets"]; err != nil || !ok {
			t.Errorf("%v, %v", got, err)
		}
		if _, err := d.Pause(); !errors.Is(err, ErrNotSupported) {
			t.Errorf("pause frames: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
