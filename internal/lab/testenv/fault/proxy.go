package fault

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// Proxy stands between clients and a server that are real sockets: it accepts like the server,
// connects to it, and carries what each side sends, with faults. Neither side needs to know.
//
// Descriptors that travel over Unix sockets are lost on the way, so transfer/path/shm does not work
// through a Proxy; control connections do.
type Proxy struct {
	network string
	plan    Plan

	l    net.Listener
	addr string

	wg      sync.WaitGroup
	closing chan struct{} // closed by Close

	mu     sync.Mutex // guards what follows
	target string
	links  []*Link
	refuse bool
	closed bool
}

// NewProxy listens on a free address of this host for connections to target. The network is "tcp"
// or "unix". The caller calls Close.
func NewProxy(network, target string, plan Plan) (*Proxy, error) {
	p := &Proxy{network: network, target: target, plan: plan, closing: make(chan struct{})}
	at := "127.0.0.1:0"
	switch network {
	case "tcp":
		if strings.HasPrefix(target, "[") {
			at = "[::1]:0"
		}
	case "unix":
		at = "@penstock-fault-" + rand.Text()
	default:
		return nil, fmt.Errorf("fault: network %q: expected tcp or unix", network)
	}
	if err := plan.Check(Bytes); err != nil {
		return nil, err
	}
	l, err := net.Listen(network, at)
	if err != nil {
		return nil, fmt.Errorf("fault: %w", err)
	}
	p.l, p.addr = l, l.Addr().String()
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where clients connect to instead of the target: host and port, or the name of an abstract
// Unix socket.
func (p *Proxy) Addr() string { return p.addr }

// SetTarget sends connections that come from now on to another server.
func (p *Proxy) SetTarget(target string) {
	p.mu.Lock()
	p.target = target
	p.mu.Unlock()
}

// Close ends all connections with a reset and waits until nothing of the proxy is left.
func (p *Proxy) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	close(p.closing)
	links := p.links
	p.mu.Unlock()
	err := p.l.Close()
	for _, l := range links {
		l.drop()
	}
	p.wg.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			select { // for example too many open files: that passes
			case <-time.After(10 * time.Millisecond):
				continue
			case <-p.closing:
				return
			}
		}
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			reset(c)
			return
		}
		l := &Link{proxy: p, number: len(p.links) + 1, client: c, stop: make(chan struct{})}
		p.links = append(p.links, l)
		l.up = newFlow(&p.plan, l.number, Up, &l.rec, func() { l.halfClosed(Up) })
		l.down = newFlow(&p.plan, l.number, Down, &l.rec, func() { l.halfClosed(Down) })
		refuse, target := p.refuse || p.plan.refuses(l.number), p.target
		p.mu.Unlock()
		p.wg.Go(func() { l.serve(target, refuse) })
	}
}

// Links are the connections that came until now, in their order, also those that have ended.
func (p *Proxy) Links() []*Link {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*Link(nil), p.links...)
}

// Cut breaks all connections that there are.
func (p *Proxy) Cut() {
	for _, l := range p.Links() {
		l.Cut()
	}
}

// Stall stops a direction of all connections until Resume.
func (p *Proxy) Stall(d Direction) {
	for _, l := range p.Links() {
		l.Stall(d)
	}
}

// Resume ends all stalls of a direction, also planned ones.
func (p *Proxy) Resume(d Direction) {
	for _, l := range p.Links() {
		l.Resume(d)
	}
}

// HalfClose ends a direction of all connections in good order.
func (p *Proxy) HalfClose(d Direction) {
	for _, l := range p.Links() {
		l.HalfClose(d)
	}
}

// Refuse resets connections that come from now on, or ceases to.
func (p *Proxy) Refuse(yes bool) {
	p.mu.Lock()
	p.refuse = yes
	p.mu.Unlock()
}

// Counts is how many faults happened on all connections.
func (p *Proxy) Counts() (c Counts) {
	for _, l := range p.Links() {
		for k, n := range l.Log().Counts {
			c[k] += n
		}
	}
	return c
}

// Link is one connection through a Proxy. Its methods may be called from any goroutine, at any
// time.
type Link struct {
	proxy  *Proxy
	number int
	rec    recorder
	client net.Conn
	up     *flow
	down   *flow

	stop chan struct{} // closed when it is over
	mu   sync.Mutex    // guards what follows
	over bool
	out  net.Conn // to the server; nil until it is connected
}

// Log is what was done until now.
func (l *Link) Log() Log { return l.rec.snapshot() }

// Done is closed when the connection is over on both sides.
func (l *Link) Done() <-chan struct{} { return l.stop }

func (l *Link) serve(target string, refuse bool) {
	defer l.drop()
	if refuse {
		l.rec.add(Event{Kind: Refuse, Dir: Up})
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l.proxy.wg.Go(func() { // a server that does not answer must not hold the proxy
		select {
		case <-l.stop:
			cancel()
		case <-ctx.Done():
		}
	})
	var d net.Dialer
	out, err := d.DialContext(ctx, l.proxy.network, target)
	cancel()
	if err != nil {
		return
	}
	l.mu.Lock()
	if l.over {
		l.mu.Unlock()
		reset(out)
		return
	}
	l.out = out
	l.mu.Unlock()
	var wg sync.WaitGroup
	var good [2]bool
	wg.Go(func() { good[0] = l.pump(l.up, out, l.client) })
	wg.Go(func() { good[1] = l.pump(l.down, l.client, out) })
	wg.Wait()
	if good[0] && good[1] { // both directions ended in good order
		l.close(func(c net.Conn) { c.Close() })
	}
}

// pump carries one direction until it ends; it reports whether that was in good order. Otherwise it
// ends the connection.
func (l *Link) pump(f *flow, to, from net.Conn) bool {
	buf := make([]byte, 64<<10)
	for {
		if f.due(l.stop) != nil {
			l.drop()
			return false
		}
		n, err := from.Read(buf)
		for rest := buf[:n]; len(rest) > 0; {
			if f.due(l.stop) != nil {
				l.drop()
				return false
			}
			out, k := f.take(rest)
			rest = rest[k:]
			if len(out) == 0 {
				continue
			}
			if _, err := to.Write(out); err != nil && !f.ended.Load() {
				l.drop()
				return false
			}
		}
		switch {
		case err == io.EOF:
			if f.due(l.stop) != nil {
				l.drop()
				return false
			}
			if !f.ended.Swap(true) {
				closeWrite(to)
			}
			return true
		case err != nil:
			l.drop()
			return false
		}
	}
}

func closeWrite(c net.Conn) {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		w.CloseWrite()
	}
}

func (l *Link) halfClosed(d Direction) {
	l.mu.Lock()
	to := l.out
	l.mu.Unlock()
	if d == Down {
		to = l.client
	}
	if to != nil {
		closeWrite(to)
	}
}

// drop ends the connection with a reset on both sides.
func (l *Link) drop() { l.close(reset) }

func (l *Link) close(how func(net.Conn)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return
	}
	l.over = true
	close(l.stop)
	how(l.client)
	if l.out != nil {
		how(l.out)
	}
	for _, g := range l.gates(Both) {
		g.open() // stops its timer
	}
}

func (l *Link) gates(d Direction) (out []*gate) {
	if d&Up != 0 {
		out = append(out, l.up.gate)
	}
	if d&Down != 0 {
		out = append(out, l.down.gate)
	}
	return out
}

// Cut breaks the connection now.
func (l *Link) Cut() {
	l.rec.add(Event{Kind: Cut, Dir: Both})
	l.drop()
}

// Stall stops a direction until Resume.
func (l *Link) Stall(d Direction) {
	l.rec.add(Event{Kind: Stall, Dir: d})
	for _, g := range l.gates(d) {
		g.close(0)
	}
}

// Resume ends all stalls of a direction, also planned ones.
func (l *Link) Resume(d Direction) {
	for _, g := range l.gates(d) {
		g.open()
	}
}

// HalfClose ends a direction now, in good order.
func (l *Link) HalfClose(d Direction) {
	l.rec.add(Event{Kind: HalfClose, Dir: d})
	for _, f := range []*flow{l.up, l.down} {
		if f.dir&d != 0 && !f.ended.Swap(true) {
			l.halfClosed(f.dir)
		}
	}
}

// reset closes a connection so that the other side sees a reset where the protocol has one.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	c.Close()
}
