package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/testenv"
)

// maxAgain is how many tests that failed are run once more. More than that is no accident.
const maxAgain = 3

// kindAgain is the kind of the ledger's entries for them.
const kindAgain = "again"

// again runs go test, and runs tests that failed once more, alone. One that passes then does not fail the run but is named, also in
// the ledger: it is a fault to mend all the same, of the test or of what it tests. The change at hand did not make it, most likely,
// and should not wait for it. What cannot be an accident fails at once: a data race, a panic, a test that hangs, a package that
// does not compile or fails without naming a test, and more tests than maxAgain.
func again(ctx context.Context, args []string, out io.Writer) error {
	f := flag.NewFlagSet("again", flag.ContinueOnError)
	if err := f.Parse(args); err != nil {
		return err
	}
	argv := f.Args()
	if len(argv) < 3 {
		return errors.New("again: expected go test with its flags and packages after the options, as in lab again -- go test -count=1 ./path/... ./mem")
	}
	var seen failures
	failed := goTest(ctx, argv, out, &seen)
	if failed == nil || ctx.Err() != nil {
		return failed
	}
	if why := seen.hard(); why != "" {
		fmt.Fprintf(out, "lab: nothing is run again: %s\n", why)
		return failed
	}
	flags := argv
	for len(flags) > 0 && strings.HasPrefix(flags[len(flags)-1], "./") {
		flags = flags[:len(flags)-1]
	}
	for _, p := range seen.packages {
		fmt.Fprintf(out, "lab: once more: %s in %s\n", strings.Join(p.tests, ", "), p.name)
		line := append(slices.Clone(flags), "-run", "^("+strings.Join(p.tests, "|")+")$", p.name)
		if err := goTest(ctx, line, out, new(failures)); err != nil {
			return failed
		}
	}
	for _, p := range seen.packages {
		for _, t := range p.tests {
			fmt.Fprintf(out, "lab: %s in %s failed, and passed when it was run again, alone: a fault to mend, of the test or of what it tests\n", t, p.name)
			if err := note(testenv.Entry{Kind: kindAgain, What: p.name[strings.LastIndexByte(p.name, '/')+1:], Test: t, Detail: p.name}); err != nil {
				return err
			}
		}
	}
	return nil
}

// goTest runs a command, passes its output on, and notes in seen what failed.
func goTest(ctx context.Context, argv []string, out io.Writer, seen *failures) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Stderr = out // the go command's own words; those of tests come by its standard output
	lines, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	r := bufio.NewReader(lines)
	for {
		line, err := r.ReadString('\n')
		io.WriteString(out, line)
		seen.line(strings.TrimSuffix(line, "\n"))
		if err != nil {
			break
		}
	}
	return cmd.Wait()
}

// failures is what the output of go test says of tests that failed. It prints the packages one after the other, however many run at once.
type failures struct {
	packages []failedPackage
	tests    []string // of the package whose output is being read
	why      string   // it cannot be an accident, "" while it can
}

type failedPackage struct {
	name  string
	tests []string
}

var (
	failedTest  = regexp.MustCompile(`^--- FAIL: (\S+) \(`)
	packageEnd  = regexp.MustCompile(`^(ok  |FAIL|\?   )\t(\S+)(.*)`)
	noAccident  = regexp.MustCompile(`WARNING: DATA RACE|^panic: |^fatal error: |panic: test timed out`)
	notStarted  = regexp.MustCompile(`\[(build|setup) failed\]`)
	noTestNamed = "a package failed without naming a test"
)

func (f *failures) line(s string) {
	if m := failedTest.FindStringSubmatch(s); m != nil {
		f.tests = append(f.tests, m[1])
		return
	}
	if m := noAccident.FindString(s); m != "" {
		f.because(strings.TrimSpace(m))
		return
	}
	m := packageEnd.FindStringSubmatch(s)
	if m == nil {
		return
	}
	if m[1] == "FAIL" {
		switch {
		case notStarted.MatchString(m[3]):
			f.because("a package does not compile")
		case f.tests == nil:
			f.because(noTestNamed)
		}
		f.packages = append(f.packages, failedPackage{m[2], f.tests})
	}
	f.tests = nil
}

func (f *failures) because(why string) {
	if f.why == "" {
		f.why = why
	}
}

// hard is why no test is run again, "" where they are.
func (f *failures) hard() string {
	n := 0
	for _, p := range f.packages {
		n += len(p.tests)
	}
	switch {
	case f.why != "":
		return f.why
	case n == 0:
		return "no test failed, but the command did"
	case n > maxAgain:
		return fmt.Sprintf("%d tests failed, which is no accident", n)
	}
	return ""
}

// note writes into the ledger, where there is one.
func note(e testenv.Entry) error {
	file := os.Getenv("PENSTOCK_LAB_LEDGER")
	if file == "" {
		return nil
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}
