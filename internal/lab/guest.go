package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
)

// inGuest runs a program in a guest, or lists the profiles when none is asked for.
func inGuest(ctx context.Context, args []string, out io.Writer) error {
	f := flag.NewFlagSet("guest", flag.ContinueOnError)
	name := f.String("profile", "", "which guest to boot; without it the profiles are listed")
	timeout := f.Duration("timeout", time.Minute, "the guest is ended after this time")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *name == "" {
		for _, p := range guest.Profiles() {
			fmt.Fprintf(out, "%-6s %4d MiB, %d processors: %s\n", p.Name, p.Memory, p.CPUs, p.About)
		}
		return nil
	}
	p, err := guest.ProfileByName(*name)
	if err != nil {
		return err
	}
	if f.NArg() == 0 {
		return errors.New("guest: expected a command: lab guest -profile net -- sh -c 'ip -br a; tc qdisc'")
	}
	exit, err := guest.RunCommand(ctx, guest.Spec{Profile: p, Timeout: *timeout}, f.Args(), out)
	if err == nil && exit != 0 {
		err = fmt.Errorf("guest: %s ended with status %d", f.Arg(0), exit)
	}
	return err
}
