package rdma

import (
	"maps"
	"slices"

	"github.com/penstock-io/penstock/metrics"
)

// Families implements engine.Counted.
func (p *Port) Families(name string) []metrics.Family {
	c := p.Counts()
	return c.families(name)
}

func (c *Counts) families(port string) (out []metrics.Family) {
	for _, f := range []struct {
		name, help, label string
		values            map[string]uint64 // by what the label says
	}{
		{"connections", "Connections of RDMA ports: made here or accepted, refused beyond the limit, failed " +
			"attempts, ended for a fault.", "event", map[string]uint64{
			"accepted": c.Accepted, "connected": c.Connected, "refused": c.Refused, "attempt": c.Attempts,
			"failure": c.Failures, "broken": c.Broken}},
		{"queue_pairs", "Queue pairs that RDMA ports made.", "", map[string]uint64{"": c.QueuePairs}},
		{"credits", "Messages that told senders how many more may come.", "", map[string]uint64{"": c.Credits}},
		{"credit_waits", "Times that a sender had to wait for such a message: its receiver is too slow.", "", map[string]uint64{"": c.Waits}},
		{"receives_low", "Times that a receive queue had fewer than an eighth of its buffers left.", "", map[string]uint64{"": c.Low}},
		{"device_events", "Asynchronous events of RDMA devices.", "", map[string]uint64{"": c.Async}},
	} {
		x := metrics.Family{Name: "penstock_rdma_" + f.name + "_total", Help: f.help, Kind: metrics.KindCounter,
			Labels: []string{"port"}}
		if f.label != "" {
			x.Labels = append(x.Labels, f.label)
		}
		for _, event := range slices.Sorted(maps.Keys(f.values)) {
			s := metrics.Sample{Values: []string{metrics.LabelValue(port)}, Value: float64(f.values[event])}
			if event != "" {
				s.Values = append(s.Values, event)
			}
			x.Samples = append(x.Samples, s)
		}
		out = append(out, x)
	}
	return out
}

// ConnIDs implements engine.Connector.
func (p *Port) ConnIDs() (ids []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns.All() {
		if c.Met {
			ids = append(ids, c.ID)
		}
	}
	return ids
}
