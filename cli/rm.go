package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/spf13/cobra"
)

type rmOptions struct {
	clientFlags
	displayFlags
	recursive bool
	force     bool
	dryRun    bool
}

func newRm(s streams) *cobra.Command {
	var o rmOptions
	c := &cobra.Command{
		Use:   "rm ADDR/NAME...",
		Short: "Remove files that a peer serves",
		Long: `Removes the files NAME from the directory that the peer at ADDR serves with --writable --removable, and directories that are empty
then. Each NAME may also be an argument of its own after ADDR, and all are of one peer. NAME is a whole file: not a directory, not a tensor in a
file, and not what the peer serves because it follows a link. A file whose upload is under way stays.

-r also takes directories: ADDR/DIR/, with the slash, stands for all files below DIR that the peer lists. A file that is replaced after that
stays. What the peer leaves out (ls --left-out) stays, and DIR with it. There is no name for everything: ADDR/ is refused.

One line is printed for each file that is removed or fails. A failure does not keep the others from being removed.`,
		Example: `  penstock rm 127.0.0.1:7070/old.safetensors
  penstock rm 127.0.0.1:7070 run7/step1000.safetensors run7/step2000.safetensors
  penstock rm -r 127.0.0.1:7070/run7/ --dry-run
  penstock rm -f unix:///run/penstock.sock/incoming/notes.txt --json`,
		Args: argsBetween(1, math.MaxInt, "ADDR/NAME..., or ADDR and names"),
		RunE: func(c *cobra.Command, args []string) error {
			addr, names, err := parseRmArgs(args, o.recursive)
			if err != nil {
				return err
			}
			return runRm(c.Context(), s, o, addr, names)
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				if t, err := parseTarget(args[0]); err == nil && t.name == "" { // ADDR NA...
					return completeRemote(s, &o.clientFlags, 0)(c, args[:1], typed)
				}
			}
			return completeRemote(s, &o.clientFlags, len(args))(c, args, typed)
		},
	}
	o.clientFlags.add(c)
	o.displayFlags.add(c)
	f := c.Flags()
	f.BoolVarP(&o.recursive, "recursive", "r", false,
		"take names that end with a slash for directories, and remove all files below them")
	f.BoolVarP(&o.force, "force", "f", false, "do not fail for a NAME that the peer does not have")
	f.BoolVarP(&o.dryRun, "dry-run", "n", false,
		"only say what would be removed, or why not: this needs the right list or read at the peer")
	return c
}

// parseRmArgs reads ADDR/NAME..., or ADDR NAME...
func parseRmArgs(args []string, recursive bool) (addr string, names []string, err error) {
	first, err := parseTarget(args[0])
	if err != nil {
		return "", nil, err
	}
	if first.name == "" && !strings.HasSuffix(args[0], "/") {
		if len(args) == 1 {
			return "", nil, &usageError{fmt.Errorf("%s names no file: expected %s/NAME, and of unix://PATH/NAME that PATH is a socket", args[0], args[0])}
		}
		names = args[1:]
	} else {
		for _, a := range args {
			t, err := parseTarget(a)
			switch {
			case err != nil:
				return "", nil, err
			case t.addr != first.addr:
				return "", nil, &usageError{fmt.Errorf("%s is not at %s as %s is: expected names of one peer", a,
					first.addr, args[0])}
			}
			names = append(names, t.name)
		}
	}
	for _, n := range names {
		switch {
		case n == "":
			return "", nil, &usageError{fmt.Errorf("%s/ names everything that the peer serves, which rm does "+
				"not remove: expected the name of a file, or with -r of a directory, %s/DIR/", first.addr, first.addr)}
		case strings.HasSuffix(n, "/") && !recursive:
			return "", nil, &usageError{fmt.Errorf("%s names a directory: expected -r, which removes all files below "+
				"it, or a name without the slash", share.Printable(n))}
		}
	}
	return first.addr, names, nil
}

func runRm(ctx context.Context, s streams, o rmOptions, addr string, names []string) error {
	d := newDisplay(s, o.displayFlags)
	var r event
	err := func() error {
		c, err := o.dial(ctx, d, addr)
		if err != nil {
			return err
		}
		defer c.close()
		x := &removal{client: c, d: d, o: o, several: len(names) > 1 || strings.HasSuffix(names[0], "/")}
		if !x.several {
			r.Name = names[0]
		}
		x.names(ctx, names)
		failed := len(x.failures)
		r.Removed, r.Failed, r.Bytes = &x.removed, &failed, &x.bytes
		return x.end(ctx)
	}()
	return d.finish(ctx, r, err)
}

// removal is rm at work. Its methods are called by one goroutine.
type removal struct {
	*client
	d        *display
	o        rmOptions
	several  bool // a line at the end counts them
	removed  int
	bytes    uint64 // of removed files, as far as they are known
	failures []share.MirrorFile
	away     error // why it is no use to go on
}

// names removes the files of names, and all files below directories, in their order.
func (x *removal) names(ctx context.Context, names []string) {
	var files []share.Entry
	for _, n := range names {
		if !strings.HasSuffix(n, "/") {
			files = append(files, share.Entry{Name: n})
			continue
		}
		x.files(ctx, files, false)
		if files = nil; x.over(ctx) {
			return
		}
		x.begin(n)
		below, err := share.List(ctx, x.conn(), n)
		if err == nil && len(below) == 0 {
			err = &worded{fmt.Sprintf("%s serves nothing below %s", x.addr, share.Printable(n)), control.NotFound}
		}
		if err != nil {
			x.failed(ctx, n, err)
		}
		x.files(ctx, wholes(below), true)
	}
	x.files(ctx, files, false)
}

// over reports whether it is no use to go on.
func (x *removal) over(ctx context.Context) bool { return ctx.Err() != nil || x.away != nil }

// files removes files that were listed, or named by the user.
func (x *removal) files(ctx context.Context, files []share.Entry, listed bool) {
	if x.over(ctx) || len(files) == 0 {
		return
	}
	x.begin(files[0].Name)
	told := 0
	err := share.Remove(ctx, x.conn(), files, share.RemoveOptions{DryRun: x.o.dryRun,
		OnFile: func(e share.Entry, err error) {
			if told++; told < len(files) {
				x.begin(files[told].Name)
			}
			if err == nil {
				x.gone(e)
				return
			}
			if !listed && isNotFound(err) && !x.o.force {
				err = x.nothingAt(ctx, e.Name, err)
			}
			x.failed(ctx, e.Name, err)
		}})
	if told == len(files) { // each has its own error
		return
	}
	if errors.Is(err, share.ErrRefused) && (errors.Is(err, control.Unsupported) ||
		strings.Contains(err.Error(), "Options.Removable")) {
		// so the peer says
		err = &worded{fmt.Sprintf("%s lets no peer remove files: that needs penstock serve DIR --writable --removable",
			x.addr), err}
	}
	x.away = err
	x.failed(ctx, files[told].Name, err)
}

// gone accounts for a file that was removed.
func (x *removal) gone(e share.Entry) {
	x.moved()
	x.removed++
	x.bytes += e.Size
	would := ""
	if x.o.dryRun {
		would = "would "
	}
	x.d.event(event{Event: "file", Action: "remove", Name: e.Name, Bytes: &e.Size})
	x.d.print("%sremove %s", would, share.Printable(e.Name))
}

// nothingAt says of a name that is no file's what may have been meant.
func (x *removal) nothingAt(ctx context.Context, name string, err error) error {
	if below, lerr := share.Names(ctx, x.conn(), name+"/"); lerr == nil && len(below) > 0 {
		dir := share.Printable(name)
		return &worded{fmt.Sprintf("%s is a directory of the peer: penstock rm -r %s/%s/ removes all files below it",
			dir, x.addr, dir), err}
	}
	if x.several { // a line for each is enough
		return &worded{fmt.Sprintf("%s serves no %q", x.addr, name), err}
	}
	return nearNames(ctx, x.client, name, err)
}

// failed accounts for a name that was not removed.
func (x *removal) failed(ctx context.Context, name string, err error) {
	switch {
	case ctx.Err() != nil: // what an interruption cuts off has not failed
		return
	case isNotFound(err) && x.o.force:
		return
	case isLost(err):
		x.away = err
	}
	err = x.inWords(err)
	x.failures = append(x.failures, share.MirrorFile{Name: name, Action: share.MirrorFailed, Err: err})
	x.d.event(event{Event: "file", Action: "fail", Name: name, Error: err.Error()})
	if x.several && x.away == nil { // else the error of the command says so
		x.d.print("fail %s: %s", share.Printable(name), escapeControls(err.Error()))
	}
}

// end says how it ended.
func (x *removal) end(ctx context.Context) error {
	n := len(x.failures)
	if x.several {
		what := "removed"
		if x.o.dryRun {
			what = "would be removed"
		}
		text := fmt.Sprintf("%s: %s %s (%s)", x.addr, count(x.removed, "file", "files"), what, formatBytes(x.bytes))
		if n > 0 {
			text += fmt.Sprintf(", %d FAILED", n)
		}
		x.d.say("%s", text)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case x.away != nil:
		return x.failures[n-1].Err
	case n == 0:
		return nil
	case !x.several:
		return x.failures[0].Err
	}
	return allFailed(fmt.Errorf("%s failed, the first: %w", count(n, "name", "names"), x.failures[0].Err), x.failures)
}
