package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Every command line of the program that a page shows is one: the command is there, takes the
// flags, and in a block of code takes the values and the arguments as well.
func TestPagesShowCommands(t *testing.T) {
	files, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, "../README.md", "../ARCHITECTURE.md", "../CONTRIBUTING.md", "../CHANGELOG.md")
	flags := map[string]bool{"gpus": true} // docker's
	for _, dpdk := range []string{"lcores", "in-memory", "single-file-segments", "file-prefix", "no-huge", "no-shconf",
		"iova-mode", "no-telemetry", "log-level", "allow", "legacy-mem"} {
		flags[dpdk] = true
	}
	for _, c := range tree(New(strings.NewReader(""), io.Discard, io.Discard)) {
		c.Flags().VisitAll(func(f *pflag.Flag) { flags[f.Name] = true })
	}
	blocks, spans := 0, 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		inBlock, inText := commandLines(string(text))
		for _, line := range inBlock {
			if err := understands(line, true); err != nil {
				t.Errorf("%s: %s: %v", filepath.Base(file), line, err)
			}
		}
		for _, line := range inText {
			if err := understands(line, false); err != nil {
				t.Errorf("%s: %s: %v", filepath.Base(file), line, err)
			}
		}
		for _, m := range ofFlag.FindAllStringSubmatch(string(text), -1) {
			if !flags[m[1]] {
				t.Errorf("%s: no command has the flag --%s", filepath.Base(file), m[1])
			}
		}
		blocks, spans = blocks+len(inBlock), spans+len(inText)
	}
	if blocks < 60 || spans < 60 {
		t.Errorf("the pages show %d command lines in blocks and %d in the text", blocks, spans)
	}
}

// tree is a command with all below it.
func tree(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, s := range c.Commands() {
		all = append(all, tree(s)...)
	}
	return all
}

// What the test above is to find.
func TestPagesShowNoOthers(t *testing.T) {
	for _, line := range []string{"penstock doctr", "penstock get --pth tcp x", "penstock bench xdp",
		"penstock tune nic eth0 --queues four"} {
		if understands(line, true) == nil {
			t.Errorf("%q is taken for a command", line)
		}
	}
	inBlock, inText := commandLines("a `penstock\nls X | wc` b\n\n    sudo bin/penstock doctor   # why\n\n```sh\n$ " +
		"penstock get A | B\n```\n")
	if !slices.Equal(inBlock, []string{"penstock doctor", "penstock get A"}) ||
		!slices.Equal(inText, []string{"penstock ls X"}) {
		t.Errorf("%q, %q", inBlock, inText)
	}
}

var (
	ofBlock = regexp.MustCompile(`^(?:    |\t)?(?:\$ )?(?:Exec\w+=)?(?:sudo )?(?:[\w/]*/)?(penstock(?: .*)?)$`)
	ofFlag  = regexp.MustCompile("`--([a-z][a-z-]+)")
	ofText  = regexp.MustCompile("`(penstock [^`]*)`")
	comment = regexp.MustCompile(`\s+(?:#|\||>|<|&&|;|  )(?:\s.*)?$|\s{3,}.*$`)
)

// commandLines are the command lines in the blocks of code of a page, indented or fenced, and those
// in its text. What follows a command (a comment, a pipe, its description some spaces on) is left
// away.
func commandLines(page string) (inBlock, inText []string) {
	fenced := ""
	var text strings.Builder
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```"):
			if fenced == "" {
				fenced = line
			} else {
				fenced = ""
			}
		case fenced == "```text": // output, and drawings
		case fenced != "" || strings.HasPrefix(line, "    "):
			if m := ofBlock.FindStringSubmatch(line); m != nil {
				inBlock = append(inBlock, comment.ReplaceAllString(m[1], ""))
			}
		default:
			text.WriteString(line + " ")
		}
	}
	for _, m := range ofText.FindAllStringSubmatch(text.String(), -1) {
		inText = append(inText, comment.ReplaceAllString(m[1], ""))
	}
	return inBlock, inText
}

// understands says what of a command line the program does not know. Brackets around what may be
// left out, and dots behind what may be repeated, are not part of it; NAME stands for one.
func understands(line string, whole bool) error {
	words := strings.Fields(strings.NewReplacer("[", "", "]", "", "...", "", "'", "", "NAME", "name").Replace(line))[1:]
	root := New(strings.NewReader(""), io.Discard, io.Discard)
	root.InitDefaultHelpCmd()
	c, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	c.InitDefaultHelpFlag()
	if whole {
		if err := c.ParseFlags(rest); err != nil {
			return err
		}
		return c.ValidateArgs(c.Flags().Args())
	}
	for _, w := range rest {
		name, isFlag := strings.CutPrefix(w, "--")
		name, _, _ = strings.Cut(name, "=")
		switch {
		case isFlag && name != "" && c.Flags().Lookup(name) == nil && c.InheritedFlags().Lookup(name) == nil:
			return fmt.Errorf("%s has no flag %s", c.CommandPath(), w)
		case len(w) == 2 && w[0] == '-' && w[1] != '-' && c.Flags().ShorthandLookup(w[1:]) == nil:
			return fmt.Errorf("%s has no flag %s", c.CommandPath(), w)
		}
	}
	if c.HasSubCommands() && len(rest) > 0 && rest[0] == strings.ToLower(rest[0]) && !strings.HasPrefix(rest[0], "-") {
		return c.ValidateArgs(rest[:1])
	}
	return nil
}
