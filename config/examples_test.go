package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock-io/penstock/config"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// files are the fixtures of this package and DAQIRI's own examples.
func files(t *testing.T) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	read := func(pattern string) int {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			b, err := os.ReadFile(n)
			if err != nil {
				t.Fatal(err)
			}
			out[filepath.Base(n)] = b
		}
		return len(names)
	}
	if read("testdata/good/*.yaml") < 5 {
		t.Fatal("the fixtures are not there")
	}
	if read("testdata/daqiri/*.yaml") < 20 {
		t.Fatal("DAQIRI's examples are not there")
	}
	return out
}

// Every file loads, says the same in Penstock's format, and says the same when it is printed and
// read again.
func TestFilesLoadMigrateAndPrint(t *testing.T) {
	same := cmp.Comparer(func(a, b *config.Config) bool { return a.Equal(b) })
	for name, text := range files(t) {
		t.Run(name, func(t *testing.T) {
			cfg, problems := config.Load(name, text, config.Options{})
			if cfg == nil {
				t.Fatalf("does not load:\n%s", problems.Text(text))
			}
			ours, _, err := config.Migrate(name, text)
			if err != nil {
				t.Fatal(err)
			}
			moved, problems := config.Load("ours", ours, config.Options{})
			if moved == nil || !cmp.Equal(cfg, moved, same) {
				t.Fatalf("migrated it says something else:\n%s\n%s", ours, problems.Text(ours))
			}
			if n := problems.Only(config.Warning); cfg.Dialect() != config.Ours {
				for _, p := range n {
					if p.Code == config.CodeRenamedKey {
						t.Errorf("a name of DAQIRI's is left: %v", &p)
					}
				}
			}
			for line := range strings.Lines(string(text)) {
				if _, c, ok := strings.Cut(line, "# "); ok && !strings.HasPrefix(line, "%") &&
					!strings.Contains(string(ours), strings.TrimSpace(c)) {
					t.Errorf("the comment %q is lost:\n%s", strings.TrimSpace(c), ours)
				}
			}
			if strings.Contains(string(text), ": <") {
				return // a placeholder cannot be printed
			}
			printed := cfg.YAML()
			again, problems := config.Load("printed", printed, config.Options{})
			if again == nil || !cmp.Equal(cfg, again, same) {
				t.Fatalf("printed it says something else:\n%s\n%s", printed, problems.Text(printed))
			}
		})
	}
}

func compile(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(config.Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(config.SchemaID, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(config.SchemaID)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func validate(s *jsonschema.Schema, text []byte) error {
	var v any
	if bytes.HasPrefix(text, []byte("%YAML")) {
		text = append([]byte("#"), text...)
	} else {
		text = bytes.Replace(text, []byte("\n%YAML"), []byte("\n#"), 1)
	}
	if err := yaml.Unmarshal(text, &v); err != nil {
		return err
	}
	return s.Validate(v)
}

// The schema is no sieve without a bottom: files whose mistakes are within one key it refuses too.
func TestSchemaRefuses(t *testing.T) {
	s := compile(t)
	for _, text := range []string{
		"penstock: {verson: 1}", "penstock: {logging: {level: loud}}", "penstock: {memory_regions: [{name: m}]}",
		"penstock: {memory_regions: {name: m}}",
		"penstock: {memory_regions: [{name: m, kind: host, num_bufs: 0, buf_size: 1}]}",
		"penstock: {memory_regions: [{name: m, kind: host, num_bufs: 1, buf_size: 4M}]}",
		"penstock: {memory_regions: [{name: m, kind: host, num_bufs: 1, buf_size: 4MiB, affinity: 0}]}",
		"penstock: {interfaces: [{name: p, address: e, rx: {queues: [{timeout: 5}]}}]}",
		"daqiri: {}", "daqiri: {cfg: {stream_type: rwa}}", "x: 1",
	} {
		if validate(s, []byte(text)) == nil {
			t.Errorf("%s: valid", text)
		}
	}
	for _, text := range []string{"penstock: {x-mine: 5, logging: {level: info}}",
		"penstock: {interfaces: [{name: p, address: <0000:00:00.0>, rx: {queues: [{timeout: 5us}]}}]}"} {
		if err := validate(s, []byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestSchemaTakesEveryFile(t *testing.T) {
	s := compile(t)
	for name, text := range files(t) {
		if err := validate(s, text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		ours, _, err := config.Migrate(name, text)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate(s, ours); err != nil {
			t.Errorf("%s, migrated: %v", name, err)
		}
	}
}
