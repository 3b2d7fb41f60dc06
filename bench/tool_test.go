package bench

import (
	"context"
	"strings"
	"testing"
)

// Tools that are not here are reported with the way to get them.
func TestMissingToolsAreReported(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	here, versions, missing, err := findTools(context.Background(), []string{"ucx", "fi", "iperf3", "openssl"}, true)
	if err != nil || len(here) != 0 || len(versions) != 0 || len(missing) != 4 {
		t.Fatalf("%v, %v, %v, %v", here, versions, missing, err)
	}
	for _, m := range missing {
		if !strings.Contains(m, "not installed: apt-get install ") {
			t.Error(m)
		}
	}
	if _, _, _, err := findTools(context.Background(), []string{"nixl"}, true); err == nil {
		t.Error("an unknown tool passed")
	}
	// Without a program in C the lab is named, even where OpenSSL is installed.
	if here, _, missing, err := findTools(context.Background(), []string{"openssl"}, false); err != nil ||
		len(here) != 0 || len(missing) != 1 || !strings.Contains(missing[0], "internal/lab bench") {
		t.Errorf("%v, %v, %v", here, missing, err)
	}
}
