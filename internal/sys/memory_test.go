package sys

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseNodes(t *testing.T) {
	for in, want := range map[string][]int{
		"0\n": {0}, "0-3": {0, 1, 2, 3}, "0,2": {0, 2}, "0-1,4,6-7\n": {0, 1, 4, 6, 7}, "": nil, "\n": nil,
		"1023": {1023},
	} {
		if got, err := parseNodes(in); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; expected %v", in, got, err, want)
		}
	}
	for _, in := range []string{"a", "1-", "-1", "3-1", "1,,2", "0-1024", "0-99999999999999999999", "1-2-3"} {
		if got, err := parseNodes(in); err == nil {
			t.Errorf("%q: %v, expected an error", in, got)
		}
	}
}

func TestParseMemAvailable(t *testing.T) {
	if n, err := parseMemAvailable([]byte("MemTotal: 5 kB\nMemFree:  4 kB\nMemAvailable:   123 kB\n")); err != nil ||
		n != 123<<10 {
		t.Errorf("%d, %v", n, err)
	}
	for _, in := range []string{"", "MemTotal: 5 kB\n", "MemAvailable: x kB\n",
		"MemAvailable: 99999999999999999999 kB\n", "MemAvailable: -1 kB\n"} {
		if n, err := parseMemAvailable([]byte(in)); err == nil {
			t.Errorf("%q: %d, expected an error", in, n)
		}
	}
	if n, err := MemAvailable(); err != nil || n == 0 {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := LockLimit(); err != nil || n == 0 {
		t.Errorf("RLIMIT_MEMLOCK %d, %v", n, err)
	}
}

// TestHugePageState reads a tree like that of the kernel.
func TestHugePageState(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "hugepages-2048kB")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]string{"nr_hugepages": "10", "free_hugepages": "6", "resv_hugepages": "2",
		"surplus_hugepages": "1", "nr_overcommit_hugepages": "4"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(v+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h, err := hugePageState(root, 2<<20, false)
	if err != nil || h.Total != 10 || h.Surplus != 1 || h.Free != 4 || h.More != 3 {
		t.Errorf("%+v, %v", h, err)
	}
	if got, want := h.Command(9), "echo 15 > "+filepath.Join(dir, "nr_hugepages"); got != want {
		t.Errorf("%q, expected %q", got, want)
	}
	if got := h.Command(3); !strings.HasPrefix(got, "echo 10 ") {
		t.Errorf("%q takes pages away", got)
	}
	if h, err := hugePageState(root, 2<<20, true); err != nil || h.Free != 6 || h.Surplus != 0 || h.More != 0 {
		t.Errorf("of a node: %+v, %v", h, err)
	}
	if _, err := hugePageState(root, 1<<30, false); err == nil || !strings.Contains(err.Error(), "it has 2048kB") {
		t.Errorf("a size that does not exist: %v", err)
	}
	if _, err := hugePageState(t.TempDir(), 2<<20, false); err == nil ||
		!strings.Contains(err.Error(), "no huge pages") {
		t.Errorf("a kernel without huge pages: %v", err)
	}
	os.WriteFile(filepath.Join(dir, "free_hugepages"), []byte("many"), 0o600)
	if _, err := hugePageState(root, 2<<20, false); err == nil || !strings.Contains(err.Error(), "free_hugepages") {
		t.Errorf("nonsense: %v", err)
	}
}
