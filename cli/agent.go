package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/penstock-io/penstock/bindings/agent"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/spf13/cobra"
)

// maxClients is how many processes an agent with a socket serves at a time; fewer where it can have
// few descriptors.
const maxClients = 64

// acceptPause is how long an agent waits when it cannot accept.
const acceptPause = 50 * time.Millisecond

func newAgent(s streams) *cobra.Command {
	var fd int
	var socket string
	c := &cobra.Command{
		Use:   "agent",
		Short: "Serve the library for C and Python that holds no Go runtime",
		Long: `Does what programs ask for by libpenstock-agent.so: the library has the functions of penstock.h, and no Go runtime, so that it lives
with fork and with other Go libraries in one process. It starts an agent of its own, by --fd, which ends with the program. An agent with
--socket serves several programs, which find it by the environment variable PENSTOCK_AGENT. A program gets at what it has made itself, and
that ends with its connection.

Only processes of the user of the agent are served. Memory that a program has adopted the agent copies from and to that program
(process_vm_readv), where the kernel lets it.`,
		Example: `  penstock agent --socket $XDG_RUNTIME_DIR/penstock.sock
  PENSTOCK_AGENT=$XDG_RUNTIME_DIR/penstock.sock python3 program.py`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case c.Flags().Changed("fd") == (socket != ""):
				return &usageError{errors.New("expected --fd or --socket")}
			case socket != "":
				return serveClients(c.Context(), s, socket)
			}
			conn, err := inherited(fd)
			if err != nil {
				return &usageError{err}
			}
			return agent.Serve(c.Context(), conn)
		},
	}
	f := c.Flags()
	f.IntVar(&fd, "fd", 0, "serve the program at the other end of the inherited socket `N`, until it closes")
	f.StringVar(&socket, "socket", "", "listen at `PATH`, for programs of this user")
	return c
}

// inherited is a connection that this process was started with.
func inherited(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "the program's socket")
	if fd < 3 || f == nil {
		return nil, fmt.Errorf("--fd %d: expected the number of an open descriptor, 3 or more", fd)
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("--fd %d: %w", fd, err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("--fd %d: expected a Unix socket", fd)
	}
	return u, nil
}

// serveClients serves programs until ctx ends.
func serveClients(ctx context.Context, s streams, path string) error {
	l, err := listenAt(ctx, path)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	fmt.Fprintf(s.err, "penstock: the agent listens at %s\n", path)
	return acceptClients(ctx, s, l)
}

// acceptClients serves those who connect until ctx ends, which closes the listener.
func acceptClients(ctx context.Context, s streams, l interface {
	AcceptUnix() (*net.UnixConn, error)
}) error {
	most := min(maxClients, setup.MaxPending())
	turns := make(chan struct{}, most)
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.AcceptUnix()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			// For example too many open files: that passes, and the programs that are served need
			// the agent meanwhile.
			fmt.Fprintf(s.err, "penstock: accept a program: %v\n", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case turns <- struct{}{}:
		default:
			fmt.Fprintf(s.err, "penstock: %d programs are served already: another one is refused\n", most)
			c.Close()
			continue
		}
		wg.Go(func() {
			defer func() { <-turns }()
			if err := agent.Serve(ctx, c); err != nil {
				fmt.Fprintf(s.err, "penstock: %s\n", printableLines(err.Error()))
			}
		})
	}
}

// listenAt listens at a path, for the user of this process alone.
func listenAt(ctx context.Context, path string) (*net.UnixListener, error) {
	l, err := sys.Listen(ctx, &net.ListenConfig{}, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l.(*net.UnixListener), nil
}
