package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

// run executes a command with a ledger and a directory for temporary files of its own, prints what
// of the lab it used, and fails when the command failed, when it left anything behind, or, where CI
// is set, when something that -require names was not used by a test that passed.
func run(ctx context.Context, args []string, out io.Writer) error {
	f := flag.NewFlagSet("run", flag.ContinueOnError)
	require := f.String("require", "",
		"uses that must be in the ledger, as `KIND:WHAT,...`; an error where CI is set, a message elsewhere")
	patience := f.Duration("patience", 10*time.Second,
		"how long a thing may take to go away after the command: the kernel removes namespaces and devices late")
	if err := f.Parse(args); err != nil {
		return err
	}
	argv := f.Args()
	if len(argv) == 0 {
		return errors.New("run: expected a command after the options, as in: lab run -require guest:net -- go " +
			"test ./mem")
	}
	required, err := parseRequire(*require)
	if err != nil {
		return err
	}
	if err := sys.Subreaper(); err != nil {
		return err
	}
	before, err := observe()
	if err != nil {
		return err
	}
	// A short name: sockets in directories of tests have to stay below 108 bytes.
	tmp, err := os.MkdirTemp("", "pl")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	ledger := filepath.Join(tmp, "ledger")
	work := filepath.Join(tmp, "t")
	// Tests run programs as other users, who have to reach these.
	if err := errors.Join(os.Chmod(tmp, 0o755), os.Mkdir(work, 0o755),
		os.Chmod(work, 0o777|os.ModeSticky)); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "TMPDIR="+work, "PENSTOCK_LAB_LEDGER="+ledger)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	giveBack := testenv.ReserveGiant()
	start := time.Now()
	err = cmd.Run()
	fmt.Fprintf(out, "lab: %s took %s\n", strings.Join(argv, " "), time.Since(start).Round(time.Second))
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	err = errors.Join(err, giveBack())
	left, lerr := remains(before, work, *patience)
	for _, l := range left {
		fmt.Fprintln(out, "lab: left behind:", l)
	}
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("%d things were left behind", len(left)))
	}
	return errors.Join(err, lerr, printLedger(out, ledger, required))
}

// remains lists what a run left behind: descendants, which it kills; what observe sees and did not
// see before; and files in the run's own directory. A thing counts only when it is still there
// after patience.
func remains(before state, work string, patience time.Duration) ([]string, error) {
	deadline := time.Now().Add(patience)
	var procs []process
	for {
		reap()
		var err error
		if procs, err = descendants(os.Getpid()); err != nil {
			return nil, err
		}
		now, err := observe()
		if err != nil {
			return nil, err
		}
		left := now.since(before)
		for _, p := range procs {
			left = append(left, fmt.Sprintf("process %d (%s): %s", p.pid, p.state, p.command))
		}
		files, err := os.ReadDir(work)
		if err != nil {
			return nil, err
		}
		for _, e := range files {
			left = append(left, "file $TMPDIR/"+e.Name())
		}
		if len(left) == 0 {
			return nil, nil
		}
		if time.Now().After(deadline) {
			for _, p := range procs {
				if pr, err := os.FindProcess(p.pid); err == nil {
					pr.Kill()
				}
			}
			return left, nil
		}
		<-time.After(100 * time.Millisecond)
	}
}

// reap takes the exit status of every child that has ended, those it inherited as well.
func reap() {
	for sys.ReapAny() {
	}
}

func parseRequire(s string) ([]testenv.Use, error) {
	var out []testenv.Use
	for part := range strings.SplitSeq(s, ",") {
		if part == "" {
			continue
		}
		kind, what, ok := strings.Cut(part, ":")
		if !ok || kind == "" || what == "" {
			return nil, fmt.Errorf("run: -require %q: expected KIND:WHAT, such as guest:net", part)
		}
		out = append(out, testenv.Use{Kind: kind, What: what})
	}
	return out, nil
}

// printLedger prints a table of what was used, and says what of required was not.
func printLedger(out io.Writer, file string, required []testenv.Use) error {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) && len(required) == 0 {
		return nil
	}
	var uses []testenv.Use
	if err == nil {
		defer f.Close()
		entries, err := testenv.ReadLedger(f)
		if err != nil {
			return err
		}
		uses = testenv.Uses(entries)
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(uses) > 0 {
		fmt.Fprintf(out, "lab: used by tests that passed (failed):\n")
		for _, u := range uses {
			fmt.Fprintf(out, "  %-6s %-14s %3d (%d)  %s  %s\n", u.Kind, u.What, u.Passed, u.Failed, first(u.Tests),
				u.Detail)
		}
	}
	var missing []string
	for _, r := range required {
		if !slices.ContainsFunc(uses, func(u testenv.Use) bool {
			return u.Kind == r.Kind && u.What == r.What && u.Passed > 0
		}) {
			missing = append(missing, r.Kind+":"+r.What)
		}
	}
	if missing == nil {
		return nil
	}
	err = fmt.Errorf("not used by any test that passed: %s", strings.Join(missing, ", "))
	if testenv.CI() {
		return err
	}
	fmt.Fprintf(out, "lab: %v\nlab: the tests that use them said why they were skipped (go test -v)\n", err)
	return nil
}

func first(tests []string) string {
	if len(tests) == 0 {
		return "-"
	}
	return tests[0]
}
