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

// ErrOptions is wrapped by errors about options that cannot be.
var ErrOptions = errors.New("bench")

// Output is what every benchmark's command line says of its result and of the conditions it is
// measured under.
type Output struct {
	JSON  bool   // print the result as JSON, in place of the table
	File  string // also write the result as JSON to this file; "": no file
	Quiet bool   // no progress
	Quick bool   // a smoke run: figures without meaning, no wait for an idle machine
	// how long to wait in all for other programs to leave the machine alone; 0: only look how busy
	// it is
	Idle time.Duration
	Seed uint64 // 0: a new one
}

// Flags is a set of flags, of package flag or one that is like it.
type Flags interface {
	StringVar(p *string, name, value, usage string)
	BoolVar(p *bool, name string, value bool, usage string)
	DurationVar(p *time.Duration, name string, value time.Duration, usage string)
	Uint64Var(p *uint64, name string, value uint64, usage string)
}

// ResultFlags adds those that say where the result goes.
func (o *Output) ResultFlags(f Flags) {
	f.BoolVar(&o.JSON, "json", false, "print the result as JSON in place of the table")
	f.StringVar(&o.File, "output", "", "also write the result to `FILE` as JSON (docs/bench-format.md)")
}

// Flags adds all flags to a set.
func (o *Output) Flags(f Flags) {
	o.ResultFlags(f)
	f.BoolVar(&o.Quiet, "quiet", false, "no progress on standard error")
	f.BoolVar(&o.Quick, "quick", false, "a smoke run: figures without meaning, no wait for an idle machine")
	f.DurationVar(&o.Idle, "idle-wait", 30*time.Second,
		"how long to wait in all for other programs to leave the machine alone; 0: only look how busy it is")
	f.Uint64Var(&o.Seed, "seed", 0, "of the order of runs and the statistics (default: a new one)")
}

// Conditions are those of a benchmark; its progress goes to w. They are asked for before it starts,
// so that a result file that cannot be written is not found out at its end.
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
	return c, o.Writable()
}

// Writable fails when the file cannot be written for a reason that can be seen without writing.
func (o *Output) Writable() error {
	if o.File == "" {
		return nil
	}
	switch i, err := os.Stat(o.File); {
	case err == nil && i.IsDir():
		return fmt.Errorf("--output %s: expected a file, this is a directory", o.File)
	case err == nil:
		return nil
	}
	dir := filepath.Dir(o.File)
	if i, err := os.Stat(dir); err != nil || !i.IsDir() {
		return fmt.Errorf("--output %s: there is no directory %s: %w", o.File, dir, os.ErrNotExist)
	}
	return nil
}

// Print writes a report to w, also one that failed: what is wrong with it is in err.
func (o *Output) Print(w io.Writer, r *paired.Report, err error) error {
	if r == nil {
		return err
	}
	return errors.Join(err, o.Write(w, r))
}

// Write writes a result: to the file first, for the reader of w may close it early.
func (o *Output) Write(w io.Writer, r interface {
	Write(io.Writer) error
	Table(io.Writer) error
}) error {
	var err error
	if o.File != "" {
		var b bytes.Buffer
		if err = r.Write(&b); err == nil {
			err = os.WriteFile(o.File, b.Bytes(), 0o644)
		}
	}
	if o.JSON {
		return errors.Join(err, r.Write(w))
	}
	return errors.Join(err, r.Table(w))
}
