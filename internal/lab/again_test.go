package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/testenv"
)

// fakeGo is a program that prints first when it is called for the first time, and later when it is called again, with its arguments. Text with
// FAIL in it is an exit status of 1.
func fakeGo(t *testing.T, first, later string) (program, calls string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"1": first, "2": later} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	program, calls = filepath.Join(dir, "go"), filepath.Join(dir, "calls")
	script := `#!/bin/sh
cd ` + dir + `
n=1; [ -e calls ] && n=2
echo "$@" >>calls
cat $n
! grep -q FAIL $n
`
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return program, calls
}

func TestAgain(t *testing.T) {
	const (
		fails  = "=== RUN   TestA\n--- FAIL: TestA (0.10s)\n    --- FAIL: TestA/sub (0.01s)\n        a_test.go:7: 1, want 2\nFAIL\nFAIL\tmod/a\t0.2s\n"
		passes = "ok  \tmod/a\t0.1s\n"
		other  = "ok  \tmod/b\t0.1s\n"
	)
	four := ""
	for _, n := range []string{"A", "B", "C", "D"} {
		four += "--- FAIL: Test" + n + " (0.10s)\n"
	}
	four += "FAIL\tmod/a\t0.2s\n"
	for _, c := range []struct {
		name, first, later string
		ok                 bool
		calls              int
		says               string
	}{
		{"passes", passes, fails, true, 1, ""},
		{"an accident", other + fails + "FAIL\n", passes, true, 2, "lab: TestA in mod/a failed, and passed when it was run again"},
		{"a fault", fails, fails, false, 2, "lab: once more: TestA in mod/a"},
		{"two packages", fails + strings.ReplaceAll(fails, "mod/a", "mod/b"), passes, true, 3, "lab: TestA in mod/b failed"},
		{"too many", four, passes, false, 1, "4 tests failed"},
		{"data race", strings.Replace(fails, "=== RUN", "WARNING: DATA RACE\n=== RUN", 1), passes, false, 1, "nothing is run again: WARNING: DATA RACE"},
		{"panic", strings.Replace(fails, "\nFAIL\n", "\npanic: oh\nFAIL\n", 1), passes, false, 1, "nothing is run again: panic:"},
		{"no test named", "goleak: errors\nFAIL\tmod/a\t0.2s\n", passes, false, 1, noTestNamed},
		{"no test named beside one that is", fails + "FAIL\tmod/b\t0.2s\n", passes, false, 1, noTestNamed},
		{"does not compile", fails + "FAIL\tmod/b [build failed]\n", passes, false, 1, "does not compile"},
		{"go says no", "FAIL", passes, false, 1, "no test failed, but the command did"},
	} {
		t.Run(c.name, func(t *testing.T) {
			program, calls := fakeGo(t, c.first, c.later)
			ledger := filepath.Join(t.TempDir(), "ledger")
			t.Setenv("PENSTOCK_LAB_LEDGER", ledger)
			out, ok := lab(t, "again", "--", program, "test", "-count=1", "-race", "./...")
			if ok != c.ok || !strings.Contains(out, c.says) || !strings.Contains(out, c.first) {
				t.Errorf("ended well: %v, want %v and %q:\n%s", ok, c.ok, c.says, out)
			}
			b, err := os.ReadFile(calls)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(string(b)), "\n")
			if len(lines) != c.calls || lines[0] != "test -count=1 -race ./..." {
				t.Fatalf("called %d times, want %d: %q", len(lines), c.calls, lines)
			}
			if c.calls > 1 && lines[1] != "test -count=1 -race -run ^(TestA)$ mod/a" {
				t.Errorf("called again as %q", lines[1])
			}
			noted, err := os.ReadFile(ledger)
			if wrote := err == nil && strings.Contains(string(noted), `"kind":"again"`); wrote != (c.ok && c.calls > 1) {
				t.Errorf("the ledger has %q", noted)
			}
		})
	}
	if out, ok := lab(t, "again", "--", "go"); ok || !strings.Contains(out, "expected go test") {
		t.Errorf("ended well: %v\n%s", ok, out)
	}
}

// TestForgive: what was run again and passed is a use by a test that passed; nothing else changes.
func TestForgive(t *testing.T) {
	ledger := filepath.Join(t.TempDir(), "ledger")
	lines := `{"kind":"guest","what":"net","test":"TestA/sub","failed":true}
{"kind":"guest","what":"net","test":"TestA/sub"}
{"kind":"again","what":"a","test":"TestA"}
{"kind":"guest","what":"numa","test":"TestB","failed":true}
`
	if err := os.WriteFile(ledger, []byte(lines), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CI", "1")
	var out strings.Builder
	if err := printLedger(&out, ledger, []testenv.Use{{Kind: "guest", What: "net"}}); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	if err := printLedger(&out, ledger, []testenv.Use{{Kind: "guest", What: "numa"}}); err == nil {
		t.Errorf("a test that failed counts as one that passed\n%s", out.String())
	}
}
