package config_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/packet"
)

var update = flag.Bool("update", false, "rewrite golden files, docs/config.md and the schema")

// testHost is a small machine.
func testHost() *config.Host {
	return &config.Host{Name: "lab", Cores: []int{0, 1, 2, 3, 4, 5, 6, 7},
		Nodes: []config.HostNode{
			{ID: 0, Cores: []int{0, 1, 2, 3}, Memory: 8 << 30, Huge: []config.HostPages{{Size: 2 << 20, Total: 64, Free: 10}}},
			{ID: 1, Cores: []int{4, 5, 6, 7}, Memory: 8 << 30, Huge: []config.HostPages{{Size: 2 << 20, Total: 64, Free: 64}}},
		},
		Interfaces: []config.HostInterface{
			{Name: "eth0", Driver: "mlx5_core", PCI: "0000:01:00.0", MAC: packet.MAC{2, 0, 0, 0, 0, 1}, Up: true, MTU: 1500, Node: 0, Queues: 4, Speed: 100e9},
			{Name: "eth1", Driver: "mlx5_core", PCI: "0000:02:00.0", MAC: packet.MAC{2, 0, 0, 0, 0, 2}, Up: false, MTU: 9000, Node: 1, Queues: 2},
			{Name: "lo", Loopback: true, Up: true, MTU: 65536, Node: -1},
		}}
}

// checkFile compares text with a golden file, or writes it.
func checkFile(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != string(got) {
		t.Errorf("%s is not what comes out: look at the difference, then go test ./config -update\n%s", name, got)
	}
}

// Each file of testdata/bad has beside it the whole text that people see. A file with "# here" in
// its first line is compared with the machine of testHost.
func TestBadFiles(t *testing.T) {
	names, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(names) < 10 {
		t.Fatalf("%d files: %v", len(names), err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var o config.Options
		if strings.HasPrefix(string(text), "# here") {
			o.Host = testHost()
		}
		cfg, problems := config.Load(filepath.Base(name), text, o)
		if (cfg == nil) != (problems.Err() != nil) {
			t.Errorf("%s: Config %v, error %v", name, cfg != nil, problems.Err())
		}
		checkFile(t, strings.TrimSuffix(name, ".yaml")+".txt", []byte(problems.Text(text)+"\n"+problems.Summary()+"\n"))
	}
}

// The reference and the schema are those of the table.
func TestGeneratedFiles(t *testing.T) {
	checkFile(t, "../docs/config.md", config.Reference())
	checkFile(t, "../docs/bench-config.md", config.BenchReference())
	checkFile(t, "../docs/penstock.schema.json", config.Schema())
}

func TestExplain(t *testing.T) {
	for _, name := range []string{"ours_small", "daqiri_style_bare", "daqiri_style_raw"} {
		text, err := os.ReadFile("testdata/good/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		cfg, problems := config.Load(name+".yaml", text, config.Options{})
		if cfg == nil {
			t.Fatal(problems.Err())
		}
		var b strings.Builder
		if err := cfg.Explain(&b); err != nil {
			t.Fatal(err)
		}
		checkFile(t, "testdata/explain/"+name+".txt", []byte(b.String()))
		again, problems := config.Load("explained", []byte(b.String()), config.Options{})
		if again == nil || !again.Equal(cfg) {
			t.Errorf("what explain prints is a configuration, and not this one:\n%s", problems.Text([]byte(b.String())))
		}
	}
}

// The file that docs/config.md begins with is right.
func TestFileOfTheReference(t *testing.T) {
	_, rest, ok := strings.Cut(string(config.Reference()), "## A file\n\n")
	text, _, _ := strings.Cut(rest, "\n\n")
	if !ok || !strings.HasPrefix(text, "    penstock:") {
		t.Fatalf("there is no file: %q", text)
	}
	text = strings.ReplaceAll("\n"+text, "\n    ", "\n")
	if c, d := config.Load("docs", []byte(text), config.Options{}); c == nil || len(d) != 0 {
		t.Error(d.Text([]byte(text)))
	}
}
