package main

import (
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
)

// The benchmarks of the program have in the lab what they lack without it: hosts on a cable, and
// OpenSSL.
func TestBenchOfTheProgram(t *testing.T) {
	testenv.Once(t)
	_, _, end, err := netns.Cable(1500)
	if err != nil {
		testenv.Missing(t, "network namespaces", err)
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if out, ok := lab(t, strings.Fields("bench stream --quick --quiet --engine afpacket --size 64 --test latency "+
		"--rate 1000")...); !ok || !strings.Contains(out, "afpacket") {
		t.Errorf("ended well: %v: %s", ok, out)
	}
}

func TestBenchRefuses(t *testing.T) {
	if out, ok := lab(t, "bench", "nothing"); ok || !strings.Contains(out, "nothing") {
		t.Errorf("ended well: %v: %s", ok, out)
	}
}
