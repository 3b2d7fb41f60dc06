package laws

import (
	"go/ast"
	"os"
	"slices"
	"strings"
	"testing"
)

// unchecked are packages with goroutines, locks or unsafe code whose tests a change does not run
// with the race detector and invariants; make nightly does.
var unchecked = map[string]string{
	"bench":          "load generators; what they drive is checked",
	"bench/device":   "load generators",
	"bench/feed":     "load generators",
	"bench/sections": "load generators",
	"bench/stream":   "load generators",
	"bindings/c": "its tests are programs in C and Python with the built library, under " +
		"AddressSanitizer and ThreadSanitizer",
	"cli":                        "its tests start the plain program",
	"config":                     "tables that sync.Once makes",
	"internal/cdpdk":             "its code is in builds with the tag dpdk (make dpdk)",
	"examples/echo":              "an example",
	"examples/fanout":            "an example",
	"examples/feed":              "an example",
	"examples/putget":            "an example",
	"examples/kvcache":           "an example",
	"examples/checkpoint":        "an example",
	"engine/enginetest":          "test suite: each engine runs it checked",
	"gpu/gputest":                "test suite: each runtime runs it checked",
	"gpu/gpumem/gpumemtest":      "test suite",
	"transfer/path/pathtest":     "test suite: each path runs it checked",
	"internal/accel":             "a cache that sync.Once makes",
	"internal/cuda/cudatest":     "test suite",
	"internal/ibvmem/cardtest":   "test suite",
	"internal/lab":               "a tool for contributors",
	"internal/peers":             "runs other programs",
	"internal/lab/soak":          "its workers are plain programs",
	"internal/lab/testenv":       "test suite",
	"internal/lab/testenv/fault": "test suite",
	"internal/lab/testenv/guest": "test suite",
	"internal/lab/testenv/netns": "test suite",
	"internal/lab/testenv/peers": "test suite",
	"internal/lab/testenv/proc":  "test suite",
	"internal/lab/testenv/s3":    "test suite",
}

// concurrent reports whether a file starts goroutines, shares memory, has unsafe code, or checks
// its accounts in builds with invariants.
func concurrent(s source) bool {
	for _, i := range imports(s) {
		switch i {
		case "sync", "sync/atomic", "unsafe", module + "/internal/invariants":
			return true
		}
	}
	found := false
	ast.Inspect(s.file, func(n ast.Node) bool {
		_, is := n.(*ast.GoStmt)
		found = found || is
		return !found
	})
	return found
}

// TestCheckedPackages: scripts/checked.txt names the packages that need the race detector, and no
// other.
func TestCheckedPackages(t *testing.T) {
	text, err := os.ReadFile("../../scripts/checked.txt")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for line := range strings.Lines(string(text)) {
		switch line = strings.TrimSpace(line); {
		case line == "" || line[0] == '#':
		default:
			listed = append(listed, line)
		}
	}
	needs := map[string]bool{}
	for _, s := range load(t) {
		needs[s.pkg] = needs[s.pkg] || !s.test && concurrent(s)
	}
	for pkg, need := range needs {
		has, excepted := slices.Contains(listed, pkg), unchecked[pkg] != ""
		switch {
		case need && !has && !excepted:
			t.Errorf("package %q has goroutines, locks, atomics or unsafe code: expected it in scripts/checked.txt",
				pkg)
		case has && excepted:
			t.Errorf("package %q is in scripts/checked.txt and among the exceptions", pkg)
		case !need && (has || excepted):
			t.Errorf("package %q needs no race detector: take it out of scripts/checked.txt or of the exceptions", pkg)
		}
	}
	for _, pkg := range listed {
		if _, ok := needs[pkg]; !ok {
			t.Errorf("scripts/checked.txt names %q, which is not a package", pkg)
		}
	}
	for pkg := range unchecked {
		if _, ok := needs[pkg]; !ok {
			t.Errorf("the exceptions name %q, which is not a package", pkg)
		}
	}
}
