package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
	xdpref "github.com/penstock-io/penstock/internal/lab/testenv/peers/xdp"
)

func TestBenchXDP(t *testing.T) {
	testenv.Once(t)
	xdpref.Need(t)
	file := filepath.Join(t.TempDir(), "xdp.json")
	args := []string{"bench", "xdp", "--quick", "--quiet", "--engine", "xdp", "--against", "c", "--touched", "no",
		"--size", "64"}
	out, ok := lab(t, append(args, "--op", "receive", "--mode", "held,path", "--output", file)...)
	if !ok || !strings.Contains(out, "receive 64 B, untouched, path") {
		t.Fatalf("ended well: %v: %s", ok, out)
	}
	r, err := paired.ReadFile(file)
	if err != nil || len(r.Rows) != 2 || r.Rows[0].Size != 64 || r.Rows[0].Ours.Verified == 0 ||
		len(r.Rows[0].Theirs) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	out, ok = lab(t, append(args, "--packets", "2e3")...)
	if !ok || !strings.Contains(out, "2000 sent by the load") ||
		!strings.Contains(out, "128000 bytes checked at the sink, all right") {
		t.Errorf("ended well: %v: %s", ok, out)
	}
}

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
		"xdp --touched maybe":          `--touched "maybe"`,
		"xdp --packets many":           `--packets "many"`,
		"xdp --packets 1.5":            `--packets "1.5"`,
		"xdp --packets 1 --json":       "--json and --output do not go with it",
		"xdp --engine dpdq":            `engine "dpdq": expected one of`,
		"files --row dance":            `--row "dance"`,
		"files --size much":            "much",
		"dpdk --op dance":              `operation "dance"`,
		"dpdk --batch 0":               "0 packets at a time",
		"xdp --size big":               "invalid value",
		"xdp eth0":                     "unexpected argument",
		"verbs --size 3":               "power of two",
		"verbs --size much":            "-size",
		"verbs --regions much":         "-regions",
		"verbs --classes speed":        "expected some of cost, write",
		"verbs --depth -3":             "under way",
		"verbs --library /nowhere/lib": "/nowhere/lib",
		"nothing":                      "nothing",
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

// TestGuestBenchVerbs runs the whole command on Soft-RoCE, beside perftest. Its figures mean
// nothing.
func TestGuestBenchVerbs(t *testing.T) {
	if guest.ID() == 0 { // the guest takes the host's programs; the ledger is the host's too
		peers.Need(t, "perftest")
	}
	// A minute on a quiet machine; only a hang ever sees the limit.
	if guest.Enter(t, guest.Spec{Profile: guest.Rdma, Timeout: 20 * time.Minute}) {
		return
	}
	// All of it alone; then what perftest has, once each: its programs take a second and more to
	// begin in a guest.
	for _, x := range []struct {
		args         string
		rows, beside int
	}{
		{"--alone", 22, 0},
		{"--classes write,read,send,latency --size 64KiB --pairs 1", 6, 6},
	} {
		file := filepath.Join(t.TempDir(), "verbs.json")
		out, ok := lab(t, append(strings.Fields("bench verbs --quick --device rxe0 --output "+file),
			strings.Fields(x.args)...)...)
		t.Log(out)
		if !ok {
			t.Fatalf("%s failed", x.args)
		}
		r, err := paired.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		beside := 0
		for _, row := range r.Rows {
			if row.Failed != "" || len(row.Ours.Samples) == 0 {
				t.Errorf("%+v", row)
			}
			for _, s := range row.Theirs {
				if s.Error != "" || len(s.Samples) != len(row.Ours.Samples) {
					t.Errorf("%s: %s: %d samples: %s", row.Name, s.Name, len(s.Samples), s.Error)
				}
				if strings.HasPrefix(s.Name, "ib_") {
					beside++
				}
			}
		}
		if len(r.Rows) != x.rows || beside != x.beside {
			t.Errorf("%s: %d rows, %d of them beside perftest; expected %d and %d", x.args, len(r.Rows), beside, x.rows,
				x.beside)
		}
	}
	if out, ok := lab(t, "bench", "verbs", "--quick", "--device", "mlx5_0"); ok ||
		!strings.Contains(out, "expected one of rxe0") {
		t.Errorf("ended well: %v: %s", ok, out)
	}
}
