package tcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

const (
	// for a pending connection to say hello, where round trips are short: a kernel that lost a SYN
	// sends a lost first segment again after 3 s only (RFC 6298, section 5.7)
	helloTimeout = 10 * time.Second
	// for Accept to come after a dialer that was quicker: on a busy machine half a second was too
	// short
	tokenGrace  = 2 * time.Second
	acceptPause = 100 * time.Millisecond // before the next try, when the process can have no more files
	backlog     = 1024
)

// ErrListenerClosed is what Accept returns after Close.
var ErrListenerClosed = errors.New("tcp: listener is closed")

// Listener accepts the connections of all peers of a node. One goroutine reads their hellos; it
// sleeps while nothing comes.
type Listener struct {
	o    Options
	addr netip.AddrPort // not valid without a port of its own
	fd   int            // -1 without a port of its own
	ep   *sys.Epoll
	bell int
	done chan struct{} // closed when the goroutine is gone

	mu      sync.Mutex // guards the rest
	closed  bool
	grace   time.Duration // tokenGrace, tests are less patient
	silence time.Duration // helloTimeout, the same
	waiting map[setup.Token]*invitation
	guests  map[int]*invitation         // connections of paths that are not complete yet
	unknown map[int]*pendingConn        // who has not shown a known token
	pending setup.Pending[*pendingConn] // the same
}

// invitation is one Accept.
type invitation struct {
	window   int
	streams  int // at most
	flags    uint32
	users    path.Users // who may come without a secret
	secret   []byte     // nil: nothing is encrypted
	begun    uint32     // bits of connections that were answered and have to show their secret
	channels []*channel // with a secret: of the connections
	need     int        // connections; 0 until the first one says how many
	fds      []int
	got      int
	first    hello
	from     netip.AddrPort
	result   chan error // buffered
	resolved bool
	token    setup.Token
}

// Listen opens the listening socket; see Options.Addr.
func (d *Driver) Listen() (setup.Listener, error) {
	addr, err := address(d.o.Addr)
	if err != nil {
		return nil, err
	}
	l, err := d.listen(addr)
	if err != nil {
		return nil, fmt.Errorf("tcp: listen on %s: %w", addr, err)
	}
	return l, nil
}

// Preamble is the magic number of a hello; it makes the driver a setup.PortDriver.
func (d *Driver) Preamble() (b [setup.PreambleSize]byte) {
	binary.BigEndian.PutUint32(b[:], helloMagic)
	return b
}

// Receiver opens a listener without a port of its own.
func (d *Driver) Receiver() (setup.Receiver, error) {
	l, err := d.listen(netip.AddrPort{})
	if err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	return l, nil
}

// listen opens a listener at an address, or without a port if the address is not valid.
func (d *Driver) listen(addr netip.AddrPort) (*Listener, error) {
	l := &Listener{o: d.o, fd: -1, bell: -1, grace: tokenGrace, silence: helloTimeout, done: make(chan struct{}),
		waiting: map[setup.Token]*invitation{}, guests: map[int]*invitation{},
		unknown: map[int]*pendingConn{}}
	err := l.open()
	if err == nil && addr.IsValid() {
		err = l.bind(addr)
	}
	if err != nil {
		l.release()
		return nil, err
	}
	go l.serve()
	return l, nil
}

func (l *Listener) open() (err error) {
	if l.ep, err = sys.NewParkingEpoll(); err != nil {
		return err
	}
	if l.bell, err = sys.Eventfd(); err != nil {
		return err
	}
	return l.ep.Add(l.bell, sys.EventIn, tagBell)
}

func (l *Listener) bind(addr netip.AddrPort) (err error) {
	if l.fd, err = sys.SocketTCP(addr.Addr().Is6()); err != nil {
		return err
	}
	if err = sys.SetOption(l.fd, sys.SolSocket, sys.SoReuseAddr, 1); err != nil {
		return err
	}
	if err = l.o.prepare(l.fd, addr.Addr()); err != nil {
		return err
	}
	if err = sys.BindTCP(l.fd, addr); err != nil {
		return err
	}
	if err = sys.ListenTCP(l.fd, backlog); err != nil {
		return err
	}
	if l.addr, err = sys.LocalAddr(l.fd); err != nil {
		return err
	}
	return l.ep.Add(l.fd, sys.EventIn, tagListen)
}

const (
	tagBell   = 1 << 40
	tagListen = 1 << 41
)

func (l *Listener) release() {
	for _, fd := range []int{l.fd, l.bell} {
		if fd >= 0 {
			sys.Close(fd)
		}
	}
	if l.ep != nil {
		l.ep.Close()
	}
}

// Addr is the address for an Offer; "" without a port.
func (l *Listener) Addr() string {
	if !l.addr.IsValid() {
		return ""
	}
	return l.addr.String()
}

// where is the listener in an error.
func (l *Listener) where() string {
	if !l.addr.IsValid() {
		return "accept"
	}
	return "accept on " + l.addr.String()
}

// Receive takes over a connection that was accepted elsewhere.
func (l *Listener) Receive(c *net.TCPConn, first [setup.PreambleSize]byte) {
	defer c.Close()
	from, ok := c.RemoteAddr().(*net.TCPAddr)
	fd := -1
	if !ok || sys.OfConn(c, func(p int) (err error) { fd, err = sys.Dup(p); return err }) != nil {
		return
	}
	s := &pendingConn{fd: fd, from: from.AddrPort(), n: len(first)}
	copy(s.buf[:], first[:])
	if l.o.prepare(fd, s.from.Addr().Unmap()) != nil {
		sys.Close(fd)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		sys.Close(fd)
		return
	}
	l.meet(s, time.Now())
	sys.Ring(l.bell) // there is a new deadline
}

// Accept waits until all connections of a path that presents the token have come. Each token serves
// one path. The error wraps ErrDown when a dialer dies between its connections; waiting for another
// one takes a new token.
func (l *Listener) Accept(ctx context.Context, token setup.Token, cfg setup.Config) (path.Path, error) {
	window, streams, flags, err := terms(cfg)
	if err != nil {
		return nil, err
	}
	sealed := flags&helloSealed != 0
	if l.addr.IsValid() { // else where the dialer is says it
		if err := l.o.permits(l.addr.Addr(), sealed); err != nil {
			return nil, err
		}
	}
	v := &invitation{token: token, window: window, streams: streams, flags: flags, users: cfg.Users,
		result: make(chan error, 1)}
	if sealed {
		v.secret = slices.Clone(cfg.Secret)
		defer clear(v.secret)
	}
	l.mu.Lock()
	switch {
	case l.closed:
		err = ErrListenerClosed
	case l.waiting[token] != nil:
		err = errors.New("tcp: another Accept waits for this token")
	default:
		l.waiting[token] = v
		sys.Ring(l.bell) // a dialer may be here already
	}
	l.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case err = <-v.result:
	case <-ctx.Done():
		l.mu.Lock()
		if v.resolved {
			l.mu.Unlock()
			err = <-v.result
			break
		}
		l.resolve(token, v, nil) // the result is not read any more
		sys.Ring(l.bell)         // for those who came early
		l.mu.Unlock()
		err = ctx.Err()
	}
	if err != nil {
		for _, fd := range v.fds {
			if fd >= 0 {
				sys.Close(fd)
			}
		}
		return nil, fmt.Errorf("tcp: %s: %w", l.where(), err)
	}
	p, err := newPath(v.fds, v.from, cfg.Reach(), agree(window, flags, &v.first), v.channels, &l.o)
	if err != nil {
		return nil, fmt.Errorf("tcp: %s: %w", l.where(), err)
	}
	return p, nil
}

// Close ends the listener and every Accept that waits. Paths stay.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		<-l.done
		return nil
	}
	l.closed = true
	sys.Ring(l.bell)
	l.mu.Unlock()
	<-l.done
	return nil
}

// serve accepts connections and reads hellos until Close.
func (l *Listener) serve() {
	defer close(l.done)
	var ev [64]sys.EpollEvent
	timeout := -1
	var pause time.Time // until then the listening socket is not in the epoll instance
	for {
		looked := time.Now()
		n, err := l.ep.Wait(ev[:], timeout)
		now := time.Now()
		l.mu.Lock()
		if l.closed || err != nil {
			for _, s := range l.unknown {
				sys.Close(s.fd)
			}
			why := ErrListenerClosed
			if err != nil {
				why = err
				l.closed = true
			}
			for t, v := range l.waiting {
				l.resolve(t, v, why)
			}
			l.release()
			l.mu.Unlock()
			return
		}
		retry := false
		for _, e := range ev[:n] {
			switch e.Tag {
			case tagBell:
				sys.Unring(l.bell)
				retry = true
			case tagListen:
				if !l.accept(now) {
					// The socket stays ready: it would keep this goroutine from sleeping.
					l.ep.Remove(l.fd)
					pause = now.Add(acceptPause)
				}
			default:
				if s := l.unknown[int(e.Tag)]; s != nil {
					l.read(s, now)
				} else if l.guests[int(e.Tag)] != nil {
					l.lost(int(e.Tag))
				}
			}
		}
		timeout = -1
		for _, s := range l.unknown {
			if retry && s.n == helloSize {
				l.admit(s, now)
				if l.unknown[s.fd] != s {
					continue
				}
			}
			left := s.until.Sub(now)
			if l.early(s) {
				continue
			}
			if left <= 0 && (n == len(ev) || looked.Before(s.until)) {
				timeout = 0 // what it said may still be unread: this process was late itself
				continue
			}
			if left <= 0 {
				if s.n == helloSize {
					l.refuse(s.fd, statusToken)
				}
				l.drop(s)
				continue
			}
			if ms := int(left/time.Millisecond) + 1; timeout < 0 || ms < timeout {
				timeout = ms
			}
		}
		l.mu.Unlock()
		if !pause.IsZero() {
			if left := pause.Sub(now); left > 0 {
				if ms := int(left/time.Millisecond) + 1; timeout < 0 || ms < timeout {
					timeout = ms
				}
			} else if pause = (time.Time{}); l.ep.Add(l.fd, sys.EventIn, tagListen) != nil {
				pause, timeout = now.Add(acceptPause), int(acceptPause/time.Millisecond)
			}
		}
	}
}

// accept takes what has come, and reports whether the process could.
func (l *Listener) accept(now time.Time) bool {
	for {
		fd, from, err := sys.AcceptTCP(l.fd)
		switch {
		case err == nil:
		case sys.IsErrno(err, sys.EMFILE), sys.IsErrno(err, sys.ENFILE), sys.IsErrno(err, sys.ENOBUFS),
			sys.IsErrno(err, sys.ENOMEM):
			return false
		default:
			return true // none left, or a connection that died in the queue; the next event tells
		}
		l.meet(&pendingConn{fd: fd, from: from}, now)
	}
}
