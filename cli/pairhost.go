package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/transfer/identity"
)

// host is the first machine.
func (p *pairing) host(ctx context.Context, s streams, rules grant) error {
	if p.timeout <= 0 {
		return &usageError{fmt.Errorf("--timeout %v: expected more than 0", p.timeout)}
	}
	if p.code != "" {
		return &usageError{errors.New("--code is for the second machine; the first one makes the code")}
	}
	if err := p.checkNew(); err != nil {
		return err
	}
	if err := checkListen("--listen", p.listen); err != nil {
		return err
	}
	confirm, how, err := p.confirmation(s)
	if err != nil {
		return err
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
	if p.only != "" && rules.keep { // a renewal changes no rules
		if rules.leave, err = authority.Has(p.only); err != nil {
			return err
		}
	}
	var mu sync.Mutex // one event at a time: machines come at any time
	say := func(e pairEvent, text string) error {
		mu.Lock()
		defer mu.Unlock()
		return p.print(s, e, text)
	}
	var who identity.Candidate
	var rule identity.Rule
	open := "" // what to say again when something was printed below a question; guarded by mu
	ask := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		open = text
	}
	session, err := authority.NewPairing(identity.PairingOptions{
		Self: contents.Self.Name, For: p.only, Valid: p.valid, Timeout: p.timeout, Rules: contents.Rules,
		Confirm: func(ctx context.Context, c identity.Candidate) (bool, error) {
			rule, err := rules.preview(c.Name)
			if err != nil {
				return false, err
			}
			e := pairEvent{Event: "candidate", Dir: dir, Authority: true, Candidate: candidateJSON(c),
				Allowed: allowedJSON(rule)}
			text := fmt.Sprintf("\nA machine knows the code:\n\n  name         %s\n  address      %s\n  fingerprint  "+
				"%s\n  may here     %s\n\n",
				c.Name, c.Address, grouped(c.Fingerprint), ruleWords(rule))
			if err := say(e, text); err != nil {
				return false, err
			}
			if !p.yes && p.fingerprint == "" {
				ask(fmt.Sprintf("\nThe question is still about %s:\n\n  fingerprint  %s\n\n%s", c.Name,
					grouped(c.Fingerprint), confirmQuestion))
				defer ask("")
			}
			return confirm(ctx, c)
		},
		Joined: func(c identity.Candidate, peer identity.Peer) (err error) {
			who = c
			if rule, err = rules.write(c.Name); err != nil {
				err = fmt.Errorf("%s has certificate %s, but its rule was not written; write it with: penstock pair "+
					"allow %s %v%s: %w",
					c.Name, peer.Serial, c.Name, rules.rights, p.dirFlag(), err)
			}
			return err
		},
		Refused: func(c identity.Candidate, why string) {
			mu.Lock()
			defer mu.Unlock()
			p.print(s, pairEvent{Event: "refused", Dir: dir, Authority: true, Candidate: candidateJSON(c), Why: why},
				fmt.Sprintf("\nRefused %s at %s, which knows the code: %s\n  fingerprint  %s\n%s", c.Name, c.Address,
					why, grouped(c.Fingerprint), open))
		},
	})
	if err != nil {
		return err
	}
	e := contentsEvent("listening", contents)
	e.Listen, e.Address, e.Code = ln.Addr().String(), reach, session.Invitation(reach).Code()
	text := madeText(made) + trust(contents, time.Now())
	name := ""
	if p.only != "" {
		name = " --name " + p.only
	}
	text += fmt.Sprintf("\nOn the other machine, within %v, run\n\n  penstock pair %s%s\n\nand give it this code "+
		"when it asks:\n\n  %s\n\nThe code works once, %s. Waiting on %s.\n",
		minutes(p.timeout), reach, name, e.Code, how, e.Listen)
	if err := p.print(s, e, text); err != nil {
		return err
	}
	peer, err := session.Serve(ctx, ln)
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%w: no machine has joined and the code is void", errInterrupted)
	case errors.Is(err, identity.ErrUnconfirmed):
		return fmt.Errorf("%w; it has no rights here. If it is paired by its own words, give it some: penstock pair "+
			"allow %s %v%s; else deny the certificate: penstock pair deny --serial %s%s",
			err, peer.Name, rules.rights, p.dirFlag(), peer.Serial, p.dirFlag())
	case err != nil:
		return err
	}
	if contents, err = identity.Inspect(dir); err != nil {
		return err
	}
	e = contentsEvent("paired", contents)
	e.Peer, e.Candidate, e.Allowed = peerJSON(peer), candidateJSON(who), allowedJSON(rule)
	return p.print(s, e, fmt.Sprintf("\nPaired: %s at %s has certificate %s %s\n        sha256 %s\n%s\n%s", peer.Name,
		who.Address, peer.Serial,
		until(peer.NotAfter, time.Now()), peer.Fingerprint, p.mayHere(peer.Name, rule),
		nextCommands(contents.Self.Name, reach, p.identityFlag())))
}

const confirmQuestion = "Does the other machine show the same fingerprint? [y/N] "

var errNotConfirmed = errors.New("not confirmed: no machine was paired. The machine that was refused knows the code, " +
	"so it is void; run this again for a new one")

// confirmation is how a machine that knows the code is confirmed, and that in words.
func (p *pairing) confirmation(s streams) (confirm func(context.Context, identity.Candidate) (bool, error), how string,
	err error) {
	terminal := s.terminal()
	switch {
	case p.yes && p.fingerprint != "":
		return nil, "", &usageError{errors.New("--yes and --fingerprint exclude each other")}
	case p.yes:
		return func(context.Context, identity.Candidate) (bool, error) {
			return true, nil
		}, "for the first machine that gives it (--yes)", nil
	case p.fingerprint != "":
		want := strings.ToLower(strings.Join(strings.Fields(p.fingerprint), ""))
		if len(want) != 64 || strings.Trim(want, "0123456789abcdef") != "" {
			return nil, "", &usageError{errors.New("--fingerprint: expected the 64 hexadecimal digits that " +
				"\"penstock pair key\" prints on the other machine")}
		}
		return func(_ context.Context, c identity.Candidate) (bool, error) {
			return c.Fingerprint == want, nil
		}, "for the machine with the key of --fingerprint", nil
	case terminal == nil:
		return nil, "", &usageError{errors.New("there is no terminal on which you could confirm the other machine; " +
			"expected --fingerprint SHA256 (\"penstock pair key\" there prints it), or --yes; the authority alone is made by " +
			"\"penstock pair init\"")}
	}
	return func(ctx context.Context, _ identity.Candidate) (bool, error) {
		line, err := askLine(ctx, terminal, confirmQuestion, true)
		if ctx.Err() != nil {
			fmt.Fprintln(s.err, "\nNo answer is needed any more.")
			return false, ctx.Err()
		}
		if a := strings.ToLower(strings.TrimSpace(line)); err == nil && (a == "y" || a == "yes") {
			return true, nil
		}
		return false, errors.Join(errNotConfirmed, err)
	}, "and only for a machine that is confirmed here", nil
}

// grouped is a fingerprint as people compare it.
func grouped(f string) string {
	var b strings.Builder
	for k := 0; k < len(f); k += 8 {
		if k > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(f[k:min(k+8, len(f))])
	}
	return b.String()
}

func candidateJSON(c identity.Candidate) *candidate {
	return &candidate{c.Name, c.Address, c.Fingerprint}
}

// minutes prints 10m0s as 10m.
func minutes(d time.Duration) string {
	s := d.String()
	if d%time.Minute == 0 {
		s = strings.TrimSuffix(s, "0s")
	}
	return s
}

// nextCommands says what to do when two machines are paired. The first machine is the one that
// serves. identity is the flag that the first one needs here, if any.
func nextCommands(first, reach, identity string) string {
	host, _, _ := net.SplitHostPort(reach)
	at := net.JoinHostPort(host, "7070")
	return fmt.Sprintf("Next: penstock serve FILE|DIR --listen tcp://%s%s   on %s\n      penstock ls tcp://%s@%s   on the other\n", at, identity, first, first, at)
}

// dirFlag is what commands of pair need to use the same directory, with a space before it.
func (p *pairing) dirFlag() string {
	if p.dir == "" {
		return ""
	}
	return " --dir " + p.dir
}

// identityFlag is what other commands need on this machine to use the identity, with a space before
// it; "" if it is the user's own.
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
	if a, made, err = identity.Setup(dir, name, p.valid); err != nil {
		return c, nil, false, err
	}
	c, err = identity.Inspect(dir)
	return c, a, made, err
}

// checkNew looks at the flags about new certificates.
func (p *pairing) checkNew() error {
	if p.valid <= 0 {
		return &usageError{fmt.Errorf("--valid %v: expected more than 0", p.valid)}
	}
	for flag, name := range map[string]string{"--name": p.name, "--for": p.only} {
		if name != "" && identity.CheckName(name) != nil {
			return &usageError{fmt.Errorf("%s: %w", flag, identity.CheckName(name))}
		}
	}
	return nil
}

func madeText(made bool) string {
	if !made {
		return ""
	}
	return "Made an authority and this machine's certificate.\n\n"
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

// reach is the address to print: what --address says, or the host of --listen, or an address of
// this machine.
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

// outward is the address that most likely can be reached: IPv4 before IPv6, loopback if there is
// nothing else.
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
