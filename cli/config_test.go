package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/host"
)

func confFile(t *testing.T, name, text string) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(f, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return f
}

const goodConfig = `daqiri:
  cfg:
    version: 1
    stream_type: raw
    master_core: 0
    memory_regions: # where packets lie
    - {name: m, kind: host, affinity: 0, num_bufs: 4096, buf_size: 2048}
    interfaces:
    - name: p
      address: absent0
      rx: {queues: [{name: q, id: 0, batch_size: 64, timeout_us: 2000, memory_regions: [m]}]}
`

// A file that is right, one that this machine cannot run, and one that is wrong have different
// ends.
func TestConfigCheck(t *testing.T) {
	good := confFile(t, "good.yaml", goodConfig)
	bad := confFile(t, "bad.yaml", strings.Replace(goodConfig, "buf_size", "bufsize", 1))
	warned := confFile(t, "warned.yaml", strings.Replace(goodConfig, "interfaces:",
		"- {name: unused, kind: host, affinity: 0, num_bufs: 1, buf_size: 1}\n    interfaces:", 1))
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{good}, 0, "good.yaml: no problems found"},
		{[]string{"--here", good}, 10, `there is no interface "absent0" here`},
		{[]string{bad}, 1, "did you mean buf_size?"},
		{[]string{bad}, 1, "  7 |     - {name: m, kind: host, affinity: 0, num_bufs: 4096, bufsize: 2048}\n    |     " +
			"                                                     ^~~~~~~"},
		{[]string{good, bad}, 1, "bad.yaml: 1 error"},
		{[]string{warned}, 0, "no queue uses"},
		{[]string{"--strict", warned}, 1, "no queue uses"},
	} {
		out, errOut, status := penstock(t, append([]string{"config", "check"}, c.args...)...)
		if status != c.status || !strings.Contains(out, c.want) || errOut != "" {
			t.Errorf("%v: status %d\n%s%s", c.args, status, out, errOut)
		}
	}
	out, _, status := penstock(t, "config", "check", "--json", bad)
	var got struct {
		OK          bool
		Diagnostics []struct {
			Severity, Code, Path, Hint string
			At                         struct{ Line, Column int }
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || status != 1 || got.OK || len(got.Diagnostics) != 1 ||
		got.Diagnostics[0].Code != "unknown-key" || got.Diagnostics[0].At.Column != 58 {
		t.Errorf("%v: status %d, %s", err, status, out)
	}
	if _, errOut, status := penstock(t, "config", "check",
		filepath.Join(t.TempDir(), "none")); status != exitNotFound || !strings.Contains(errOut, "none") {
		t.Errorf("status %d, %s", status, errOut)
	}
}

// What a file has in it cannot steer the terminal.
func TestConfigCheckIsPrintable(t *testing.T) {
	f := confFile(t, "f.yaml", "penstock:\n  \"a\\e[31mb\": 1\n  memory_regions: [{name: \"\\e[2J\", kind: host, "+
		"num_bufs: 1, buf_size: 1}]\n  interfaces: [{name: p, address: e, rx: {queues: [{memory_regions: "+
		"[\"\\e[2J\"], batch_size: 64}]}}]\n")
	out, _, status := penstock(t, "config", "check", f)
	if status != 1 || strings.Contains(out, "\x1b") || !strings.Contains(out, "batch_size 64 is more than") {
		t.Errorf("status %d, %q", status, out)
	}
}

func TestConfigExplainAndMigrate(t *testing.T) {
	good := confFile(t, "good.yaml", goodConfig)
	out, errOut, status := penstock(t, "config", "explain", good)
	for _, want := range []string{"timeout: 2ms # line 11", "engine: xdp # derived: the address is a network interface",
		"# m host NUMA node 0 4096 2048 B 8 MiB"} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) || status != 0 {
			t.Errorf("status %d: no %q in\n%s%s", status, want, out, errOut)
		}
	}
	out, errOut, status = penstock(t, "config", "migrate", good)
	if status != 0 || !strings.HasPrefix(out, "penstock:\n") || !strings.Contains(out, "timeout: 2ms") ||
		!strings.Contains(out, "# where packets lie") {
		t.Errorf("status %d\n%s%s", status, out, errOut)
	}
	bad := confFile(t, "bad.yaml", strings.Replace(goodConfig, "buf_size", "bufsize", 1))
	for _, cmd := range []string{"explain", "migrate"} {
		out, errOut, status := penstock(t, "config", cmd, bad)
		if status != exitFailure || out != "" || !strings.Contains(errOut, "did you mean buf_size?") {
			t.Errorf("%s: status %d\n%s%s", cmd, status, out, errOut)
		}
	}
}

func TestConfigSchemaAndGenerate(t *testing.T) {
	out, _, status := penstock(t, "config", "schema")
	if status != 0 || !bytes.Equal([]byte(out), config.Schema()) {
		t.Errorf("status %d", status)
	}
	for _, kind := range []string{"receive", "reorder", "gpu", "socket", "transfer"} {
		out, errOut, status := penstock(t, "config", "generate", kind)
		if status != 0 {
			t.Fatalf("%s: status %d, %s", kind, status, errOut)
		}
		f := confFile(t, "made.yaml", out)
		if out, _, status := penstock(t, "config", "check", "--here", "--strict", f); status != 0 {
			t.Errorf("%s: status %d, %s", kind, status, out)
		}
	}
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"ring"}, 2, `kind "ring"`},
		{[]string{"raw", "--tx", "absent0"}, 3, `no network interface "absent0"`},
		{[]string{"raw", "--share", "x"}, 2, "--share is for transfer, not for raw"},
		{[]string{"socket", "--server", "x"}, 2, "--server x: expected an IP address"},
		{[]string{}, 2, "receive, reorder, gpu, raw, socket, transfer"},
	} {
		_, errOut, status := penstock(t, append([]string{"config", "generate"}, c.args...)...)
		if status != c.status || !strings.Contains(errOut, c.want) {
			t.Errorf("%v: status %d, %s", c.args, status, errOut)
		}
	}
	if _, errOut, status := penstock(t, "config", "chekc"); status != 2 ||
		!strings.Contains(errOut, `did you mean "check"?`) {
		t.Errorf("status %d, %s", status, errOut)
	}
}

func TestSystemHost(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"cpu/online":          "0-2,5\n",
		"node/online":         "0,10\n",
		"node/node0/cpulist":  "0-1\n",
		"node/node0/meminfo":  "Node 0 MemTotal:       16000 kB\nNode 0 MemFree:        8192 kB\n",
		"node/node10/cpulist": "2-3,5\n",
		"node/node0/hugepages/hugepages-2048kB/nr_hugepages":      "7\n",
		"node/node0/hugepages/hugepages-2048kB/free_hugepages":    "3\n",
		"node/node0/hugepages/hugepages-1048576kB/nr_hugepages":   "1\n",
		"node/node0/hugepages/hugepages-1048576kB/free_hugepages": "0\n",
	} {
		f := filepath.Join(dir, "sys/devices/system", name)
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := &config.Host{Cores: []int{0, 1, 2, 5}, Nodes: []config.HostNode{
		{ID: 0, Cores: []int{0, 1}, Memory: 8 << 20, Huge: []config.HostPages{{Size: 2 << 20, Total: 7, Free: 3}, {Size: 1 << 30, Total: 1, Free: 0}}},
		{ID: 10, Cores: []int{2, 5}},
	}}
	if got := systemHost(host.Read(t.Context(), os.DirFS(dir))); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

func TestReadHost(t *testing.T) {
	h, err := readHost(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Cores) == 0 || h.Interface("lo") == nil || !h.Interface("lo").Loopback {
		t.Errorf("%+v", h)
	}
}
