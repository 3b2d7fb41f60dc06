package system

import (
	"maps"
	"testing"

	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// What no application has received at Close goes back, and counts by its flow: in the hand-off of a
// poller, and in a queue without one.
func TestCloseTakesWhatWaits(t *testing.T) {
	for _, c := range []struct {
		queue string
		ready func(f *InterfaceSnapshot) bool
	}{
		{"", func(f *InterfaceSnapshot) bool { return f.Rx[0].Polled.Packets == 5 }},
		{", poll_mode: direct", func(*InterfaceSnapshot) bool { return true }},
	} {
		s := mustOpenUnclosed(t, twoRegions+`
  interfaces:
    - name: loop
      engine: sim
      address: "sim://waits?loop"
      rx:
        queues: [{memory_regions: [a]`+c.queue+`}]
        flows: [{name: mine, id: 7, match: {eth_dst: "02:00:00:00:00:07"}, actions: [{type: queue, id: 0}]}]
      tx: {queues: [{memory_regions: [b]}]}
`)
		b := burst.New(3)
		if _, err := txOf(t, s, "loop", 0).Alloc(b, 3, 64); err != nil {
			t.Fatal(err)
		}
		for i := range b.Len() {
			clear(b.Bytes(i, 0))
			copy(b.Bytes(i, 0), []byte{2, 0, 0, 0, 0, 7})
		}
		if err := txOf(t, s, "loop", 0).Send(b); err != nil {
			t.Fatal(err)
		}
		sendNumbers(t, txOf(t, s, "loop", 0), 0, 2)
		if err := txOf(t, s, "loop", 0).Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		until(t, "the poller", func() bool { return c.ready(&s.Snapshot().Interfaces[0]) })
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		f := &s.Snapshot().Interfaces[0]
		want := map[uint32]flow.Count{7: {Packets: 3, Bytes: 3 * 64}, 0: {Packets: 2, Bytes: 2 * 64}}
		if got := f.Rx[0].Closed; !maps.Equal(got, want) || f.Rules[0].Packets != 3 || f.Stats.Rx.Packets != 5 {
			t.Errorf("%q: %v thrown away, expected %v; %+v, %+v", c.queue, got, want, f.Rules, f.Stats.Rx)
		}
	}
}
