package transfer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/account"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// The paths of a peer: opened on demand, by one goroutine for all that wait, and forgotten when
// they are down.

// readyBytes is the size of the put whose path Ready without a name waits for.
const readyBytes = 64 << 10

// Ready waits until the path with this name to the peer is usable, and sets it up if it is not open
// yet, which the first transfer has to wait for otherwise. With the name "" it is the path that a
// put of 64 KiB takes. The error wraps path.ErrUnavailable and says why there is no such path: this
// node or the peer does not have it, it does not lead there, it gives less security than
// Options.Security, or what went wrong when it was set up, which is not tried again for a moment.
// It wraps ErrPeerLost when the session ended, and ctx's error when that ended first; the path is
// set up in the background then. A path that is ready may go down later, as any other.
func (p *Peer) Ready(ctx context.Context, name string) error {
	err := invariants.Context(ctx, "transfer.Peer.Ready")
	if err == nil && ctx.Err() != nil {
		err = endOf(ctx)
	}
	if err == nil && p.hasLostSessions() {
		err = p.endLostSessions(ctx)
	}
	if err != nil {
		return p.verdict(ctx, err)
	}
	floor := p.floor(path.SecurityNone)
	cs := p.candidates(readyBytes, nil, nil, floor)
	if name != "" {
		cs = slices.DeleteFunc(cs, func(c Candidate) bool { return c.Path != name })
	}
	if len(cs) == 0 {
		return fmt.Errorf("transfer: this node has no path %q: %w", name, path.ErrUnavailable)
	}
	_, _, err = p.pick(ctx, cs, nil, floor, nil)
	return p.verdict(ctx, err)
}

// channel returns the peer's channel of a driver and sets it up first if there is none.
func (p *Peer) channel(ctx context.Context, driver string) (*channel, error) {
	p.mu.Lock()
	if p.lost != nil {
		defer p.mu.Unlock()
		return nil, p.lost
	}
	o := p.channels[driver]
	if o == nil || o.failedBefore(time.Now().Add(-retryAfter)) {
		o = &opening{done: make(chan struct{})}
		p.channels[driver] = o
		p.changed()
		p.node.wg.Add(1)
		go func() {
			defer p.node.wg.Done()
			p.open(o, driver)
		}()
	}
	p.mu.Unlock()
	select {
	case <-o.done:
		return o.ch, o.err
	case <-ctx.Done():
		return nil, endOf(ctx)
	}
}

func (o *opening) failedBefore(t time.Time) bool {
	select {
	case <-o.done:
		return o.err != nil && o.at.Before(t)
	default:
		return false
	}
}

// openedChannel returns the channel of a driver if it is set up, and the error if it could not be a
// moment ago.
func (p *Peer) openedChannel(driver string) (*channel, error) {
	p.mu.Lock()
	o := p.channels[driver]
	p.mu.Unlock()
	if o == nil || o.failedBefore(time.Now().Add(-retryAfter)) {
		return nil, nil
	}
	select {
	case <-o.done:
		return o.ch, o.err
	default:
		return nil, nil
	}
}

func (p *Peer) open(o *opening, driver string) {
	var ch *channel
	start := time.Now()
	pth, g, id, err := p.dialPath(p.ctx, driver, QueueOptions{Path: driver})
	if err == nil {
		ch, err = p.adopt(pth, g, id)
	}
	p.arrived(id)
	err = p.verdict(p.ctx, err)
	p.node.account.SetUp(driver, time.Since(start), err)
	// Under the mutex, so that a channel that went down meanwhile is not kept: forget did not find
	// it here.
	p.mu.Lock()
	up := err == nil && p.paths[id] == ch
	if up {
		o.ch = ch
		close(o.done)
		p.changed()
	}
	p.mu.Unlock()
	if up {
		return
	}
	if err == nil {
		err = p.verdict(p.ctx, fmt.Errorf("%w: as soon as it was set up", path.ErrDown))
	}
	o.err, o.at = fmt.Errorf("set up %s: %w", driver, err), time.Now()
	close(o.done)
	p.changed()
	p.node.log.Warn("path not set up", "peer", p.info.Name, "path", driver, "error", err)
}

// pathConfig is what this side gives to a path with the peer.
func (p *Peer) pathConfig(streams, window int, noChecksum bool) setup.Config {
	o := &p.node.opts
	c := setup.Config{Peer: p.number, Principal: p.principal(), Rights: pathRights(p.rights), Exports: &p.node.exports,
		Window: o.Window, Streams: o.Streams, NoChecksum: o.NoChecksum || noChecksum,
		Users: p.users()}
	if streams > 0 {
		c.Streams = streams
	}
	if window > 0 {
		c.Window = window
	}
	if c.Window > 0 {
		c.Window = max(c.Window, fenceRoom+1)
	}
	return c
}

// ownEnd is this side's part of a path that is being set up: what is charged for it and, with an
// EndpointDriver, its endpoint.
type ownEnd struct {
	g  *grant
	ep setup.Endpoint // nil with a ListenDriver
}

// description is what the peer's end has to know of this one.
func (e *ownEnd) description() []byte {
	if e.ep == nil {
		return nil
	}
	return e.ep.Description()
}

// giveUp ends it before there is a path.
func (e *ownEnd) giveUp() {
	if e.ep != nil {
		e.ep.Close()
	}
	e.g.release()
}

// endpoint makes the endpoint of a path, if the driver has any; peer describes the other end, nil
// on the side that asks for the path. The end takes the grant over, also by an error.
func endpoint(d setup.Driver, cfg setup.Config, peer []byte, g *grant) (e ownEnd, err error) {
	e.g = g
	if d, ok := d.(setup.EndpointDriver); ok {
		if e.ep, err = d.Endpoint(cfg, peer); err != nil {
			g.release()
		}
	}
	return e, err
}

// dialPath asks the peer to accept a path, and dials it or connects its own endpoint with the
// peer's. Unless the id is 0 the path is one of those that are coming until arrived is called: the
// peer may use it, and say that it is down, before this side has it.
func (p *Peer) dialPath(ctx context.Context, driver string, o QueueOptions) (path.Path, *grant, uint64, error) {
	d := p.node.driver(driver)
	if d == nil {
		for _, c := range p.node.missing {
			if c.Path == driver {
				return nil, nil, 0, c.err
			}
		}
		return nil, nil, 0, fmt.Errorf("transfer: path %q: %w", driver, path.ErrUnavailable)
	}
	cfg := p.pathConfig(o.Streams, o.Window, o.NoChecksum)
	cfg.RoundTrip = sys.RoundTripOf(p.raw)
	if s, ok := d.(setup.StreamCounter); ok && cfg.Streams == 0 {
		cfg.Streams = s.Streams(cfg.RoundTrip)
	}
	var own ownEnd
	var l setup.Listener
	var token setup.Token
	if p.role == control.Acceptor && p.byPort(d) { // the peer knows a way to this side, this side none to the peer
		var err error
		if l, err = p.node.accepting.Open(d.(setup.ListenDriver), true); err != nil {
			return nil, nil, 0, err
		}
		rand.Read(token[:]) // never fails
	}
	ask := func() (offer control.PathOffer, err error) {
		if own, err = endpoint(d, cfg, nil, p.node.own(pathNeeds(d, &cfg))); err != nil {
			return offer, err
		}
		r, err := p.request(ctx, &control.OpenPath{Path: driver, Streams: uint32(cfg.Streams),
			Window: uint32(cfg.Window), NoChecksum: cfg.NoChecksum, Queue: o.Name,
			Endpoint: own.description(), Token: token})
		if err == nil {
			offer, err = control.Parse[control.PathOffer](r.Body)
		}
		if err == nil && (own.ep != nil) != (len(offer.Endpoint) > 0) {
			err = fmt.Errorf("transfer: %s answered with %d bytes of an endpoint of path %q: %w", p,
				len(offer.Endpoint), driver, path.ErrProtocol)
		}
		if err != nil {
			own.giveUp()
		}
		return offer, err
	}
	offer, err := ask()
	for errors.Is(err, control.Busy) && cfg.Streams != 1 { // it may have room for fewer
		cfg.Streams = max(cfg.Streams/2, 1)
		offer, err = ask()
	}
	if err != nil {
		return nil, nil, 0, err
	}
	p.mu.Lock()
	_, coming := p.coming[offer.PathID]
	if known := coming || p.paths[offer.PathID] != nil; known || offer.PathID == 0 {
		p.mu.Unlock()
		own.giveUp()
		return nil, nil, 0, fmt.Errorf("transfer: %s gave the path id %d, which is in use or 0: %w", p, offer.PathID,
			path.ErrProtocol)
	}
	patience := requestTimeout
	if l != nil {
		patience += requestTimeout / 2 // the peer says why it could not dial
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)() // the path of a lost peer comes no more
	at := &upcoming{end: cancel}
	p.coming[offer.PathID] = at
	p.mu.Unlock()
	var pth path.Path
	switch {
	case own.ep != nil:
		pth, err = own.ep.Connect(ctx, offer.Endpoint)
	case l != nil:
		if cfg.Secret, err = p.secret(token); err == nil {
			pth, err = l.Accept(ctx, token, cfg)
		}
	default:
		pth, err = p.dialOffer(ctx, d.(setup.ListenDriver), offer.Offer, cfg)
	}
	if err != nil {
		p.mu.Lock()
		if p.lost != nil {
			err = p.lost
		} else if at.down != nil {
			err = at.down
		}
		p.mu.Unlock()
		own.g.release()
		return nil, nil, offer.PathID, err
	}
	return pth, own.g, offer.PathID, nil
}

// errNoWay is why a path cannot be dialed where the session lives. To try again does not help.
var errNoWay = errors.New("what is between the nodes has to let more than one connection through")

// dialOffer dials where an offer of the peer says; without an address that is where the session was
// dialed.
func (p *Peer) dialOffer(ctx context.Context, d setup.ListenDriver, o setup.Offer, cfg setup.Config) (pth path.Path,
	err error) {
	atSession := o.Addr == ""
	if atSession {
		if !p.dialedTCP() {
			return nil, fmt.Errorf("transfer: %s offered path %q without an address: %w", p, d.Name(), path.ErrProtocol)
		}
		o.Addr = p.raw.RemoteAddr().String()
	} else if err := p.mayDial(d, o.Addr); err != nil {
		return nil, err
	}
	if cfg.Secret, err = p.secret(o.Token); err != nil {
		return nil, err
	}
	start := time.Now()
	pth, err = d.Dial(ctx, o, cfg)
	if d := time.Since(start); atSession && d > requestTimeout/2 && errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w; the session came by there, and in %v nothing else did: %w", err, d.Round(time.Second),
			errNoWay)
	}
	return pth, err
}

// mayDial refuses the address of an offer where the peer has no say: it could have this node
// connect to any machine that this one reaches. A peer offers the IP address of its session, or
// where the session is one of this machine, a loopback address or a name of a driver that stays on
// the machine.
func (p *Peer) mayDial(d setup.ListenDriver, addr string) error {
	a, err := netip.ParseAddrPort(addr)
	if err != nil && d.Traits().SameHost {
		return nil // the driver knows its own
	}
	host := a.Addr().Unmap().WithZone("")
	session := "a unix socket"
	if t, ok := p.raw.RemoteAddr().(*net.TCPAddr); ok {
		at := t.AddrPort().Addr().Unmap().WithZone("")
		if err == nil && host == at {
			return nil
		}
		session = at.String()
	} else if host.IsLoopback() {
		return nil
	}
	if slices.ContainsFunc(p.node.opts.DataAddrs, func(of netip.Prefix) bool { return of.Contains(host) }) {
		return nil
	}
	return control.Errorf(control.NotPermitted,
		"%s offered path %q at %q: expected the address of the session, %s, or one of Options.DataAddrs", p, d.Name(),
		addr, session)
}

// arrived ends the set-up of a path: it is a channel or a queue, or nothing became of it.
func (p *Peer) arrived(id uint64) {
	if id == 0 {
		return
	}
	p.mu.Lock()
	delete(p.coming, id)
	p.mu.Unlock()
}

// adopt makes a channel of a path and gives it to the node's loop.
func (p *Peer) adopt(pth path.Path, g *grant, id uint64) (*channel, error) {
	ch := newChannel(p, id, pth, g)
	p.mu.Lock()
	err := p.lost
	if w := ch.caps.Window; err == nil && w <= fenceRoom {
		err = fmt.Errorf("transfer: %s agreed to a window of %d: expected at least %d, so that a fence has room: %w", p,
			w, fenceRoom+1, path.ErrProtocol)
	}
	if err == nil && p.paths[id] != nil {
		err = fmt.Errorf("transfer: %s gave the path id %d twice", p, id)
	}
	if at := p.coming[id]; err == nil && at != nil && at.down != nil {
		err = fmt.Errorf("%w; before it was set up", at.down)
	}
	if err == nil {
		p.paths[id] = ch
		p.node.account.PathUp(ch, account.UsedPath{Peer: p.account, Path: pth, ID: id, Row: (*channelRow)(ch)})
	}
	p.mu.Unlock()
	if err == nil {
		if err = ch.watched(); err == nil {
			p.node.log.Info("path up", "peer", p.info.Name, "path", pth.Name(), "security", ch.caps.Security.String())
			return ch, nil
		}
	}
	ch.shut(err)
	p.forget(ch)
	return nil, err
}

func (p *Peer) forget(ch *channel) {
	p.mu.Lock()
	if p.paths[ch.id] == ch {
		delete(p.paths, ch.id)
	}
	for name, o := range p.channels {
		select {
		case <-o.done:
			if o.ch == ch {
				delete(p.channels, name)
			}
		default:
		}
	}
	p.changed()
	p.mu.Unlock()
	p.node.loop.Remove(ch.tag)
}

// channelDown is called when a path ended; the peer stays as long as its control connection does.
func (p *Peer) channelDown(ch *channel, err error) {
	p.node.account.PathDown(ch, err)
	p.forget(ch)
	if !errors.Is(err, ErrPeerLost) {
		level := slog.LevelWarn
		switch {
		case errors.Is(err, ErrClosed): // the caller wants it
			level = slog.LevelDebug
		case errors.Is(err, setup.ErrPeerClosed):
			level = slog.LevelInfo
		}
		p.node.log.Log(context.Background(), level, "path down", "peer", p.info.Name, "path", ch.p.Name(), "error", err)
	}
}

// fence asks every path of the peer for a fence and returns what to wait for.
func (p *Peer) fence(key path.Key) []<-chan error {
	p.mu.Lock()
	channels := slices.Collect(maps.Values(p.paths))
	p.mu.Unlock()
	var out []<-chan error
	for _, l := range channels {
		out = append(out, l.fence(key))
		p.node.loop.Kick(l)
	}
	return out
}

// gave reports whether anything but gets went by a path that is open: the peer may not have all of
// it yet. The mutex is held.
func (p *Peer) gave() bool {
	for _, l := range p.paths {
		if l.gave.Load() {
			return true
		}
	}
	return false
}

func (p *Peer) addQueue(q *Queue) {
	p.node.keepQueue(q)
	p.mu.Lock()
	lost := p.lost
	if lost == nil {
		p.queues[q] = true
		p.node.account.PathUp(q, account.UsedPath{Peer: p.account, Path: q.p, Queue: q.name})
	}
	p.mu.Unlock()
	if lost != nil {
		q.fail(lost)
	}
}

func (p *Peer) removeQueue(q *Queue) {
	p.mu.Lock()
	delete(p.queues, q)
	p.mu.Unlock()
	p.node.account.PathDown(q, q.why())
	p.node.dropQueue(q)
}

// remote is what this node knows of an export of the peer.
func (p *Peer) remote(k path.Key) (path.Desc, error) {
	if w := p.ways[k.Index%keptWays].Load(); w != nil && w.export.Key == k && w.export.Rights != 0 &&
		w.changes == p.changes.Load() {
		return w.export, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r, ok := p.remotes[k]; ok {
		return r.Desc, nil
	}
	if p.wasRevoked(k) {
		return path.Desc{}, fmt.Errorf("the peer has revoked it: %w", path.ErrRevoked)
	}
	return path.Desc{}, fmt.Errorf("unknown export, or one that this node has no right to: Lookup, List or Import it "+
		"first: %w", path.ErrKey)
}
