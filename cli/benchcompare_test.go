package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
)

// A benchmark writes what it prints; the file compares with itself and with that of another run.
func TestBenchEndToEnd(t *testing.T) {
	dir := t.TempDir()
	var files []string
	for _, name := range []string{"a.json", "b.json"} {
		file := filepath.Join(dir, name)
		out, errOut, status := penstock(t, "bench", "ring", "--quick", "--quiet", "--seed", "5", "--output", file)
		if status != 0 || errOut != "" {
			t.Fatalf("exit status %d: %s", status, errOut)
		}
		r, err := paired.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Rows) != 8 || r.Method.Seed != 5 || r.Method.Pairs != 3 || r.Machine.Cores < 1 ||
			r.Method.Gate != nil {
			t.Errorf("%+v", r)
		}
		// The table is printed from the same structure.
		var table bytes.Buffer
		if err := r.Table(&table); err != nil || table.String() != out {
			t.Errorf("printed:\n%s\nthe file says:\n%s%v", out, &table, err)
		}
		files = append(files, file)
	}
	out, errOut, status := penstock(t, "bench", "compare", files[0], files[0], "--margin", "0")
	if status != 0 || !strings.Contains(out, "8 rows: 0 better, 0 worse, 8 same, 0 inconclusive") ||
		!strings.Contains(out, "WARNING: A and B are of the same run") {
		t.Errorf("with itself: status %d, %s%s", status, out, errOut)
	}
	// Three samples are too few for any verdict, so nothing is worse.
	out, errOut, status = penstock(t, "bench", "compare", files[0], files[1], "--fail-worse", "--json")
	var c paired.Comparison
	if err := json.Unmarshal([]byte(out), &c); status != 0 || err != nil || len(c.Rows) != 8 ||
		c.Count(paired.Inconclusive) != 8 || c.Margin != 0.05 {
		t.Errorf("with another: status %d, %v, %s%s", status, err, out, errOut)
	}
}

// result writes a file with one row, whose samples are value.
func result(t *testing.T, name string, value float64, rows ...string) string {
	t.Helper()
	r := paired.NewReport("test")
	for _, row := range rows {
		x, err := paired.Run(t.Context(), paired.Plan{Name: row, Unit: paired.GBs, Ours: paired.Contender{Name: "ours",
			Run: func(context.Context) (paired.Sample, error) {
				return paired.Sample{Value: value, Verified: 1}, nil
			}}})
		if err != nil {
			t.Fatal(err)
		}
		r.Rows = append(r.Rows, *x)
	}
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestBenchCompareStatus(t *testing.T) {
	a, b := result(t, "a.json", 10, "put", "get"), result(t, "b.json", 9, "put", "borrow")
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args   []string
		status int
		want   string
	}{
		"worse":             {[]string{a, b}, 0, "1 row: 0 better, 1 worse"},
		"worse, fail":       {[]string{a, b, "--fail-worse"}, 1, "penstock: 1 of 1 rows are worse by more than 5%"},
		"within the margin": {[]string{a, b, "--fail-worse", "--margin", "0.2"}, 0, "1 same"},
		"better":            {[]string{b, a, "--fail-worse"}, 0, "1 better, 0 worse"},
		"only in one":       {[]string{a, b}, 0, "only in A:\n  get\n\nonly in B:\n  borrow\n"},
		"margin":            {[]string{a, b, "--margin", "much"}, 2, `--margin "much": expected a part`},
		"one file":          {[]string{a}, 2, "expected two result files"},
		"no file":           {[]string{a, text + "2"}, 3, "no such file"},
		"not a result":      {[]string{text, text}, 1, text + ": line 1, column 2"},
		"no directory": {[]string{a, b, "--output", filepath.Join(text+"2", "c.json")}, 3,
			"there is no directory"},
	} {
		out, errOut, status := penstock(t, append([]string{"bench", "compare"}, c.args...)...)
		if status != c.status || !strings.Contains(out+errOut, c.want) {
			t.Errorf("%s: status %d, %s%s; want %d, %q", name, status, out, errOut, c.status, c.want)
		}
	}
	file := filepath.Join(t.TempDir(), "c.json")
	out, _, status := penstock(t, "bench", "compare", a, b, "-o", file)
	written, err := os.ReadFile(file)
	if status != 0 || err != nil || !strings.Contains(out, "verdict") ||
		!bytes.Contains(written, []byte(paired.CompareFormat)) {
		t.Errorf("status %d, %v, %s", status, err, out)
	}
}

// The command finds that it cannot write the result before it measures anything.
func TestBenchOutputIsChecked(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string]string{dir: "this is a directory",
		filepath.Join(dir, "none", "x.json"): "there is no directory"} {
		out, errOut, status := penstock(t, "bench", "mem", "--quick", "--output", name)
		if status != 1 && status != exitNotFound || !strings.Contains(errOut, want) || out != "" ||
			strings.Contains(errOut, "pool") {
			t.Errorf("%s: status %d, %q, %q", name, status, out, errOut)
		}
	}
	if _, errOut, status := penstock(t, "bench", "ring", "--quick", "--idle-wait", "-1s"); status != 2 ||
		!strings.Contains(errOut, "--idle-wait") {
		t.Errorf("status %d, %q", status, errOut)
	}
}

// The table is for a pipe that may end before it does; the file is written all the same.
func TestBenchFileFirst(t *testing.T) {
	a, err := paired.ReadFile(result(t, "a.json", 10, "put"))
	if err != nil {
		t.Fatal(err)
	}
	closed, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	defer w.Close()
	file := filepath.Join(t.TempDir(), "x.json")
	if err := (&bench.Output{File: file}).Write(w, a); err == nil {
		t.Error("a table was printed into a closed pipe")
	}
	if _, err := paired.ReadFile(file); err != nil {
		t.Error(err)
	}
}

func TestParseMargin(t *testing.T) {
	for s, want := range map[string]float64{"5%": 0.05, "0.05": 0.05, "0": 0, "2.5 %": 0.025} {
		if v, err := parseMargin(s); err != nil || v != want {
			t.Errorf("%q: %v, %v", s, v, err)
		}
	}
	for _, s := range []string{"", "%", "-1%", "100%", "1", "NaN", "5"} {
		if v, err := parseMargin(s); err == nil {
			t.Errorf("%q passed: %v", s, v)
		}
	}
}
