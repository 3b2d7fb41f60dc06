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

	"github.com/penstock-io/penstock/internal/web"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/metrics/prom"
	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/spf13/cobra"
)

type serveOptions struct {
	nodeFlags
	displayFlags
	listen   []string
	writable bool
	remove   bool
	hidden   bool
	follow   bool
	strong   bool
	noTensor bool
	grace    time.Duration
	rescan   time.Duration
	maxBytes string
	maxFiles int
	keepFree string
	keepPart string
	metrics  string
}

// defaultListen is where serve is reached at, and defaultPort where an address that begins with
// tcp:// names no port.
const (
	defaultListen = "tcp://127.0.0.1:" + defaultPort
	defaultPort   = "7070" // config.DefaultPort
)

func newServe(s streams) *cobra.Command {
	var o serveOptions
	c := &cobra.Command{
		Use:   "serve FILE|DIR",
		Short: "Let peers list and fetch files and tensors, and with --writable upload files",
		Long: `Serves a file, or all files below a directory, under their relative names, and each tensor of a safetensors or npy file under
FILE/TENSOR. Symbolic links (but see --follow-links, and mirror --keep-links, for a cache of a model hub), devices and names that begin with a dot are left out. Files that change are noticed when they are
asked for. With --writable peers may also put new files below the directory; nothing that exists is ever written to, it is only
replaced as a whole. With --removable they may remove files, too.

Files go by tcp or verbs, not by shm, also where a peer is on this machine: over a Unix socket it gets its data connections at a port of 127.0.0.1.
Shared memory hands over an open descriptor of all that it shares. A server keeps none for its files, and no revocation would take one back.

One line is printed for each peer that comes or goes and each transfer that ends. Ctrl-C ends in order: transfers under way get
--grace to end; a second Ctrl-C ends at once. Either way nothing is lost that a peer cannot fetch on from where it was.`,
		Example: `  penstock serve model.safetensors
  penstock serve /data/models --listen tcp://127.0.0.1:7070 --listen unix:///run/penstock.sock
  penstock serve incoming --writable --max-bytes 100GiB`,
		Args: argsBetween(1, 1, "one file or directory"),
		RunE: func(c *cobra.Command, args []string) error { return runServe(c.Context(), s, o, args[0]) },

		ValidArgsFunction: completeFiles,
	}
	o.nodeFlags.add(c)
	o.displayFlags.add(c)
	f := c.Flags()
	f.StringArrayVar(&o.listen, "listen", nil,
		"`ADDR` to be reached at, tcp://HOST[:PORT], HOST:PORT, :PORT for all addresses, or unix://PATH; may be given more than once (default: "+defaultListen+")")
	f.BoolVar(&o.writable, "writable", false, "let peers put files below the directory")
	f.BoolVar(&o.remove, "removable", false, "with --writable: let peers also remove files below the directory")
	f.StringVar(&o.maxBytes, "max-bytes", "",
		"with --writable: how large in `BYTES` all files together may become, such as 100GiB; a directory counts as "+
			"4KiB (default: as the disk allows, less --keep-free)")
	f.StringVar(&o.keepFree, "keep-free", "",
		"with --writable: how many `BYTES` of the disk uploads leave free, such as 10GiB; 0: none (default: 1GiB, or "+
			"the twentieth part of a smaller disk than 20GiB)")
	f.StringVar(&o.keepPart, "keep-partial", "24h",
		"with --writable: how long the part of an upload that no peer goes on with is kept for that peer, such as "+
			"72h, or forever; of one peer 256 are kept at most, the newest")
	f.IntVar(&o.maxFiles, "max-files", share.DefaultMaxFiles,
		"how many files are served, and with --writable up to how many files and directories peers may put more; "+
			"each takes one of the mappings of vm.max_map_count")
	f.StringVar(&o.policy, "policy", "",
		"`FILE` of rules: which certificate may do what (default: the file policy of the identity; without one, no "+
			"peer may do anything); what the identity's own file denies is denied beside it, too")
	f.StringVar(&o.metrics, "metrics", "",
		"serve /metrics for Prometheus, /healthz and /readyz at `ADDR`: a HOST:PORT of this machine such as "+
			"127.0.0.1:9095, by HTTP; with an identity also of others, by HTTPS, to certificates with the right "+
			"status (default: none are served)")
	f.BoolVar(&o.hidden, "hidden", false, "serve and take names that begin with a dot, too")
	f.BoolVar(&o.follow, "follow-links", false,
		"serve what symbolic links lead to below the directory, under the link's name")
	f.BoolVar(&o.noTensor, "no-tensors", false, "serve files as a whole only")
	f.BoolVar(&o.strong, "strong", false,
		"identify contents by their SHA-256, which reads each file once; else by size, times and inode")
	f.DurationVar(&o.rescan, "rescan", 10*time.Second,
		"how often to look for new files; less often where the kernel reports no change; 0: only at the start")
	f.DurationVar(&o.grace, "grace", 10*time.Second, "how long transfers under way may go on after Ctrl-C")
	fromEnvironment(c, "listen", "policy", "metrics")
	return c
}

// server is serve at work.
type server struct {
	o     serveOptions
	d     *display
	node  *transfer.Node
	share *share.Server
	id    *identity.Identity // nil: none

	mu   sync.Mutex // guards what follows
	over bool
	wg   sync.WaitGroup // added to under the mutex, while over is not set
}

// spawn runs f beside, unless the server is at its end: a callback of the node may still be running
// then.
func (v *server) spawn(f func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.over {
		v.wg.Go(f)
	}
}

func runServe(ctx context.Context, s streams, o serveOptions, root string) error {
	v := &server{o: o, d: newDisplay(s, o.displayFlags)}
	err := v.run(ctx, root)
	e := event{Event: "ended", Text: "in order"}
	if err != nil {
		status := exitStatus(interruption(ctx, err))
		e = event{Event: "ended", Status: &status, Error: err.Error()}
	}
	v.d.event(e)
	return err
}

func (v *server) run(ctx context.Context, root string) (err error) {
	so := share.Options{Root: root, Writable: v.o.writable, Removable: v.o.remove, Tensors: !v.o.noTensor,
		Hidden: v.o.hidden, FollowLinks: v.o.follow, Strong: v.o.strong, RescanEvery: v.o.rescan,
		MaxFiles: v.o.maxFiles,
		OnAccess: v.accessed, OnRemove: v.removed}
	if v.o.remove && !v.o.writable {
		return &usageError{errors.New("--removable lets peers with write rights remove files: add --writable")}
	}
	if err = v.o.limits(&so); err != nil {
		return err
	}
	if v.o.grace < 0 || v.o.rescan < 0 {
		return &usageError{errors.New("--grace and --rescan: expected 0 or more")}
	}
	if v.o.maxFiles < 0 {
		return &usageError{errors.New("--max-files: expected 0 or more")}
	}
	if _, err := os.Stat(root); err != nil { // before anything is opened
		return err
	}
	no, err := v.o.options(v.d)
	if err != nil {
		return err
	}
	if v.o.policy != "" && no.Identity == nil {
		return &usageError{errors.New("--policy: the rules name certificates: add an " +
			"identity, see penstock pair")}
	}
	v.id = no.Identity
	so.Logger = no.Logger
	no.OnPeer, no.Anonymous = v.come, identity.All
	rules := v.rules()
	no.OnEvent = func(e observe.Event) {
		if e.Kind == observe.EventIdentityRefused {
			v.d.warn("changed certificates or rules cannot be used: %s", share.Printable(e.Reason))
		}
		if now := v.rules(); e.Kind == observe.EventIdentityReloaded && now != rules {
			rules = now
			v.d.print("the rules are now\n%s", now)
		}
	}
	for _, a := range v.o.listen {
		if err := checkListen("--listen", a); err != nil {
			return err
		}
		no.Listen = append(no.Listen, withPort(a))
	}
	if no.Listen == nil {
		no.Listen = []string{defaultListen}
	}
	if v.node, err = transfer.Open(ctx, no); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, v.node.Close())
		v.mu.Lock()
		v.over = true
		v.mu.Unlock()
		v.wg.Wait()
	}()
	if v.share, err = share.Serve(ctx, v.node, so); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.share.Close()) }()
	page := ""
	if v.o.metrics != "" {
		var stop func() error
		if stop, page, err = v.serveMetrics(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	v.announce(root, page)
	<-ctx.Done()
	v.drain()
	return nil
}

// limits reads the flags that say what uploads may take.
func (o *serveOptions) limits(so *share.Options) (err error) {
	bytes := func(flag, s string, none uint64) (uint64, error) {
		if s == "" {
			return 0, nil
		}
		n, err := parseSize(s)
		switch {
		case err != nil:
			return 0, &usageError{fmt.Errorf("%s: %w", flag, err)}
		case !o.writable:
			return 0, &usageError{fmt.Errorf("%s limits what peers upload: add --writable", flag)}
		case n == 0:
			return none, nil
		}
		return n, nil
	}
	if so.MaxBytes, err = bytes("--max-bytes", o.maxBytes, 0); err != nil {
		return err
	}
	if o.maxBytes != "" && so.MaxBytes == 0 {
		return &usageError{errors.New("--max-bytes 0: expected more; without the flag the disk is the limit, less " +
			"--keep-free")}
	}
	if so.KeepFree, err = bytes("--keep-free", o.keepFree, share.KeepNoneFree); err != nil {
		return err
	}
	if o.keepPart == "forever" {
		so.KeepPartial = share.KeepForever
		return nil
	}
	if so.KeepPartial, err = time.ParseDuration(o.keepPart); err != nil || so.KeepPartial <= 0 {
		return &usageError{fmt.Errorf("--keep-partial %q: expected a duration above 0, such as 24h, or forever",
			o.keepPart)}
	}
	return nil
}

// serveMetrics serves what the node, the share and the memory of this process count until stop:
// also while the last transfers end.
func (v *server) serveMetrics(ctx context.Context) (stop func() error, page string, err error) {
	memory := func() []metrics.Family { return mem.ReadStats().Families() }
	o := prom.ServeOptions{Ready: v.ready}
	scheme := "http://"
	if v.id != nil && !web.IsLoopback(v.o.metrics) {
		o.TLS, scheme = v.id.Web(identity.Status), "https://"
	}
	stop, addr, err := prom.Serve(context.WithoutCancel(ctx), v.o.metrics, o, v.node.Metrics, memory, v.share.Families,
		thisBuild().families)
	if err != nil {
		err = fmt.Errorf("--metrics: %w", err)
		if _, bad := errors.AsType[*net.AddrError](err); bad || errors.Is(err, prom.ErrNotLoopback) {
			err = &usageError{err}
		}
		return nil, "", err
	}
	return stop, scheme + addr + "/metrics", nil
}

// ready says why peers cannot be served now.
func (v *server) ready() error {
	if err := v.node.Err(); err != nil {
		return err
	}
	return v.share.Err()
}

// announce says what can be done from where. page is the address of the metrics, "" without one.
func (v *server) announce(root, page string) {
	n := v.share.Snapshot()
	addrs := v.node.Addrs()
	encrypted := v.id != nil
	if v.id != nil { // the address says whom to expect
		for i, a := range addrs {
			if host, ok := strings.CutPrefix(a, "tcp://"); ok && !strings.Contains(host, "@") {
				addrs[i] = "tcp://" + v.id.Name() + "@" + host
			}
		}
	}
	v.d.event(event{Event: "serving", Addresses: addrs, Root: root, Files: &n.Files, Bytes: &n.Bytes,
		Writable: &v.o.writable, Encrypted: &encrypted, Metrics: page})
	what := fmt.Sprintf("serving %s: %s, %s", share.Printable(root), count(n.Files, "file", "files"),
		formatBytes(n.Bytes))
	if n.Tensors > 0 {
		what += ", " + count(n.Tensors, "tensor", "tensors")
	}
	v.d.print("%s", what)
	v.d.leftOut("left out", n.Skipped, len(n.Skipped))
	if !n.Complete {
		v.d.warn("not everything could be looked at: until it can, a mirror of this fails, and deletes nothing")
	}
	may := "list and read"
	switch {
	case v.o.remove:
		may = "list, read, add and remove files"
	case v.o.writable:
		may = "list, read and add files"
	}
	for _, a := range addrs {
		v.d.print("at %s: %s", a, v.who(a, may))
	}
	if v.id == nil {
		for _, a := range addrs {
			if text := v.plaintext(a); text != "" && text != ownUser {
				v.d.warn("%s is PLAINTEXT and asks for no certificate: %s may %s", a, text, may)
			}
		}
	}
	if page != "" {
		v.d.print("metrics at %s", page)
	}
	if v.id != nil {
		if v.id.Rules() == nil {
			v.d.warn("no certificate has rights here: there is no file of rules; \"penstock pair allow NAME RIGHTS\" " +
				"makes one")
		}
		v.d.print("%s", v.rules())
	}
}

// rules are those in use, indented.
func (v *server) rules() string {
	if v.id == nil {
		return ""
	}
	return "  " + strings.ReplaceAll(strings.TrimSpace(v.id.Rules().String()), "\n", "\n  ")
}

// who says who can come to an address, and what they may do there.
func (v *server) who(addr, may string) string {
	switch {
	case strings.HasPrefix(addr, "unix://"):
		return v.users() + " may " + may
	case v.id == nil:
		return fmt.Sprintf("%s may %s", v.plaintext(addr), may)
	}
	return "TLS; peers with a certificate of the same authority may " + may + ", as far as the rules permit"
}

const ownUser = "processes of this user"

// users says whom the kernel's word lets in.
func (v *server) users() string {
	switch v.o.allowUID {
	case "":
		return ownUser
	case "any":
		return "every user of this machine"
	}
	return ownUser + " and of the users " + v.o.allowUID
}

// plaintext says who reaches a tcp:// address that is not encrypted; "" for other addresses.
func (v *server) plaintext(addr string) string {
	hostPort, ok := strings.CutPrefix(addr, "tcp://")
	if !ok {
		return ""
	}
	host, _, err := net.SplitHostPort(hostPort)
	if ip, perr := netip.ParseAddr(host); err == nil && perr == nil && ip.IsLoopback() {
		return v.users()
	}
	return "EVERYONE that reaches this machine"
}

// nameOf is the name of a peer: the one that it proved, or else the one that it says.
func nameOf(p *transfer.Peer) string {
	if c, ok := p.Certificate(); ok {
		return c.Name
	}
	return p.Name()
}

func (v *server) come(p *transfer.Peer) {
	name := share.Printable(nameOf(p))
	v.d.event(event{Event: "peer", Peer: nameOf(p), Action: "come"})
	v.d.print("peer %s: connected", name)
	v.spawn(func() {
		<-p.Gone()
		text := "gone"
		if err := p.Err(); err != nil && !errors.Is(err, control.Shutdown) && !errors.Is(err, control.OK) {
			text = "gone: " + escapeControls(err.Error())
		}
		v.d.event(event{Event: "peer", Peer: nameOf(p), Action: "go", Text: text})
		v.d.print("peer %s: %s", name, text)
	})
}
