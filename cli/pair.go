package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/spf13/cobra"
)

func newPair(s streams) *cobra.Command {
	var p pairing
	c := &cobra.Command{
		Use:   "pair [ADDRESS]",
		Short: "Make this machine and another one trust each other",
		Long: `Gives two machines a certificate each, of a small private authority, so that what they send each other is encrypted and
each knows who the other is. One command on each machine:

  penstock pair --listen :7071          on the first: makes the authority, prints its address and a code
  penstock pair ADDRESS                 on the second: asks for the code, makes a key, gets its certificate

Both show the fingerprint of the second machine's key, and the first asks whether it is the same: only then does it give the
certificate. The code names the authority, so no machine in between can stand in for it, and holds a secret that works once and for
ten minutes. It is never an argument, which every user of a machine can see. Keys stay on the machine that made them. Repeat for
each further machine; the authority is made only once.

Each side writes a rule with what the other may do here: --allow, by default to list and to read. Change it with
"penstock pair allow".

In scripts: --code FILE or --code - on the second machine, where the fingerprint is that of "penstock pair key"; --fingerprint with
it on the first, or --yes to take the first machine that knows the code.

The authority alone, such as in scripts: penstock pair init. Without a connection between the machines: penstock pair export and penstock pair import. All of it: docs/pairing.md.`,
		Args: func(_ *cobra.Command, args []string) error { return noCode(args) },
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case len(args) == 1 && p.listen != "":
				return &usageError{errors.New("--listen is for the first machine and the address for the second; " +
					"expected one of them")}
			case len(args) == 1:
				rules, err := p.grant(c)
				if err != nil {
					return err
				}
				return p.join(c.Context(), s, args[0], rules)
			case p.listen != "":
				rules, err := p.grant(c)
				if err != nil {
					return err
				}
				return p.host(c.Context(), s, rules)
			}
			return &usageError{errors.New("expected --listen HOST:PORT on the first machine, or the address that it " +
				"printed on the second")}
		},
	}
	p.flags(c)
	f := c.Flags()
	f.StringVar(&p.listen, "listen", "", "be the first machine: wait on this HOST:PORT; the host may be left out")
	f.StringVar(&p.address, "address", "",
		"with --listen: HOST or HOST:PORT at which the other machine reaches this one (default: found)")
	f.StringVar(&p.name, "name", "", "of this machine's node (default: its host name)")
	f.StringVar(&p.only, "for", "",
		"with --listen: the only name that may join, also when it has a certificate already")
	f.DurationVar(&p.timeout, "timeout", identity.PairingTimeout, "with --listen: how long to wait")
	f.DurationVar(&p.valid, "valid", identity.LeafValid, "with --listen: how long new certificates are valid")
	f.BoolVar(&p.yes, "yes", false, "with --listen: take the first machine that knows the code, without asking")
	f.StringVar(&p.fingerprint, "fingerprint", "",
		"with --listen: take the machine whose key has this `SHA256` and no other, without asking")
	f.StringVar(&p.allow, "allow", "read,list",
		"`RIGHTS` of the other machine here: read, write, list, status with commas between them; all; none")
	p.codeFlag(c)
	c.AddCommand(newPairInit(s), newPairShow(s), newPairList(s), newPairKey(s), newPairRenew(s), newPairExport(s),
		newPairImport(s),
		newPairTrust(s), newPairDistrust(s), newPairAllow(s), newPairDeny(s), newPairUndeny(s))
	return c
}

func atMostOne(args []string) error {
	if len(args) > 1 {
		return &usageError{fmt.Errorf("unexpected argument %q", args[1])}
	}
	return nil
}

// pairing are the flags of pair and its subcommands.
type pairing struct {
	dir     string
	json    bool
	listen  string
	address string
	name    string
	only    string
	timeout time.Duration
	valid   time.Duration

	yes         bool
	fingerprint string
	allow       string
	code        string
}

func (p *pairing) flags(c *cobra.Command) {
	c.Flags().StringVar(&p.dir, "dir", "",
		"directory of the identity (default: penstock in the user's configuration directory)")
	variable(c, "dir", "PENSTOCK_IDENTITY")
	c.Flags().BoolVar(&p.json, "json", false, "print one JSON object per line instead")
}

func (p *pairing) directory() (string, error) {
	switch p.dir {
	case "":
	case noIdentity: // of PENSTOCK_IDENTITY, or meant as that of --identity
		return "", &usageError{errors.New("--dir none: expected the directory of an identity, such as ./none")}
	default:
		return p.dir, nil
	}
	return identity.DefaultDir()
}

// contents is the directory and what is in it.
func (p *pairing) contents() (dir string, c identity.Contents, err error) {
	if dir, err = p.directory(); err == nil {
		c, err = identity.Inspect(dir)
	}
	return dir, c, err
}

// certificate is one as --json prints it.
type certificate struct {
	Name     string    `json:"name,omitempty"`
	Serial   string    `json:"serial,omitempty"`
	SHA256   string    `json:"sha256,omitempty"`
	NotAfter time.Time `json:"not_after"`
	State    string    `json:"state,omitempty"`
}

func peerJSON(p identity.Peer) *certificate {
	return &certificate{Name: p.Name, Serial: p.Serial, SHA256: p.Fingerprint, NotAfter: p.NotAfter.UTC()}
}

// pairEvent is a line of --json.
type pairEvent struct {
	Event     string        `json:"event"`
	Dir       string        `json:"dir,omitempty"`
	Node      *certificate  `json:"node,omitempty"`
	Issuer    string        `json:"issuer_sha256,omitempty"`
	Roots     []certificate `json:"roots,omitempty"`
	Authority bool          `json:"authority"` // this directory issues certificates
	Rules     string        `json:"rules,omitempty"`
	Listen    string        `json:"listen,omitempty"`
	Address   string        `json:"address,omitempty"` // for the other machine
	Code      string        `json:"code,omitempty"`    // holds the secret
	Peer      *certificate  `json:"peer,omitempty"`
	Host      string        `json:"host,omitempty"`        // name of the machine that this one joined
	Candidate *candidate    `json:"candidate,omitempty"`   // a machine that knows the code
	Why       string        `json:"why,omitempty"`         // it was refused
	Key       string        `json:"fingerprint,omitempty"` // of this machine's key
	Allowed   *allowed      `json:"allowed,omitempty"`     // what the other machine may do here
	File      string        `json:"file,omitempty"`
}

// candidate is a machine that knows the code, as --json prints it.
type candidate struct {
	Name        string `json:"name"`
	Address     string `json:"address"`
	Fingerprint string `json:"fingerprint"`
}

// allowed is what a node may do here, as --json prints it.
type allowed struct {
	Pattern string `json:"pattern,omitempty"` // of the rule; "": none matches
	Rights  string `json:"rights"`
}

func contentsEvent(event string, c identity.Contents) pairEvent {
	e := pairEvent{Event: event, Dir: c.Dir, Node: peerJSON(c.Self), Issuer: c.Issuer, Authority: c.Authority != nil}
	for _, r := range c.Roots {
		e.Roots = append(e.Roots, certificate{Name: r.Subject.CommonName, SHA256: identity.Fingerprint(r),
			NotAfter: r.NotAfter.UTC()})
	}
	if c.Rules != nil {
		e.Rules = c.Rules.String()
	}
	return e
}

// print writes an event as JSON, or as the given text.
func (p *pairing) print(s streams, e pairEvent, text string) error {
	if p.json {
		return printJSONLine(s.out, e)
	}
	_, err := io.WriteString(s.out, text)
	return err
}

// trust is what a directory is and believes, in words.
func trust(c identity.Contents, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "node       %s\n           certificate %s\n           %s\n", c.Self.Name, c.Self.Serial,
		until(c.Self.NotAfter, now))
	for _, r := range c.Roots {
		note := ""
		if identity.Fingerprint(r) == c.Issuer {
			note = "\n           issued this node's certificate"
		}
		fmt.Fprintf(&b, "trusts     %s  %s%s\n           SHA-256\n           %s\n", r.Subject.CommonName,
			until(r.NotAfter, now), note, identity.Fingerprint(r))
	}
	if c.Authority != nil {
		fmt.Fprintf(&b, "issues     certificates of %s\n", c.Authority.Subject.CommonName)
	}
	if c.Rules == nil {
		fmt.Fprintf(&b, "rules      none: without a file %q no peer may do anything here:\n           \"penstock "+
			"pair allow NAME RIGHTS\" makes one\n", identity.PolicyFile)
	} else {
		head := "rules    "
		for line := range strings.Lines(c.Rules.String()) {
			fmt.Fprintf(&b, "%s  %s", head, line)
			head = "         "
		}
	}
	fmt.Fprintf(&b, "directory  %s\n", c.Dir)
	return b.String()
}

func until(t, now time.Time) string {
	left := t.Sub(now)
	switch {
	case left <= 0:
		return "ENDED " + t.UTC().Format(time.DateOnly)
	case left < 48*time.Hour:
		return fmt.Sprintf("until %s (%d hours)", t.UTC().Format("2006-01-02 15:04 UTC"), int(left.Hours()))
	}
	return fmt.Sprintf("until %s (%d days)", t.UTC().Format(time.DateOnly), int(left.Hours()/24))
}
