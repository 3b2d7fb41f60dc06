package gpucard

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/cli"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/host/cards"
	"github.com/penstock-io/penstock/internal/cuda"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/cuda"
)

// cliEnv makes this binary the program penstock.
const cliEnv = "PENSTOCK_GPU_CARD_CLI"

// asPenstock is the program penstock on the fake driver. It fails where that has something to
// complain of, or has something left.
func asPenstock() int {
	if status := cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr); status != 0 {
		return status
	}
	f, err := fake.Load(cuda.Library)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if f.Live() != 0 || f.Violations() != 0 {
		r, err := f.Report()
		fmt.Fprintf(os.Stderr, "the fake driver: %s, %v\n", r, err)
		return 1
	}
	return 0
}

// penstock runs the program penstock on a machine whose loader finds the fake driver, and returns
// what it printed on its standard output.
func penstock(t *testing.T, args ...string) []byte {
	t.Helper()
	library, bodies := built(t)
	dir := t.TempDir()
	if err := os.Symlink(library, filepath.Join(dir, cuda.Library)); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, args...)
	cmd.Env = append(cmd.Env, cliEnv+"=1", "LD_LIBRARY_PATH="+dir, "PENSTOCK_FAKE_CUDA_KERNELS="+bodies)
	out, err := cmd.Output()
	if err != nil {
		said := []byte(nil)
		if e, ok := err.(*exec.ExitError); ok {
			said = e.Stderr
		}
		t.Fatalf("%v\n%s%s", err, out, said)
	}
	testenv.Record(t, "fake", "cuda", "penstock "+args[0])
	return out
}

// The benchmark of accelerators runs over the driver API as on a card, and breaks none of its
// rules.
func TestBenchOnTheFake(t *testing.T) {
	if running() {
		return // this is a test of the program, not of a card
	}
	file := filepath.Join(t.TempDir(), "bench.json")
	penstock(t, "bench", "gpu", "--gpu-runtime", "cuda", "--gpu", "1", "--quick", "--output", file)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := paired.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(r.Machine.Accelerator, "cuda 1: Penstock fake GPU 1, sm_80, ") || len(r.Rows) < 40 {
		t.Errorf("%d rows of %q", len(r.Rows), r.Machine.Accelerator)
	}
	for _, x := range r.Rows {
		if x.What == "d2d" && (x.Ceiling == nil || x.Ceiling.Enforced) {
			t.Errorf("%s: expected the bandwidth of the card's memory as a ceiling that is not enforced for so few "+
				"bytes: %+v", x.Name, x.Ceiling)
		}
	}
}

// The devices of the driver are listed with what CUDA says of them.
func TestDevicesOnTheFake(t *testing.T) {
	if running() {
		return // this is a test of the program, not of a card
	}
	var r cards.Report
	if err := json.Unmarshal(penstock(t, "devices", "--json"), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Runtimes) != 3 || r.Runtimes[0].Name != "cuda" || r.Runtimes[0].Missing != "" ||
		len(r.Runtimes[0].Devices) != 2 {
		t.Fatalf("%+v", r.Runtimes)
	}
	d := r.Runtimes[0].Devices[1]
	if d.Name != "Penstock fake GPU 1" || d.Bus == "" || d.Free == 0 || d.Free > d.Memory || d.Error != "" ||
		len(d.Capabilities) != len(gpu.Capabilities{}) {
		t.Errorf("%+v", d)
	}
	text := string(penstock(t, "devices"))
	for _, want := range []string{"cuda", "Penstock fake GPU 1", "sm_80"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
