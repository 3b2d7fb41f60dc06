package cli

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

//go:generate go test -run ^TestReferenceIsCurrent$ -update .

var update = flag.Bool("update", false, "rewrite the generated pages")

func TestReferenceIsCurrent(t *testing.T) {
	root := New(strings.NewReader(""), io.Discard, io.Discard)
	bench, _, err := root.Find([]string{"bench"})
	if err != nil {
		t.Fatal(err)
	}
	for file, top := range map[string]*cobra.Command{"../docs/cli.md": root, "../docs/bench-cli.md": bench} {
		var b bytes.Buffer
		writeReference(&b, top)
		if *update {
			if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, b.Bytes()) {
			t.Errorf("%s is not what the commands say: run make generate", file)
		}
	}
}

// writeReference writes docs/cli.md or docs/bench-cli.md: every command with its flags, from the
// tree itself. Commands that measure have a page of their own.
func writeReference(w io.Writer, top *cobra.Command) {
	title, other := "Commands", "Those that measure are in [bench-cli.md](bench-cli.md)"
	if top.HasParent() {
		title, other = "Commands that measure", "All others are in [cli.md](cli.md)"
	}
	fmt.Fprintf(w, "# %s\n\nGenerated from the command tree by `make generate`; do not edit. %s.\n", title, other)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Name() == "bench" && c != top {
			return
		}
		fmt.Fprintf(w, "\n## %s\n\n%s.\n", c.CommandPath(), strings.TrimSuffix(c.Short, "."))
		if c.Long != "" {
			fmt.Fprintf(w, "\n```text\n%s\n```\n", c.Long)
		}
		if c.Example != "" {
			fmt.Fprintf(w, "\n```sh\n%s\n```\n", unindent(c.Example))
		}
		first := true
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" || f.Hidden {
				return
			}
			if first {
				fmt.Fprint(w, "\n| flag | default | meaning |\n|---|---|---|\n")
				first = false
			}
			def := f.DefValue
			if def == "" || def == "[]" {
				def = "none"
			}
			name := "`--" + f.Name + "`"
			if f.Shorthand != "" {
				name += ", `-" + f.Shorthand + "`"
			}
			fmt.Fprintf(w, "| %s | %s | %s |\n", name, def, strings.ReplaceAll(f.Usage, "|", "\\|"))
		})
		for _, s := range documented(c) {
			walk(s)
		}
	}
	walk(top)
}

// unindent takes the two spaces away with which the lines of an example begin.
func unindent(s string) string {
	return strings.TrimPrefix(strings.ReplaceAll(s, "\n  ", "\n"), "  ")
}
