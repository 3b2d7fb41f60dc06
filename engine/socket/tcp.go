package socket

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/internal/sys"
)

// What connections of this engine and of others have in common.
type (
	ConnEvent   = conns.Event
	ConnError   = conns.Error
	TCPCounts   = conns.Counts
	connections = conns.Connections
)

// TCPPort is a port with a tcp:// address: one that connects, or one that accepts. Besides
// engine.Port it knows its connections.
type TCPPort struct {
	connections
	address  string // as it was opened
	name     string
	o        TCPOptions
	local    netip.AddrPort // to bind to
	remote   netip.AddrPort // to connect to; invalid of a port that accepts
	listener *net.TCPListener

	// its lock guards what follows; taken before those of queues, and those before those of
	// connections
	rx     engine.RxSet[*tcpRx]
	conns  conns.Set[*conn, *net.TCPConn]
	tx     []*txQueue
	ended  []*txQueue // closed ones, the latest
	pastTx engine.TxStats
}

func openTCP(ctx context.Context, spec engine.PortSpec, a address, o TCPOptions) (*TCPPort, error) {
	p := &TCPPort{name: spec.Name, address: spec.Address, o: o}
	var err error
	if !a.listen {
		if p.remote, err = a.remote.resolve(ctx, netip.Addr{}); err != nil {
			return nil, err
		}
	}
	if a.listen || a.local.given() {
		if p.local, err = a.local.resolve(ctx, p.remote.Addr()); err != nil {
			return nil, err
		}
		if !a.listen && p.local.Addr().Is6() != p.remote.Addr().Is6() {
			return nil, invalid("port %q: one address is of IPv4 and one of IPv6", spec.Address)
		}
	}
	if _, err = zoneOf(p.local.Addr(), p.remote.Addr()); err != nil {
		return nil, err
	}
	p.conns.Open("socket", (*tcpHost)(p), &p.rx, &p.o.Options, p.remote)
	p.connections = &p.conns
	if a.listen {
		err = p.startListening(ctx)
	} else {
		p.rx.Lock()
		p.conns.Dial()
		p.rx.Unlock()
		if !o.Background {
			bounded, cancel := context.WithTimeout(ctx, o.ConnectTimeout)
			defer cancel()
			err = p.WaitConnected(bounded)
		}
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// prepare sets the options that a socket has before it is connected.
func (p *TCPPort) prepare(fd int) (err error) {
	for _, b := range []struct{ name, force, bytes int }{{sys.SoRcvBuf, sys.SoRcvBufForce, p.o.ReceiveBuffer},
		{sys.SoSndBuf, sys.SoSndBufForce, p.o.SendBuffer}} {
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
	if err == nil && p.local.IsValid() {
		err = sys.SetOption(fd, sys.SolSocket, sys.SoReuseAddr, 1)
	}
	if err != nil {
		return conns.Final{Err: err}
	}
	return nil
}

// tune sets the options of a connection.
func (p *TCPPort) tune(fd int) error {
	alive, seconds, timeout := p.o.KeepAlive > 0, max(int(p.o.KeepAlive/time.Second), 1),
		int(p.o.UserTimeout/time.Millisecond)
	err := apply(fd, setting{p.o.Delay, sys.SolTCP, sys.TCPNoDelay, 0}, // package net has set it
		setting{alive, sys.SolSocket, sys.SoKeepAlive, 1}, setting{alive, sys.SolTCP, sys.TCPKeepIdle, seconds},
		setting{alive, sys.SolTCP, sys.TCPKeepInt, seconds},
		setting{p.o.UserTimeout > 0, sys.SolTCP, sys.TCPUserTimeout, timeout})
	if err != nil {
		return err
	}
	err = apply(fd, setting{p.o.BusyPoll > 0, sys.SolSocket, sys.SoBusyPoll, int(p.o.BusyPoll.Microseconds())})
	if err != nil && !sys.IsErrno(err, sys.EPERM) {
		return err
	}
	return further(fd, p.o.Set)
}

func (p *TCPPort) startListening(ctx context.Context) error {
	c := net.ListenConfig{Control: sys.Control(p.prepare), KeepAlive: -1}
	c.SetMultipathTCP(false)
	network := "tcp"
	if p.local.Addr().Is4() {
		network = "tcp4"
	}
	l, err := c.Listen(ctx, network, p.local.String())
	if err != nil {
		return bindError(p.local, err)
	}
	p.listener = l.(*net.TCPListener)
	if err := sys.OfConn(p.listener, func(fd int) error { return sys.ListenTCP(fd, p.o.Backlog) }); err != nil {
		return bindError(p.local, err)
	}
	p.conns.Accept(p.listener.AcceptTCP)
	return nil
}

// events takes, for all ports, the events that they wait for besides packets: room to send, ends of
// connections, the state of links.
var events engine.Loop

// tcpHost is a port as its connections see it: it implements conns.Port.
type tcpHost TCPPort

func (h *tcpHost) Dialer() func(context.Context) (*net.TCPConn, error) {
	return func(ctx context.Context) (*net.TCPConn, error) {
		t, err := conns.DialTCP(ctx, net.Dialer{Control: sys.Control((*TCPPort)(h).prepare), KeepAlive: -1}, h.local,
			h.remote)
		var call *os.SyscallError
		if errors.As(err, &call) && call.Syscall == "bind" {
			err = conns.Final{Err: bindError(h.local, err)}
		}
		return t, err
	}
}

// Admit takes the descriptor from package net, whose poller would wake at each packet.
func (h *tcpHost) Admit(t *net.TCPConn, main bool) (_ *conn, err error) {
	c := &conn{port: (*TCPPort)(h), fd: -1}
	c.Main = main
	c.Local, c.Remote = conns.Ends(t)
	err = sys.OfConn(t, func(fd int) (err error) {
		c.fd, err = sys.Dup(fd)
		return err
	})
	t.Close()
	if err == nil {
		err = c.port.tune(c.fd)
	}
	if err == nil {
		c.tag, err = events.Add(c.fd, sys.EventOut|sys.EventRdH|sys.EventEdge, c)
	}
	if err != nil {
		sys.Close(c.fd)
		return nil, err
	}
	h.conns.Add(c)
	h.conns.Up(c)
	return c, nil
}

func (h *tcpHost) Refuse(t *net.TCPConn, _ string) {
	t.SetLinger(0)
	t.Close()
}

func (h *tcpHost) Assign(c *conn) {
	if q := conns.Pick(h.rx.Live(), c.ID, (*tcpRx).load); q != nil {
		q.adopt(c)
	}
}

func (h *tcpHost) Sever(c *conn, err error) (why error, orderly bool) {
	events.Remove(c.fd, c.tag)
	if c.q != nil {
		c.q.lose(c)
		c.q = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		err = c.err
	}
	c.dead = true
	c.drop(engine.DropDown, nil)
	sys.Close(c.fd)
	return err, err == nil && c.ended
}

func (h *tcpHost) Fail(id uint32, err error) {
	for _, q := range h.rx.Live() {
		if id == 0 || q.Spec().Conn == id {
			q.fail(err)
		}
	}
}

func (h *tcpHost) Changed() {
	for _, q := range h.tx {
		q.box.Kick()
	}
}

// Name implements engine.Port.
func (p *TCPPort) Name() string { return p.name }

// LocalAddr is the address that the port accepts on, or that of its connection; invalid while there
// is none.
func (p *TCPPort) LocalAddr() netip.AddrPort {
	if p.listener != nil {
		return conns.Unmapped(p.listener.Addr().(*net.TCPAddr).AddrPort())
	}
	if c := p.conns.Main(); c != nil {
		return c.Local
	}
	return p.local
}

// Info implements engine.Port. A port that connects is up while it is connected.
func (p *TCPPort) Info() engine.PortInfo {
	a := p.LocalAddr()
	i := engine.PortInfo{Engine: "socket", Address: "tcp://" + p.remote.String(), Device: p.o.Interface, NUMA: -1}
	if p.listener != nil {
		i.Address = "tcp://" + a.String() + "?listen=1"
	}
	if a.IsValid() {
		i.IPs = []netip.Prefix{netip.PrefixFrom(a.Addr().WithZone(""), a.Addr().BitLen())}
	}
	p.rx.Lock()
	defer p.rx.Unlock()
	i.Up = !p.rx.Closed() && (p.listener != nil || p.conns.Main() != nil)
	return i
}

// Capabilities implements engine.Port.
func (p *TCPPort) Capabilities() engine.Capabilities { return tcpCapabilities() }

// Rules implements engine.Port: there are none.
func (p *TCPPort) Rules() engine.Rules { return nil }

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
	var err error
	p.rx.Lock()
	p.conns.Stop()
	if p.listener != nil {
		err = p.listener.Close()
	}
	tx := slices.Clone(p.tx)
	p.rx.Unlock()
	for _, q := range tx {
		err = errors.Join(err, q.Close())
	}
	for _, q := range rx {
		err = errors.Join(err, q.Close())
	}
	p.rx.Lock()
	p.conns.EndAll()
	p.rx.Unlock()
	p.conns.Wait()
	return err
}
