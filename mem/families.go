package mem

import (
	"github.com/penstock-io/penstock/metrics"
)

// Families is what is mapped in this process, by kind of memory, in the form that exporters take.
func (s Stats) Families() []metrics.Family {
	regions := metrics.Family{Name: "penstock_memory_regions", Help: "Regions that are mapped in this process.",
		Kind: metrics.KindGauge, Labels: []string{"kind"}}
	bytes := metrics.Family{Name: "penstock_memory_mapped_bytes", Help: "Memory of those regions.",
		Kind: metrics.KindGauge, Labels: []string{"kind"}}
	for k := range kinds {
		values := []string{k.String()}
		regions.Samples = append(regions.Samples, metrics.Sample{Values: values, Value: float64(s.Regions[k])})
		bytes.Samples = append(bytes.Samples, metrics.Sample{Values: values, Value: float64(s.Bytes[k])})
	}
	populate := metrics.Family{Name: "penstock_memory_populate_seconds_total",
		Help: "Time spent on making pages present at allocation.", Kind: metrics.KindCounter,
		Samples: []metrics.Sample{{Value: s.Populate.Seconds()}}}
	return []metrics.Family{regions, bytes, populate}
}
