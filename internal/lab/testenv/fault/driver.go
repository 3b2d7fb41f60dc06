package fault

import (
	"context"
	"sync"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// Driver makes paths of another driver and wraps each in a [Path]. Paths are numbered from 1 in the
// order in which they are made, dialed and accepted ones together.
type Driver struct {
	setup.ListenDriver
	plan Plan

	mu    sync.Mutex // guards what follows
	paths []*Path
}

// NewDriver wraps a driver under the same name.
func NewDriver(d setup.ListenDriver, plan Plan) (*Driver, error) {
	if err := plan.Check(Operations); err != nil {
		return nil, err
	}
	return &Driver{ListenDriver: d, plan: plan}, nil
}

// Paths are those made until now, also those that have ended.
func (d *Driver) Paths() []*Path {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]*Path(nil), d.paths...)
}

// Counts is how many faults happened on all paths.
func (d *Driver) Counts() (c Counts) {
	for _, p := range d.Paths() {
		for k, n := range p.Log().Counts {
			c[k] += n
		}
	}
	return c
}

func (d *Driver) wrap(p path.Path, err error) (path.Path, error) {
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	x, err := NewPath(p, d.plan, len(d.paths)+1)
	if err != nil {
		return nil, err
	}
	d.paths = append(d.paths, x)
	return x, nil
}

// Listen is that of the wrapped driver; the listener's paths are wrapped.
func (d *Driver) Listen() (setup.Listener, error) {
	l, err := d.ListenDriver.Listen()
	if err != nil {
		return nil, err
	}
	return listener{l, d}, nil
}

// Dial is that of the wrapped driver; the path is wrapped.
func (d *Driver) Dial(ctx context.Context, o setup.Offer, cfg setup.Config) (path.Path, error) {
	p, err := d.ListenDriver.Dial(ctx, o, cfg)
	return d.wrap(p, err)
}

type listener struct {
	setup.Listener
	d *Driver
}

func (l listener) Accept(ctx context.Context, t setup.Token, cfg setup.Config) (path.Path, error) {
	p, err := l.Listener.Accept(ctx, t, cfg)
	return l.d.wrap(p, err)
}

// ProxyDriver makes paths of a wire driver whose data connections go through a [Proxy]: its
// listeners offer the proxy's address instead of their own. It suits drivers whose addresses are
// those of TCP.
type ProxyDriver struct {
	setup.ListenDriver
	plan Plan

	mu      sync.Mutex // guards what follows
	proxies []*Proxy
}

// NewProxyDriver wraps a driver under the same name.
func NewProxyDriver(d setup.ListenDriver, plan Plan) (*ProxyDriver, error) {
	if err := plan.Check(Bytes); err != nil {
		return nil, err
	}
	return &ProxyDriver{ListenDriver: d, plan: plan}, nil
}

// Proxies are those of the listeners opened until now.
func (d *ProxyDriver) Proxies() []*Proxy {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]*Proxy(nil), d.proxies...)
}

// Counts is how many faults happened on all connections.
func (d *ProxyDriver) Counts() (c Counts) {
	for _, p := range d.Proxies() {
		for k, n := range p.Counts() {
			c[k] += n
		}
	}
	return c
}

// Listen opens a listener and a proxy in front of it; closing the listener closes both.
func (d *ProxyDriver) Listen() (setup.Listener, error) {
	l, err := d.ListenDriver.Listen()
	if err != nil {
		return nil, err
	}
	p, err := NewProxy("tcp", l.Addr(), d.plan)
	if err != nil {
		l.Close()
		return nil, err
	}
	d.mu.Lock()
	d.proxies = append(d.proxies, p)
	d.mu.Unlock()
	return proxyListener{l, p}, nil
}

type proxyListener struct {
	setup.Listener
	p *Proxy
}

func (l proxyListener) Addr() string { return l.p.Addr() }

func (l proxyListener) Close() error {
	err := l.Listener.Close()
	if perr := l.p.Close(); err == nil {
		err = perr
	}
	return err
}
