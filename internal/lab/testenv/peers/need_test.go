package peers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A peer that is here and does not work is not absent: a test that needs it must not skip.
func TestNeedOfABrokenPeer(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "iperf3"), []byte("#!/bin/sh\necho no library >&2\nexit 127\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	var tb recorder
	Need(&tb, "iperf3")
	if !tb.failed || tb.skipped {
		t.Errorf("a broken peer: failed %v, skipped %v", tb.failed, tb.skipped)
	}
}

// An absent peer skips a test on a laptop and fails it in CI.
func TestNeedOfAnAbsentPeer(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("PENSTOCK_LAB_LEDGER", "")
	for _, ci := range []string{"", "true"} {
		t.Setenv("CI", ci)
		var tb recorder
		Need(&tb, "iperf3")
		if tb.failed != (ci != "") || tb.skipped != (ci == "") || !strings.Contains(tb.said, "apt-get install iperf3") {
			t.Errorf("CI=%q: failed %v, skipped %v: %s", ci, tb.failed, tb.skipped, tb.said)
		}
	}
}

// recorder is a test that remembers its end.
type recorder struct {
	failed, skipped bool
	said            string
}

func (r *recorder) Helper()                   {}
func (r *recorder) Name() string              { return "TestOfATest" }
func (r *recorder) Logf(string, ...any)       {}
func (r *recorder) Errorf(f string, a ...any) { r.failed = true }
func (r *recorder) Fatalf(f string, a ...any) { r.failed, r.said = true, fmt.Sprintf(f, a...) }
func (r *recorder) Skipf(f string, a ...any)  { r.skipped, r.said = true, fmt.Sprintf(f, a...) }
func (r *recorder) Failed() bool              { return r.failed }
func (r *recorder) Cleanup(func())            {}
