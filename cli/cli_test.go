package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/safetensors"
	"github.com/penstock-io/penstock/tensor/synth"
)

// mainEnv makes the test binary behave as the program penstock: the commands start themselves
// again.
const mainEnv = "PENSTOCK_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	// The tests do not use the identity of the user that runs them.
	dir, err := os.MkdirTemp("", "penstock-cli")
	if err != nil {
		panic(err)
	}
	os.Setenv("XDG_CONFIG_HOME", dir)
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

// penstock runs the program and returns what it printed and its exit status.
func penstock(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	return penstockUntil(t, limit(t), args...)
}

// penstockUntil is penstock for what may take longer; it is ended with ctx.
func penstockUntil(t *testing.T, ctx context.Context, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), mainEnv+"=1")
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

func demoJSON(t *testing.T, args ...string) demoReport {
	t.Helper()
	out, errOut, status := penstock(t, append([]string{"demo", "--json", "--repeat", "2"}, args...)...)
	if status != 0 {
		t.Fatalf("exit status %d: %s", status, errOut)
	}
	var r demoReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestDemo(t *testing.T) {
	r := demoJSON(t, "--small")
	want := []string{"plain Go tcp", "plain Go unix", "tcp put", "tcp get", "shm put", "shm get", "shm borrow"}
	if len(r.Rows) != len(want) {
		t.Fatalf("rows: %+v", r.Rows)
	}
	specs := synth.Tiny.Tensors()
	size := int64(0)
	for _, s := range specs {
		n, err := s.Desc.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		size += n
	}
	for i, row := range r.Rows {
		if row.What != want[i] || row.Bytes != uint64(size) || row.Verified != uint64(size) || row.Took <= 0 {
			t.Errorf("row %d: %+v, expected %s of %d bytes, all verified", i, row, want[i], size)
		}
	}
	if len(r.Choice) != 3 || !strings.Contains(r.Choice[0], "lowest expected time") {
		t.Errorf("choice: %q", r.Choice)
	}
	if r.Tensors != len(specs) || len(r.DTypes) < 5 || len(r.Unavailable) == 0 || r.CopyGBs <= 0 {
		t.Errorf("report: %+v", r)
	}
}

func TestDemoFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.safetensors")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	var tensors []tensor.Tensor
	sum := uint64(0)
	for _, x := range []struct {
		name  string
		dtype tensor.DType
		shape []int64
	}{{"a", tensor.F32, []int64{100, 7}}, {"b", tensor.BF16, []int64{33}}, {"empty", tensor.I64, []int64{0, 4}},
		{"scalar", tensor.F64, nil}} {
		d := tensor.Desc{DType: x.dtype, Shape: x.shape}
		n, _ := d.Bytes()
		b := make([]byte, n)
		synth.Fill(b, 99)
		y, err := tensor.New(x.name, d, b)
		if err != nil {
			t.Fatal(err)
		}
		tensors = append(tensors, y)
		sum += uint64(n)
	}
	if _, err := safetensors.Write(f, tensors, nil); err != nil {
		t.Fatal(err)
	}
	f.Close()
	r := demoJSON(t, "--file", file)
	for _, row := range r.Rows {
		if row.Verified != sum {
			t.Errorf("%s: %d of %d bytes verified", row.What, row.Verified, sum)
		}
	}
	if r.Tensors != 4 || r.Model != file {
		t.Errorf("report: %+v", r)
	}
}

func TestDemoPrints(t *testing.T) {
	out, errOut, status := penstock(t, "demo", "--small", "--repeat", "1", "-v")
	if status != 0 {
		t.Fatalf("exit status %d: %s", status, errOut)
	}
	for _, want := range []string{"copies/byte", "tcp put", "shm borrow", "proof: crc32c", "proof: same memory",
		"Not available:", "verbs (RDMA)"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	if n := strings.Count(out, "every byte"); n != 7 {
		t.Errorf("%d rows are verified, expected 7:\n%s", n, out)
	}
	// Without -v: the table and three lines.
	out, errOut, status = penstock(t, "demo", "--small", "--repeat", "1")
	if status != 0 {
		t.Fatalf("exit status %d: %s", status, errOut)
	}
	var lines []string
	for line := range strings.Lines(out) {
		if strings.TrimSpace(line) != "" && !strings.Contains(line, "every byte") &&
			!strings.Contains(line, "copies/byte") {
			lines = append(lines, line)
		}
	}
	if len(lines) != 3 || strings.Count(out, "every byte") != 7 {
		t.Errorf("%d lines beside the table:\n%s", len(lines), out)
	}
}

// The demo in memory that is page-locked for an accelerator: the same rows, each beside host
// memory. The runtime is the one that every machine has.
func TestDemoPinned(t *testing.T) {
	r := demoJSON(t, "--small", "--memory", "pinned", "--gpu-runtime", "host")
	if len(r.Rows) != 7 || r.Memory != "pinned" || !strings.Contains(r.Device, "host 0: ") ||
		!strings.Contains(r.Device, "a stand-in for a card") {
		t.Fatalf("%+v", r)
	}
	for _, x := range r.Rows {
		if x.Verified != x.Bytes || x.Refused != "" || x.DeviceCopies != 0 {
			t.Errorf("%+v", x)
		}
		if moved := !x.Plain && x.What != "shm borrow"; moved != (x.HostTook > 0) || moved != (x.OfHost > 0) {
			t.Errorf("%s: beside host memory %v, %v", x.What, x.HostTook, x.OfHost)
		}
	}
}

// The demo in memory that the CPU does not touch: everything is staged, read back and summed by a
// kernel; looking at it is refused with the reason.
func TestDemoDevice(t *testing.T) {
	for _, args := range [][]string{{"--gpu-runtime", "host"}, {"--gpu-runtime", "opencl"}} {
		t.Run(args[1], func(t *testing.T) {
			if args[1] == "opencl" {
				peers.PoCL(t)
			}
			r := demoJSON(t, append([]string{"--small", "--memory", "device"}, args...)...)
			if len(r.Rows) != 7 || r.Memory != "device" || !strings.Contains(r.Device, args[1]+" 0: ") || !r.ByKernel ||
				len(r.Choice) != 3 {
				t.Fatalf("%+v", r)
			}
			for _, x := range r.Rows {
				if x.What == "shm borrow" {
					if x.Refused == "" || x.Took != 0 || x.Verified != 0 {
						t.Errorf("%+v", x)
					}
					continue
				}
				if x.Verified != x.Bytes || x.Refused != "" || x.DeviceCopies != 2 || x.Took <= 0 ||
					x.Plain == (x.OfHost > 0) {
					t.Errorf("%+v", x)
				}
				if put := strings.HasSuffix(x.What, "put"); put != strings.Contains(strings.Join(x.Explain, "\n"),
					"staged") {
					t.Errorf("%s: %q", x.What, x.Explain)
				}
			}
		})
	}
}

// A file's tensors go by device memory as they go by the host's, and the table has what that costs.
func TestDemoDevicePrints(t *testing.T) {
	out, errOut, status := penstock(t, "demo", "--small", "--repeat", "1", "--memory", "device", "--gpu-runtime",
		"host", "-v")
	if status != 0 {
		t.Fatalf("exit status %d: %s", status, errOut)
	}
	for _, want := range []string{"Both hold them in device memory: host 0: this process, in Go, a stand-in for a card",
		"of host", "+ 2 device", "shm borrow: refused: ", "staged here",
		"staged at the peer", "what device memory costs", "a kernel of the device summed the same bytes"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	if n := strings.Count(out, "every byte"); n != 7 { // six rows, and the line that says how
		t.Errorf("every byte %d times, expected 7:\n%s", n, out)
	}
}

// The rows of the benchmark between memories, as JSON.
func TestBenchTransferMemory(t *testing.T) {
	out, errOut, status := penstock(t, "bench", "transfer", "--quick", "--json", "--size", "4KiB", "--local-memory",
		"device", "--gpu-runtime", "host")
	if status != 0 {
		t.Fatalf("exit status %d: %s", status, errOut)
	}
	r, err := paired.Read(strings.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 4 || r.Rows[0].Name != "shm put 4 KiB event device to host" ||
		r.Rows[3].Name != "tcp get 4 KiB event host to device" {
		t.Errorf("%d rows, %q", len(r.Rows), r.Rows[0].Name)
	}
	for _, x := range r.Rows {
		if m := x.Memory; m == nil || m.Local != "device" || m.Remote != "host" ||
			!strings.HasPrefix(m.LocalDevice, "host 0: ") || m.RemoteDevice != "" || m.DeviceCopies != 1 {
			t.Errorf("%s: %+v", x.Name, m)
		}
	}
}

// A command prints an error once, on the standard error, with a status that tells misuse from
// failure.
func TestMistakes(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"dmeo"}, 2, `unknown command "dmeo" for penstock: did you mean "demo"?`},
		{[]string{"sync"}, 2, `unknown command "sync" for penstock: "penstock mirror ADDR DIR" fetches`},
		{[]string{"cp", "a", "b"}, 2, `"penstock get ADDR/NAME" fetches a file, "penstock put FILE ADDR" uploads one`},
		{[]string{"upload"}, 2, `did you mean "put"?`},
		{[]string{"pair", "list", "10.0.0.1"}, 2, `unexpected argument "10.0.0.1"`},
		{[]string{"put", "127.0.0.1:7070", "/dev"}, 2, "127.0.0.1:7070 is an address and /dev is none: expected the address behind"},
		{[]string{"get", "w", "127.0.0.1:7070"}, 2, "expected the address first"},
		{[]string{"mirror", "d", "127.0.0.1:7070"}, 2, "penstock mirror ADDR DIR to fetch, or penstock put DIR ADDR to upload"},
		{[]string{"serve", ".", "--listen", "7071"}, 2, "--listen 7071: a port alone has a colon before it: did you mean :7071 "},
		{[]string{"serve", ".", "--listen", "tcp://7071"}, 2, "did you mean :7071 "},
		{[]string{"serve", ".", "--listen", "10.0.0.1"}, 2, "did you mean 10.0.0.1:7070?"},
		{[]string{"pair", "--listen", "7071"}, 2, "did you mean :7071 "},
		{[]string{"pair", "10.0.0.1"}, 2, "such as 10.0.0.1:7071"},
		{[]string{"ls", "127.0.0.1"}, 2, "did you mean tcp://127.0.0.1?"},
		{[]string{"ls", "tcp://192.0.2.1:7070", "--identity", "none"}, 4,
			"\n  Let the two machines trust each other: " +
				"\"penstock pair --listen :7071\" on one, then \"penstock pair ADDRESS\" on the other. Or permit " +
				"plaintext with --insecure."},
		{[]string{"ls", loopAt(7070), "--identity", "none"}, 5,
			"connection refused\n  Nothing listens there: start \"penstock " +
				"serve DIR --listen tcp://" + loopAt(7070)},
		{[]string{"ls", "unix:///nonexistent/x"}, 5, "Nothing listens there: start \"penstock serve DIR --listen unix://PATH\""},
		{[]string{"demo", "--fiel", "x"}, 2, "penstock demo has no flag --fiel: did you mean --file?"},
		{[]string{"demo", "extra"}, 2, `unexpected argument "extra"`},
		{[]string{"demo", "--repeat", "0"}, 2, "expected 1 to 1000"},
		{[]string{"demo", "--file", "/nonexistent/x"}, 3, "/nonexistent/x"},
		{[]string{"demo", "--memory", "disk"}, 2, `memory "disk": expected host, pinned or device`},
		{[]string{"demo", "--memory", "device", "--gpu-runtime", "vulkan"}, 2, "--gpu-runtime vulkan: expected auto, cuda, opencl, host"},
		{[]string{"demo", "--memory", "device", "--gpu-runtime", "host", "--gpu", "3"}, 10, "no such device: there are: host 0: "},
		{[]string{"demo", "--memory", "device", "--gpu", "-1"}, 2, "--gpu -1"},
		{[]string{"bench", "transfer", "--quick", "--memory", "ram"}, 2, `memory "ram"`},
		{[]string{"bench", "transfer", "--quick", "--report", "--remote-memory", "device"}, 2, "--report"},
		{[]string{"bench", "transfer", "--quick", "--memory", "device", "--against", "iperf3"}, 2, "host memory"},
		{[]string{"demo", "--file", "/dev/null"}, 1, "/dev/null"},
	} {
		out, errOut, status := penstock(t, c.args...)
		if status != c.status || !strings.Contains(errOut, c.want) || out != "" {
			t.Errorf("penstock %v: status %d, printed %q and %q; expected %d and %q", c.args, status, out, errOut,
				c.status, c.want)
		}
	}
}

func TestHelpAndVersion(t *testing.T) {
	if out, _, status := penstock(t); status != 0 || !strings.Contains(out, "penstock demo") {
		t.Errorf("without arguments: status %d, %q", status, out)
	}
	if out, _, status := penstock(t, "version"); status != 0 || !strings.Contains(out, "go1.") {
		t.Errorf("version: status %d, %q", status, out)
	}
	if out, _, _ := penstock(t, "help"); strings.Contains(out, "demo-receiver") {
		t.Error("help shows a hidden command")
	}
}
