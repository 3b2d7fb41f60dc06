package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/spf13/cobra"
)

type putOptions struct {
	clientFlags
	displayFlags
	noResume bool
	force    bool
	dryRun   bool
	digest   string
	parallel int
	filter   share.Filter
	chosen   bool // by --include or --exclude
}

// standardInput is the source that stands for it.
const standardInput = "-"

func newPut(s streams) *cobra.Command {
	var o putOptions
	c := &cobra.Command{
		Use:   "put SRC... ADDR[/NAME]",
		Short: "Upload files to a peer",
		Long: `Puts a file to the peer at ADDR, which must serve a directory with --writable, under NAME, or under the file's own name. A NAME
that ends with a slash is a directory to put it in. SRC - is the standard input, which needs a NAME: it is written to an unnamed file
in TMPDIR (or /tmp) first, for its size must be known. So is a file whose size only reading it says, as those of /proc; below a directory,
such a file fails.

A directory is put with all files below it, under its own name; DIR/ puts what is in it without that name. Several SRC go into
NAME/, which ends with a slash then. One directory goes under NAME instead of its own name, or with its own name into NAME/:

  put run7 ADDR         run7/...         put run7/ ADDR         ...
  put run7 ADDR/a       a/...            put run7/ ADDR/a       a/...
  put run7 ADDR/a/      a/run7/...       put run7/ ADDR/a/      a/...

Below a directory, files whose names begin with a dot are put, too. Links, pipes and devices are left out: each is named, the others are put,
and the status is 1 unless --exclude names them. Penstock's own files (.penstock-mirror, partial files with their state) are not
put. A directory with nothing in it is made. What the peer has already under the same name with the same content is kept. The peer compares
small files with what comes; of a large one both sides compute the SHA-256. With another content that file fails, unless --force replaces
it; the other files are put all the same. One line is printed for each file; on a terminal, one line with the count and the
remaining time stands for those that are put.

` + patternHelp + ` Names are those below a directory SRC.

A file has the modification time and the permissions that it has here, minus the peer's umask; what is replaced keeps its
permissions. The peer has a file when it is checked, synced and under its name. Until then it keeps the part that was checked apart; when the
command ends early, the same command goes on from there, but for the standard input. A peer that is lost on the way is waited for (--retry).`,
		Example: `  penstock put checkpoint.safetensors 127.0.0.1:7070
  penstock put checkpoint.safetensors 127.0.0.1:7070/run7/step1000.safetensors
  penstock put weights.npy config.json unix:///run/penstock.sock/incoming/ --force
  penstock put run7 127.0.0.1:7070 --exclude '*.tmp' --limit 100MB
  penstock put - 127.0.0.1:7070/notes.txt < notes.txt`,
		Args: argsBetween(2, math.MaxInt, "files or directories, and ADDR[/NAME]"),
		RunE: func(c *cobra.Command, args []string) error {
			sources, t, err := parsePutArgs(args)
			if err != nil {
				return err
			}
			o.chosen = c.Flags().Changed("include") || c.Flags().Changed("exclude")
			return runPut(c.Context(), s, o, sources, t)
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			n := len(args)
			if t, err := parseTarget(typed); n > 0 && err == nil && !isHere(typed) &&
				(t.name != "" || strings.HasSuffix(typed, "/")) {
				return completeRemote(s, &o.clientFlags, n)(c, args, typed)
			}
			if n > 1 && !isHere(args[n-1]) { // an address, or nothing that put takes
				return completeRemote(s, &o.clientFlags, n-1)(c, args, typed)
			}
			return completeFiles(c, args, typed)
		},
	}
	o.clientFlags.add(c)
	o.displayFlags.add(c)
	o.addLimit(c)
	addFilter(c, &o.filter)
	f := c.Flags()
	f.BoolVar(&o.noResume, "no-resume", false,
		"start from the beginning, whatever an earlier attempt has left at the peer")
	f.BoolVarP(&o.force, "force", "f", false, "replace what the peer has under the name, when everything is there")
	f.BoolVarP(&o.dryRun, "dry-run", "n", false,
		"only say what would be put, by the names and contents that the peer has: it may refuse more")
	f.StringVar(&o.digest, "digest", "",
		"have the peer compare the SHA-256, and print that of one file; with =`HEX`, of one file, send nothing "+
			"unless it is that one")
	f.Lookup("digest").NoOptDefVal = "print"
	f.IntVar(&o.parallel, "parallel", 0,
		"how many files to put at once, 60 at most; 0: 4 large ones and, beside them, 16 of up to 256 KiB")
	return c
}

// isHere reports whether this machine has something under a path.
func isHere(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

// parsePutArgs reads SRC... ADDR[/NAME], or SRC... ADDR NAME.
func parsePutArgs(args []string) (sources []string, t target, err error) {
	last := len(args) - 1
	t, err = parseTarget(args[last])
	if before := args[last-1]; last > 1 && (err != nil || !isHere(before)) {
		if _, e := parseTarget(before); e == nil {
			t, err = parseTargetArgs(args[last-1:])
			return args[:last-1], t, err
		}
	}
	if e := swapped(args[0], args[last], "the address behind the files, penstock put FILE ADDR/NAME, or to fetch "+
		"penstock get ADDR/NAME"); e != nil {
		err = e
	}
	return args[:last], t, err
}

func runPut(ctx context.Context, s streams, o putOptions, sources []string, t target) error {
	if err := checkDigest(o.digest); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	if o.parallel < 0 || o.parallel > 60 {
		return &usageError{fmt.Errorf("--parallel %d: expected 0 to 60", o.parallel)}
	}
	several := len(sources) > 1 || o.chosen || o.dryRun
	stdin := slices.Contains(sources, standardInput)
	switch {
	case stdin && several:
		return &usageError{errors.New("- is the standard input: expected no other source, no --include, no --exclude " +
			"and no --dry-run beside it")}
	case o.dryRun && o.digest != "":
		return &usageError{errors.New("--dry-run and --digest: what is not put has no SHA-256 at the peer")}
	case stdin && (t.name == "" || strings.HasSuffix(t.name, "/")):
		return &usageError{fmt.Errorf("the standard input has no name: expected one behind the address, such as %s/NAME", t.addr)}
	}
	d := newDisplay(s, o.displayFlags)
	r := event{Name: t.name}
	if len(sources) == 1 {
		r.File = sources[0]
	}
	err := func() error {
		var tree []share.TreeSource
		if !stdin { // before the peer is asked
			fi, err := os.Stat(sources[0])
			if err != nil {
				return err
			}
			if several = several || fi.IsDir(); several {
				if tree, err = treeSources(sources, t.name); err != nil {
					return err
				}
				if expected(o.digest) != nil {
					return &usageError{fmt.Errorf("--digest=%s is for one file: expected --digest alone", o.digest)}
				}
			} else if t.name == "" || strings.HasSuffix(t.name, "/") {
				t.name += filepath.Base(sources[0])
				r.Name = t.name
			}
			if !several && !fi.Mode().IsRegular() {
				return notPlain(sources[0])
			}
		}
		c, err := o.dial(ctx, d, t.addr)
		if err != nil {
			return err
		}
		defer c.close()
		if several {
			return c.inWords(c.uploadTree(ctx, d, o, tree, &r))
		}
		return c.inWords(c.upload(ctx, s, d, o, sources[0], t.name, &r))
	}()
	return d.finish(ctx, r, err)
}

func notPlain(file string) error {
	return &worded{fmt.Sprintf("%s is no plain file and no directory: put - reads what comes out of a pipe or a device",
		share.Printable(file)), share.ErrUnsafe}
}

// treeSources says which names files and directories get below name; put's help has the rules.
func treeSources(sources []string, name string) (out []share.TreeSource, err error) {
	under := name == "" || strings.HasSuffix(name, "/")
	if len(sources) > 1 && !under {
		return nil, &usageError{fmt.Errorf("several sources go into a directory of the peer: expected a name that "+
			"ends with a slash, %s/", share.Printable(name))}
	}
	for _, s := range sources {
		fi, err := os.Stat(s)
		if err != nil {
			return nil, err
		}
		base := filepath.Base(s)
		to := share.TreeSource{Path: s, Name: name}
		switch dir := fi.IsDir(); {
		case !dir && !fi.Mode().IsRegular():
			return nil, notPlain(s)
		case !under && dir: // one directory, under another name
			to.Name += "/"
		case !under, dir && (strings.HasSuffix(s, "/") || base == "." || base == ".."): // the contents alone
		case dir:
			to.Name += base + "/"
		default:
			to.Name += base
		}
		out = append(out, to)
	}
	return out, nil
}

// spool copies what in has, which is called name, into a file without a name, for what is uploaded
// has a size and is mapped.
func spool(ctx context.Context, in io.Reader, name string) (*os.File, error) {
	f, err := os.CreateTemp("", "penstock-put-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	copied := make(chan error, 1)
	go func() { // nothing ends a read of a terminal or a pipe but the end of the process
		_, err := io.Copy(f, in)
		copied <- err
	}()
	select {
	case err = <-copied:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		f.Close()
		if ctx.Err() == nil {
			err = &worded{fmt.Sprintf("%s, on its way to a file in %s (TMPDIR names another directory): %v", name,
				os.TempDir(), err), err}
		}
		return nil, err
	}
	return f, nil
}

func (c *client) upload(ctx context.Context, s streams, d *display, o putOptions, file, name string, r *event) error {
	c.begin(name)
	opt := share.UploadOptions{Overwrite: o.force, NoResume: o.noResume, Progress: c.progress(d)}
	opt.Digest, opt.Expect = o.digest != "", expected(o.digest)
	read := func(in io.Reader, what string) (*share.Sent, error) { // to its end
		f, err := spool(ctx, in, what)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return share.UploadFile(ctx, c.conn(), f, name, opt)
	}
	var sent *share.Sent
	var err error
	if file == standardInput {
		if s.terminal() != nil {
			d.say("reading from the terminal: Ctrl-D at the beginning of a line ends it")
		}
		sent, err = read(s.in, "the standard input")
	} else {
		opt.Like = true
		sent, err = share.Upload(ctx, c.conn(), file, name, opt)
		if errors.Is(err, share.ErrSize) {
			f, oerr := os.Open(file)
			if oerr != nil {
				return oerr
			}
			defer f.Close()
			opt.Like = false // such a file has the time at which it was looked at
			sent, err = read(f, share.Printable(file))
		}
	}
	took, rate := d.end()
	if err != nil {
		if wrong, ok := errors.AsType[*share.DigestError](err); ok {
			r.SHA256 = hex.EncodeToString(wrong.Got[:])
			return &worded{fmt.Sprintf("%s: the SHA-256 is %s, which is not the expected one; nothing was sent",
				share.Printable(file), r.SHA256), err}
		}
		if in := c.putInWords(o, name, err); in != err {
			return in
		}
		return partially(farDisk(err))
	}
	r.Bytes, r.From, r.Path, r.BytesPerSecond = &sent.Size, sent.Resumed, sent.Path, rate
	if sent.SHA256 != nil {
		r.SHA256 = hex.EncodeToString(sent.SHA256[:])
	}
	r.seconds(took)
	d.summary(name, *r)
	return nil
}

// putInWords explains the fix of an upload error, if one is known.
func (c *client) putInWords(o putOptions, name string, err error) error {
	switch {
	case errors.Is(err, share.ErrExists) && strings.HasSuffix(err.Error(), " is a directory"): // so the peer says
		dir := share.Printable(name)
		return &worded{fmt.Sprintf("%s exists already as a directory of the peer: %s/%s/ puts the file into it", dir,
			c.addr, dir), err}
	case errors.Is(err, share.ErrExists) && !o.force:
		return &worded{fmt.Sprintf("the peer has %s already: --force replaces it", share.Printable(name)), err}
	case takesNothing(err):
		return &worded{fmt.Sprintf("%s takes no files: that needs penstock serve DIR --writable; the upload was refused", c.addr), err}
	}
	return err
}

// takesNothing reports whether the peer takes no uploads at all.
func takesNothing(err error) bool {
	return errors.Is(err, share.ErrRefused) && errors.Is(err, control.Unsupported)
}

// uploadTree uploads several files.
func (c *client) uploadTree(ctx context.Context, d *display, o putOptions, sources []share.TreeSource, r *event) error {
	to := c.addr
	if r.Name != "" {
		to += "/" + share.Printable(r.Name)
	}
	opt := share.TreeOptions{Overwrite: o.force, NoResume: o.noResume, Digest: o.digest != "", Filter: &o.filter,
		Parallel: o.parallel, DryRun: o.dryRun, Progress: c.progressOfMany(d, to)}
	opt.OnFile = func(f share.MirrorFile) {
		if isLost(f.Err) || takesNothing(f.Err) { // with all that are left: one line at the end says so
			return
		}
		if f.Err != nil {
			f.Err = c.putInWords(o, f.Name, f.Err)
		}
		d.mirrored(f, o.dryRun)
	}
	u, err := share.UploadTree(ctx, c.conn(), sources, opt)
	took, _ := d.end()
	if u == nil {
		return err
	}
	r.Sent, r.Kept, r.Failed, r.LeftOut, r.Bytes = &u.Sent, &u.Kept, &u.Failed, &u.LeftOut, &u.Moved
	r.seconds(took)
	sent := "sent"
	if o.dryRun {
		sent = "would be sent"
	}
	text := fmt.Sprintf("%s: %s %s (%s), %d kept", to, count(u.Sent, "file", "files"), sent, formatBytes(u.Moved),
		u.Kept)
	if u.LeftOut > 0 {
		text += fmt.Sprintf(", %d left out", u.LeftOut)
	}
	if u.Failed > 0 {
		text += fmt.Sprintf(", %d FAILED", u.Failed)
	}
	d.say("%s", text)
	switch {
	case err == nil && u.LeftOut > 0:
		return fmt.Errorf("%s left out: links, pipes and devices are not put; --exclude PATTERN leaves them out "+
			"without a failure", count(u.LeftOut, "file was", "files were"))
	case err != nil && errors.Is(err, ctx.Err()) && !o.dryRun:
		return &worded{d.left("there"), err}
	case takesNothing(err):
		return c.putInWords(o, "", err)
	}
	return allFailed(farDisk(err), u.Failures)
}

// farDisk tells a peer's disk from this machine's: for the exit status, a peer without room is one
// to ask again later.
func farDisk(err error) error {
	if errors.Is(err, share.ErrNoSpace) || errors.Is(err, share.ErrBusy) {
		return &busyPeer{err}
	}
	return err
}

// busyPeer is an error about the peer's disk, although the error itself reads like one about a disk
// of this machine.
type busyPeer struct{ err error }

func (e *busyPeer) Error() string { return e.err.Error() }
func (e *busyPeer) Unwrap() []error {
	return []error{control.Busy, e.err}
}
