package prom

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func histogram(values ...uint64) *metrics.HistogramSnapshot {
	var h metrics.Histogram
	for _, v := range values {
		h.Record(v)
	}
	s := new(metrics.HistogramSnapshot)
	h.Snapshot(s)
	return s
}

func counter(name string, labels ...string) metrics.Family {
	return metrics.Family{Name: name, Help: "Bytes.", Kind: metrics.KindCounter, Labels: labels}
}

func source(all ...metrics.Family) metrics.Source {
	return func() []metrics.Family { return all }
}

// What the page says, parsed again by Prometheus' own parser.
func TestScrape(t *testing.T) {
	bytes := counter("penstock_bytes_total", "direction")
	bytes.Samples = []metrics.Sample{{Values: []string{"in"}, Value: 7},
		{Values: []string{"out \"x\"\n"}, Value: 1 << 40}}
	peers := metrics.Family{Name: "penstock_peers", Help: "Peers.", Kind: metrics.KindGauge,
		Samples: []metrics.Sample{{Value: -2.5}}}
	wait := metrics.Family{Name: "penstock_wait_seconds", Help: "Waits.", Kind: metrics.KindHistogram, Scale: 1e-9,
		Bounds:  []uint64{1000, 300_000_000},
		Samples: []metrics.Sample{{Histogram: histogram(1, 900, 5000, 2_000_000_000)}}}
	srv := httptest.NewServer(Handler(source(bytes, wait), source(peers)))
	defer srv.Close()
	err := testutil.ScrapeAndCompare(srv.URL, strings.NewReader(`
# HELP penstock_bytes_total Bytes.
# TYPE penstock_bytes_total counter
penstock_bytes_total{direction="in"} 7
penstock_bytes_total{direction="out \"x\"\n"} 1.099511627776e+12
# HELP penstock_export_dropped_total What was left out of scrapes because it was invalid or too much.
# TYPE penstock_export_dropped_total counter
penstock_export_dropped_total{what="family"} 0
penstock_export_dropped_total{what="sample"} 0
# HELP penstock_peers Peers.
# TYPE penstock_peers gauge
penstock_peers -2.5
# HELP penstock_wait_seconds Waits.
# TYPE penstock_wait_seconds histogram
penstock_wait_seconds_bucket{le="1e-06"} 2
penstock_wait_seconds_bucket{le="0.3"} 3
penstock_wait_seconds_bucket{le="+Inf"} 4
penstock_wait_seconds_sum 2.0000059010000001
penstock_wait_seconds_count 4
`))
	if err != nil {
		t.Error(err)
	}
}

// Bad families, doubles and floods are left out and counted; the rest of the page stays.
func TestBadSources(t *testing.T) {
	good := counter("penstock_good_total")
	good.Samples = []metrics.Sample{{Value: 1}}
	badName := counter("penstock_bad")
	badUTF8 := counter("penstock_text_total", "peer")
	badUTF8.Samples = []metrics.Sample{{Values: []string{"\xff"}}}
	flood := counter("penstock_flood_total", "peer")
	for i := range MaxSamples + 5 {
		flood.Samples = append(flood.Samples, metrics.Sample{Values: []string{fmt.Sprint(i)}})
	}
	c := New(source(badName, good, badUTF8, good, flood, counter("penstock_export_dropped_total")))
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	want := func(scrapes int) string {
		return fmt.Sprintf(`
# HELP penstock_export_dropped_total What was left out of scrapes because it was invalid or too much.
# TYPE penstock_export_dropped_total counter
penstock_export_dropped_total{what="family"} %d
penstock_export_dropped_total{what="sample"} %d
# HELP penstock_good_total Bytes.
# TYPE penstock_good_total counter
penstock_good_total 1
`, 4*scrapes, 5*scrapes)
	}
	for scrape := 1; scrape <= 2; scrape++ {
		if err := testutil.GatherAndCompare(r, strings.NewReader(want(scrape)), "penstock_export_dropped_total",
			"penstock_good_total"); err != nil {
			t.Error(err)
		}
	}
	if n, err := testutil.GatherAndCount(r, "penstock_flood_total"); err != nil || n != MaxSamples {
		t.Errorf("%d samples of a flood, %v", n, err)
	}
}

// TestServe asks for the page of a server of its own.
func TestServe(t *testing.T) {
	good := counter("penstock_good_total")
	good.Samples = []metrics.Sample{{Value: 1}}
	if _, _, err := Serve(t.Context(), "0.0.0.0:0", ServeOptions{}, source(good)); !errors.Is(err, ErrNotLoopback) {
		t.Errorf("beyond this machine: %v", err)
	}
	stop, addr, err := Serve(t.Context(), "127.0.0.1:0", ServeOptions{}, source(good))
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	r.Body.Close()
	for _, name := range []string{"penstock_good_total 1", "penstock_export_dropped_total",
		"process_resident_memory_bytes", "go_build_info", "go_goroutines"} {
		if err != nil || r.StatusCode != http.StatusOK || !strings.Contains(string(body), name) {
			t.Errorf("%s is missing in %d bytes: %s, %v", name, len(body), r.Status, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestUpper(t *testing.T) {
	for _, b := range metrics.LatencyBounds {
		if got, want := fmt.Sprint(upper(b, 1e-9)), fmt.Sprint(float64(b)/1e9); got != want || len(got) > 6 {
			t.Errorf("%d ns become %s s, expected %s", b, got, want)
		}
	}
	if upper(3, 1) != 3 || upper(3, 1024) != 3072 || upper(3, 0.75) != 2.25 {
		t.Error("other scales are wrong")
	}
}
