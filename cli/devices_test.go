package cli

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/host/cards"
)

var updateDevices = flag.Bool("update-devices", false, "rewrite testdata/devices-*.txt")

// The devices of recorded machines, in 80 columns.
func TestDevicesOfRecordings(t *testing.T) {
	for _, name := range []string{"server", "laptop", "vm"} {
		out, errOut, status := penstock(t, "devices", "--from", "../host/doctor/testdata/"+name+".txt")
		if status != 0 || errOut != "" {
			t.Fatalf("%s: status %d: %s", name, status, errOut)
		}
		narrow(t, out)
		file := filepath.Join("testdata", "devices-"+name+".txt")
		if *updateDevices {
			if err := os.WriteFile(file, []byte(out), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if out != string(want) {
			t.Errorf("%s: (go test -run Recordings -update-devices rewrites it)\n%s", name, out)
		}
	}
	if _, errOut, status := penstock(t, "devices", "--from", "no-such-file"); status != exitNotFound ||
		!strings.Contains(errOut, "no-such-file") {
		t.Errorf("status %d: %s", status, errOut)
	}
	if _, errOut, status := penstock(t, "devices", "--from", "devices.go"); status != exitFailure ||
		!strings.Contains(errOut, "devices.go: ") {
		t.Errorf("status %d: %s", status, errOut)
	}
	if _, errOut, status := penstock(t, "devices", "0"); status != exitUsage ||
		!strings.Contains(errOut, "unexpected argument") {
		t.Errorf("status %d: %s", status, errOut)
	}
}

// narrow fails where a line has more than 80 columns that could be broken.
func narrow(t *testing.T, text string) {
	t.Helper()
	for l := range strings.Lines(text) {
		l = strings.TrimRight(l, "\n")
		if words := strings.Fields(l); columns(l) > deviceWidth && len(words) > 1 &&
			columns(words[len(words)-1]) < deviceWidth-deviceLabel {
			t.Errorf("%d columns: %s", columns(l), l)
		}
	}
}

// The devices of this machine: the host always, the others or why not.
func TestDevices(t *testing.T) {
	out, errOut, status := penstock(t, "devices", "--json")
	if status != 0 {
		t.Fatalf("status %d: %s", status, errOut)
	}
	var r cards.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	text, errOut, status := penstock(t, "devices")
	if status != 0 {
		t.Fatalf("status %d: %s", status, errOut)
	}
	narrow(t, text)
	for _, x := range r.Runtimes {
		want := x.Name + ": not here"
		if (x.Missing == "") != (len(x.Devices) > 0) {
			t.Errorf("%+v", x)
		}
		if x.Missing == "" {
			want = x.Name + " 0 "
		}
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	last := r.Runtimes[len(r.Runtimes)-1]
	if last.Name != "host" || len(last.Devices) != 1 || last.Devices[0].Free == 0 {
		t.Errorf("%+v", last)
	}
	for _, want := range []string{"this process, in Go", "  can        mapped shared", "  cannot     ",
		"ptx: it runs kernels in Go only"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// Every row of a smoke run on the host is in its file; a runtime that is not here is status 10, and
// nothing is measured or written.
func TestBenchGPU(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gpu.json")
	out, errOut, status := penstock(t, "bench", "gpu", "--quick", "--quiet", "--gpu-runtime", "host", "--size", "1KiB",
		"--total", "256KiB", "--output", file)
	if status != 0 {
		t.Fatalf("status %d: %s", status, errOut)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := paired.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"h2d pinned 1 KiB", "pipeline h2d 256 KiB, 4 slots of 4 KiB", "one pinned copy",
		"device    host 0: this process"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if len(r.Rows) < 20 || len(r.Notes) != 0 || r.Bench != "gpu" {
		t.Errorf("%d rows of %s, notes %q", len(r.Rows), r.Bench, r.Notes)
	}
	for _, x := range []struct {
		args   string
		status int
		want   string
	}{
		{"--gpu-runtime steam", exitUsage, "expected auto, cuda, opencl, host"},
		{"--size 1", exitUsage, "expected sizes from 64 bytes"},
		{"--size x", exitUsage, "--size x: "},
		{"--total 1KiB", exitUsage, "expected 64 KiB"},
		{"--total x", exitUsage, "--total x: "},
		{"--pairs -1", exitUsage, "expected numbers above 0"},
		{"--gpu-runtime host --gpu 7", exitUnfit, "it has 1, counted from 0"},
	} {
		never := filepath.Join(t.TempDir(), "never.json")
		out, errOut, status := penstock(t, append([]string{"bench", "gpu", "--quick", "--output", never},
			strings.Fields(x.args)...)...)
		if status != x.status || !strings.Contains(errOut, x.want) || out != "" {
			t.Errorf("%s: status %d: %s%s", x.args, status, errOut, out)
		}
		if _, err := os.Stat(never); !os.IsNotExist(err) {
			t.Errorf("%s: a file was written: %v", x.args, err)
		}
	}
}
