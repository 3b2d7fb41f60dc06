package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/share"
	"github.com/spf13/cobra"
)

type mirrorOptions struct {
	clientFlags
	displayFlags
	prefix   string
	remove   bool
	dryRun   bool
	parts    bool
	links    bool
	force    bool
	checksum bool
	parallel int
	filter   share.Filter
}

func newMirror(s streams) *cobra.Command {
	var o mirrorOptions
	c := &cobra.Command{
		Use:   "mirror ADDR DIR",
		Short: "Make a directory hold what a peer serves",
		Long: `Fetches everything that the peer at ADDR serves into DIR, which is made if it is missing. What is there already and has not
changed on either side is kept, what an earlier run has left partial goes on from the last whole part of 4 MiB. Files in DIR that mirror did not make are not
touched without --force: a name that would need such a file's place fails. A listing may lack names, because the peer could not look at a file, or
has more files than it serves: what is listed is fetched, nothing is removed even with --delete, and the command fails.

A file has the modification time and the permissions that it has at the peer, minus the umask. Directories without files are made,
and --delete leaves them. With --keep-links, symbolic links are made as they are at the peer; one that leads out of DIR, has an absolute path, or goes up behind
a name is left out and listed. Without it, the peer leaves out all links, unless it follows them (serve --follow-links): then there are none to keep.
What the peer leaves out is no failure: it is listed, and with --quiet a warning says how much it is.

Files have the names that they have at the peer. A name that is dangerous as a path, such as one that leads out of DIR or has a control
character, is refused and counts as failed. One line is printed for each file that is fetched, removed or fails; on a terminal, one line with the count and the remaining time stands for those
that are fetched.

` + patternHelp + ` With --delete, names that are left out stay.`,
		Example: `  penstock mirror 127.0.0.1:7070 models
  penstock mirror 127.0.0.1:7070 models --prefix llama/ --delete
  penstock mirror 127.0.0.1:7070 models --include '*.safetensors' --exclude '*' --limit 100MB
  penstock mirror 127.0.0.1:7070 hub --keep-links
  penstock mirror 127.0.0.1:7070 models --dry-run`,
		Args: argsBetween(2, 2, "ADDR and a directory"),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := parseTarget(args[0])
			if err != nil {
				if e := swapped(args[1], args[0],
					"penstock mirror ADDR DIR to fetch, or penstock put DIR ADDR to upload"); e != nil {
					return e
				}
				return err
			}
			if t.name != "" {
				return &usageError{fmt.Errorf("%s: mirror takes an address without a name; for names that begin with "+
					"%q: --prefix", args[0], t.name)}
			}
			return runMirror(c.Context(), s, o, t.addr, args[1])
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveFilterDirs
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
	}
	o.clientFlags.add(c)
	o.displayFlags.add(c)
	o.addLimit(c)
	addFilter(c, &o.filter)
	f := c.Flags()
	f.StringVar(&o.prefix, "prefix", "", "only names that begin with this")
	f.BoolVar(&o.remove, "delete", false, "remove files that mirror made and that the peer does not have any more")
	f.BoolVarP(&o.dryRun, "dry-run", "n", false, "only say what would be done")
	f.BoolVarP(&o.force, "force", "f", false, "replace files that mirror did not make, or that were changed here")
	f.BoolVar(&o.checksum, "checksum", false,
		"compare contents, by the SHA-256, where a file of the same size is there and times are inconclusive, "+
			"before it "+
			"is fetched")
	f.BoolVar(&o.links, "keep-links", false,
		"make symbolic links as they are at the peer, such as those of a model hub's cache")
	f.BoolVar(&o.parts, "parts", false, "also fetch single tensors of files that are fetched anyway")
	f.IntVar(&o.parallel, "parallel", 0,
		"how many files to fetch at once, 100 at most; 0: 4 large ones and, beside them, 60 of up to 256 KiB")
	return c
}

// patternHelp is about --include and --exclude.
const patternHelp = `--include and --exclude choose names: the first PATTERN of the command line that matches decides, and a name that none matches is taken.
* stands for anything but a slash, ? for one character, [a-z] for one of these, and ** between slashes for any directories. A PATTERN without
a slash matches a component anywhere in the name; another one matches from the beginning. What matches a directory matches everything below
it; one that ends with a slash matches directories alone.`

func runMirror(ctx context.Context, s streams, o mirrorOptions, addr, dir string) error {
	if err := o.check(); err != nil {
		return err
	}
	if o.parallel < 0 || o.parallel > 256 {
		return &usageError{fmt.Errorf("--parallel %d: expected 0 to 256", o.parallel)}
	}
	d := newDisplay(s, o.displayFlags)
	r := event{File: dir}
	err := func() error {
		c, err := o.dial(ctx, d, addr)
		if err != nil {
			return err
		}
		defer c.close()
		return c.inWords(c.mirror(ctx, d, o, dir, &r))
	}()
	return d.finish(ctx, r, err)
}

func (c *client) mirror(ctx context.Context, d *display, o mirrorOptions, dir string, r *event) error {
	opt := share.MirrorOptions{Prefix: o.prefix, Filter: &o.filter, Delete: o.remove, Parallel: o.parallel,
		DryRun: o.dryRun, Force: o.force, Checksum: o.checksum, Parts: o.parts, KeepLinks: o.links,
		Progress: c.progressOfMany(d, dir)}
	opt.OnFile = func(f share.MirrorFile) {
		if isLost(f.Err) { // with all that are left: one line at the end says so
			return
		}
		d.mirrored(f, o.dryRun)
	}
	m, err := share.Mirror(ctx, c.conn(), dir, opt)
	took, _ := d.end()
	if m != nil {
		r.Fetched, r.Kept, r.Removed, r.Failed, r.LeftOut, r.Bytes = &m.Fetched, &m.Skipped, &m.Deleted, &m.Failed,
			&m.LeftOutTotal, &m.Moved
		r.seconds(took)
		would := ""
		if o.dryRun {
			would = "would be "
		}
		text := fmt.Sprintf("%s: %s %sfetched (%s), %d kept, %d %sremoved", share.Printable(dir),
			count(m.Fetched, "file", "files"), would, formatBytes(m.Moved), m.Skipped, m.Deleted, would)
		if m.Failed > 0 {
			text += fmt.Sprintf(", %d FAILED", m.Failed)
		}
		d.say("%s", text)
		d.leftOut("the peer leaves out", m.LeftOut, m.LeftOutTotal)
		switch {
		case err == nil:
			err = m.Incomplete
		case errors.Is(err, ctx.Err()) && !o.dryRun:
			return &worded{d.left("here"), err}
		}
	}
	if m == nil {
		return err
	}
	return allFailed(err, m.Failures)
}

// leftOut prints the first of what is not served, and how many there are: a warning where nothing
// else is printed.
func (d *display) leftOut(who string, list []share.Skipped, total int) {
	const most = 10
	if d.mode == displayQuiet && total > 0 {
		first := ""
		if len(list) > 0 {
			first = fmt.Sprintf(", the first: %s: %s", share.Printable(list[0].Path), escapeControls(list[0].Reason))
		}
		d.warn("%s %s%s; without -q they are listed, --exclude PATTERN passes over them", who,
			count(total, "name", "names"), first)
		return
	}
	for _, s := range list[:min(len(list), most)] {
		d.event(event{Event: "left out", Name: s.Path, Text: s.Reason})
		d.print("  %s: %s: %s", who, share.Printable(s.Path), escapeControls(s.Reason))
	}
	if more := total - most; more > 0 {
		d.print("  %s: %d more", who, more)
	}
}

// progressOfMany shows how far several files are, on their way to a place.
func (c *client) progressOfMany(d *display, to string) func(share.MirrorProgress) {
	begun, far := false, uint64(0)
	return func(p share.MirrorProgress) {
		if !begun {
			begun = true
			d.begin(status{what: share.Printable(to), name: to, done: p.BytesDone, total: p.Bytes})
		}
		if p.BytesDone > far {
			far = p.BytesDone
			c.moved()
		}
		d.update(func(s *status) {
			s.done, s.total, s.files, s.filesOf, s.failed, s.problem = p.BytesDone, p.Bytes, p.FilesDone, p.Files,
				p.FilesFailed, ""
			if p.Current.Name != "" {
				s.name, s.what = p.Current.Name, share.Printable(p.Current.Name)
			}
		})
	}
}

// left says how far several files are that were interrupted, and how to go on.
func (d *display) left(where string) string {
	if d.s.done == 0 {
		return "nothing is " + where + " yet that the same command could go on from"
	}
	return fmt.Sprintf("%s of %s are %s, checked: the same command goes on from there", formatBytes(d.s.done),
		formatBytes(d.s.total), where)
}

// allFailed is the error of several files of which some failed: with the status of the first only
// if all have the same.
func allFailed(err error, failures []share.MirrorFile) error {
	if err == nil || len(failures) == 0 {
		return err
	}
	first := exitStatus(failures[0].Err)
	for _, f := range failures {
		if exitStatus(f.Err) != first {
			return errors.New(err.Error())
		}
	}
	return err
}

// mirrored reports one file.
func (d *display) mirrored(f share.MirrorFile, dry bool) {
	actions := map[share.MirrorAction]string{share.MirrorFetched: "get", share.MirrorSkipped: "keep",
		share.MirrorDeleted: "remove", share.MirrorFailed: "fail",
		share.MirrorSent: "put", share.MirrorLeftOut: "skip"}
	action := actions[f.Action]
	e := event{Event: "file", Action: action, Name: f.Name, File: f.Path, Link: f.Link, Bytes: &f.Size}
	text := fmt.Sprintf("%s %s", action, share.Printable(cmp.Or(f.Path, f.Name)))
	if dry {
		text = "would " + text
	}
	moved := f.Action == share.MirrorFetched || f.Action == share.MirrorSent
	switch {
	case f.Link != "" && f.Action != share.MirrorFailed:
		text += " -> " + share.Printable(f.Link)
	case moved:
		text += ", " + formatBytes(f.Size)
	}
	if f.Err != nil {
		e.Error = fmt.Sprint(f.Err)
		text += ": " + escapeControls(e.Error)
	}
	d.event(e)
	if f.Action == share.MirrorLeftOut {
		d.say("%s", text)
		return
	}
	counted := moved && !dry && d.mode == displayTerminal && terminalWidth(d.out) > 0 // in the line of progress
	if f.Action != share.MirrorSkipped && !counted {
		d.print("%s", text)
	}
}
