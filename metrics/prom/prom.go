// Package prom exports metric families to Prometheus. It turns the families of package metrics into
// those of github.com/prometheus/client_golang, and knows nothing of what they count:
//
//	http.Handle("/metrics", prom.Handler(node.Metrics))                     // a page of its own
//	prometheus.MustRegister(prom.New(node.Metrics))                         // or beside other metrics of the program
//	stop, addr, err := prom.Serve(ctx, "127.0.0.1:9095", prom.ServeOptions{}, node.Metrics) // or a server of its own
//
// Whatever a source says, the page stays valid and bounded: a family that breaks the rules of
// [metrics.Family.Check] is left out, and so are samples beyond MaxSamples of a family. Both are
// counted in penstock_export_dropped_total, which is on the page itself.
package prom

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/penstock-io/penstock/internal/web"
	"github.com/penstock-io/penstock/metrics"
)

// MaxSamples is the largest number of samples of one family that are shown; the first ones are.
const MaxSamples = 1000

// Collector shows what sources say at the moment of a scrape. It is a prometheus.Collector: an
// unchecked one, since which families there are is known only then.
type Collector struct {
	sources  []metrics.Source
	families atomic.Uint64 // left out, in all scrapes
	samples  atomic.Uint64
}

var _ prometheus.Collector = (*Collector)(nil)

// New makes a collector of the sources given. Two of them must not have families of one name.
func New(sources ...metrics.Source) *Collector { return &Collector{sources: sources} }

var droppedDesc = prometheus.NewDesc("penstock_export_dropped_total",
	"What was left out of scrapes because it was invalid or too much.", []string{"what"}, nil)

// Describe describes nothing: that makes the collector unchecked.
func (c *Collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the metrics of all sources.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	seen := map[string]bool{"penstock_export_dropped_total": true}
	for _, source := range c.sources {
		for _, f := range source() {
			c.family(&f, seen, out)
		}
	}
	for what, n := range map[string]uint64{"family": c.families.Load(), "sample": c.samples.Load()} {
		out <- prometheus.MustNewConstMetric(droppedDesc, prometheus.CounterValue, float64(n), what)
	}
}

func (c *Collector) family(f *metrics.Family, seen map[string]bool, out chan<- prometheus.Metric) {
	if seen[f.Name] || f.Check() != nil {
		c.families.Add(1)
		return
	}
	seen[f.Name] = true
	if n := len(f.Samples); n > MaxSamples {
		c.samples.Add(uint64(n - MaxSamples))
		f.Samples = f.Samples[:MaxSamples]
	}
	desc := prometheus.NewDesc(f.Name, f.Help, f.Labels, nil)
	for i := range f.Samples {
		m, err := metric(desc, f, &f.Samples[i])
		if err != nil {
			c.samples.Add(1)
			continue
		}
		out <- m
	}
}

func metric(desc *prometheus.Desc, f *metrics.Family, s *metrics.Sample) (prometheus.Metric, error) {
	switch f.Kind {
	case metrics.KindCounter:
		return prometheus.NewConstMetric(desc, prometheus.CounterValue, s.Value, s.Values...)
	case metrics.KindGauge:
		return prometheus.NewConstMetric(desc, prometheus.GaugeValue, s.Value, s.Values...)
	}
	scale, bounds := f.Scale, f.Bounds
	if scale == 0 {
		scale = 1
	}
	if bounds == nil {
		bounds = metrics.LatencyBounds
	}
	buckets := make(map[float64]uint64, len(bounds))
	for _, b := range bounds {
		buckets[upper(b, scale)] = s.Histogram.AtMost(b)
	}
	return prometheus.NewConstHistogram(desc, s.Histogram.Count, float64(s.Histogram.Sum)*scale, buckets, s.Values...)
}

// upper scales the end of a bucket. It divides where the scale is one over a whole number: 3e8
// times 1e-9 is not 0.3.
func upper(b uint64, scale float64) float64 {
	if inverse := math.Round(1 / scale); inverse >= 1 && math.Abs(inverse*scale-1) < 1e-12 {
		return float64(b) / inverse
	}
	return float64(b) * scale
}

// Handler is a page with the metrics of the sources and of nothing else.
func Handler(sources ...metrics.Source) http.Handler {
	return page(New(sources...)) // an unchecked collector, alone in its registry
}

// page is a page with the metrics of collectors that do not contradict each other.
func page(of ...prometheus.Collector) http.Handler {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(of...)
	// One broken source must not hide the others; scrapes that pile up would only make things
	// worse.
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4,
		EnableOpenMetrics: true})
}

// ErrNotLoopback refuses to serve metrics to other machines: they tell any host that asks who is
// connected and how much moves.
var ErrNotLoopback = web.ErrNotLoopback

// ServeOptions modify Serve. The zero value serves this machine.
type ServeOptions = web.Options

// Serve answers until ctx ends or stop is called, which returns when the server has ended: GET
// /metrics with the sources and what Prometheus' library knows of a Go process and its build, GET
// /healthz with 200 as long as the process runs, and GET /readyz. addr is the address with the port
// that the kernel chose. Without TLS the address must be a loopback address (127.0.0.1:9095,
// [::1]:0, localhost:9095), and the Host of a request an IP address or localhost; others are
// refused.
func Serve(ctx context.Context, address string, o ServeOptions, sources ...metrics.Source) (stop func() error,
	addr string, err error) {
	stop, addr, err = web.Serve(ctx, address, o, map[string]http.Handler{
		"GET /metrics": page(New(sources...), collectors.NewGoCollector(), collectors.NewBuildInfoCollector(),
			collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})),
	})
	if err != nil {
		return nil, "", fmt.Errorf("prom: %w", err)
	}
	return stop, addr, nil
}
