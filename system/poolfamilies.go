package system

import (
	"maps"
	"slices"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/metrics"
)

// poolFamilies is what pools counted, by their names, in the form that exporters take.
func poolFamilies(pools map[string]mem.PoolStats) []metrics.Family {
	names := slices.Sorted(maps.Keys(pools))
	var out []metrics.Family
	add := func(kind metrics.FamilyKind, name, help string, value func(s *mem.PoolStats) uint64) {
		f := metrics.Family{Name: name, Help: help, Kind: kind, Labels: []string{"pool"}}
		for _, n := range names {
			s := pools[n]
			f.Samples = append(f.Samples, metrics.Sample{Values: []string{metrics.LabelValue(n)},
				Value: float64(value(&s))})
		}
		out = append(out, f)
	}
	add(metrics.KindGauge, "penstock_pool_slots", "Slots of the pool.", func(s *mem.PoolStats) uint64 {
		return uint64(s.Slots)
	})
	add(metrics.KindGauge, "penstock_pool_slots_used", "Slots that are out.", func(s *mem.PoolStats) uint64 {
		return uint64(s.InUse)
	})
	add(metrics.KindCounter, "penstock_pool_gets_total", "Slots handed out.", func(s *mem.PoolStats) uint64 {
		return s.Gets
	})
	add(metrics.KindCounter, "penstock_pool_puts_total", "Slots given back.", func(s *mem.PoolStats) uint64 {
		return s.Puts
	})
	add(metrics.KindCounter, "penstock_pool_exhausted_total", "Requests that found no slot.",
		func(s *mem.PoolStats) uint64 {
			return s.Exhausted
		})
	add(metrics.KindCounter, "penstock_pool_rejected_total", "Slots refused: released before, or foreign.",
		func(s *mem.PoolStats) uint64 {
			return s.Rejected
		})
	return out
}
