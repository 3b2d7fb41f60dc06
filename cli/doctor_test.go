package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/host/doctor"
)

const serverRecording = "../host/doctor/testdata/server.txt"

func TestDoctorUsage(t *testing.T) {
	for _, x := range []struct{ args, want string }{
		{"doctor a.yaml b.yaml", "at most one file"},
		{"doctor a.yaml --cores 1", "--cores says what is needed, and so does a.yaml"},
		{"doctor a.yaml --gpu any", "--gpu says what is needed"},
		{"doctor - --from -", "not both"},
		{"doctor --engine xdp", "go with --interface"},
		{"doctor --interface a --engine ebpf", "expected one of xdp"},
		{"doctor --cores 3-1", "--cores"},
		{"doctor --cores 1,999999", "--cores"},
		{"doctor --hugepages 1GiB@x", `node "x"`},
		{"doctor --hugepages much", "expected a number of bytes"},
		{"doctor --hugepages 1GiB/x", "size of a page"},
		{"doctor --hugepages 1GiB/3", "power of two"},
		{"doctor --locked x", "--locked x"},
		{"doctor --skip mut", `no check is called "mut"`},
		{"doctor --from a --record b", "exclude each other"},
	} {
		if _, errOut, status := penstock(t, strings.Fields(x.args)...); status != exitUsage ||
			!strings.Contains(errOut, x.want) {
			t.Errorf("%s: status %d: %s", x.args, status, errOut)
		}
	}
	if _, errOut, status := penstock(t, "doctor", "--from",
		filepath.Join(t.TempDir(), "none")); status != exitNotFound {
		t.Errorf("status %d: %s", status, errOut)
	}
	if _, errOut, status := penstock(t, "doctor", "--from", "doctor_test.go"); status != exitFailure ||
		!strings.Contains(errOut, "no recording of a machine: line 1") {
		t.Errorf("status %d: %s", status, errOut)
	}
}

func TestDoctor(t *testing.T) {
	// A machine that is fit in general is not fit for every need.
	out, errOut, status := penstock(t, "doctor", "--from", serverRecording)
	if status != exitOK || errOut != "" || !strings.Contains(out, "PowerEdge R760, Linux 6.8.0") ||
		!strings.Contains(out, "0 fail, ") {
		t.Errorf("status %d: %s%s", status, errOut, out)
	}
	if _, errOut, status := penstock(t, "doctor", "--from", serverRecording, "--strict"); status != exitUnfit ||
		!strings.Contains(errOut, "not fit") {
		t.Errorf("status %d: %s", status, errOut)
	}
	args := []string{"doctor", "--from", serverRecording, "--interface", "ens2f0", "--engine", "xdp", "--queues", "8",
		"--mtu", "9000", "--rings", "4096", "--cores", "2-3,66",
		"--hugepages", "2GiB/1GiB@1", "--hugepages", "4MiB", "--locked", "1GiB", "--receive-buffer", "1MiB",
		"--send-buffer", "1MiB", "--gpu", "any", "--hardware-time", "--clock", "--skip", "lockdown"}
	out, _, status = penstock(t, append(args, "--json")...)
	var r doctor.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != exitUnfit {
		t.Fatalf("status %d, %v: %s", status, err, out)
	}
	want := doctor.Needs{Interfaces: []doctor.Interface{{Name: "ens2f0", Engine: "xdp", Queues: 8, MTU: 9000,
		Ring: 4096, HardwareTime: true}}, Cores: []int{2, 3, 66},
		Huge:   []doctor.Huge{{Bytes: 2 << 30, Page: 1 << 30, Node: 1}, {Bytes: 4 << 20, Node: doctor.AnyNode}},
		Locked: 1 << 30, Receive: 1 << 20, Send: 1 << 20, GPUs: []string{"any"}, Clock: true}
	got, _ := json.Marshal(r.Needs)
	if b, _ := json.Marshal(want); string(got) != string(b) {
		t.Errorf("needs %s\nexpected %s", got, b)
	}
	failed := func(id string) bool {
		return slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool {
			return f.Check == id && f.Verdict == doctor.Fail
		})
	}
	for _, id := range []string{"mtu", "queues", "rings", "hugepages"} {
		if !failed(id) {
			t.Errorf("%s does not fail: %s", id, out)
		}
	}
	if slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool { return f.Check == "lockdown" }) {
		t.Error("--skip is not obeyed")
	}
	if out, _, _ := penstock(t, append(args, "--all")...); !strings.Contains(out, "n/a ") ||
		!strings.Contains(out, "FAIL    MTU, ens2f0") {
		t.Error(out)
	}
	if out, _, status := penstock(t, "doctor", "--list"); status != exitOK || strings.Count(out, "\n\n") > 0 ||
		!strings.Contains(out, "hugepages ") {
		t.Errorf("status %d: %s", status, out)
	}
	var checks []doctor.Check
	out, _, _ = penstock(t, "doctor", "--list", "--json")
	if err := json.Unmarshal([]byte(out), &checks); err != nil || len(checks) < 35 {
		t.Errorf("%v: %s", err, out)
	}
}

// A recording of this machine is a file that can be looked at later and elsewhere; one that is
// there is not overwritten.
func TestDoctorRecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "machine.txt")
	out, errOut, status := penstock(t, "doctor", "--record", file)
	if status != exitOK {
		t.Fatalf("status %d: %s", status, errOut)
	}
	if again, _, _ := penstock(t, "doctor", "--from", file); again != out {
		t.Errorf("from the recording:\n%s\nof the machine:\n%s", again, out)
	}
	if _, _, status := penstock(t, "doctor", "--record", file); status == exitOK {
		t.Error("a file was overwritten")
	}
	if b, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(b), "penstock host recording 1\n") {
		t.Errorf("%v: %s", err, b)
	}
}

// A configuration says what is needed; what is wrong with it comes first, and an error of it ends
// there.
func TestDoctorFile(t *testing.T) {
	const files = "../host/doctor/testdata/files/"
	out, errOut, status := penstock(t, "doctor", files+"stream.yaml", "--from", serverRecording)
	if status != exitOK || errOut != "" || !strings.HasPrefix(out,
		files+"stream.yaml: no problems found\n\nPowerEdge") ||
		!strings.Contains(out, "0 fail, ") {
		t.Errorf("status %d: %s%s", status, errOut, out)
	}
	if _, errOut, status := penstock(t, "doctor", files+"stream.yaml", "--from", serverRecording,
		"--strict"); status != exitUnfit || !strings.Contains(errOut, "not fit") {
		t.Errorf("status %d: %s", status, errOut)
	}
	out, _, status = penstock(t, "doctor", files+"wrong.yaml", "--from", serverRecording)
	if status != exitUnfit || !strings.Contains(out,
		"needed  512 pages of 2 MiB free: 1 GiB\n        file    "+files+"wrong.yaml:7:7") {
		t.Errorf("status %d: %s", status, out)
	}
	out, _, status = penstock(t, "doctor", files+"daqiri.yaml", "--from", serverRecording, "--json")
	var r doctor.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != exitUnfit ||
		r.Problems.Count(config.Needs) != 1 || len(r.Findings) < 20 || r.File != files+"daqiri.yaml" {
		t.Errorf("status %d: %v: %s", status, err, out)
	}

	dir := t.TempDir()
	write := func(text string) string {
		name := filepath.Join(dir, "a.yaml")
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return name
	}
	wrong := write("penstock:\n  version: 1\n  master_cor: 0\n")
	out, errOut, status = penstock(t, "doctor", wrong, "--from", serverRecording)
	check, _, _ := penstock(t, "config", "check", wrong)
	if status != exitFailure || out != check || errOut != "" || strings.Contains(out, "PowerEdge") {
		t.Errorf("status %d: %s%s\nexpected\n%s", status, errOut, out, check)
	}
	out, _, status = penstock(t, "doctor", wrong, "--json")
	var broken struct {
		File        string
		Diagnostics []struct{ Severity, Code string }
		Findings    []doctor.Finding
	}
	if err := json.Unmarshal([]byte(out), &broken); err != nil || status != exitFailure ||
		len(broken.Diagnostics) != 1 || broken.Diagnostics[0].Severity != "error" || broken.Findings == nil {
		t.Errorf("status %d: %v: %s", status, err, out)
	}

	// What is not built, or not filled in, no machine gives it, however well it is.
	part := write("penstock:\n  version: 1\n  memory_regions: [{name: m, kind: host, num_bufs: 1024, buf_size: 2KiB}]\n  interfaces: [{name: a, engine: sim, address: \"sim://a\", rx: {queues: [{memory_regions: [m]}]}}]\n  registry: {url: \"file:///x\"}\n")
	out, errOut, status = penstock(t, "doctor", part, "--from", serverRecording)
	if status != exitUnfit || !strings.Contains(out, "registries are not built") ||
		!strings.Contains(out, "0 fail, ") || !strings.Contains(errOut,
		"asks for what is not here, or is not filled in") {
		t.Errorf("status %d: %s%s", status, errOut, out)
	}
	if _, errOut, status := penstock(t, "doctor", "eth0"); status != exitNotFound ||
		!strings.Contains(errOut, "--interface eth0") {
		t.Errorf("status %d: %s", status, errOut)
	}

	// This machine, whatever it is: the file is the only thing that is asked for, and loopback is
	// everywhere.
	here := write("penstock:\n  version: 1\n  memory_regions: [{name: m, kind: host, num_bufs: 1024, buf_size: 2KiB}]\n  interfaces: [{name: a, socket: {mode: server, local: \"udp://127.0.0.1:5000\", receive_buffer: 4KiB, send_buffer: 4KiB}, rx: {queues: [{memory_regions: [m]}]}}]\n")
	out, errOut, status = penstock(t, "doctor", here)
	if status != exitOK || !strings.Contains(out, "socket a: 127.0.0.1 is on lo") ||
		!strings.Contains(out, "0 fail, ") {
		t.Errorf("status %d: %s%s", status, errOut, out)
	}
}

func TestTopology(t *testing.T) {
	out, errOut, status := penstock(t, "topology", "--from", serverRecording)
	if status != exitOK || !strings.Contains(out, "0000:18:00.0 NVIDIA H100 PCIe") {
		t.Errorf("status %d: %s%s", status, errOut, out)
	}
	file := filepath.Join(t.TempDir(), "machine.svg")
	if out, errOut, status := penstock(t, "topology", "--from", serverRecording, "--svg", file); status != exitOK ||
		out != "" {
		t.Errorf("status %d: %s%s", status, errOut, out)
	}
	b, err := os.ReadFile(file)
	if err != nil || !strings.HasPrefix(string(b), "<svg ") {
		t.Errorf("%v: %.100s", err, b)
	}
	if out, _, status := penstock(t, "topology", "--from", serverRecording, "--svg", "-"); status != exitOK ||
		out != string(b) {
		t.Errorf("status %d: %.100s", status, out)
	}
	if out, _, status := penstock(t, "topology"); status != exitOK || !strings.Contains(out, "processor") {
		t.Errorf("status %d: %s", status, out)
	}
	if _, _, status := penstock(t, "topology", "x"); status != exitUsage {
		t.Errorf("status %d", status)
	}
}

// Each command of ours that a report names is one that there is.
func TestDoctorMends(t *testing.T) {
	files, _ := filepath.Glob("../host/doctor/testdata/*.json")
	more, _ := filepath.Glob("../host/doctor/testdata/files/*.json")
	files = append(files, more...)
	seen := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var r doctor.Report
		if err := json.Unmarshal(b, &r); err != nil {
			t.Fatal(err)
		}
		for _, f := range r.Findings {
			for _, m := range f.Fix {
				args, ok := strings.CutPrefix(m, "penstock ")
				if !ok {
					continue
				}
				seen++
				words := strings.Fields(strings.TrimSuffix(args, "--apply"))
				// What this machine says of it does not matter: there may be no such card and no
				// such node.
				if _, errOut, status := penstock(t, words...); status == exitUsage ||
					strings.Contains(errOut, "expected one of") && !strings.Contains(errOut, "no NUMA node") {
					t.Errorf("%s: %s: status %d: %s", file, m, status, errOut)
				}
			}
		}
	}
	if seen < 10 {
		t.Errorf("%d commands", seen)
	}
}

// What RDMA depends on: any device, or those that are named.
func TestDoctorRDMA(t *testing.T) {
	const roce = "../host/doctor/testdata/roce.txt"
	out, errOut, status := penstock(t, "doctor", "rdma", "--from", roce)
	if status != exitOK || errOut != "" || !strings.Contains(out, "GID 3 (198.18.0.2, RoCE v2) is") ||
		strings.Contains(out, "Huge pages") {
		t.Errorf("status %d: %s%s", status, errOut, out)
	}
	if _, errOut, status := penstock(t, "doctor", "rdma", "--from", roce, "--strict"); status != exitUnfit {
		t.Errorf("status %d: %s", status, errOut)
	}
	out, _, status = penstock(t, "doctor", "rdma", "mlx5_0", "mlx5_1", "--from", roce, "--json", "--locked", "1GiB",
		"--skip", "rdma-mtu")
	var r doctor.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != exitUnfit {
		t.Fatalf("status %d, %v: %s", status, err, out)
	}
	if !slices.Equal(r.Needs.RDMA, []string{"mlx5_0", "mlx5_1"}) || r.Needs.Locked != 1<<30 {
		t.Errorf("%+v", r.Needs)
	}
	for _, x := range []struct {
		check string
		want  bool
	}{{"rdma-files", true}, {"memlock", true}, {"rdma-mtu", false}, {"mtu", false}} {
		got := slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool {
			return f.Check == x.check && f.Verdict == doctor.Fail
		})
		if got != x.want {
			t.Errorf("%s: fails %t, expected %t: %s", x.check, got, x.want, out)
		}
	}
	if out, _, status := penstock(t, "doctor", "rdma", "--from",
		"../host/doctor/testdata/laptop.txt"); status != exitUnfit ||
		!strings.Contains(out, "rdma link add rxe0 type rxe netdev wlp0s20f3") {
		t.Errorf("status %d: %s", status, out)
	}
	for _, x := range []struct{ args, want string }{
		{"doctor rdma mlx5_0 mlx5_0", "twice"},
		{"doctor rdma a/b", "expected a name such as mlx5_0"},
		{"doctor rdma --skip x", "no check is called"},
		{"doctor rdma --locked x", "--locked x"},
	} {
		if _, errOut, status := penstock(t, strings.Fields(x.args)...); status != exitUsage ||
			!strings.Contains(errOut, x.want) {
			t.Errorf("%s: status %d: %s", x.args, status, errOut)
		}
	}
}
