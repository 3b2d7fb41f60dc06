package rdma

import (
	"maps"
	"slices"

	"github.com/penstock-io/penstock/metrics"
)

// Families are the counts of ports that are no packets, by the names that their user gives them, in the form that exporters take; what ports have
// in common with those of other engines is in engine.Families. All ports of a process belong into one call.
func Families(ports map[string]Counts) []metrics.Family {
	var out []metrics.Family
	for _, f := range []struct {
		name, help, label string
		values            map[string]func(*Counts) uint64 // by what the label says
	}{
		{"connections", "Connections of RDMA ports: made here or accepted, refused beyond the limit, failed attempts, ended for a fault.", "event", map[string]func(*Counts) uint64{
			"accepted": func(c *Counts) uint64 { return c.Accepted }, "connected": func(c *Counts) uint64 { return c.Connected },
			"refused": func(c *Counts) uint64 { return c.Refused }, "attempt": func(c *Counts) uint64 { return c.Attempts },
			"failure": func(c *Counts) uint64 { return c.Failures }, "broken": func(c *Counts) uint64 { return c.Broken }}},
		{"queue_pairs", "Queue pairs that RDMA ports made.", "", map[string]func(*Counts) uint64{"": func(c *Counts) uint64 { return c.QueuePairs }}},
		{"credits", "Messages that told senders how many more may come.", "", map[string]func(*Counts) uint64{"": func(c *Counts) uint64 { return c.Credits }}},
		{"credit_waits", "Times that a sender had to wait for such a message: its receiver is too slow.", "", map[string]func(*Counts) uint64{"": func(c *Counts) uint64 { return c.Waits }}},
		{"receives_low", "Times that a receive queue had fewer than an eighth of its buffers left.", "", map[string]func(*Counts) uint64{"": func(c *Counts) uint64 { return c.Low }}},
		{"device_events", "Asynchronous events of RDMA devices.", "", map[string]func(*Counts) uint64{"": func(c *Counts) uint64 { return c.Async }}},
	} {
		x := metrics.Family{Name: "penstock_rdma_" + f.name + "_total", Help: f.help, Kind: metrics.KindCounter, Labels: []string{"port"}}
		if f.label != "" {
			x.Labels = append(x.Labels, f.label)
		}
		for _, port := range slices.Sorted(maps.Keys(ports)) {
			c := ports[port]
			for _, event := range slices.Sorted(maps.Keys(f.values)) {
				s := metrics.Sample{Values: []string{metrics.LabelValue(port)}, Value: float64(f.values[event](&c))}
				if event != "" {
					s.Values = append(s.Values, event)
				}
				x.Samples = append(x.Samples, s)
			}
		}
		out = append(out, x)
	}
	return out
}
