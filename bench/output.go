package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
)

// Output is what every benchmark's command line says of its result and of the conditions it is measured under.
type Output struct {
	JSON  string        // a file for the result as JSON; "-": standard output, without the table; "": no file
	Quiet bool          // no progress
	Quick bool          // a smoke run: figures without meaning, no wait for an idle machine
	Idle  time.Duration // how long to wait in all for other programs to leave the machine alone; 0: only look how busy it is
	Seed  uint64        // 0: a new one
}

// JSONUsage explains the flag --json.
const JSONUsage = "write the result to this file as JSON too; - prints it instead of the table"

// Flags adds the flags to a set of package flag, or of one that is like it.
func (o *Output) Flags(f interface {
	StringVar(p *string, name, value, usage string)
	BoolVar(p *bool, name string, value bool, usage string)
	DurationVar(p *time.Duration, name string, value time.Duration, usage string)
	Uint64Var(p *uint64, name string, value uint64, usage string)
}) {
	f.StringVar(&o.JSON, "json", "", JSONUsage)
	f.BoolVar(&o.Quiet, "quiet", false, "no progress on standard error")
	f.BoolVar(&o.Quick, "quick", false, "a smoke run: figures without meaning, no wait for an idle machine")
	f.DurationVar(&o.Idle, "idle-wait", 30*time.Second,
		"how long to wait in all for other programs to leave the machine alone; 0: only look how busy it is")
	f.Uint64Var(&o.Seed, "seed", 0, "of the order of runs and the statistics (default: a new one)")
}

// Conditions are those of a benchmark; its progress goes to w. They are asked for before it starts, so that a result file that cannot be
// written is not found out at its end.
func (o *Output) Conditions(w io.Writer) (Conditions, error) {
	c := Conditions{Seed: o.Seed}
	if !o.Quiet {
		c.Progress = func(line string) { fmt.Fprintln(w, line) }
	}
	if o.Idle < 0 {
		return c, fmt.Errorf("--idle-wait %v: expected a time of 0 or more", o.Idle)
	}
	if !o.Quick {
		c.Gate = &paired.Gate{Budget: o.Idle}
		if o.Idle == 0 {
			c.Gate.Budget = -1
		}
	}
	return c, Writable(o.JSON)
}

// Writable fails when a file cannot be written for a reason that can be seen without writing.
func Writable(name string) error {
	if name == "" || name == "-" {
		return nil
	}
	switch i, err := os.Stat(name); {
	case err == nil && i.IsDir():
		return fmt.Errorf("--json %s: expected a file, this is a directory", name)
	case err == nil:
		return nil
	}
	dir := filepath.Dir(name)
	if i, err := os.Stat(dir); err != nil || !i.IsDir() {
		return fmt.Errorf("--json %s: there is no directory %s", name, dir)
	}
	return nil
}

// Print writes a report to w, also one that failed: what is wrong with it is in err.
func (o *Output) Print(w io.Writer, r *paired.Report, err error) error {
	if r == nil {
		return err
	}
	return errors.Join(err, WriteResult(w, o.JSON, r))
}

// WriteResult writes a result to w as a table, to the file called name as JSON, or both; "-" is w. The file comes first: the reader of
// the table may close it early.
func WriteResult(w io.Writer, name string, r interface {
	Write(io.Writer) error
	Table(io.Writer) error
}) error {
	if name == "-" {
		return r.Write(w)
	}
	var err error
	if name != "" {
		var b bytes.Buffer
		if err = r.Write(&b); err == nil {
			err = os.WriteFile(name, b.Bytes(), 0o644)
		}
	}
	return errors.Join(err, r.Table(w))
}
