package socket

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
)

// TCPPort is a port with a tcp:// address: one that connects, or one that accepts. Besides engine.Port it knows its connections.
type TCPPort struct {
	address string // as it was opened
	name    string
	o       TCPOptions
	listen  bool
	ipv6    bool
	zone    uint32
	local   netip.AddrPort // to bind to
	remote  netip.AddrPort // to connect to
	addr    netip.AddrPort // of the listener, IPv4 as IPv4
	opened  time.Time

	// current is the connection of a port that connects, nil while there is none; gone says that there will be no other.
	current atomic.Pointer[conn]
	gone    atomic.Bool

	rx      engine.RxSet[*tcpRx] // its lock guards what follows; taken before those of queues, and those before those of connections
	lfd     int                  // of the listener, -1 for none
	ltag    uint64
	paused  *time.Timer // until connections are accepted again
	dialing *dialing    // nil while none is made
	again   *time.Timer // the next attempt
	backoff engine.Backoff
	cause   error // why the last attempt or connection failed
	tx      []*txQueue
	ended   []*txQueue // closed ones, the latest
	pastTx  engine.TxStats
	change  chan struct{} // closed and replaced when a connection comes or goes
	notes   []string
	last    uint32 // id given last

	table  sync.RWMutex // besides mu for writing
	conns  map[uint32]*conn
	byAddr map[netip.AddrPort]uint32

	counts struct{ accepted, connected, refused, attempts, failures atomic.Uint64 }
}

// ConnEvent says that a connection has come or gone.
type ConnEvent struct {
	ID     uint32
	Local  netip.AddrPort
	Remote netip.AddrPort
	Up     bool
	// Err says why it has gone, as a *ConnError; nil when both sides had ended it.
	Err error
}

// ConnError is how a connection ended, or an attempt to connect. It wraps engine.ErrDown or engine.ErrConnect, and the kernel's error.
type ConnError struct {
	ID     uint32 // 0 of an attempt
	Remote netip.AddrPort
	Err    error // the kernel's, or nil where the peer ended it
}

// Error implements error.
func (e *ConnError) Error() string {
	switch {
	case e.ID == 0:
		return fmt.Sprintf("socket: connecting to %s: %v", e.Remote, e.Err)
	case e.Err == nil:
		return fmt.Sprintf("socket: connection %d to %s was ended by the peer", e.ID, e.Remote)
	}
	return fmt.Sprintf("socket: connection %d to %s: %v", e.ID, e.Remote, e.Err)
}

// Unwrap gives the sentinel and the kernel's error.
func (e *ConnError) Unwrap() []error {
	kind := engine.ErrDown
	if e.ID == 0 {
		kind = engine.ErrConnect
	}
	if e.Err == nil {
		return []error{kind}
	}
	return []error{kind, e.Err}
}

// TCPCounts are counts of a port's connections since it was opened.
type TCPCounts struct {
	Accepted, Connected uint64
	Refused             uint64 // connections beyond MaxConns
	Attempts, Failures  uint64 // to connect
}

func openTCP(ctx context.Context, spec engine.PortSpec, a address, o TCPOptions) (*TCPPort, error) {
	p := &TCPPort{name: spec.Name, address: spec.Address, o: o, listen: a.listen, lfd: -1, conns: map[uint32]*conn{}, byAddr: map[netip.AddrPort]uint32{},
		change: make(chan struct{}), opened: time.Now(), backoff: engine.Backoff{Least: o.BackoffMin, Most: o.BackoffMax}}
	var err error
	if !a.listen {
		if p.remote, err = a.remote.resolve(ctx, netip.Addr{}); err != nil {
			return nil, err
		}
		p.ipv6 = p.remote.Addr().Is6()
	}
	if a.listen || a.local.given() {
		if p.local, err = a.local.resolve(ctx, p.remote.Addr()); err != nil {
			return nil, err
		}
		if p.ipv6 = p.ipv6 || p.local.Addr().Is6(); !a.listen && p.local.Addr().Is6() != p.remote.Addr().Is6() {
			return nil, invalid("port %q: one address is of IPv4 and one of IPv6", spec.Address)
		}
	}
	if p.zone, err = zoneOf(p.local.Addr(), p.remote.Addr()); err != nil {
		return nil, err
	}
	if a.listen {
		if err := p.startListening(); err != nil {
			return nil, err
		}
		return p, nil
	}
	p.rx.Lock()
	err = p.dial()
	p.rx.Unlock()
	if err == nil && !o.Background {
		bounded, cancel := context.WithTimeout(ctx, o.ConnectTimeout)
		defer cancel()
		err = p.WaitConnected(bounded)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// socket makes a socket with the port's options.
func (p *TCPPort) socket() (int, error) {
	fd, err := sys.SocketTCP(p.ipv6)
	if err != nil {
		return -1, err
	}
	for _, b := range []struct{ name, force, bytes int }{{sys.SoRcvBuf, sys.SoRcvBufForce, p.o.ReceiveBuffer}, {sys.SoSndBuf, sys.SoSndBufForce, p.o.SendBuffer}} {
		if b.bytes > 0 && err == nil { // before the connection is made: the window's scale depends on it
			_, err = setBuffer(fd, b.name, b.force, b.bytes)
		}
	}
	if err == nil && p.o.Interface != "" {
		err = sys.BindToDevice(fd, p.o.Interface)
	}
	if err == nil && p.o.Congestion != "" {
		err = sys.SetCongestion(fd, p.o.Congestion)
	}
	if err != nil {
		sys.Close(fd)
		return -1, err
	}
	return fd, nil
}

// tune sets the options of a connection.
func (p *TCPPort) tune(fd int) error {
	var err error
	set := func(level, name, value int) {
		if err == nil {
			err = sys.SetOption(fd, level, name, value)
		}
	}
	if !p.o.Delay {
		set(sys.SolTCP, sys.TCPNoDelay, 1)
	}
	if k := p.o.KeepAlive; k > 0 {
		seconds := max(int(k/time.Second), 1)
		set(sys.SolSocket, sys.SoKeepAlive, 1)
		set(sys.SolTCP, sys.TCPKeepIdle, seconds)
		set(sys.SolTCP, sys.TCPKeepInt, seconds)
	}
	if p.o.UserTimeout > 0 {
		set(sys.SolTCP, sys.TCPUserTimeout, int(p.o.UserTimeout/time.Millisecond))
	}
	if p.o.BusyPoll > 0 && err == nil {
		if e := sys.SetOption(fd, sys.SolSocket, sys.SoBusyPoll, int(p.o.BusyPoll.Microseconds())); e != nil && !sys.IsErrno(e, sys.EPERM) {
			err = e
		}
	}
	for _, s := range p.o.Set {
		set(s.Level, s.Name, s.Value)
	}
	return err
}

func (p *TCPPort) startListening() error {
	fd, err := p.socket()
	if err != nil {
		return err
	}
	fail := func(err error) error {
		sys.Close(fd)
		return err
	}
	if err := sys.SetOption(fd, sys.SolSocket, sys.SoReuseAddr, 1); err != nil {
		return fail(err)
	}
	if err := sys.Bind(fd, family(p.local, p.ipv6), p.zone); err != nil {
		return fail(bindError(p.local, err))
	}
	if err := sys.ListenTCP(fd, p.o.Backlog); err != nil {
		return fail(bindError(p.local, err))
	}
	at, err := sys.LocalAddr(fd)
	if err != nil {
		return fail(err)
	}
	p.addr = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	p.rx.Lock()
	defer p.rx.Unlock()
	p.lfd = fd
	if p.ltag, err = events.add(fd, sys.EventIn|sys.EventOneShot, (*acceptor)(p)); err != nil {
		p.lfd = -1
		return fail(err)
	}
	return nil
}

// acceptor is the port as the one who accepts.
type acceptor TCPPort

const (
	acceptBatch = 64
	acceptPause = 100 * time.Millisecond // when the process has no descriptor left
)

// ready implements watcher.
func (a *acceptor) ready(uint32) {
	p := (*TCPPort)(a)
	p.rx.Lock()
	defer p.rx.Unlock()
	if p.rx.Closed() || p.lfd < 0 {
		return
	}
	for range acceptBatch {
		fd, from, err := sys.AcceptTCP(p.lfd)
		switch {
		case err == nil && len(p.conns) >= p.o.MaxConns:
			p.counts.refused.Add(1)
			sys.ResetOnClose(fd)
			sys.Close(fd)
			continue
		case err == nil:
			p.counts.accepted.Add(1)
			p.admit(fd, from)
			continue
		case sys.IsErrno(err, sys.ECONNABORTED) || sys.IsErrno(err, sys.EINTR):
			continue
		case !sys.IsErrno(err, sys.EAGAIN): // no descriptors, no memory: the others wait in the kernel
			p.paused = time.AfterFunc(acceptPause, func() { p.listenAgain() })
			return
		}
		break
	}
	events.set(p.lfd, sys.EventIn|sys.EventOneShot, p.ltag)
}

func (p *TCPPort) listenAgain() {
	p.rx.Lock()
	defer p.rx.Unlock()
	if !p.rx.Closed() && p.lfd >= 0 {
		events.set(p.lfd, sys.EventIn|sys.EventOneShot, p.ltag)
	}
}

// admit makes a connection of a descriptor. The caller holds p.rx.
func (p *TCPPort) admit(fd int, from netip.AddrPort) {
	c := &conn{port: p, fd: fd, remote: netip.AddrPortFrom(from.Addr().Unmap(), from.Port())}
	at, err := sys.LocalAddr(fd)
	if err == nil {
		err = p.tune(fd)
	}
	if err == nil {
		c.local = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		for c.id == 0 || p.conns[c.id] != nil {
			p.last++
			c.id = p.last
		}
		c.tag, err = events.add(fd, sys.EventOut|sys.EventRdH|sys.EventEdge, c)
	}
	if err != nil {
		sys.Close(fd)
		if p.cause = err; !p.listen {
			p.missed(err)
		}
		return
	}
	p.table.Lock()
	p.conns[c.id] = c
	p.byAddr[c.remote] = c.id
	p.table.Unlock()
	if !p.listen {
		p.current.Store(c)
	}
	p.assign(c)
	p.changed()
	p.tell(c, true, nil)
}

// tell calls OnConn.
func (p *TCPPort) tell(c *conn, up bool, err error) {
	if p.o.OnConn != nil {
		p.o.OnConn(ConnEvent{ID: c.id, Local: c.local, Remote: c.remote, Up: up, Err: err})
	}
}

// changed wakes those who wait for a connection, and what waits to be sent. The caller holds p.rx.
func (p *TCPPort) changed() {
	close(p.change)
	p.change = make(chan struct{})
	for _, q := range p.tx {
		q.box.Kick()
	}
}

// assign gives a connection to a queue: the one that is bound to it, or else the one of the unbound that has the fewest. The caller
// holds p.rx.
func (p *TCPPort) assign(c *conn) {
	var to *tcpRx
	for _, q := range p.rx.Live() {
		if q.Spec().Conn == c.id {
			to = q
			break
		}
		if q.Spec().Conn == 0 && (to == nil || q.load() < to.load()) {
			to = q
		}
	}
	if to != nil {
		to.adopt(c)
	}
}

// finish ends a connection and closes it. What waits to be sent on it is dropped.
func (p *TCPPort) finish(c *conn, err error) {
	p.rx.Lock()
	defer p.rx.Unlock()
	p.end(c, err)
}

// end is finish for those who hold p.rx.
func (p *TCPPort) end(c *conn, err error) {
	if p.conns[c.id] != c {
		return
	}
	p.table.Lock()
	delete(p.conns, c.id)
	if p.byAddr[c.remote] == c.id {
		delete(p.byAddr, c.remote)
	}
	p.table.Unlock()
	events.remove(c.fd, c.tag)
	if c.q != nil {
		c.q.lose(c)
		c.q = nil
	}
	c.mu.Lock()
	if err == nil {
		err = c.err
	}
	c.drop(engine.DropDown, nil)
	c.dead = true
	sys.Close(c.fd)
	c.mu.Unlock()
	failure := &ConnError{ID: c.id, Remote: c.remote, Err: err}
	for _, q := range p.rx.Live() {
		if q.Spec().Conn == c.id {
			q.fail(failure)
		}
	}
	if p.current.CompareAndSwap(c, nil) && !p.rx.Closed() {
		p.cause = failure
		if p.o.Reconnect {
			p.retryLater()
		} else {
			p.giveUp(failure)
		}
	}
	p.changed()
	if err == nil && c.ended {
		p.tell(c, false, nil)
	} else {
		p.tell(c, false, failure)
	}
}

// giveUp says that there will be no other connection. The caller holds p.rx.
func (p *TCPPort) giveUp(err error) {
	p.gone.Store(true)
	for _, q := range p.rx.Live() {
		q.fail(err)
	}
	p.changed()
}

// Name implements engine.Port.
func (p *TCPPort) Name() string { return p.name }

// LocalAddr is the address that the port accepts on, or that of its connection; invalid while there is none.
func (p *TCPPort) LocalAddr() netip.AddrPort {
	if p.listen {
		return p.addr
	}
	if c := p.current.Load(); c != nil {
		return c.local
	}
	return p.local
}

// Info implements engine.Port. A port that connects is up while it is connected.
func (p *TCPPort) Info() engine.PortInfo {
	i := engine.PortInfo{Engine: "socket", Address: "tcp://" + p.remote.String(), Device: p.o.Interface, NUMA: -1}
	if p.listen {
		i.Address = "tcp://" + p.addr.String() + "?listen=1"
	}
	if a := p.LocalAddr(); a.IsValid() {
		i.IPs = []netip.Prefix{netip.PrefixFrom(a.Addr(), a.Addr().BitLen())}
	}
	p.rx.Lock()
	defer p.rx.Unlock()
	i.Up = !p.rx.Closed() && (p.listen || p.current.Load() != nil)
	return i
}

// Capabilities implements engine.Port.
func (p *TCPPort) Capabilities() engine.Capabilities {
	p.rx.Lock()
	defer p.rx.Unlock()
	return p.can()
}

// can are the port's Capabilities. The caller holds the set's lock.
func (p *TCPPort) can() engine.Capabilities {
	c := tcpCapabilities()
	c.Notes = append(slices.Clone(p.notes), c.Notes...)
	return c
}

// Rules implements engine.Port: there are none.
func (p *TCPPort) Rules() engine.Rules { return nil }

// Counts are the counts of the port's connections.
func (p *TCPPort) Counts() TCPCounts {
	return TCPCounts{p.counts.accepted.Load(), p.counts.connected.Load(), p.counts.refused.Load(), p.counts.attempts.Load(), p.counts.failures.Load()}
}

// Stats implements engine.Port.
func (p *TCPPort) Stats(s *engine.PortStats) {
	p.rx.Lock()
	defer p.rx.Unlock()
	*s = engine.PortStats{Tx: p.pastTx}
	p.rx.Sum(&s.Rx)
	engine.SumTx(&s.Tx, p.tx, p.ended)
}

// Close implements engine.Port. What the kernel has taken to send it still sends.
func (p *TCPPort) Close() error {
	rx, first := p.rx.End()
	if !first {
		return nil
	}
	p.rx.Lock()
	p.stopDialing()
	if p.paused != nil {
		p.paused.Stop()
	}
	tx := slices.Clone(p.tx)
	var err error
	if p.lfd >= 0 {
		events.remove(p.lfd, p.ltag)
		err = sys.Close(p.lfd)
		p.lfd = -1
	}
	p.rx.Unlock()
	for _, q := range tx {
		err = errors.Join(err, q.Close())
	}
	for _, q := range rx {
		err = errors.Join(err, q.Close())
	}
	p.rx.Lock()
	defer p.rx.Unlock()
	for _, c := range p.conns {
		p.end(c, engine.ErrClosed)
	}
	p.changed()
	return err
}
