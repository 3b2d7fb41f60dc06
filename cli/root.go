package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"runtime"
	"runtime/debug"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/spf13/cobra"
)

// streams are the standard streams of the process, or a test's.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// Main runs the program and returns its exit status: 0 for success, 1 for a failure, 2 for a wrong use of the command line.
func Main(args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), sys.Interrupts()...)
	defer stop()
	root := New(in, out, errOut)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(*usageError)):
		fmt.Fprintf(errOut, "penstock: %v\nRun \"penstock help\" for the commands and their flags.\n", err)
		return 2
	case errors.Is(err, errReported):
		return 1
	}
	fmt.Fprintf(errOut, "penstock: %v\n", err)
	return 1
}

// errReported ends the program with status 1 when what went wrong has been printed already.
var errReported = errors.New("reported")

// usageError is a command line that cannot be understood.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// New builds the command tree on the given streams.
func New(in io.Reader, out, errOut io.Writer) *cobra.Command {
	s := streams{in, out, errOut}
	root := &cobra.Command{
		Use:   "penstock",
		Short: "Bring bytes into the memory of another process, without copying them, and say by which path and why",
		Long: `Penstock moves tensors and spans of memory between processes, straight into their final place, over the best path that
this machine has, and tells which path that was and why.

  penstock demo              two processes move real tensors by every path; each byte is checked
  penstock bench transfer    how fast, beside what you would otherwise use`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &usageError{fmt.Errorf("unknown command %q", args[0])}
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.AddCommand(newDemo(s), newDemoReceiver(s), newBench(s), newVersion(s))
	return root
}

func newVersion(s streams) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version and how this program was built",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			version, extra := "devel", ""
			if bi, ok := debug.ReadBuildInfo(); ok {
				if v := bi.Main.Version; v != "" && v != "(devel)" {
					version = v
				}
				for _, kv := range bi.Settings {
					switch kv.Key {
					case "vcs.revision", "vcs.modified", "CGO_ENABLED", "-tags":
						extra += fmt.Sprintf(" %s=%s", kv.Key, kv.Value)
					}
				}
			}
			_, err := fmt.Fprintf(s.out, "penstock %s %s %s/%s%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH, extra)
			return err
		},
	}
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}
