package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/spf13/cobra"
)

func (p *pairing) codeFlag(c *cobra.Command) {
	c.Flags().StringVar(&p.code, "code", "", "`FILE` with the code, or - for standard input (default: asks for it)")
}

var errCodeInArguments = &usageError{errors.New("there is a code in the arguments, where every user of this machine " +
	"can see it, so it is burned. " +
	"End \"penstock pair --listen\" on the other machine with Ctrl-C and run it again for a new code. " +
	"Here run: penstock pair ADDRESS, which asks for the code, or reads it from --code FILE or --code - " +
	"(standard input)")}

// noCode refuses arguments with a code in them, and more than one argument.
func noCode(args []string) error {
	for _, a := range args {
		if strings.Contains(a, "#") || identity.LooksLikeCode(a) {
			return errCodeInArguments
		}
	}
	return atMostOne(args)
}

// readCode is the code from a file, from standard input or from a person.
func (p *pairing) readCode(ctx context.Context, s streams, address string) (string, error) {
	switch {
	case strings.Contains(p.code, "#") || identity.LooksLikeCode(p.code):
		return "", errCodeInArguments
	case p.code == "-":
		b, err := readSmall(s, "-")
		if err != nil {
			return "", fmt.Errorf("--code -: %w", err)
		}
		return strings.TrimSpace(string(b)), nil
	case p.code != "":
		if fi, err := os.Stat(p.code); err == nil && fi.Mode().Perm()&0o077 != 0 {
			fmt.Fprintf(s.err, "warning: others can read %s (mode %04o), and it holds the code\n", p.code,
				fi.Mode().Perm())
		}
		b, err := readSmall(s, p.code)
		if err != nil {
			return "", fmt.Errorf("--code: %w", err)
		}
		return strings.TrimSpace(string(b)), nil
	}
	terminal := s.terminal()
	if terminal == nil {
		return "", &usageError{errors.New("there is no terminal to ask for the code on; expected --code FILE, or " +
			"--code - for standard input")}
	}
	line, err := askLine(ctx, terminal, fmt.Sprintf("The code that %s printed (it is not shown): ", address), false)
	return strings.TrimSpace(line), err
}

// join is the second machine.
func (p *pairing) join(ctx context.Context, s streams, address string, rules grant) error {
	if p.yes || p.fingerprint != "" {
		return &usageError{errors.New("--yes and --fingerprint are for the first machine, which confirms this one")}
	}
	if err := identity.CheckAddress(address); err != nil {
		if with := net.JoinHostPort(strings.Trim(address, "[]"), "7071"); identity.CheckAddress(with) == nil {
			err = fmt.Errorf("address %q: expected the port that the first machine printed too, such as %s", address,
				with)
		}
		return &usageError{err}
	}
	dir, err := p.directory()
	if err != nil {
		return err
	}
	rules.dir = dir
	name := p.name
	if name == "" {
		switch c, err := identity.Inspect(dir); {
		case err == nil:
			name = c.Self.Name
		case !errors.Is(err, identity.ErrMissing):
			return err
		default:
			if name, err = hostName(); err != nil {
				return err
			}
		}
	}
	if err := identity.CheckName(name); err != nil {
		return &usageError{fmt.Errorf("--name: %w", err)}
	}
	code, err := p.readCode(ctx, s, address)
	if err != nil {
		return err
	}
	v, err := identity.ParseInvitation(address, code)
	if err != nil {
		return &usageError{err}
	}
	host, rule := "", identity.Rule{}
	c, err := identity.Join(ctx, v, dir, name, identity.JoinOptions{
		Waiting: func(fingerprint string) {
			p.print(s, pairEvent{Event: "waiting", Dir: dir, Address: address, Key: fingerprint},
				fmt.Sprintf("The code is right. %s has to confirm the key of this machine, %s:\n\n  fingerprint  %s\n\n", address, name, grouped(fingerprint)))
		},
		Joined: func(h string) (err error) {
			host = h
			rule, err = rules.write(h)
			return err
		},
	})
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w: this machine is not paired", errInterrupted)
	}
	if err != nil {
		return err
	}
	at, _, _ := net.SplitHostPort(address)
	at = net.JoinHostPort(at, defaultPort)
	e := contentsEvent("paired", c)
	e.Host, e.Address, e.Allowed = host, address, allowedJSON(rule)
	return p.print(s, e, fmt.Sprintf("Paired with %s at %s.\n\n%s\n%s\nNext: penstock serve FILE|DIR --listen tcp://%s   on %s\n      penstock ls tcp://%s@%s%s   here\n",
		host, address, trust(c, time.Now()), p.mayHere(host, rule), at, host, host, at, p.identityFlag()))
}

// grant is what the other machine of a pairing gets to do here.
type grant struct {
	dir    string
	rights identity.Rights
	keep   bool // a rule that matches its name already stays
	leave  bool // no rule is written
}

// grant is what the flags say. Rights that the flag names replace those of a rule; the default does
// not.
func (p *pairing) grant(c *cobra.Command) (g grant, err error) {
	if g.rights, err = identity.ParseRights(p.allow); err != nil {
		return g, &usageError{fmt.Errorf("--allow: %w", err)}
	}
	g.keep = !c.Flags().Changed("allow")
	g.dir, err = p.directory()
	return g, err
}

// preview is the rule that write would return.
func (g grant) preview(name string) (identity.Rule, error) {
	c, err := identity.Inspect(g.dir)
	if err != nil {
		return identity.Rule{}, err
	}
	rule, ok := c.Rules.Rule(name)
	switch {
	case g.leave && !ok:
		return identity.Rule{Rights: c.Rules.Rights(name)}, nil
	case ok && (g.keep || g.leave):
		return rule, nil
	case ok && rule.Pattern != name && rule.Rights != g.rights:
		return rule, fmt.Errorf("--allow %v: %s gets %s here; change that rule first, or leave --allow out", g.rights,
			name, ruleWords(rule))
	}
	return identity.Rule{Pattern: name, Rights: g.rights}, nil
}

// write writes the rule for a machine and returns the one that holds.
func (g grant) write(name string) (identity.Rule, error) {
	if g.leave {
		return g.preview(name)
	}
	return identity.Introduce(g.dir, name, g.rights, g.keep)
}

func ruleWords(r identity.Rule) string {
	if r.Pattern == "" {
		return fmt.Sprintf("%v (no rule matches)", r.Rights)
	}
	return fmt.Sprintf("%v (by the rule \"allow %s %v\")", r.Rights, r.Pattern, r.Rights)
}

func allowedJSON(r identity.Rule) *allowed { return &allowed{r.Pattern, r.Rights.String()} }

// mayHere says what a machine may do here now, and how to change it.
func (p *pairing) mayHere(name string, r identity.Rule) string {
	return fmt.Sprintf("%s may do here: %s\nChange it with: penstock pair allow %s RIGHTS%s\n", name, ruleWords(r),
		name, p.dirFlag())
}
