package sections_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/sections"
)

// Files with reorder plans run: what was sent is in batches, each value as it was sent and
// converted, or was dropped for a reason that is known.
func TestBatches(t *testing.T) {
	for name, place := range map[string]uint64{"testdata/quantize.yaml": 1000,
		example("daqiri_bench_raw_sw_loopback_reorder_seq_1024.yaml"): 1000} {
		t.Run(filepath.Base(name), func(t *testing.T) {
			const packets = 20_100
			r := run(t, name, sections.Options{Packets: packets})
			a := r.Account
			if a == nil || a.Sent != packets || !a.Exact() || a.Unattributed != 0 || a.Received == 0 {
				t.Fatalf("%+v", a)
			}
			x := r.Received[0]
			if x.Packets != a.Received || x.Unique != a.Received || x.Checked != place*a.Received {
				t.Errorf("%+v", x)
			}
			var placed, batches uint64
			for _, n := range x.Stages {
				switch _, what, _ := strings.Cut(n.Name, ": "); what {
				case "packets":
					placed = n.N
				case "whole", "partial":
					batches += n.N
				}
			}
			if placed != a.Received || batches == 0 {
				t.Errorf("%d in %d batches: %+v", placed, batches, x.Stages)
			}
		})
	}
}

// A reorder plan that the sender's packets do not suit is refused with its place.
func TestBatchesMissing(t *testing.T) {
	for _, x := range []struct{ set, path, want string }{
		{"bench_reorder_quantize.output_type=fp32", "bench_reorder_quantize", "int16 to f32 (network)"},
		{"bench_tx=[]", "bench_reorder_quantize", "this process sends and receives"},
		{"interfaces[0].rx.reorder=[]", "bench_reorder_quantize", "no reorder plan converts"},
		{"interfaces[0].rx.queues[0].timeout_us=0", "interfaces[0].rx.reorder[0]", "has no timeout"},
		{"bench_tx[0].sequence_number_offset=2", "interfaces[0].rx.reorder[0]", "where the plan reads it (bits 520 to 543)"},
		{"interfaces[0].rx.reorder[0].payload_byte_offset=42", "interfaces[0].rx.reorder[0]", "payload_byte_offset in the payload"},
	} {
		c, _, p := load(t, "testdata/quantize.yaml", sections.Options{}, x.set)
		found := false
		for _, m := range p.Missing {
			found = found || m.Path == x.path && strings.Contains(m.Text, x.want)
		}
		if !found {
			t.Errorf("%s: %v", x.set, p.Missing)
		}
		if _, err := sections.Run(t.Context(), c, p, nil, sections.Options{}); err == nil {
			t.Errorf("%s runs", x.set)
		}
	}
}

// Bytes in batches that are not those that were sent are damaged: here the packets were converted
// in another order of bytes than the plan of the checker has.
func TestBatchesCompared(t *testing.T) {
	o := sections.Options{Packets: 2048, Duration: -1, Settle: 10 * time.Millisecond}
	_, changes, p := load(t, "testdata/quantize.yaml", o)
	c, _, _ := load(t, "testdata/quantize.yaml", o)
	c.Interfaces[0].Rx.Reorder[0].DataTypes.Endianness = "host"
	r, err := sections.Run(until(t), c, p, changes, o)
	if r == nil || !errors.Is(err, sections.ErrNothing) || len(r.Received) == 0 || r.Received[0].Damaged == 0 ||
		r.Received[0].Unique != 0 {
		t.Errorf("%v, %+v", err, r)
	}
}
