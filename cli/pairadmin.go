package cli

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/spf13/cobra"
)

func newPairInit(s streams) *cobra.Command {
	var p pairing
	c := &cobra.Command{
		Use:   "init",
		Short: "Make an authority and this machine's certificate, and pair with no other machine yet",
		Long: `Makes what "penstock pair --listen" makes at first, without waiting for a machine. Others get their certificates by
"penstock pair --listen" or "penstock pair export". Where there is an authority, nothing changes.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := p.checkNew(); err != nil {
				return err
			}
			dir, err := p.directory()
			if err != nil {
				return err
			}
			contents, _, made, err := p.setup(dir)
			if err != nil {
				return err
			}
			return p.print(s, contentsEvent("identity", contents), madeText(made)+trust(contents, time.Now()))
		},
	}
	p.flags(c)
	c.Flags().StringVar(&p.name, "name", "", "of this machine's node (default: its host name)")
	c.Flags().DurationVar(&p.valid, "valid", identity.LeafValid, "how long the certificate is valid")
	return c
}

func newPairShow(s streams) *cobra.Command {
	var p pairing
	c := &cobra.Command{
		Use:   "show",
		Short: "Who this machine is, whom it trusts, and until when",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, c, err := p.contents()
			if err != nil {
				return err
			}
			return p.print(s, contentsEvent("identity", c), trust(c, time.Now()))
		},
	}
	p.flags(c)
	return c
}

func newPairList(s streams) *cobra.Command {
	var p pairing
	c := &cobra.Command{
		Use:   "list",
		Short: "The certificates that this machine's authority has issued",
		Long: `Lists each certificate that the authority of this machine has issued, oldest first: valid, ended, or denied by this
machine's own rules. Other machines deny by their own file (docs/security.md).`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			dir, c, err := p.contents()
			if err != nil {
				return err
			}
			a, err := identity.OpenAuthority(dir)
			if errors.Is(err, identity.ErrMissing) {
				return &worded{fmt.Sprintf("%s holds no authority; the machine that made this one's certificate has "+
					"the list", dir), identity.ErrMissing}
			}
			if err != nil {
				return err
			}
			issued, err := a.Issued()
			if err != nil {
				return err
			}
			now := time.Now()
			table := list{width: widthOf(s.out)}
			table.add("name", "serial", "until", "state")
			for _, i := range issued {
				state := "valid"
				switch {
				case !now.Before(i.NotAfter):
					state = "ended"
				case c.Rules.Denied(i.Name, i.Serial):
					state = "denied"
				}
				if p.json {
					e := pairEvent{Event: "certificate", Authority: true,
						Peer: &certificate{Name: i.Name, Serial: i.Serial, NotAfter: i.NotAfter.UTC(), State: state}}
					if err := p.print(s, e, ""); err != nil {
						return err
					}
				}
				table.add(i.Name, i.Serial, i.NotAfter.UTC().Format(time.DateOnly), state)
			}
			if p.json {
				return nil
			}
			return table.print(s.out)
		},
	}
	p.flags(c)
	return c
}

func newPairKey(s streams) *cobra.Command {
	var p pairing
	c := &cobra.Command{
		Use:   "key",
		Short: "Make the key of this machine's next pairing beforehand, and show its fingerprint",
		Long: `Prints the fingerprint of the key for which the next "penstock pair ADDRESS" or "penstock pair renew ADDRESS" on this machine asks
a certificate: for "penstock pair --listen ADDR --fingerprint SHA256" on the other one. The key stays here.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			dir, err := p.directory()
			if err != nil {
				return err
			}
			f, err := identity.NewKey(dir)
			if err != nil {
				return err
			}
			return p.print(s, pairEvent{Event: "key", Dir: dir, Key: f}, f+"\n")
		},
	}
	p.flags(c)
	return c
}

func newPairRenew(s streams) *cobra.Command {
	var p pairing
	c := &cobra.Command{
		Use:   "renew [ADDRESS]",
		Short: "A new key and certificate for this machine, before the old one ends",
		Long: `On the machine that has the authority: penstock pair renew.
On any other: run "penstock pair --listen ADDR --for NAME" there, with the name of this machine, and then
penstock pair renew ADDRESS here, which asks for the code. Programs that run take the new certificate up by themselves. The rules
stay as they are.`,
		Args: func(_ *cobra.Command, args []string) error { return noCode(args) },
		RunE: func(c *cobra.Command, args []string) error {
			dir, have, err := p.contents()
			if err != nil {
				return err
			}
			if len(args) == 1 {
				p.name = have.Self.Name
				return p.join(c.Context(), s, args[0], grant{leave: true})
			}
			if p.valid <= 0 {
				return &usageError{fmt.Errorf("--valid %v: expected more than 0", p.valid)}
			}
			a, err := identity.OpenAuthority(dir)
			if errors.Is(err, identity.ErrMissing) {
				return &usageError{fmt.Errorf("%s holds no authority: run \"penstock pair --listen ADDR --for %s\" "+
					"where it is, and then \"penstock pair renew ADDRESS\" here", dir, have.Self.Name)}
			}
			if err != nil {
				return err
			}
			if _, err := a.Renew(identity.IssueOptions{Valid: p.valid}); err != nil {
				return err
			}
			if have, err = identity.Inspect(dir); err != nil {
				return err
			}
			return p.print(s, contentsEvent("renewed", have), "Renewed.\n\n"+trust(have, time.Now()))
		},
	}
	p.flags(c)
	c.Flags().DurationVar(&p.valid, "valid", identity.LeafValid,
		"how long the new certificate is valid; without an address")
	p.codeFlag(c)
	return c
}

func newPairExport(s streams) *cobra.Command {
	var p pairing
	var file string
	var again bool
	c := &cobra.Command{
		Use:   "export NAME -o FILE",
		Short: "A file that makes a machine without a connection a node of this name",
		Long: `Makes a key and a certificate on this machine and writes them, with the authority's certificate, to one file for
"penstock pair import" on the other. The file holds a private key: a program that reads it can be that node. Carry it by a way that
you trust, and delete it afterwards. No rule is written: give NAME rights with "penstock pair allow". Where the machines can reach each other, use "penstock pair --listen" instead: then the
key never travels.

  penstock pair export gpu-7 -o - | ssh gpu-7 penstock pair import -`,
		Args: oneName,
		RunE: func(_ *cobra.Command, args []string) (err error) {
			if file == "" {
				return &usageError{errors.New("expected -o FILE, or -o - for standard output")}
			}
			if file == "-" && p.json {
				return &usageError{errors.New("--json needs standard output for itself; expected -o FILE")}
			}
			if p.valid <= 0 {
				return &usageError{fmt.Errorf("--valid %v: expected more than 0", p.valid)}
			}
			dir, err := p.directory()
			if err != nil {
				return err
			}
			a, err := identity.OpenAuthority(dir)
			if errors.Is(err, identity.ErrMissing) {
				return &worded{fmt.Sprintf("%s holds no authority; \"penstock pair --listen\" makes one", dir),
					identity.ErrMissing}
			}
			if err != nil {
				return err
			}
			if have, err := a.Has(args[0]); err != nil {
				return err
			} else if have && !again {
				return fmt.Errorf("a node %q has a certificate already; --again gives it another one", args[0])
			}
			rule, err := grant{dir: dir, leave: true}.preview(args[0])
			if err != nil {
				return err
			}
			may := p.mayHere(args[0], rule)
			if have, err := identity.Inspect(dir); err != nil {
				return err
			} else if have.Rules.Denied(args[0], "") {
				rule = identity.Rule{}
				may = fmt.Sprintf("%s is DENIED here, whatever other rules say. \"penstock pair show%s\" has the "+
					"rule, and "+
					"\"penstock pair undeny\" removes it.\n", args[0], p.dirFlag())
			}
			out := s.out
			if file != "-" {
				f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
				if err != nil {
					return err
				}
				defer func() {
					if err = errors.Join(err, f.Close()); err != nil {
						os.Remove(file)
					}
				}()
				out = f
			}
			b, peer, err := a.Export(args[0], identity.IssueOptions{Valid: p.valid})
			if err != nil {
				return err
			}
			if _, err := out.Write(b); err != nil {
				return err
			}
			fmt.Fprintln(s.err, "warning: this holds a private key; carry it safely and delete it when it is imported")
			if file == "-" {
				return nil
			}
			e := pairEvent{Event: "exported", Dir: dir, Authority: true, Peer: peerJSON(peer), File: file,
				Allowed: allowedJSON(rule)}
			return p.print(s, e,
				fmt.Sprintf("Exported %s, certificate %s, %s, to %s.\n%s\nNext, on that machine: penstock pair "+
					"import %s\n",
					peer.Name, peer.Serial, until(peer.NotAfter, time.Now()), file, may, file))
		},
	}
	p.flags(c)
	f := c.Flags()
	f.StringVarP(&file, "output", "o", "", "file to make, with mode 0600; - for standard output")
	f.DurationVar(&p.valid, "valid", identity.LeafValid, "how long the certificate is valid")
	f.BoolVar(&again, "again", false, "also when the name has a certificate that has not ended")
	return c
}

func oneName(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return &usageError{errors.New("expected the name of a node")}
	}
	if err := identity.CheckName(args[0]); err != nil {
		return &usageError{err}
	}
	return atMostOne(args)
}

func newPairImport(s streams) *cobra.Command {
	var p pairing
	c := &cobra.Command{
		Use:   "import FILE",
		Short: "Make this machine the node of a file that \"pair export\" wrote",
		Args:  exactly("a file, or - for standard input"),
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := p.directory()
			if err != nil {
				return err
			}
			if fi, err := os.Stat(args[0]); err == nil && fi.Mode().Perm()&0o077 != 0 {
				fmt.Fprintf(s.err, "warning: others can read %s (mode %04o), and it holds a private key\n", args[0],
					fi.Mode().Perm())
			}
			b, err := readSmall(s, args[0])
			if err != nil {
				return err
			}
			defer clear(b)
			c, err := identity.Import(dir, b)
			if err != nil {
				return err
			}
			text, next := "Imported.\n\n"+trust(c, time.Now())+"\n", "Next:"
			if args[0] != "-" {
				text += fmt.Sprintf("Next: rm %s   here and where it was made\n", args[0])
				next = "     "
			}
			text += fmt.Sprintf("%s penstock pair allow NAME RIGHTS%s   for what another node may do here\n", next,
				p.dirFlag())
			next = "     "
			text += fmt.Sprintf("%s penstock ls tcp://HOST:7070%s   when a node of the same authority serves there and allows it\n", next, p.identityFlag())
			return p.print(s, contentsEvent("imported", c), text)
		},
	}
	p.flags(c)
	return c
}
