package cli

import "testing"

func TestParseSize(t *testing.T) {
	for s, want := range map[string]uint64{"64": 64, "64B": 64, "4KiB": 4096, "1MiB": 1 << 20, "2 GiB": 2 << 30} {
		if n, err := parseSize(s); err != nil || n != want {
			t.Errorf("%q: %d, %v", s, n, err)
		}
	}
	for _, s := range []string{"", "KiB", "-1", "1.5MiB", "1MB", "99999999999999999999", "18014398509481984KiB"} {
		if n, err := parseSize(s); err == nil {
			t.Errorf("%q passed: %d", s, n)
		}
	}
}
