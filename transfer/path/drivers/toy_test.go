package drivers_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/cli"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/system"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/drivers"
	"github.com/penstock-io/penstock/transfer/path/drivers/testdata/toy"
)

func init() { drivers.Table = append(drivers.Table, &toy.Spec) } // the one line

// toyFile has the options of the toy in both places.
const toyFile = `penstock:
  transfers:
    listen: ["tcp://127.0.0.1:0"]
    paths: ["toy?broken=false"]
    toy: {wheels: 3}
`

func load(t *testing.T, text string) *config.Config {
	t.Helper()
	cfg, said := config.Load("toy.yaml", []byte(text), config.Options{})
	if cfg == nil {
		t.Fatal(said.Err())
	}
	return cfg
}

// A path from outside is a folder and one line: files, plans, nodes and command lines have it.
func TestToy(t *testing.T) {
	cfg := load(t, toyFile)
	if again := load(t, string(cfg.YAML())); !again.Equal(cfg) {
		t.Errorf("printed as\n%s", cfg.YAML())
	}
	if !bytes.Contains(config.Schema(), []byte("How many wheels it has.")) {
		t.Error("the schema does not have it")
	}
	served := filepath.Join(t.TempDir(), "served")
	want := bytes.Repeat([]byte("by the toy "), 1000)
	if err := os.WriteFile(served, want, 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(more string) *system.System {
		s, err := system.Open(t.Context(), load(t, toyFile+"    "+more), system.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	a := open("share: {path: " + served + "}\n")
	if text := a.Plan().Text(); !strings.Contains(text, "paths toy?broken=false&wheels=3") {
		t.Errorf("the plan does not have it:\n%s", text)
	}
	b := open("peers: [{name: a, address: \"" + a.Node().Addrs()[0] + "\"}]\n")
	peer, err := b.Link("a").Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := peer.Lookup(t.Context(), "served")
	if err != nil {
		t.Fatal(err)
	}
	got, err := mem.Alloc(mem.Options{Size: len(want)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { got.Close() })
	span, err := got.Span(0, uint64(len(want)))
	if err != nil {
		t.Fatal(err)
	}
	x, err := peer.Get(t.Context(), []path.Copy{r.At(0, span)}, transfer.PutOptions{})
	if err == nil {
		err = x.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(span.Bytes(), want) || x.Explain().Path != "toy" {
		t.Errorf("%v", x.Explain())
	}
}

// Errors of the toy's options name their place.
func TestToyMistakes(t *testing.T) {
	for change, want := range map[[2]string][]string{
		{"wheels: 3", "wheel: 3"}:                         {":5:11:", "did you mean wheels?"},
		{"wheels: 3", "wheels: 100"}:                      {":5:19:", "1 to 99"},
		{"wheels: 3", "wheels: 13"}:                       {":5:19:", "superstitious"},
		{"toy?broken=false", "toy?brocken"}:               {":4:13:", "did you mean broken?"},
		{"toy?broken=false", "toy?wheels=none"}:           {":4:13:", "not a whole number"},
		{"toy?broken=false", "shm"}:                       {":5:10:", "paths leaves out"},
		{"toy?broken=false", "toi"}:                       {":4:13:", "did you mean toy?"},
		{`["toy?broken=false"]`, "[toy, \"toy?broken\"]"}: {":4:18:", "twice"},
	} {
		_, said := config.Load("toy.yaml", []byte(strings.Replace(toyFile, change[0], change[1], 1)), config.Options{})
		for _, w := range want {
			if err := said.Err(); err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v\nexpected %q", change[1], err, w)
			}
		}
	}
}

// The command has it: in its help, and as a requirement where it has options.
func TestToyOnTheCommandLine(t *testing.T) {
	run := func(args ...string) string {
		var out bytes.Buffer
		c := cli.New(strings.NewReader(""), &out, &out)
		c.SetArgs(args)
		if err := c.Execute(); err != nil {
			return out.String() + err.Error()
		}
		return out.String()
	}
	if help := run("get", "--help"); !strings.Contains(strings.Join(strings.Fields(help), " "),
		"shm, tcp, verbs, toy") {
		t.Errorf("%s", help)
	}
	for arg, want := range map[string]string{
		"toy?broken":   "--path toy: toy: this machine has no toy",
		"toy?wheel=1":  `--path "toy?wheel=1": wheel: there is no such key: did you mean wheels?`,
		"toy?wheels=0": `--path "toy?wheels=0": wheels is "0": it is out of range: expected a whole number from 1 to 99`,
	} {
		if got := run("get", "127.0.0.1:1/x", "--identity", "none", "--path", arg); !strings.Contains(got, want) {
			t.Errorf("%s: %s", arg, got)
		}
	}
}
