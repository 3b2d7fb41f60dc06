package sections_test

import (
	"testing"

	"github.com/penstock-io/penstock/bench/sections"
)

// Every packet is timed once for each size that has room, one way and there and back, and none is
// taken for another.
func TestLatency(t *testing.T) {
	const samples = 300
	r := run(t, "testdata/latency.yaml", sections.Options{Samples: samples, Warmup: 10})
	if len(r.Latency) != 5 || r.Latency[0].Payload != 64 || r.Latency[4].Payload != 1024 {
		// 2048 has no room in a slot of 2 KiB
		t.Fatalf("%+v", r.Latency)
	}
	for _, x := range r.Latency {
		if x.Sent != samples || x.Lost != 0 || x.Call == nil || x.OneWay == nil || x.Round == nil ||
			x.OneWay.N != samples || x.Round.N != samples {
			t.Fatalf("%+v", x)
		}
		// Each round contains its one way, and that its call; percentiles of histograms are within
		// 2 %.
		if x.Round.Max < 0.98*x.OneWay.P50 || x.OneWay.Max < 0.98*x.Call.P50 {
			t.Errorf("call %+v, one way %+v, round %+v", x.Call, x.OneWay, x.Round)
		}
	}
}
