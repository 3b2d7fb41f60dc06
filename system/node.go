package system

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/bounce"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/metrics/prom"
	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/stage/app"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/drivers"
)

// rescan is how often what is shared is looked at for new files.
const rescan = 10 * time.Second

func (p *Plan) planNode() {
	t := p.cfg.Transfers
	if t == nil {
		return
	}
	n := &NodePlan{Name: t.Name, Listen: []ListenPlan{}, Identity: p.planIdentity()}
	for _, u := range t.PathUses() {
		n.Paths = append(n.Paths, u.Text())
	}
	insecure := p.insecure()
	for i, a := range t.Listen {
		l := ListenPlan{Address: a, Local: local(a)}
		l.Encrypted = n.Identity != "" && strings.HasPrefix(a, "tcp://")
		n.Listen = append(n.Listen, l)
		p.guarded(fmt.Sprintf("transfers.listen[%d]", i), a, n.Identity != "" || insecure)
	}
	for i, x := range t.Peers {
		n.Peers = append(n.Peers, PeerPlan{x.Name, x.Address})
		p.guarded(fmt.Sprintf("transfers.peers[%d].address", i), x.Address, n.Identity != "" || insecure)
	}
	if x := t.Share; x != nil {
		n.Share = &SharePlan{Path: x.Path, Writable: x.Writable, MaxBytes: int64(x.MaxBytes)}
		switch i, err := os.Stat(x.Path); {
		case err != nil:
			p.need(config.CodeHost, "transfers.share.path", fmt.Sprintf("there is nothing to share: %v", err),
				"a file or a directory", "")
		case x.Writable && !i.IsDir():
			p.need(config.CodeHost, "transfers.share.writable",
				fmt.Sprintf("%s is no directory, so peers cannot upload files there", x.Path), "a directory",
				"writable: false shares the file")
		}
	}
	p.Node = n
	p.planPaths()
}

// guarded refuses addresses beyond this machine where ok is false: no identity, and not insecure.
// The node refuses them too.
func (p *Plan) guarded(at, address string, ok bool) {
	if !ok && !local(address) {
		p.need(config.CodeHost, at, fmt.Sprintf("%s is beyond this machine, and this node has no identity", address),
			"",
			"penstock pair makes one, and security: {} uses it; insecure: true there goes without")
	}
}

// local reports whether only this machine reaches an address of a node.
func local(address string) bool {
	hostPort, ok := strings.CutPrefix(address, "tcp://")
	if !ok {
		return true
	}
	if _, after, named := strings.Cut(hostPort, "@"); named {
		hostPort = after
	}
	host, _, err := net.SplitHostPort(hostPort)
	return err == nil && loopback(host)
}

// planIdentity is the directory of the identity, "" for none. Without the section security there is
// none.
func (p *Plan) planIdentity() string {
	sec := p.cfg.Security
	if sec == nil {
		return ""
	}
	dir, at := sec.Identity, "security.identity"
	if dir == "" {
		var err error
		if dir, err = identity.DefaultDir(); err != nil {
			dir = ""
		}
		at = "security"
	}
	there := false
	if dir != "" {
		_, err := os.Stat(filepath.Join(dir, identity.NodeFile))
		there = err == nil
	}
	switch {
	case there:
		return dir
	case sec.Identity == "" && (sec.Insecure || sec.Floor != "encrypted" && sec.Policy == ""): // it goes without
		return ""
	case dir == "":
		p.need(config.CodeHost, at, "this user has no directory for an identity", "identity: DIR",
			"penstock pair makes one")
	default:
		p.need(config.CodeHost, at, fmt.Sprintf("there is no identity in %s", dir), "", "penstock pair makes one")
	}
	return ""
}

// planPaths looks whether this machine has the paths that the file gives options, or its only path.
func (p *Plan) planPaths() {
	uses := p.cfg.Transfers.PathUses()
	for i, u := range uses {
		at := u.At
		if at == "" && len(uses) == 1 {
			at = "transfers.paths"
		}
		if at == "" {
			continue
		}
		hint := "without options and with other paths the node goes on without it"
		if u.RDMA {
			hint = "penstock doctor rdma says what this machine has; " + hint
		}
		if all, err := drivers.New(p.Node.Paths[i:i+1], p.insecure()); err != nil {
			p.need(config.CodeValue, at, err.Error(), "", "")
		} else if err := drivers.Probe(all[0]); err != nil {
			p.need(config.CodeHost, at, err.Error(), "", hint)
		}
	}
}

// insecure reports whether the node permits what is not encrypted.
func (p *Plan) insecure() bool { return p.cfg.Security != nil && p.cfg.Security.Insecure }

var floors = map[string]path.Security{"": path.SecurityNone, "none": path.SecurityNone, "host": path.SecurityHost,
	"encrypted": path.SecurityEncrypted}

// openNode opens the node, what it shares, and the links to peers.
func (s *System) openNode(ctx context.Context) (err error) {
	t, np := s.plan.cfg.Transfers, s.plan.Node
	if t == nil {
		return nil
	}
	o := transfer.Options{Name: t.Name, Listen: t.Listen, Budget: uint64(t.Budget),
		RegistrationBudget: uint64(t.RegistrationBudget), NoChecksum: !t.Checksum, Window: t.Window, Streams: t.Streams,
		HeartbeatEvery: t.HeartbeatEvery, DeadAfter: t.DeadAfter, OnPeer: s.plan.o.OnPeer,
		OnTransfer: s.plan.o.OnTransfer, Logger: s.log}
	if len(o.Listen) > 0 {
		o.Anonymous = identity.All
	}
	if o.Paths, err = drivers.New(np.Paths, s.plan.insecure()); err != nil {
		return s.at("transfers", "the paths", err)
	}
	if sec := s.plan.cfg.Security; sec != nil {
		o.Insecure, o.Security = sec.Insecure, floors[sec.Floor]
		if o.AllowUID, err = path.ParseUsers(sec.AllowUID); err != nil {
			return s.at("security.allow_uid", "the users", err)
		}
		if np.Identity != "" {
			rules := sec.Policy
			if rules != "" {
				if rules, err = filepath.Abs(rules); err != nil {
					return s.at("security.policy", "the rules", err)
				}
			}
			if s.id, err = identity.Open(np.Identity, identity.Options{Policy: rules}); err != nil {
				return s.at("security", "the identity", err)
			}
			o.Identity = s.id
		}
	}
	if s.node, err = transfer.Open(ctx, o); err != nil {
		return s.at("transfers", "the node", err)
	}
	if err := s.openShare(ctx); err != nil {
		return err
	}
	for i := range t.Peers {
		s.links[t.Peers[i].Name] = job.NewLink(s.node, t.Peers[i].Address, job.LinkOptions{})
	}
	return nil
}

// openShare shares files.
func (s *System) openShare(ctx context.Context) (err error) {
	x := s.plan.cfg.Transfers.Share
	if x == nil {
		return nil
	}
	s.share, err = share.Serve(ctx, s.node, share.Options{Root: x.Path, Writable: x.Writable,
		MaxBytes: uint64(x.MaxBytes), Tensors: true, RescanEvery: rescan,
		OnAccess: s.plan.o.OnAccess, Logger: s.log})
	if err != nil {
		return s.at("transfers.share", "sharing "+x.Path, err)
	}
	return nil
}

// Metrics is what everything in the System counts, in the form of exporters: a metrics.Source.
func (s *System) Metrics() []metrics.Family {
	ports := make(map[string]*engine.PortStats, len(s.ifaces))
	var counts []metrics.Family
	for i := range s.ifaces {
		var p engine.PortStats
		s.ifaces[i].Port.Stats(&p)
		ports[s.ifaces[i].Name] = &p
		port := s.ifaces[i].Port
		if staged, ok := port.(*bounce.Port); ok {
			port = staged.Port
		}
		c, ok := port.(engine.Counted)
		if !ok {
			continue
		}
		for _, f := range c.Families(s.ifaces[i].Name) { // one family of all ports
			if k := slices.IndexFunc(counts, func(x metrics.Family) bool { return x.Name == f.Name }); k >= 0 {
				counts[k].Samples = append(counts[k].Samples, f.Samples...)
			} else {
				counts = append(counts, f)
			}
		}
	}
	pools := make(map[string]mem.PoolStats, len(s.pools))
	for name, p := range s.pools {
		pools[name] = p.Stats()
	}
	out := append(engine.Families(ports), s.stageFamilies()...)
	out = append(out, counts...)
	out = append(out, poolFamilies(pools)...)
	if len(s.apps) > 0 {
		var all []*app.App
		for _, a := range s.apps {
			all = append(all, a.app)
		}
		out = append(out, app.Families(all)...)
	}
	out = append(out, mem.ReadStats().Families()...)
	if s.node != nil {
		out = append(out, s.node.Metrics()...)
	}
	return out
}

func (s *System) openMetrics(ctx context.Context) (err error) {
	if s.plan.Metrics == "" {
		return nil
	}
	if s.stop, s.metrics, err = prom.Serve(context.WithoutCancel(ctx), s.plan.Metrics,
		prom.ServeOptions{Ready: s.ready}, s.Metrics); err != nil {
		return s.at("metrics.listen", "the page of metrics", err)
	}
	return nil
}

// ready says why peers cannot be served now.
func (s *System) ready() error {
	if s.node == nil {
		return nil
	}
	if err := s.node.Err(); err != nil {
		return err
	}
	if s.share != nil {
		return s.share.Err()
	}
	return nil
}

// MetricsAddr is where the page of metrics is, with the port that the kernel chose; "" without one.
func (s *System) MetricsAddr() string { return s.metrics }

// openLog makes the logger.
func (s *System) openLog() error {
	if s.log = s.plan.o.Logger; s.log != nil {
		return nil
	}
	l := &s.plan.cfg.Logging
	level, some := l.Least()
	if !some {
		s.log = slog.New(slog.DiscardHandler)
		return nil
	}
	var w io.Writer = os.Stderr
	if l.File != "" {
		f, err := os.OpenFile(l.File, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		if err != nil {
			return s.at("logging.file", "the log", err)
		}
		w, s.logFile = f, f
	}
	o := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		s.log = slog.New(slog.NewJSONHandler(w, o))
	} else {
		s.log = slog.New(slog.NewTextHandler(w, o))
	}
	return nil
}
