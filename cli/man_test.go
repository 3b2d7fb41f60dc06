package cli

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/spf13/cobra"
)

// walk calls f for each command that has a page.
func walk(c *cobra.Command, f func(c *cobra.Command)) {
	f(c)
	for _, s := range documented(c) {
		walk(s, f)
	}
}

// The pages are what a program for manual pages reads without a warning, and they hold what --help
// says.
func TestManPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	run(t, 0, "", "man", "--dir", dir)
	var pages []string
	walk(New(strings.NewReader(""), io.Discard, io.Discard), func(c *cobra.Command) {
		name := filepath.Join(dir, pageName(c)+".1")
		b, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
			return
		}
		pages = append(pages, name)
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, ".") && !strings.Contains(" .TH .SH .TP .B .BR .PP .nf .fi ",
				" "+strings.Fields(line)[0]+" ") {
				t.Errorf("%s: unknown request %q", name, line)
			}
		}
	})
	if len(pages) < 12 {
		t.Fatalf("%d pages", len(pages))
	}
	out, _ := run(t, 0, "", "man", "get")
	if b, err := os.ReadFile(filepath.Join(dir, "penstock-get.1")); err != nil || out != string(b) {
		t.Errorf("penstock man get differs from its page: %v", err)
	}
	run(t, 0, `.SH NAME`, "man")

	groff, err := testenv.Tool("groff", "groff-base")
	if err != nil {
		testenv.Missing(t, "groff", err)
	}
	for _, page := range pages {
		cmd := exec.Command(groff, "-man", "-Tutf8", "-ww", "-z", page)
		var errOut bytes.Buffer
		cmd.Stderr = &errOut
		if err := cmd.Run(); err != nil || errOut.Len() > 0 {
			t.Errorf("%s: %v\n%s", page, err, errOut.String())
		}
	}
}

func TestRoff(t *testing.T) {
	var b strings.Builder
	roffText(&b, "one\ntwo\n\n.three -x \\n\n  code\n\n  more\nend")
	want := ".PP\none\ntwo\n.PP\n\\&.three \\-x \\en\n.PP\n.nf\n  code\n.PP\n  more\n.fi\n.PP\nend\n"
	if b.String() != want {
		t.Errorf("%q\nexpected %q", b.String(), want)
	}
}

// Each command that people use says what it does and shows how; what it shows is understood by its
// own flags.
func TestCommandsAreExplained(t *testing.T) {
	root := New(strings.NewReader(""), io.Discard, io.Discard)
	for _, name := range []string{"serve", "ls", "get", "put", "mirror", "rm", "man"} {
		c, _, err := root.Find([]string{name})
		if err != nil || c.Short == "" || c.Long == "" || c.Example == "" {
			t.Errorf("%s: %v, short %q, long %q, example %q", name, err, c.Short, c.Long, c.Example)
			continue
		}
		for line := range strings.Lines(c.Example) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " | ")
			args := strings.Fields(line)
			at, rest, err := root.Find(args[1:])
			if args[0] != "penstock" || err != nil || at.Name() != name {
				t.Errorf("%s: example %q", name, line)
				continue
			}
			fresh, _, _ := New(strings.NewReader(""), io.Discard, io.Discard).Find([]string{name})
			if err := fresh.ParseFlags(rest); err != nil {
				t.Errorf("%s: example %q: %v", name, line, err)
			} else if fresh.Args != nil {
				if err := fresh.Args(fresh, fresh.Flags().Args()); err != nil {
					t.Errorf("%s: example %q: %v", name, line, err)
				}
			}
		}
	}
}

func TestCompletion(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"model-a.bin", "model-b.bin", "other", "odd name", "$(reboot)"} {
		write(t, filepath.Join(dir, name), []byte("x"))
	}
	_, addr := serve(t, dir)
	for _, c := range []struct {
		want string
		args []string
	}{
		{addr + "/model-a.bin " + addr + "/model-b.bin :4", []string{"get", addr + "/mod"}},
		{addr + "/model-a.bin " + addr + "/model-b.bin " + addr + "/other :4", []string{"get", addr + "/"}},
		{"other :4", []string{"get", addr, "o"}},
		{"tcp://" + addr + "/other :4", []string{"put", "file", "tcp://" + addr + "/o"}},
		{":0", []string{"put", "fi"}},
		{":0", []string{"serve", ""}},
		{addr + "/other :4", []string{"rm", addr + "/model-a.bin", addr + "/o"}},
		{"other :4", []string{"rm", addr, "model-a.bin", "o"}},
		{":4", []string{"get", "127.0.0.1:1/x"}}, // no server is there
		{":6", []string{"get", "nonsense/x"}},
		{":16", []string{"mirror", addr, ""}},
		{"shm tcp verbs :4", []string{"get", "--path", ""}},
		{"verbs?queue_pairs= :6", []string{"get", "--path", "verbs?qu"}},
		{"tcp,verbs?queue_pairs=2&windows=true tcp,verbs?queue_pairs=2&windows=false :4",
			[]string{"serve", "--path", "tcp,verbs?queue_pairs=2&windows="}},
		{"verbs?piece=1MiB&port= :6", []string{"bench", "transfer", "--path", "verbs?piece=1MiB&p"}},
		{":4", []string{"get", "--path", "verbs?queue_pairs="}},
		{":16", []string{"get", "--identity", ""}},
		{"off error warn info debug :4", []string{"serve", "--log-level", ""}},
	} {
		out, errOut, status := penstock(t, append([]string{"__complete"}, c.args...)...)
		if got := strings.Join(strings.Fields(out), " "); status != 0 || got != c.want {
			t.Errorf("%q: status %d, %q, %s; expected %q", c.args, status, got, errOut, c.want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		script, _ := run(t, 0, "penstock", "completion", shell)
		if shell != "bash" && shell != "zsh" {
			continue
		}
		if path, err := exec.LookPath(shell); err == nil { // what is there can read it
			cmd := exec.Command(path, "-n")
			cmd.Stdin = strings.NewReader(script)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", shell, err, out)
			}
		}
	}
}

func TestPlainWord(t *testing.T) {
	for s, want := range map[string]bool{"a-b_c.D/1+2,3@x%41=": true, "": false, "a b": false, "$(x)": false,
		"a;b": false, "ä": false, "a\nb": false, "~": false, "*": false} {
		if got := plainWord(s); got != want {
			t.Errorf("%q: %t", s, got)
		}
	}
}
