package libpcap

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/sys"
)

func TestCompile(t *testing.T) {
	got, err := Compile("ip6", 1, 1000)
	want := []sys.FilterInstruction{{Op: 0x28, K: 12}, {Op: 0x15, JF: 1, K: 0x86dd}, {Op: 6, K: 1000}, {Op: 6}}
	if err != nil || len(got) != len(want) {
		t.Fatalf("%v, %v", got, err)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("instruction %d: %+v, expected %+v", i, got[i], want[i])
		}
	}
	for _, bad := range []string{"udp prot 53", "ether host 1", "tcp port 99999", "udp\x00",
		strings.Repeat("x", maxExpression+1)} {
		if _, err := Compile(bad, 1, 1000); err == nil || len(bad) < 100 &&
			!strings.Contains(err.Error(), fmt.Sprintf("%q", bad)) {
			t.Errorf("%.30s: %v", bad, err)
		}
	}
	if _, err := Compile("udp prot 53", 1, 1000); !strings.Contains(err.Error(), "syntax error") {
		t.Errorf("without libpcap's words: %v", err)
	}
}

// Without the library the error names the package that brings it.
func TestMissing(t *testing.T) {
	if _, err := open("libpcap.so.77"); !errors.Is(err, ErrUnavailable) ||
		!strings.Contains(err.Error(), "libpcap0.8") {
		t.Errorf("%v", err)
	}
	if _, err := open("libc.so.6"); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "pcap_") {
		t.Errorf("%v", err)
	}
}
