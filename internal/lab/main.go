// Lab is the tool of contributors: it runs guests, namespaces, soaks, benchmarks beside other
// programs, and tests under watch.
//
//	go run ./internal/lab run -require guest:net -- go test ./...
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/penstock-io/penstock/internal/lab/soak"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
)

// command is one word of the tool.
type command struct {
	name, args, what string
	run              func(ctx context.Context, args []string, out io.Writer) error
}

var commands = []command{
	{"run", "[-require KIND:WHAT,...] -- COMMAND", "run a command; print what it used of the lab; fail if it left anything behind", run},
	{"guest", "[-profile NAME -- COMMAND]", "list the guests, or run a command in one", inGuest},
	{"netns", "[-hosts N] [-mtu N] [-queues N] [-rate N] -- COMMAND", "run a command in the first of several hosts in namespaces", inNamespace},
	{"soak", "[-duration 1h] [-seed N] [-workers N] [-calm]", "random transfers under random faults, with exact accounting", soakFor},
	{"bench", "transfer|stream|... [FLAGS]",
		"measure with hosts in namespaces; -h after the word lists its flags", benchmark},
	{"peers", "", "list other people's tools: version, or how to get them", listPeers},
}

func main() {
	soak.Main()  // the soak's workers are this program
	netns.Main() // and so is the watcher of hosts
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := dispatch(ctx, os.Args[1:], os.Stdout)
	stop()
	if status := exitStatus(0); errors.As(err, &status) {
		os.Exit(int(status)) // the command said why
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

// dispatch runs the command that the first word names.
func dispatch(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		usage(out)
		return errors.New("expected a command")
	}
	for _, c := range commands {
		if c.name == args[0] {
			return c.run(ctx, args[1:], out)
		}
	}
	usage(out)
	return fmt.Errorf("no command %q", args[0])
}

func usage(out io.Writer) {
	fmt.Fprintln(out, "usage: go run ./internal/lab COMMAND")
	for _, c := range commands {
		fmt.Fprintf(out, "  %-6s %-54s %s\n", c.name, c.args, c.what)
	}
}
