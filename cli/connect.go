package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/spf13/cobra"
)

// nodeFlags are the flags of every command that opens a node.
type nodeFlags struct {
	paths    []string
	verbs    []string
	logLevel string
	identity string
	insecure bool
	policy   string // a file of rules, for commands that have a flag for it; "": that of the identity
	allowUID string
}

// noIdentity is the value of --identity that asks for none.
const noIdentity = "none"

func (f *nodeFlags) add(c *cobra.Command) {
	pathFlag(c, &f.paths, &f.verbs, "move bytes only by these `PATHS`", "the best that both sides have")
	c.Flags().StringVar(&f.logLevel, "log-level", "off",
		"what to log on standard error, a `LEVEL`: off, error, warn, info, debug")
	c.Flags().StringVar(&f.identity, "identity", "",
		"`DIR` of this node's certificate, made by penstock pair; none: go without (default: the user's, if there "+
			"is one)")
	c.Flags().BoolVar(&f.insecure, "insecure", false,
		"without an identity, permit addresses beyond this machine: anyone on the way can read and change everything")
	c.Flags().StringVar(&f.allowUID, "allow-uid", "",
		"`UIDS` of other users of this machine whose processes may connect without TLS, such as "+
			"1000,1001; any: all (default: your own processes alone)")
	_ = c.MarkFlagDirname("identity") // the flag exists
	fromEnvironment(c, "path", "verbs", "log-level", "identity", "insecure", "allow-uid")
	complete(c, "log-level", "off", "error", "warn", "info", "debug")
}

// options are those of the node; log lines go through the display, so that they do not tear its
// line.
func (f *nodeFlags) options(d *display) (transfer.Options, error) {
	o := transfer.Options{Insecure: f.insecure}
	if f.logLevel != "off" {
		var level slog.Level
		if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
			return o, &usageError{fmt.Errorf("--log-level %q: expected off, error, warn, info or debug", f.logLevel)}
		}
		o.Logger = slog.New(slog.NewTextHandler(logWriter{d}, &slog.HandlerOptions{Level: level}))
	}
	var err error
	if o.AllowUID, err = path.ParseUsers(f.allowUID); err != nil {
		return o, &usageError{fmt.Errorf("--allow-uid: %w", err)}
	}
	if o.Identity, err = f.openIdentity(); err != nil {
		return o, err
	}
	o.Paths, err = pathDrivers(f.paths, f.verbs, o.Insecure)
	return o, err
}

// openIdentity is the identity that the flags ask for, nil for none.
func (f *nodeFlags) openIdentity() (*identity.Identity, error) {
	dir, policy := f.identity, f.policy
	switch {
	case dir == noIdentity:
		return nil, nil
	case dir == "":
		var err error
		if dir, err = identity.DefaultDir(); err != nil { // a service without a home has no default
			return nil, nil
		}
	}
	if policy != "" {
		var err error
		if policy, err = filepath.Abs(policy); err != nil {
			return nil, err
		}
	}
	id, err := identity.Open(dir, identity.Options{Policy: policy})
	if f.identity == "" && errors.Is(err, identity.ErrMissing) {
		return nil, nil
	}
	return id, err
}

// clientFlags are the flags of every command that connects to a peer.
type clientFlags struct {
	nodeFlags
	timeout, retry time.Duration
	expect         string
	limit          rateFlag // of commands that have it; 0: none
}

func (f *clientFlags) add(c *cobra.Command) {
	f.nodeFlags.add(c)
	c.Flags().StringVar(&f.expect, "expect", "",
		"the `NAME` that the peer's certificate must have, as in tcp://NAME@HOST:PORT (default: any of the authority)")
	c.Flags().DurationVar(&f.timeout, "timeout", 10*time.Second, "how long to wait for a connection")
	c.Flags().DurationVar(&f.retry, "retry", time.Minute,
		"how long to wait for a peer that was lost on the way to come back; 0: not at all")
	fromEnvironment(c, "expect", "timeout", "retry")
}

// addLimit adds the flag of commands that move bytes.
func (f *clientFlags) addLimit(c *cobra.Command) {
	c.Flags().Var(&f.limit, "limit",
		"move at most so many bytes per second, such as 10MB, 512KiB or 1Gbps, which counts bits (default: as many "+
			"as the path takes)")
}

func (f *clientFlags) check() error {
	if f.timeout <= 0 {
		return &usageError{fmt.Errorf("--timeout %v: expected more than 0, such as 10s", f.timeout)}
	}
	if f.retry < 0 {
		return &usageError{fmt.Errorf("--retry %v: expected 0 or more, such as 1m", f.retry)}
	}
	return nil
}

// client is the connection of a command to one peer: a link, over which what is under way goes on
// when the peer is lost.
type client struct {
	node  *transfer.Node
	link  *job.Link
	peer  *transfer.Peer // of the first session
	addr  string
	flags clientFlags
	over  chan struct{} // closed by close
	wg    sync.WaitGroup

	d  *display
	mu sync.Mutex // guards what follows
	// what is the name under way that messages about a loss mention, or "".
	what    string
	attempt int // since the last progress
	waits   bool
}

// interruptGrace is how long transfers under way may take to end in order when the command was
// interrupted. A peer whose data do not come any more, although it lives, would take for ever.
const interruptGrace = time.Second

// dial connects to addr. The caller closes the client.
func (f clientFlags) dial(ctx context.Context, d *display, addr string) (*client, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	o, err := f.options(d)
	if err != nil {
		return nil, err
	}
	o.Limits.Node.Out.Rate = uint64(f.limit)
	if f.expect != "" {
		host, ok := strings.CutPrefix(addr, "tcp://")
		switch {
		case !ok || strings.Contains(host, "@"):
			return nil, &usageError{fmt.Errorf("--expect %s: %s names its peer by itself", f.expect, addr)}
		case o.Identity == nil:
			return nil, &usageError{fmt.Errorf("--expect %s: without an identity no peer can prove its name: see "+
				"penstock pair", f.expect)}
		}
		addr = "tcp://" + f.expect + "@" + host
	}
	node, err := transfer.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	c := &client{node: node, addr: addr, flags: f, d: d, over: make(chan struct{})}
	// One session, made when it is wanted and kept until the end.
	lo := job.LinkOptions{Min: -1, Max: 1, Idle: -1, DialTimeout: f.timeout,
		Retry: job.Retry{First: firstPause, Max: longPause}}
	if f.retry > 0 {
		lo.Retry.Attempts, lo.Retry.Total, lo.OnRetry = -1, f.retry, c.retrying
	} else {
		lo.Retry.Attempts, lo.Retry.Total = 1, -1
	}
	c.link = job.NewLink(node, addr, lo)
	c.wg.Go(func() { c.watch(ctx) })
	if c.peer, err = c.link.Connect(ctx); err != nil {
		c.close()
		if refused(err) && strings.Contains(err.Error(), "certificate") {
			err = &worded{fmt.Sprintf("%s refuses the certificate of this node: its rules deny it, or it has ended; "+
				"see \"penstock pair show\" on both: %v", addr, err), err}
		}
		return nil, err
	}
	c.mu.Lock()
	c.waits = true
	c.mu.Unlock()
	return c, nil
}

// Between attempts to reach a lost peer.
const (
	firstPause = 50 * time.Millisecond
	longPause  = 2 * time.Second
)

// begin says what is under way: a name, or "" for several.
func (c *client) begin(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.what = name
}

// retrying shows that something failed and is tried again.
func (c *client) retrying(f job.LinkFailure) {
	c.mu.Lock()
	if !c.waits { // there never was a session: that is the command's error
		c.mu.Unlock()
		return
	}
	c.attempt++
	if f.Dial { // it was lost before, whatever came of it in between
		c.attempt = max(c.attempt, 2)
	}
	what, attempt := c.what, c.attempt
	c.mu.Unlock()
	c.d.lost(what, attempt, f)
}

// moved says that there was progress.
func (c *client) moved() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attempt = 0
}

// watch ends the node when the command was interrupted and does not come to its end.
func (c *client) watch(ctx context.Context) {
	select {
	case <-c.over:
		return
	case <-ctx.Done():
	}
	t := time.NewTimer(interruptGrace)
	defer t.Stop()
	select {
	case <-c.over:
	case <-t.C:
		c.node.Close() // every transfer ends
	}
}

func (c *client) conn() share.Conn {
	conn := share.OverLink(c.link)
	if len(c.flags.paths) > 0 { // by these alone
		conn = conn.ByPath()
	}
	return conn
}

func (c *client) close() {
	close(c.over)
	c.wg.Wait()
	c.node.Close() // and the link
}

// isLost reports whether a new connection might help against an error.
func isLost(err error) bool {
	return exitStatus(err) == exitUnreachable
}

// target is what a command line names at a peer.
type target struct{ addr, name string }

// parseTarget reads ADDR or ADDR/NAME. A host and port without tcp:// is taken as one with it. In
// unix://PATH/NAME the path ends where a socket is; in unix://@NAME/..., at the first slash.
func parseTarget(s string) (target, error) {
	network, rest, ok := strings.Cut(s, "://")
	if !ok {
		network, rest = "tcp", s
	}
	bad := func() error {
		meant := ""
		if host, _, _ := strings.Cut(rest, "/"); !ok && host != "" && host[0] >= '0' && host[0] <= '9' {
			if _, err := netip.ParseAddr(host); err == nil {
				meant = fmt.Sprintf("; did you mean tcp://%s?", s)
			}
		}
		return &usageError{fmt.Errorf("address %q: expected tcp://HOST[:PORT], HOST:PORT or unix://PATH, and after a "+
			"slash the name of a file there%s", s, meant)}
	}
	var addr, name string
	switch network {
	case "tcp":
		addr, name, _ = strings.Cut(rest, "/")
		if addr == "" || !ok && !strings.Contains(addr, ":") { // without tcp://, a word is no host
			return target{}, bad()
		}
		addr = strings.TrimPrefix(withPort("tcp://"+addr), "tcp://")
	case "unix":
		addr = rest
		if strings.HasPrefix(rest, "@") {
			addr, name, _ = strings.Cut(rest, "/")
			break
		}
		for i := 1; i < len(rest); i++ {
			if rest[i] != '/' {
				continue
			}
			if fi, err := os.Lstat(rest[:i]); err == nil && fi.Mode()&os.ModeSocket != 0 {
				addr, name = rest[:i], rest[i+1:]
				break
			}
		}
	default:
		return target{}, bad()
	}
	if addr == "" {
		return target{}, bad()
	}
	return target{network + "://" + addr, name}, nil
}

// withPort adds the default port to an address that begins with tcp:// and has none.
func withPort(addr string) string {
	host, ok := strings.CutPrefix(addr, "tcp://")
	if !ok || host == "" || strings.Contains(host[strings.LastIndexByte(host, ']')+1:], ":") {
		return addr
	}
	return addr + ":" + defaultPort
}

// parseTargetArgs reads ADDR[/NAME], or ADDR and NAME.
func parseTargetArgs(args []string) (target, error) {
	t, err := parseTarget(args[0])
	if err != nil && len(args) > 1 {
		if e := swapped(args[1], args[0], "the address first, ADDR/NAME or ADDR NAME"); e != nil {
			return t, e
		}
	}
	if err == nil && len(args) > 1 {
		if t.name != "" {
			return t, &usageError{fmt.Errorf("%s names %q already: expected one name, got %q too", args[0], t.name,
				args[1])}
		}
		t.name = args[1]
	}
	return t, err
}

// logWriter lets a logger write through a display.
type logWriter struct{ d *display }

func (w logWriter) Write(p []byte) (int, error) {
	w.d.w.Lock()
	defer w.d.w.Unlock()
	w.d.clear()
	return w.d.err.Write(p)
}

// argsBetween checks the number of arguments; words says what they are.
func argsBetween(least, most int, words string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return &usageError{fmt.Errorf("%s: expected %s; got %s%s", c.Name(), words,
				count(len(args), "argument", "arguments"), jsonHint(c))}
		}
		return nil
	}
}

// isNotFound reports whether the peer says that it has nothing of that name.
func isNotFound(err error) bool { return errors.Is(err, control.NotFound) }
