package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
)

func TestBenchFiles(t *testing.T) {
	testenv.Once(t)
	peers.Need(t, "rsync")
	peers.Need(t, "iperf3")
	netns.New(t, netns.Topology{Link: netns.LinkSpec{Delay: time.Millisecond}}) // or it says what is missing
	file := filepath.Join(t.TempDir(), "files.json")
	out, ok := lab(t, "bench", "files", "--quick", "--quiet", "--files", "40", "--size", "1MiB", "--output", file)
	r, err := paired.ReadFile(file)
	if !ok || err != nil || len(r.Rows) != len(fileRows) {
		t.Fatalf("ended well: %v: %v: %s", ok, err, out)
	}
	for _, x := range r.Rows {
		if want := uint64(1 << 20); x.Ours.Verified != want && x.Ours.Verified != 40*smallBytes || len(x.Theirs) != 1 ||
			x.Theirs[0].Error != "" {
			t.Errorf("%s: %d bytes verified, %+v", x.Name, x.Ours.Verified, x.Theirs)
		}
	}
}

func TestBenchRefusals(t *testing.T) {
	for args, want := range map[string]string{
		"files --row dance": `--row "dance"`,
		"files --size much": "much",
		"files eth0":        "unexpected argument",
		"nothing":           "nothing",
	} {
		if out, ok := lab(t, append([]string{"bench"}, strings.Fields(args)...)...); ok ||
			!strings.Contains(out, want) {
			t.Errorf("%s: ended well: %v: %s; expected %s", args, ok, out, want)
		}
	}
}

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
