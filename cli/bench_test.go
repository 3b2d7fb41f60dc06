package cli

import "testing"

func TestParseSize(t *testing.T) {
	for s, want := range map[string]uint64{"64": 64, "64B": 64, "4KiB": 4096, "1MiB": 1 << 20, "2 GiB": 2 << 30,
		" 2GiB": 2 << 30, "0": 0,
		"1.5MiB": 3 << 19, "1TiB": 1 << 40, "1MB": 1e6} { // those of the second line as in configuration files

		if n, err := parseSize(s); err != nil || n != want {
			t.Errorf("%q: %d, %v", s, n, err)
		}
	}
	for _, s := range []string{"", "KiB", "-1", "1.3B", "1M", "1mb", "99999999999999999999", "18014398509481984KiB"} {
		if n, err := parseSize(s); err == nil {
			t.Errorf("%q passed: %d", s, n)
		}
	}
}
