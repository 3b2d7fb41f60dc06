package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/tensor/npy"
	"github.com/spf13/cobra"
)

type getOptions struct {
	clientFlags
	displayFlags
	output   string
	noResume bool
	force    bool
	digest   string
}

func newGet(s streams) *cobra.Command {
	var o getOptions
	c := &cobra.Command{
		Use:   "get ADDR[/NAME]",
		Short: "Fetch a file or tensor",
		Long: `Fetches what the peer at ADDR serves under NAME, straight from the network into the file. Without NAME the peer must serve one
thing only. NAME may also be an argument of its own.

Until everything is there, checked and synced to the disk, the bytes are in a file named like the output with .partial behind it
(a name of more than 241 bytes is shortened before that); the output itself is never incomplete. When the command ends early, by
Ctrl-C, a killed peer, a full disk or anything else, the same command goes on where that one ended, if the peer still
has the same content; what is kept are whole parts of 4 MiB from the beginning on. A peer that is lost on the way is waited for (--retry).

The file has the modification time and the permissions that it has at the peer, minus the umask; what is replaced keeps its
permissions.

Without -o the file gets the last part of NAME; -o - writes the bytes to the standard output. A tensor comes as its bytes alone, but to a
FILE that ends with .npy as a file for numpy, if numpy has the type; --digest is of the bytes.`,
		Example: `  penstock get 127.0.0.1:7070/model.safetensors
  penstock get 127.0.0.1:7070/layers.0.weight -o weight.bin
  penstock get unix:///run/penstock.sock/data.npy -o - | sha256sum
  penstock get 127.0.0.1:7070/model.safetensors --json --digest`,
		Args: argsBetween(1, 2, "ADDR[/NAME], or ADDR and NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := parseTargetArgs(args)
			if err != nil {
				return err
			}
			return runGet(c.Context(), s, o, t)
		},
		ValidArgsFunction: completeRemote(s, &o.clientFlags, 0),
	}
	o.clientFlags.add(c)
	o.displayFlags.add(c)
	o.addLimit(c)
	f := c.Flags()
	f.StringVarP(&o.output, "output", "o", "",
		"the `FILE` to make; - is the standard output; a directory gets a file named after NAME")
	f.BoolVar(&o.noResume, "no-resume", false, "start from the beginning, whatever an earlier attempt has left")
	f.BoolVarP(&o.force, "force", "f", false, "replace the output if it exists, when everything is there")
	f.StringVar(&o.digest, "digest", "", "print the SHA-256; with =`HEX`, fail unless it is that one")
	f.Lookup("digest").NoOptDefVal = "print"
	return c
}

// check looks at flags that contradict each other.
func (o *getOptions) check() error {
	if err := checkDigest(o.digest); err != nil {
		return err
	}
	if o.output == "-" {
		switch {
		case o.json:
			return &usageError{errors.New("--json and -o -: both want the standard output")}
		case o.noResume || o.force:
			return &usageError{errors.New("--no-resume and --force are for files, not for -o -")}
		}
	}
	return o.clientFlags.check()
}

func runGet(ctx context.Context, s streams, o getOptions, t target) error {
	if err := o.check(); err != nil {
		return err
	}
	d := newDisplay(s, o.displayFlags)
	var r event
	err := func() error {
		c, err := o.dial(ctx, d, t.addr)
		if err != nil {
			return err
		}
		defer c.close()
		if t.name = strings.TrimRight(t.name, "/"); t.name == "" {
			if t.name, err = onlyName(ctx, c); err != nil {
				return err
			}
		}
		if o.output == "-" {
			r, err = c.stream(ctx, s.out, d, o, t.name)
		} else {
			r, err = c.fetch(ctx, d, o, t.name)
		}
		if isNotFound(err) {
			err = nearNames(ctx, c, t.name, err)
		}
		return c.inWords(err)
	}()
	return d.finish(ctx, r, err)
}

// onlyName is the name of the one thing that a peer serves.
func onlyName(ctx context.Context, c *client) (string, error) {
	entries, err := share.Names(ctx, c.conn(), "")
	if err != nil {
		return "", err
	}
	entries = wholes(entries)
	switch len(entries) {
	case 0:
		return "", &worded{fmt.Sprintf("%s serves nothing that you may see", c.addr), errNothing}
	case 1:
		return entries[0].Name, nil
	}
	names := make([]string, 0, 5)
	for _, e := range entries[:min(len(entries), cap(names))] {
		names = append(names, share.Printable(e.Name))
	}
	more := ""
	if len(entries) > len(names) {
		more = ", ..."
	}
	return "", &usageError{fmt.Errorf("%s serves %d things: say which, as ADDR/NAME: %s%s", c.addr, len(entries),
		strings.Join(names, ", "), more)}
}

// wholes leaves out what is a part of something else: the tensors of a file.
func wholes(entries []share.Entry) (out []share.Entry) {
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name] = true
	}
next:
	for _, e := range entries {
		for i := range e.Name {
			if e.Name[i] == '/' && names[e.Name[:i]] {
				continue next
			}
		}
		out = append(out, e)
	}
	return out
}

// outputFor is the path of the file for a name: what the user said, or the name's last part.
func outputFor(output, name string) (string, error) {
	if output != "" {
		if fi, err := os.Stat(output); err != nil || !fi.IsDir() {
			return output, nil
		}
	}
	p, err := share.PathOf(name[strings.LastIndexByte(name, '/')+1:])
	if err != nil {
		return "", fmt.Errorf("%w; -o FILE gives it another name", err)
	}
	return filepath.Join(output, p), nil
}

// getAnew is how often get restarts when the content changes meanwhile: tensors of a stream do
// so all the time.
const getAnew = 8

// fetch gets one name into a file.
func (c *client) fetch(ctx context.Context, d *display, o getOptions, name string) (event, error) {
	out, err := outputFor(o.output, name)
	if err != nil {
		return event{}, err
	}
	r := event{Name: name, File: out}
	c.begin(name)
	opt := share.FetchOptions{Output: out, Overwrite: o.force, NoResume: o.noResume, Restarts: getAnew, Like: true,
		Progress: c.progress(d)}
	opt.Digest, opt.Expect = o.digest != "", expected(o.digest)
	if isNpy(out) {
		opt.Header = npyHeader
	}
	f, err := share.Fetch(ctx, c.conn(), name, opt)
	took, rate := d.end()
	if err != nil {
		if wrong, ok := errors.AsType[*share.DigestError](err); ok {
			r.SHA256, r.File = hex.EncodeToString(wrong.Got[:]), wrong.Kept
			before := ""
			if _, err := os.Lstat(out); err == nil {
				before = "; " + share.Printable(out) + " is as it was"
			}
			err = &worded{fmt.Sprintf("%s: the SHA-256 is %s, which is not the expected one; what came is kept as %s%s",
				share.Printable(name), r.SHA256, wrong.Kept, before), err}
			return r, err
		}
		return r, o.replaces(partially(err), out)
	}
	r.fetched(f, took, rate)
	d.summary(out, r)
	return r, nil
}

func isNpy(file string) bool { return strings.EqualFold(filepath.Ext(file), ".npy") }

// npyHeader is what a file for numpy begins with, of what is a tensor at the peer.
func npyHeader(e share.Entry) ([]byte, error) {
	if e.Tensor == nil {
		return nil, nil
	}
	h, err := npy.Header(*e.Tensor)
	if err != nil {
		err = &worded{fmt.Sprintf("%v; -o FILE with another ending gets the bytes as they are", err), err}
	}
	return h, err
}

// replaces says how to get a file in the place of one that is there.
func (o *getOptions) replaces(err error, out string) error {
	if fi, serr := os.Lstat(out); !errors.Is(err, share.ErrExists) || o.force || serr != nil || fi.IsDir() {
		return err
	}
	return &worded{fmt.Sprintf("%s exists already: --force replaces it, -o FILE gives another name",
		share.Printable(out)), err}
}

// progress shows how far one file is.
func (c *client) progress(d *display) func(share.Progress) {
	begun, far := false, uint64(0)
	return func(p share.Progress) {
		if !begun {
			begun = true
			d.began(p.Name, p.File, p)
		}
		if p.Bytes > far {
			far = p.Bytes
			c.moved()
		}
		d.update(func(s *status) { s.done, s.total, s.path, s.problem = p.Bytes, p.Size, p.Via, "" })
	}
}

// fetched makes the result of what a fetch or a stream did.
func (e *event) fetched(f *share.Fetched, took time.Duration, rate float64) {
	e.Bytes, e.From, e.Path, e.BytesPerSecond = &f.Size, f.Resumed, f.Path, rate
	e.seconds(took)
	if f.SHA256 != nil {
		e.SHA256 = hex.EncodeToString(f.SHA256[:])
	}
}

// expected is the SHA-256 that the flag --digest asks for; nil if it asks for none.
func expected(flag string) *[32]byte {
	b, err := hex.DecodeString(flag)
	if err != nil || len(b) != sha256.Size {
		return nil
	}
	return (*[32]byte)(b)
}

// checkDigest looks at the flag --digest.
func checkDigest(flag string) error {
	if flag != "" && flag != "print" && expected(flag) == nil {
		return &usageError{fmt.Errorf("--digest=%s: expected 64 hexadecimal digits, or --digest alone", flag)}
	}
	return nil
}

func (e *event) seconds(d time.Duration) {
	s := d.Seconds()
	e.Seconds = &s
}
