package engine

import (
	"maps"
	"slices"

	"github.com/penstock-io/penstock/metrics"
)

// Families is what ports counted, by the names that their user gives them, in the form that
// exporters take. Use it in a metrics.Source:
//
//	prom.Handler(func() []metrics.Family {
//		var s engine.PortStats
//		port.Stats(&s)
//		return engine.Families(map[string]*engine.PortStats{"eth0": &s})
//	})
//
// All ports of a process belong into one call: two sources must not have families of one name.
// Drops that never happened are not shown.
func Families(ports map[string]*PortStats) []metrics.Family {
	names := slices.Sorted(maps.Keys(ports))
	var out []metrics.Family
	family := func(kind metrics.FamilyKind, name, help string, labels ...string) *metrics.Family {
		out = append(out, metrics.Family{Name: name, Help: help, Kind: kind,
			Labels: append([]string{"port"}, labels...)})
		return &out[len(out)-1]
	}
	each := func(f *metrics.Family, value func(p *PortStats) uint64, labels ...string) {
		for _, n := range names {
			f.Samples = append(f.Samples, metrics.Sample{Values: append([]string{metrics.LabelValue(n)}, labels...),
				Value: float64(value(ports[n]))})
		}
	}
	f := family(metrics.KindCounter, "penstock_packets_total", "Packets that queues received or sent.", "direction")
	each(f, func(p *PortStats) uint64 { return p.Rx.Packets }, "in")
	each(f, func(p *PortStats) uint64 { return p.Tx.Packets }, "out")
	f = family(metrics.KindCounter, "penstock_packet_bytes_total", "Bytes of those packets.", "direction")
	each(f, func(p *PortStats) uint64 { return p.Rx.Bytes }, "in")
	each(f, func(p *PortStats) uint64 { return p.Tx.Bytes }, "out")
	f = family(metrics.KindCounter, "penstock_packet_copied_bytes_total",
		"Payload that this process copied on the way.", "direction")
	each(f, func(p *PortStats) uint64 { return p.Rx.Copied }, "in")
	each(f, func(p *PortStats) uint64 { return p.Tx.Copied }, "out")
	f = family(metrics.KindCounter, "penstock_packet_syscalls_total", "System calls to receive and send.", "direction")
	each(f, func(p *PortStats) uint64 { return p.Rx.Calls }, "in")
	each(f, func(p *PortStats) uint64 { return p.Tx.Calls }, "out")
	f = family(metrics.KindCounter, "penstock_packets_dropped_total",
		"Packets that went no further: on the way to a queue, in one, or on the way out.", "direction", "reason")
	for _, n := range names {
		p := ports[n]
		in := p.Drops
		in.Add(&p.Rx.Drops)
		for _, d := range []struct {
			direction string
			drops     *Drops
		}{{"in", &in}, {"out", &p.Tx.Drops}} {
			for reason, k := range d.drops {
				if k > 0 {
					f.Samples = append(f.Samples, metrics.Sample{Values: []string{metrics.LabelValue(n), d.direction,
						Drop(reason).String()}, Value: float64(k)})
				}
			}
		}
	}
	each(family(metrics.KindGauge, "penstock_packets_queued", "Packets given to Send that have not left yet."),
		func(p *PortStats) uint64 {
			return p.Tx.Queued
		})
	each(family(metrics.KindCounter, "penstock_packets_kernel_total", "Packets that were left to the kernel."),
		func(p *PortStats) uint64 {
			return p.Kernel
		})
	each(family(metrics.KindCounter, "penstock_packet_send_full_total",
		"Allocs and Forwards that found fewer descriptors than asked for."), func(p *PortStats) uint64 {
		return p.Tx.Full
	})
	each(family(metrics.KindCounter, "penstock_port_link_changes_total", "How often the link went up or down."),
		func(p *PortStats) uint64 {
			return p.LinkChanges
		})
	return out
}
