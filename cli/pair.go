package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/spf13/cobra"
)

func newPair(s streams) *cobra.Command {
	var p pairing
	c := &cobra.Command{
		Use:   "pair [INVITATION | -]",
		Short: "Make this machine and another one trust each other",
		Long: `Gives two machines a certificate each, of a small private authority, so that what they send each other is encrypted and
each knows who the other is. One command on each machine:

  penstock pair --listen :7071          on the first: makes the authority, prints the command for the second
  penstock pair 'ADDRESS#CODE'          on the second: makes a key, gets its certificate

The code names the authority, so nobody in between can stand in for it, and holds a secret that works once and for ten
minutes. Keys stay on the machine that made them. Repeat for each further machine; the authority is made only once.
"penstock pair -" reads the invitation from standard input, where other users of the machine cannot see it.

Without a connection between the machines: penstock pair export and penstock pair import. All of it: docs/security.md.`,
		Args: func(_ *cobra.Command, args []string) error { return atMostOne(args) },
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case len(args) == 1 && p.listen != "":
				return &usageError{errors.New("--listen is for the first machine and the invitation for the second; expected one of them")}
			case len(args) == 1:
				return p.join(c.Context(), s, args[0])
			case p.listen != "":
				return p.host(c.Context(), s)
			}
			return &usageError{errors.New("expected --listen HOST:PORT on the first machine, or the invitation that it printed on the second")}
		},
	}
	p.flags(c)
	f := c.Flags()
	f.StringVar(&p.listen, "listen", "", "be the first machine: wait on this HOST:PORT; the host may be left out")
	f.StringVar(&p.address, "address", "", "HOST or HOST:PORT at which the other machine reaches this one (default: found)")
	f.StringVar(&p.name, "name", "", "of this machine's node (default: its host name)")
	f.StringVar(&p.only, "for", "", "with --listen: the only name that may join, also when it has a certificate already")
	f.DurationVar(&p.timeout, "timeout", identity.PairingTimeout, "with --listen: how long to wait")
	f.DurationVar(&p.valid, "valid", identity.LeafValid, "with --listen: how long new certificates are valid")
	c.AddCommand(newPairShow(s), newPairList(s), newPairRenew(s), newPairExport(s), newPairImport(s),
		newPairTrust(s), newPairDistrust(s), newPairDeny(s))
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
}

func (p *pairing) flags(c *cobra.Command) {
	c.Flags().StringVar(&p.dir, "dir", "", "directory of the identity (default: penstock in the user's configuration directory)")
	c.Flags().BoolVar(&p.json, "json", false, "print one JSON object per line instead")
}

func (p *pairing) directory() (string, error) {
	if p.dir != "" {
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
	Event      string        `json:"event"`
	Dir        string        `json:"dir,omitempty"`
	Node       *certificate  `json:"node,omitempty"`
	Issuer     string        `json:"issuer_sha256,omitempty"`
	Roots      []certificate `json:"roots,omitempty"`
	Authority  bool          `json:"authority"` // this directory issues certificates
	Rules      string        `json:"rules,omitempty"`
	Listen     string        `json:"listen,omitempty"`
	Invitation string        `json:"invitation,omitempty"` // holds the secret
	Peer       *certificate  `json:"peer,omitempty"`
	File       string        `json:"file,omitempty"`
}

func contentsEvent(event string, c identity.Contents) pairEvent {
	e := pairEvent{Event: event, Dir: c.Dir, Node: peerJSON(c.Self), Issuer: c.Issuer, Authority: c.Authority != nil}
	for _, r := range c.Roots {
		e.Roots = append(e.Roots, certificate{Name: r.Subject.CommonName, SHA256: identity.Fingerprint(r), NotAfter: r.NotAfter.UTC()})
	}
	if c.Rules != nil {
		e.Rules = c.Rules.String()
	}
	return e
}

// print writes an event as JSON, or as the given text.
func (p *pairing) print(s streams, e pairEvent, text string) error {
	if p.json {
		b, err := json.Marshal(e)
		if err != nil {
			return err
		}
		text = string(b) + "\n"
	}
	_, err := io.WriteString(s.out, text)
	return err
}

// trust is what a directory is and believes, in words.
func trust(c identity.Contents, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "node       %s  certificate %s  %s\n", c.Self.Name, c.Self.Serial, until(c.Self.NotAfter, now))
	for _, r := range c.Roots {
		note := ""
		if identity.Fingerprint(r) == c.Issuer {
			note = "  (issued this node's certificate)"
		}
		fmt.Fprintf(&b, "trusts     %s  %s%s\n           sha256 %s\n", r.Subject.CommonName, until(r.NotAfter, now), note, identity.Fingerprint(r))
	}
	if c.Authority != nil {
		fmt.Fprintf(&b, "issues     certificates of %s\n", c.Authority.Subject.CommonName)
	}
	if c.Rules == nil {
		fmt.Fprintf(&b, "rights     all, for each node of these authorities: there is no file %q\n", identity.PolicyFile)
	} else {
		fmt.Fprintf(&b, "rights     by the file %q\n", identity.PolicyFile)
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

// host is the first machine.
func (p *pairing) host(ctx context.Context, s streams) error {
	if p.timeout <= 0 {
		return &usageError{fmt.Errorf("--timeout %v: expected more than 0", p.timeout)}
	}
	if p.valid <= 0 {
		return &usageError{fmt.Errorf("--valid %v: expected more than 0", p.valid)}
	}
	for flag, name := range map[string]string{"--name": p.name, "--for": p.only} {
		if name != "" && identity.CheckName(name) != nil {
			return &usageError{fmt.Errorf("%s: %w", flag, identity.CheckName(name))}
		}
	}
	host, _, err := net.SplitHostPort(p.listen)
	if err != nil {
		return &usageError{fmt.Errorf("--listen %q: expected HOST:PORT or :PORT: %w", p.listen, err)}
	}
	dir, err := p.directory()
	if err != nil {
		return err
	}
	// The listener comes first: an address that cannot be had should not leave files behind.
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", p.listen)
	if err != nil {
		return fmt.Errorf("--listen %s: %w", p.listen, err)
	}
	defer ln.Close()
	reach, err := p.reach(host, ln.Addr())
	if err != nil {
		return err
	}
	contents, authority, made, err := p.setup(dir)
	if err != nil {
		return err
	}
	session, err := authority.NewPairing(identity.PairingOptions{
		Self: contents.Self.Name, For: p.only, Valid: p.valid, Timeout: p.timeout, Rules: contents.Rules})
	if err != nil {
		return err
	}
	e := contentsEvent("listening", contents)
	e.Listen, e.Invitation = ln.Addr().String(), session.Invitation(reach).Link()
	text := trust(contents, time.Now())
	if made {
		text = "Made an authority and this machine's certificate.\n\n" + text
	}
	name := ""
	if p.only != "" {
		name = " --name " + p.only
	}
	text += fmt.Sprintf("\nOn the other machine, within %v, run:\n\n  penstock pair '%s'%s\n\nThe code works once. Waiting on %s.\n", minutes(p.timeout), e.Invitation, name, e.Listen)
	if err := p.print(s, e, text); err != nil {
		return err
	}
	peer, err := session.Serve(ctx, ln)
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted: nobody has joined and the code is void")
	}
	if err != nil {
		return err
	}
	e = contentsEvent("paired", contents)
	e.Peer = peerJSON(peer)
	return p.print(s, e, fmt.Sprintf("\nPaired: %s has certificate %s %s\n        sha256 %s\n\n%s", peer.Name, peer.Serial,
		until(peer.NotAfter, time.Now()), peer.Fingerprint, nextCommands(contents.Self.Name, reach, p.identityFlag())))
}

// minutes prints 10m0s as 10m.
func minutes(d time.Duration) string {
	s := d.String()
	if d%time.Minute == 0 {
		s = strings.TrimSuffix(s, "0s")
	}
	return s
}

// nextCommands says what to do when two machines are paired. The first machine is the one that serves.
// identity is the flag that the first one needs here, if any.
func nextCommands(first, reach, identity string) string {
	host, _, _ := net.SplitHostPort(reach)
	at := net.JoinHostPort(host, "7070")
	return fmt.Sprintf("Next: penstock serve FILE|DIR --listen tcp://%s%s   on %s\n      penstock ls tcp://%s@%s   on the other\n", at, identity, first, first, at)
}

// identityFlag is what other commands need on this machine to use the identity, with a space before it; "" if it is the user's own.
func (p *pairing) identityFlag() string {
	if p.dir == "" {
		return ""
	}
	return " --identity " + p.dir
}

// setup opens the authority of a directory or makes it.
func (p *pairing) setup(dir string) (c identity.Contents, a *identity.Authority, made bool, err error) {
	name := p.name
	if _, err := identity.Inspect(dir); errors.Is(err, identity.ErrMissing) && name == "" {
		if name, err = hostName(); err != nil {
			return c, nil, false, err
		}
	}
	if a, made, err = identity.Setup(dir, name, identity.SetupOptions{LeafValid: p.valid}); err != nil {
		return c, nil, false, err
	}
	c, err = identity.Inspect(dir)
	return c, a, made, err
}

// hostName is the name of this machine as a node can have it.
func hostName() (string, error) {
	h, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("%w; name this machine with --name", err)
	}
	return nodeName(h)
}

func nodeName(host string) (string, error) {
	n := strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '.' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, strings.ToLower(host))
	n = strings.Trim(n, ".-_")
	if err := identity.CheckName(n); err != nil {
		return "", fmt.Errorf("host name %q does not make a node's name: %w; name this machine with --name", host, err)
	}
	return n, nil
}

// reach is the address to print: what --address says, or the host of --listen, or an address of this machine.
func (p *pairing) reach(host string, at net.Addr) (string, error) {
	_, port, err := net.SplitHostPort(at.String())
	if err != nil {
		return "", err
	}
	if p.address != "" {
		a := p.address
		if _, _, err := net.SplitHostPort(a); err != nil {
			a = net.JoinHostPort(strings.Trim(a, "[]"), port)
		}
		if err := identity.CheckAddress(a); err != nil {
			return "", &usageError{fmt.Errorf("--address: %w", err)}
		}
		return a, nil
	}
	if ip, err := netip.ParseAddr(host); host != "" && (err != nil || !ip.IsUnspecified()) {
		return net.JoinHostPort(host, port), nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("%w; say with --address how the other machine reaches this one", err)
	}
	return net.JoinHostPort(outward(addrs), port), nil
}

// outward is the address that most likely can be reached: IPv4 before IPv6, loopback if there is nothing else.
func outward(addrs []net.Addr) string {
	best, rank := "127.0.0.1", 0
	for _, a := range addrs {
		n, err := netip.ParsePrefix(a.String())
		if err != nil || !n.Addr().IsGlobalUnicast() {
			continue
		}
		r := 1
		if n.Addr().Is4() {
			r = 2
		}
		if r > rank {
			best, rank = n.Addr().String(), r
		}
	}
	return best
}

// invitation reads the argument, or standard input for "-".
func invitation(s streams, arg string) (identity.Invitation, error) {
	if arg == "-" {
		b, err := io.ReadAll(io.LimitReader(s.in, 4096))
		if err != nil {
			return identity.Invitation{}, fmt.Errorf("standard input: %w", err)
		}
		arg = strings.TrimSpace(string(b))
	}
	v, err := identity.ParseInvitation(arg)
	if err != nil {
		return v, &usageError{err}
	}
	return v, nil
}

// join is the second machine.
func (p *pairing) join(ctx context.Context, s streams, arg string) error {
	v, err := invitation(s, arg)
	if err != nil {
		return err
	}
	dir, err := p.directory()
	if err != nil {
		return err
	}
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
	c, err := identity.Join(ctx, v, dir, name)
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted: this machine is not paired")
	}
	if err != nil {
		return err
	}
	return p.print(s, contentsEvent("paired", c), "Paired.\n\n"+trust(c, time.Now())+"\nNext: penstock serve FILE|DIR --listen tcp://HOST:7070   on the other machine\n      penstock ls tcp://HOST:7070"+p.identityFlag()+"   here\n")
}
