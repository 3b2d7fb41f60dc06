package cli

import (
	"testing"
	"time"

	"github.com/penstock-io/penstock/config"
	root "github.com/penstock-io/penstock/system"
)

// BenchmarkRunTick is all that a screen costs once per interval: reading the counts of two
// interfaces and two pools of 51200 slots, and making the lines.
func BenchmarkRunTick(b *testing.B) {
	cfg, problems := config.Load("x.yaml", []byte(`penstock:
  memory_regions:
    - {name: a, kind: host, num_bufs: 51200, buf_size: 2KiB}
    - {name: b, kind: host, num_bufs: 51200, buf_size: 2KiB}
  interfaces:
    - {name: one, address: "udp://127.0.0.1:0", rx: {queues: [{memory_regions: [a]}]}, tx: {queues: [{memory_regions: [b]}]}}
    - {name: two, address: "udp://127.0.0.1:0", rx: {queues: [{memory_regions: [a]}]}, tx: {queues: [{memory_regions: [b]}]}}
  transfers: {listen: ["tcp://127.0.0.1:0"]}
  applications: [{kind: echo, interface: one}, {kind: echo, interface: two}]
`), config.Options{})
	if cfg == nil {
		b.Fatal(problems.Err())
	}
	s, err := root.Open(b.Context(), cfg, root.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	r := &runner{sys: s}
	m := newSampler(s.Plan(), time.Now())
	f := runFrame{title: "x.yaml", color: true}
	b.ReportAllocs()
	for b.Loop() {
		f.sample = m.sample(r.read())
		f.lines(80, 24)
	}
}
