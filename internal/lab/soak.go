package main

import (
	"context"
	"flag"
	"io"
	"time"

	"github.com/penstock-io/penstock/internal/lab/soak"
)

// soakFor runs the soak and ends with an error when its accounts do not balance.
func soakFor(ctx context.Context, args []string, out io.Writer) error {
	f := flag.NewFlagSet("soak", flag.ContinueOnError)
	o := soak.Options{Out: out}
	f.DurationVar(&o.Duration, "duration", 10*time.Second, "of the disturbed part; accounting comes on top")
	f.Uint64Var(&o.Seed, "seed", 0, "of all choices; 0 takes a new one, which is printed")
	f.IntVar(&o.Workers, "workers", 3, "processes")
	f.BoolVar(&o.Calm, "calm", false, "no faults")
	if err := f.Parse(args); err != nil {
		return err
	}
	_, err := soak.Run(ctx, o)
	return err
}
