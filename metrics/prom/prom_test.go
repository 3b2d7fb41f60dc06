package prom

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
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

// TestHost asks for the page under names that lead to this machine, as a browser does for a page of
// another site.
func TestHost(t *testing.T) {
	stop, addr, err := Serve(t.Context(), "127.0.0.1:0", ServeOptions{}, source())
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(addr)
	for host, want := range map[string]int{
		addr: http.StatusOK, "127.0.0.1": http.StatusOK, "localhost:" + port: http.StatusOK, "LocalHost": http.StatusOK,
		"[::1]:" + port: http.StatusOK, "[::1]": http.StatusOK,
		"attacker.example": http.StatusMisdirectedRequest, "attacker.example:" + port: http.StatusMisdirectedRequest,
		"127.0.0.1.attacker.example": http.StatusMisdirectedRequest,
		"localhost.attacker.example": http.StatusMisdirectedRequest, "localhost.": http.StatusMisdirectedRequest,
	} {
		r, err := http.NewRequest(http.MethodGet, "http://"+addr+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(a.Body)
		a.Body.Close()
		if a.StatusCode != want || (want == http.StatusOK) != strings.Contains(string(body), "penstock_export") ||
			want != http.StatusOK && !strings.Contains(string(body), "localhost") {
			t.Errorf("Host %s: %s %q", host, a.Status, body)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestServe(t *testing.T) {
	good := counter("penstock_good_total")
	good.Samples = []metrics.Sample{{Value: 1}}
	for _, address := range []string{"0.0.0.0:0", "192.0.2.1:0", ":0", "example.org:0"} {
		if _, _, err := Serve(t.Context(), address, ServeOptions{}, source(good)); !errors.Is(err, ErrNotLoopback) {
			t.Errorf("%s: error %v", address, err)
		}
	}
	if _, _, err := Serve(t.Context(), "9095", ServeOptions{}, source(good)); err == nil {
		t.Error("an address without a port was taken")
	}
	ctx, cancel := context.WithCancel(t.Context())
	for _, how := range []string{"stop", "context"} {
		stop, addr, err := Serve(ctx, "127.0.0.1:0", ServeOptions{}, source(good))
		if err != nil {
			t.Fatal(err)
		}
		for path, status := range map[string]int{"/metrics": http.StatusOK, "/": http.StatusNotFound} {
			r, err := http.Get("http://" + addr + path)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(r.Body)
			r.Body.Close()
			if err != nil || r.StatusCode != status ||
				(status == http.StatusOK) != strings.Contains(string(body), "penstock_good_total 1") {
				t.Errorf("%s: %v %v %q", path, err, r.Status, body)
			}
		}
		http.DefaultClient.CloseIdleConnections()
		if how == "context" {
			cancel()
		}
		for range 2 {
			if err := stop(); err != nil {
				t.Errorf("%s: %v", how, err)
			}
		}
		if _, err := http.Get("http://" + addr + "/metrics"); err == nil {
			t.Errorf("%s: still served", how)
		}
	}
	cancel()
}

// With TLS the page is served by HTTPS, also beyond loopback.
func TestServeTLS(t *testing.T) {
	known := httptest.NewTLSServer(nil) // has a certificate, and a client that trusts it
	defer known.Close()
	stop, addr, err := Serve(t.Context(), "0.0.0.0:0",
		ServeOptions{TLS: &tls.Config{Certificates: known.TLS.Certificates}}, source())
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(addr)
	r, err := known.Client().Get("https://127.0.0.1:" + port + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if !r.Close {
		t.Error("the connection is kept, and with it the right that its certificate had")
	}
	body, err := io.ReadAll(r.Body)
	r.Body.Close()
	for _, name := range []string{"penstock_export_dropped_total", "process_resident_memory_bytes", "go_build_info",
		"go_goroutines"} {
		if err != nil || !strings.Contains(string(body), name) {
			t.Errorf("%s is missing in %d bytes, %v", name, len(body), err)
		}
	}
	known.Client().CloseIdleConnections()
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// Probes: the process lives, and it can do its work or says why not.
func TestProbes(t *testing.T) {
	var why error
	stop, addr, err := Serve(t.Context(), "127.0.0.1:0", ServeOptions{Ready: func() error { return why }}, source())
	if err != nil {
		t.Fatal(err)
	}
	for _, why = range []error{nil, errors.New("the directory is gone")} {
		for path, want := range map[string]string{"/healthz": "200 OK ok\n",
			"/readyz": map[bool]string{true: "200 OK ready\n",
				false: "503 Service Unavailable the directory is gone\n"}[why == nil]} {
			r, err := http.Get("http://" + addr + path)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(r.Body)
			r.Body.Close()
			if got := r.Status + " " + string(body); got != want {
				t.Errorf("%s with %v: %q, expected %q", path, why, got, want)
			}
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
