package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	digest   string
}

func newPut(s streams) *cobra.Command {
	var o putOptions
	c := &cobra.Command{
		Use:   "put FILE ADDR[/NAME]",
		Short: "Leave a file at a peer",
		Long: `Puts a file to the peer at ADDR, which must serve a directory with --writable, under NAME, or under the file's own name. A NAME
that ends with a slash is a directory to put it in.

The peer has the file when the command succeeds: checked, synced and under its name. Until then it keeps the part that was checked
apart; when the command ends early, the same command goes on from there. A peer that is lost on the way is waited for (--retry).`,
		Example: `  penstock put checkpoint.safetensors 127.0.0.1:7070
  penstock put checkpoint.safetensors 127.0.0.1:7070/run7/step1000.safetensors
  penstock put weights.npy unix:///run/penstock.sock/incoming/ --force`,
		Args: argsBetween(2, 3, "a file and ADDR[/NAME]"),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := parseTargetArgs(args[1:])
			if err != nil {
				return err
			}
			if t.name == "" || strings.HasSuffix(t.name, "/") {
				t.name += filepath.Base(args[0])
			}
			return runPut(c.Context(), s, o, args[0], t)
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return completeFiles(c, args, typed)
			}
			return completeRemote(s, &o.clientFlags, 1)(c, args, typed)
		},
	}
	o.clientFlags.add(c)
	o.displayFlags.add(c)
	f := c.Flags()
	f.BoolVar(&o.noResume, "no-resume", false, "begin anew, whatever an earlier attempt has left at the peer")
	f.BoolVarP(&o.force, "force", "f", false, "replace what the peer has under the name, when everything is there")
	f.StringVar(&o.digest, "digest", "", "print the SHA-256, which the peer compares too; with =`HEX`, send nothing unless it is that one")
	f.Lookup("digest").NoOptDefVal = "print"
	return c
}

func runPut(ctx context.Context, s streams, o putOptions, file string, t target) error {
	if err := checkDigest(o.digest); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	d := newDisplay(s, o.displayFlags)
	r := event{Name: t.name, File: file}
	err := func() error {
		fi, err := os.Stat(file) // before the peer is asked
		if err != nil {
			return err
		}
		if !fi.Mode().IsRegular() {
			return &worded{fmt.Sprintf("%s is not a plain file: put takes one file at a time", share.Printable(file)), share.ErrUnsafe}
		}
		c, err := o.dial(ctx, d, t.addr)
		if err != nil {
			return err
		}
		defer c.close()
		return c.inWords(c.upload(ctx, d, o, file, t.name, &r))
	}()
	return d.finish(ctx, r, err)
}

func (c *client) upload(ctx context.Context, d *display, o putOptions, file, name string, r *event) error {
	c.begin(name)
	opt := share.UploadOptions{Overwrite: o.force, NoResume: o.noResume, Progress: c.progress(d)}
	opt.Digest, opt.Expect = o.digest != "", expected(o.digest)
	sent, err := share.Upload(ctx, c.conn(), file, name, opt)
	took, rate := d.end()
	if err != nil {
		if wrong, ok := errors.AsType[*share.DigestError](err); ok {
			r.SHA256 = hex.EncodeToString(wrong.Got[:])
			return &worded{fmt.Sprintf("%s: the SHA-256 is %s, which is not the expected one; nothing was sent", share.Printable(file), r.SHA256), err}
		}
		switch {
		case errors.Is(err, share.ErrExists) && strings.HasSuffix(err.Error(), " is a directory"): // so the peer says
			dir := share.Printable(name)
			return &worded{fmt.Sprintf("%s exists already as a directory of the peer: %s/%s/ puts the file into it", dir, c.addr, dir), err}
		case errors.Is(err, share.ErrExists) && !o.force:
			return &worded{fmt.Sprintf("the peer has %s already: --force replaces it", share.Printable(name)), err}
		case errors.Is(err, share.ErrRefused) && errors.Is(err, control.Unsupported):
			return &worded{fmt.Sprintf("%s takes no files: that needs penstock serve DIR --writable; the upload was refused", c.addr), err}
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

// farDisk tells a peer's disk from this machine's: for the exit status, a peer without room is one to ask again later.
func farDisk(err error) error {
	if errors.Is(err, share.ErrNoSpace) || errors.Is(err, share.ErrBusy) {
		return &busyPeer{err}
	}
	return err
}

// busyPeer is an error about the peer's disk, although the error itself reads like one about a disk of this machine.
type busyPeer struct{ err error }

func (e *busyPeer) Error() string { return e.err.Error() }
func (e *busyPeer) Unwrap() []error {
	return []error{control.Busy, e.err}
}
