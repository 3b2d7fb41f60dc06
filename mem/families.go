package mem

import (
	"maps"
	"slices"

	"github.com/penstock-io/penstock/metrics"
)

// PoolFamilies is what pools counted, by the names that their user gives them, in the form that exporters take: call it in a
// metrics.Source, once for all pools of a process. Pool.Stats looks at every slot, which is fit for a scrape and not for a hot path.
func PoolFamilies(pools map[string]PoolStats) []metrics.Family {
	names := slices.Sorted(maps.Keys(pools))
	var out []metrics.Family
	add := func(kind metrics.FamilyKind, name, help string, value func(s *PoolStats) uint64) {
		f := metrics.Family{Name: name, Help: help, Kind: kind, Labels: []string{"pool"}}
		for _, n := range names {
			s := pools[n]
			f.Samples = append(f.Samples, metrics.Sample{Values: []string{metrics.LabelValue(n)}, Value: float64(value(&s))})
		}
		out = append(out, f)
	}
	add(metrics.KindGauge, "penstock_pool_slots", "Slots of the pool.", func(s *PoolStats) uint64 { return uint64(s.Slots) })
	add(metrics.KindGauge, "penstock_pool_slots_used", "Slots that are out.", func(s *PoolStats) uint64 { return uint64(s.InUse) })
	add(metrics.KindCounter, "penstock_pool_gets_total", "Slots handed out.", func(s *PoolStats) uint64 { return s.Gets })
	add(metrics.KindCounter, "penstock_pool_puts_total", "Slots given back.", func(s *PoolStats) uint64 { return s.Puts })
	add(metrics.KindCounter, "penstock_pool_exhausted_total", "Requests that found no slot.", func(s *PoolStats) uint64 { return s.Exhausted })
	add(metrics.KindCounter, "penstock_pool_rejected_total", "Slots refused: released before, or foreign.", func(s *PoolStats) uint64 { return s.Rejected })
	return out
}

// Families is what is mapped in this process, by kind of memory, in the form that exporters take.
func (s Stats) Families() []metrics.Family {
	regions := metrics.Family{Name: "penstock_memory_regions", Help: "Regions that are mapped in this process.", Kind: metrics.KindGauge, Labels: []string{"kind"}}
	bytes := metrics.Family{Name: "penstock_memory_mapped_bytes", Help: "Memory of those regions.", Kind: metrics.KindGauge, Labels: []string{"kind"}}
	for _, k := range s.Kinds {
		values := []string{k.Kind.String()}
		regions.Samples = append(regions.Samples, metrics.Sample{Values: values, Value: float64(k.Regions)})
		bytes.Samples = append(bytes.Samples, metrics.Sample{Values: values, Value: float64(k.Bytes)})
	}
	populate := metrics.Family{Name: "penstock_memory_populate_seconds_total", Help: "Time spent on making pages present at allocation.", Kind: metrics.KindCounter,
		Samples: []metrics.Sample{{Value: s.Populate.Seconds()}}}
	return []metrics.Family{regions, bytes, populate}
}
