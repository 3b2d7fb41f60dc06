package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/metrics"
	"github.com/spf13/cobra"
)

// streams are the standard streams of the process, or a test's.
type streams struct {
	in       io.Reader
	out, err io.Writer
	lab      Lab // of Bench
}

// Main runs the program and returns its exit status: 0 for success, 1 for a failure, 2 for a wrong
// use of the command line, and those of "penstock help exit-status". The first interrupt asks the
// command to end in order, the second ends the process.
func Main(args []string, in io.Reader, out, errOut io.Writer) int {
	return execute(args, streams{in, out, errOut, Lab{}})
}

func execute(args []string, s streams) int {
	ctx, stop := signal.NotifyContext(context.Background(), sys.Interrupts()...)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	root := newRoot(s)
	root.SetArgs(args)
	c, err := root.ExecuteContextC(ctx)
	err = interruption(ctx, err)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errReported):
		return exitStatus(err)
	}
	text := strings.TrimPrefix(err.Error(), "penstock: ")
	if next := nextStep(c, err); next != "" {
		text += "\n" + next
	}
	fmt.Fprintf(s.err, "penstock: %s\n", printableLines(text))
	status := exitStatus(err)
	if status == exitUsage {
		fmt.Fprintf(s.err, "Run \"penstock help\" for the commands and their flags.\n")
	}
	return status
}

// interruption says of the error of a command that was interrupted that it was, and what else there
// is to say in words for people.
func interruption(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || errors.Is(err, errInterrupted) || errors.Is(err, errReported) {
		return err
	}
	if errors.Is(err, ctx.Err()) && !as[*worded](err) {
		return errInterrupted
	}
	return fmt.Errorf("%w: %w", errInterrupted, err)
}

// errReported ends the program without a word more when what went wrong has been printed already,
// with the status of what it is wrapped with.
var errReported = errors.New("reported")

// errReportedUnfit is one of those.
var errReportedUnfit = fmt.Errorf("%w: %w", errReported, errUnfit)

// usageError is a command line that cannot be understood.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// New builds the command tree on the given streams.
func New(in io.Reader, out, errOut io.Writer) *cobra.Command {
	return newRoot(streams{in, out, errOut, Lab{}})
}

func newRoot(s streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "penstock",
		Short: "Bring bytes into the memory where they are needed, and say by which path, with how many copies, and why",
		Long: `Penstock moves tensors, files and memory ranges between processes, straight into their final place, over the best path
that there is, and tells which path that was and why. Beyond one machine all of it is encrypted.

  penstock serve FILE|DIR    let others fetch files and tensors; with --writable also leave them here
  penstock get ADDR/NAME     fetch one: resumed where it ended, whole or not there at all
  penstock pair              make this machine and another one trust each other
  penstock ping ADDR         reach a node: by which path, how soon, and why
  penstock status ADDR       status of a node: peers, paths and transfers
  penstock run FILE          streams, applications and a node, as a configuration file describes them
  penstock config check FILE everything that is wrong with a configuration file, at once
  penstock demo              two processes move real tensors by every path; each byte is checked
  penstock bench transfer    how fast, compared with other tools`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          subcommand,
		Version:       thisBuild().String(),
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },

		PersistentPreRunE: func(c *cobra.Command, _ []string) error { return readEnvironment(c) },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.Flags().Bool("version", false, "print the version and how this program was built")
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newDemo(s), newDemoReceiver(s), newRun(s), newCapture(s), newReplay(s), newBench(s), newPair(s),
		newServe(s), newLs(s),
		newGet(s), newPut(s), newMirror(s), newRm(s), newStatus(s), newPing(s), newAgent(s), newConfig(s), newDoctor(s),
		newTopology(s), newDevices(s), newTune(s),
		newMan(s), newVersion(s), newExitStatus(), newJSONHelp())
	root.AddCommand(newEnvironment(root)) // knows all others
	fillHelp(root)
	return root
}

// build is what this program says of itself.
type build struct {
	Version  string            `json:"version"`
	Go       string            `json:"go"`
	Platform string            `json:"platform"`
	Settings map[string]string `json:"settings"`
}

func thisBuild() build {
	b := build{Version: "devel", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Settings: map[string]string{}}
	if bi, ok := debug.ReadBuildInfo(); ok {
		if v := bi.Main.Version; v != "" && v != "(devel)" {
			b.Version = v
		}
		for _, kv := range bi.Settings {
			switch kv.Key {
			case "vcs.revision", "vcs.modified", "CGO_ENABLED", "-tags":
				b.Settings[kv.Key] = kv.Value
			}
		}
	}
	return b
}

func (b build) String() string {
	text := fmt.Sprintf("penstock %s %s %s", b.Version, b.Go, b.Platform)
	for _, k := range slices.Sorted(maps.Keys(b.Settings)) {
		text += " " + k + "=" + b.Settings[k]
	}
	return text
}

// families is the same for exporters: go_build_info knows of modules only.
func (b build) families() []metrics.Family {
	return []metrics.Family{{Name: "penstock_build_info", Help: "Always 1; the labels say what was built.",
		Kind: metrics.KindGauge, Labels: []string{"version", "revision", "modified", "go", "platform"},
		Samples: []metrics.Sample{{Values: []string{b.Version, b.Settings["vcs.revision"], b.Settings["vcs.modified"],
			b.Go, b.Platform}, Value: 1}}}}
}

func newVersion(s streams) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version and how this program was built, as --version does",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return printJSON(s.out, thisBuild())
			}
			_, err := fmt.Fprintln(s.out, thisBuild())
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}
