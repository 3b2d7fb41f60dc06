package cli

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
)

// Prometheus' view of a server: what was fetched is on the page.
func TestServeMetrics(t *testing.T) {
	const size = 300_000
	served := t.TempDir()
	write(t, filepath.Join(served, "w"), content(size, 11))
	p := proc.Start(t, program("serve", served, "--listen", "tcp://127.0.0.1:0", "--metrics", "localhost:0"))
	m, err := p.WaitLine(limit(t), regexp.MustCompile(`metrics at (http://\S+:\d+/metrics)`))
	if err != nil {
		t.Fatal(err)
	}
	run(t, 0, "", "get", serving(t, p)+"/w", "-o", filepath.Join(t.TempDir(), "w"), "--path", "tcp")
	if _, err := p.WaitLine(limit(t), regexp.MustCompile("fetched w")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`penstock_peers_connected_total 1`,
		fmt.Sprintf(`penstock_bytes_total\{direction="out",path="tcp"\} %s`, `3(00000|e\+05)`),
		`penstock_memory_mapped_bytes\S* [1-9]`,
		`penstock_share_files_total\{kind="get",outcome="completed",peer="\(no certificate\)"\} 1$`,
		`penstock_share_bytes_total\{kind="get",peer="\(no certificate\)"\} (300000|3e\+05)$`,
		`penstock_share_left_out 0$`,
		`penstock_build_info\{go="go\S+",.*\} 1$`,
		`penstock_export_dropped_total\{what="family"\} 0$`,
	} {
		if page := scrape(t, m[1]); !regexp.MustCompile(`(?m)^` + want).MatchString(page) {
			t.Errorf("no line %s in\n%s", want, page)
		}
	}
	taken := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(m[1])
	for addr, status := range map[string]int{"0.0.0.0:0": exitUsage, "here": exitUsage, taken: exitFailure} {
		run(t, status, "--metrics: ", "serve", served, "--listen", "tcp://127.0.0.1:0", "--metrics", addr)
	}
}

func scrape(t *testing.T, url string) string {
	t.Helper()
	q, err := http.NewRequestWithContext(limit(t), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatal(r.Status, err)
	}
	return string(b)
}
