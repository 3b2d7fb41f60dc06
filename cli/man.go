package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newMan(s streams) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "man [COMMAND...]",
		Short: "Write the manual pages",
		Long: `Prints the manual page of a command, or of penstock itself, as roff; with --dir writes the pages of all commands into a directory
of that name, which is made if it is missing.`,
		Example: `  penstock man get | man -l -
  penstock man --dir /usr/local/share/man/man1`,
		RunE: func(c *cobra.Command, args []string) error {
			root := c.Root()
			if dir != "" {
				if len(args) > 0 {
					return &usageError{fmt.Errorf("--dir writes all pages: unexpected argument %q", args[0])}
				}
				return writeManPages(dir, root)
			}
			page, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 || page.Hidden {
				return &usageError{fmt.Errorf("there is no command %q", strings.Join(args, " "))}
			}
			return writeManPage(s.out, page)
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) (out []string, _ cobra.ShellCompDirective) {
			at, _, err := c.Root().Find(args)
			if err == nil {
				for _, x := range documented(at) {
					out = append(out, x.Name()+"\t"+x.Short)
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "write the pages of all commands into this `DIR`")
	_ = c.MarkFlagDirname("dir") // the flag exists
	return c
}

// documented are the commands below c that have a page of their own: in the manual, in docs/cli.md.
func documented(c *cobra.Command) (out []*cobra.Command) {
	for _, s := range c.Commands() {
		if !s.Hidden && s.Name() != "help" && s.Name() != "completion" {
			out = append(out, s)
		}
	}
	return out
}

// pageName is the name of a command's manual page.
func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// writeManPages writes PAGE.1 of each command into a directory.
func writeManPages(dir string, root *cobra.Command) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var walk func(c *cobra.Command) error
	walk = func(c *cobra.Command) error {
		var b bytes.Buffer
		if err := writeManPage(&b, c); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, pageName(c)+".1"), b.Bytes(), 0o644); err != nil {
			return err
		}
		for _, s := range documented(c) {
			if err := walk(s); err != nil {
				return err
			}
		}
		return nil
	}
	return walk(root)
}

// writeManPage writes a page in the macros of man(7).
func writeManPage(w io.Writer, c *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"penstock\" \"Penstock\"\n.SH NAME\n%s \\- %s\n",
		roff(strings.ToUpper(pageName(c))), roff(pageName(c)), roff(c.Short))
	if c.Runnable() {
		use := c.CommandPath() + strings.TrimPrefix(c.Use, c.Name())
		if c.HasAvailableLocalFlags() {
			use += " [flags]"
		}
		fmt.Fprintf(&b, ".SH SYNOPSIS\n%s\n", roff(use))
	}
	b.WriteString(".SH DESCRIPTION\n")
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	roffText(&b, text)
	flags := false
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		_, usage := pflag.UnquoteUsage(f)
		if !flags {
			b.WriteString(".SH OPTIONS\n")
			flags = true
		}
		fmt.Fprintf(&b, ".TP\n.B %s\n%s%s\n", roff(flagWords(f)), roff(usage), roff(flagDefault(f)))
	})
	if c.Example != "" {
		b.WriteString(".SH EXAMPLES\n")
		roffText(&b, c.Example)
	}
	if len(c.Commands()) == 0 && c.Runnable() {
		b.WriteString(".SH EXIT STATUS\n0 for success, 1 for a failure, 2 for a wrong use; the others are in\n.BR " +
			"penstock-exit-status (1).\n")
	}
	var also []*cobra.Command
	if c.HasParent() {
		also = append(also, c.Parent())
	}
	also = append(also, documented(c)...)
	if len(also) > 0 {
		b.WriteString(".SH SEE ALSO\n")
		for i, x := range also {
			comma := ","
			if i == len(also)-1 {
				comma = ""
			}
			fmt.Fprintf(&b, ".BR %s (1)%s\n", roff(pageName(x)), comma)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// flagWords is a flag as it is typed: -o, --output string.
func flagWords(f *pflag.Flag) string {
	name, _ := pflag.UnquoteUsage(f)
	out := "--" + f.Name
	if f.Shorthand != "" {
		out = "-" + f.Shorthand + ", " + out
	}
	switch {
	case f.NoOptDefVal == "" && name != "":
		out += " " + name
	case f.NoOptDefVal != "" && f.Value.Type() != "bool":
		out += "[=" + name + "]"
	}
	return out
}

func flagDefault(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "[]", "false", "0", "0s":
		return ""
	}
	return " (default: " + f.DefValue + ")"
}

// roffText writes paragraphs: lines that begin with spaces are shown as they are, others are
// filled.
func roffText(b *strings.Builder, text string) {
	verbatim, open := false, false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n ")
		switch indented := strings.HasPrefix(line, "  "); {
		case line == "":
			open = false
			continue
		case indented != verbatim:
			b.WriteString(map[bool]string{true: ".PP\n.nf\n", false: ".fi\n"}[indented])
			verbatim, open = indented, indented
		}
		if !open {
			b.WriteString(".PP\n")
			open = true
		}
		b.WriteString(roff(line) + "\n")
	}
	if verbatim {
		b.WriteString(".fi\n")
	}
}

// roff escapes a line of text.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}
