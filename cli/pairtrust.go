package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/spf13/cobra"
)

// exactly is for commands with one argument.
func exactly(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 || args[0] == "" {
			return &usageError{fmt.Errorf("expected %s", what)}
		}
		return atMostOne(args)
	}
}

func newPairTrust(s streams) *cobra.Command {
	var p pairing
	c := &cobra.Command{
		Use:   "trust FILE",
		Short: "Trust the nodes of another authority too",
		Long: `Adds the root certificates of a file, such as another machine's ca.pem, to those that this machine trusts. This is how a
fleet moves from one authority to the next without a break (docs/security.md). Programs that run take it up by themselves. The
rules stay as they are and go by name, whichever of the authorities gave it.`,
		Args: exactly("a file with root certificates, or - for standard input"),
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := p.directory()
			if err != nil {
				return err
			}
			b, err := readSmall(s, args[0])
			if err != nil {
				return err
			}
			c, err := identity.Trust(dir, b)
			if err != nil {
				return err
			}
			return p.print(s, contentsEvent("trusted", c), trust(c, time.Now())+
				"\nThe rules go by name: a node of any of these authorities has what they give to its name.\n")
		},
	}
	p.flags(c)
	return c
}

// readSmall reads a file of at most 1 MiB, or standard input for "-".
func readSmall(s streams, name string) ([]byte, error) {
	in := s.in
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	const most = 1 << 20
	b, err := io.ReadAll(io.LimitReader(in, most+1))
	if err != nil {
		return nil, err
	}
	if len(b) > most {
		return nil, fmt.Errorf("%s has more than %d bytes; that is not what was expected", name, most)
	}
	return b, nil
}

func newPairDistrust(s streams) *cobra.Command {
	var p pairing
	c := &cobra.Command{
		Use:   "distrust SHA256",
		Short: "Trust the nodes of an authority no longer",
		Long: `Removes a root certificate, by the first 8 or more digits of its SHA-256 as "penstock pair show" prints it. The root of
this machine's own certificate stays.`,
		Args: exactly("the SHA-256 of a root certificate, as \"penstock pair show\" prints it"),
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := p.directory()
			if err != nil {
				return err
			}
			c, err := identity.Distrust(dir, strings.ToLower(args[0]))
			if err != nil {
				return err
			}
			return p.print(s, contentsEvent("distrusted", c), trust(c, time.Now()))
		},
	}
	p.flags(c)
	return c
}

func newPairAllow(s streams) *cobra.Command {
	var p pairing
	c := &cobra.Command{
		Use:   "allow NAME RIGHTS",
		Short: "Say what a node may do here",
		Long: `Writes a rule to the file of rules of this machine: the node of this name may do what RIGHTS says, which is read, write, list, status
with commas between them, or all, or none. NAME may be a pattern, in which one * stands for any characters. The first rule that
matches a name holds: a rule of exactly this NAME is changed, else one is added above the first that matches all of NAME, or behind
the others. The rights are for everything that this machine serves. Programs that run take it up within a second, but not those with a
file of rules of their own (--policy), which has the same lines. A node that was denied is admitted again by "penstock pair undeny".

  penstock pair allow gpu-7 read,list
  penstock pair allow 'gpu-*' all`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) < 2:
				return &usageError{errors.New("expected the name of a node and its rights: read, write, list, status " +
					"with commas between them; all; none")}
			case len(args) > 2:
				return &usageError{fmt.Errorf("unexpected argument %q", args[2])}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			dir, had, err := p.contents()
			if err != nil {
				return err
			}
			rights, err := identity.ParseRights(args[1])
			if err == nil {
				_, err = identity.Allow(dir, args[0], rights)
			}
			if errors.Is(err, identity.ErrPolicy) {
				return &usageError{err}
			}
			if err != nil {
				return err
			}
			c, err := identity.Inspect(dir)
			if err != nil {
				return err
			}
			text := fmt.Sprintf("The rules are now, and the first that matches holds:\n\n%v", c.Rules)
			if rule, ok := had.Rules.Rule(args[0]); ok && rule.Pattern != args[0] {
				text += fmt.Sprintf("\nThe new rule stands above \"allow %s %v\", which matched %s until now.\n",
					rule.Pattern,
					rule.Rights, args[0])
			}
			return p.print(s, contentsEvent("allowed", c), text)
		},
	}
	p.flags(c)
	return c
}

func newPairDeny(s streams) *cobra.Command {
	return pairDenial(s, identity.Deny, "denied", &cobra.Command{
		Use:   "deny NAME | deny --serial SERIAL",
		Short: "Refuse a node, or one certificate, from now on",
		Long: `Adds a line to the file of rules of this machine, so that the node of this name, or the certificate of this serial number
("penstock pair list" has them), gets no further connection. Programs that run take it up within a second, also those with a file of
rules of their own (--policy). Other machines have files of their own: run it there too (docs/security.md).`,
	})
}

func newPairUndeny(s streams) *cobra.Command {
	return pairDenial(s, identity.Undeny, "undenied", &cobra.Command{
		Use:   "undeny NAME | undeny --serial SERIAL",
		Short: "Admit a node again that was denied",
		Long: `Removes what "penstock pair deny" wrote, from the file of rules of this machine: NAME or SERIAL as it was given there. The node has
again what the other rules say. All its certificates hold again: where a key was stolen, deny the serial number of that one first.`,
	})
}

// pairDenial is a command that edits the denials of a directory.
func pairDenial(s streams, edit func(dir, name, serial string) (*identity.Rules, error), what string,
	c *cobra.Command) *cobra.Command {
	var p pairing
	var serial bool
	c.Args = exactly("the name of a node, in which one * may stand for any characters")
	c.RunE = func(_ *cobra.Command, args []string) error {
		dir, err := p.directory()
		if err != nil {
			return err
		}
		name, number := args[0], ""
		if serial {
			name, number = "", args[0]
		}
		rules, err := edit(dir, name, number)
		if errors.Is(err, identity.ErrPolicy) {
			return &usageError{err}
		}
		if err != nil {
			return err
		}
		c, err := identity.Inspect(dir)
		if err != nil {
			return err
		}
		return p.print(s, contentsEvent(what, c),
			fmt.Sprintf("The rules are now:\n\n%v\nOther machines have rules of their own: run this there too.\n",
				rules))
	}
	p.flags(c)
	c.Flags().BoolVar(&serial, "serial", false, "NAME is the serial number of a certificate")
	return c
}
