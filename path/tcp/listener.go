package tcp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/path"
)

const (
	helloTimeout = 2 * time.Second        // for a stranger to say hello
	tokenGrace   = 500 * time.Millisecond // for Accept to come after a dialer that was quicker
	maxStrangers = 256                    // connections that have not shown a known token
	backlog      = 1024
)

// ErrListenerClosed is what Accept returns after Close.
var ErrListenerClosed = errors.New("tcp: listener is closed")

// Listener accepts the connections of all peers of a node. One goroutine reads their hellos; it sleeps while nothing comes.
type Listener struct {
	o    Options
	addr netip.AddrPort
	fd   int
	ep   *sys.Epoll
	bell int
	done chan struct{} // closed when the goroutine is gone

	mu      sync.Mutex // guards the rest
	closed  bool
	waiting map[path.Token]*invitation
	guests  map[int]*invitation // connections of paths that are not complete yet
}

// invitation is one Accept.
type invitation struct {
	window  int
	flags   uint32
	need    int // connections; 0 until the first one says how many
	spare   bool
	fds     []int
	got     int
	first   hello
	from    netip.AddrPort
	result  chan error // buffered
	settled bool
	token   path.Token
}

// stranger is a connection whose token is not known yet.
type stranger struct {
	fd    int
	from  netip.AddrPort
	buf   [helloSize]byte
	n     int
	hello hello
	until time.Time
}

// Listen opens the listening socket; see Options.Addr.
func (d *Driver) Listen() (path.Listener, error) {
	addr, err := address(d.o.Addr)
	if err != nil {
		return nil, err
	}
	l := &Listener{o: d.o, fd: -1, bell: -1, done: make(chan struct{}), waiting: map[path.Token]*invitation{}, guests: map[int]*invitation{}}
	if err := l.open(addr); err != nil {
		l.release()
		return nil, fmt.Errorf("tcp: listen on %s: %w", addr, err)
	}
	go l.serve()
	return l, nil
}

func (l *Listener) open(addr netip.AddrPort) (err error) {
	if l.fd, err = sys.SocketTCP(addr.Addr().Is6()); err != nil {
		return err
	}
	if err = sys.SetOption(l.fd, sys.SolSocket, sys.SoReuseAddr, 1); err != nil {
		return err
	}
	if err = l.o.prepare(l.fd, addr.Addr(), true); err != nil {
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
	if l.ep, err = sys.NewEpoll(); err != nil {
		return err
	}
	if l.bell, err = sys.Eventfd(); err != nil {
		return err
	}
	if err = l.ep.Add(l.bell, sys.EventIn, tagBell); err != nil {
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

// Addr is the address for an Offer.
func (l *Listener) Addr() string { return l.addr.String() }

// Accept waits until all connections of a path that presents the token have come. Each token serves one path. The error
// wraps ErrDown when a dialer dies between its connections; waiting for another one takes a new token.
func (l *Listener) Accept(ctx context.Context, token path.Token, cfg path.Config) (path.Path, error) {
	window, _, flags, err := terms(cfg)
	if err != nil {
		return nil, err
	}
	v := &invitation{token: token, window: window, flags: flags, result: make(chan error, 1)}
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
		if v.settled {
			l.mu.Unlock()
			err = <-v.result
			break
		}
		l.settle(token, v, nil) // the result is not read any more
		l.mu.Unlock()
		err = ctx.Err()
	}
	if err != nil {
		for _, fd := range v.fds {
			if fd >= 0 {
				sys.Close(fd)
			}
		}
		return nil, fmt.Errorf("tcp: accept on %s: %w", l.addr, err)
	}
	for _, fd := range v.fds {
		l.o.again(fd)
	}
	p, err := newPath(v.fds, int(v.first.count), v.from, cfg.Exports, agree(window, flags, &v.first), &l.o)
	if err != nil {
		return nil, fmt.Errorf("tcp: accept on %s: %w", l.addr, err)
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
	strangers := map[int]*stranger{}
	drop := func(s *stranger) {
		delete(strangers, s.fd)
		sys.Close(s.fd)
	}
	var ev [64]sys.EpollEvent
	timeout := -1
	for {
		n, err := l.ep.Wait(ev[:], timeout)
		now := time.Now()
		l.mu.Lock()
		if l.closed || err != nil {
			for _, s := range strangers {
				sys.Close(s.fd)
			}
			why := ErrListenerClosed
			if err != nil {
				why = err
				l.closed = true
			}
			for t, v := range l.waiting {
				l.settle(t, v, why)
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
				l.accept(strangers, now)
			default:
				if s := strangers[int(e.Tag)]; s != nil {
					l.read(s, now, drop, strangers)
				} else if l.guests[int(e.Tag)] != nil {
					l.lost(int(e.Tag))
				}
			}
		}
		timeout = -1
		for _, s := range strangers {
			if retry && s.n == helloSize {
				l.admit(s, drop, strangers)
				if strangers[s.fd] != s {
					continue
				}
			}
			left := s.until.Sub(now)
			if left <= 0 {
				if s.n == helloSize {
					l.answer(s.fd, statusToken, 0, 0)
				}
				drop(s)
				continue
			}
			if ms := int(left/time.Millisecond) + 1; timeout < 0 || ms < timeout {
				timeout = ms
			}
		}
		l.mu.Unlock()
	}
}

func (l *Listener) accept(strangers map[int]*stranger, now time.Time) {
	for {
		fd, from, err := sys.AcceptTCP(l.fd)
		if err != nil {
			return // none left, or a connection that died in the queue; the next event tells
		}
		if len(strangers) >= maxStrangers {
			// The one that has waited longest makes room.
			var oldest *stranger
			for _, s := range strangers {
				if oldest == nil || s.until.Before(oldest.until) {
					oldest = s
				}
			}
			delete(strangers, oldest.fd)
			sys.Close(oldest.fd)
		}
		s := &stranger{fd: fd, from: from, until: now.Add(helloTimeout)}
		if err := l.ep.Add(fd, sys.EventIn, uint64(fd)); err != nil {
			sys.Close(fd)
			continue
		}
		strangers[fd] = s
	}
}

// read takes in what a stranger says.
func (l *Listener) read(s *stranger, now time.Time, drop func(*stranger), strangers map[int]*stranger) {
	if s.n == helloSize { // it hung up, or talks before it was answered
		drop(s)
		return
	}
	var v [1]sys.Iovec
	v[0].Set(s.buf[s.n:])
	n, e := sys.Recvv(s.fd, v[:])
	if e == sys.EAGAIN || e == sys.EINTR {
		return
	}
	if e != 0 || n == 0 {
		drop(s)
		return
	}
	s.n += n
	if s.n < helloSize {
		return
	}
	err := s.hello.parse(s.buf[:])
	switch {
	case errors.Is(err, errVersion):
		l.answer(s.fd, statusVersion, 0, 0)
		if v := l.waiting[s.hello.token]; v != nil {
			l.settle(s.hello.token, v, fmt.Errorf("the dialer at %s speaks version %d of the data protocol, this side version %d: update the older one: %w",
				s.from, s.hello.version, version, path.ErrProtocol))
		}
		drop(s)
		return
	case err != nil || s.hello.kind != kindHello:
		l.answer(s.fd, statusMalformed, 0, 0)
		drop(s)
		return
	}
	s.until = now.Add(tokenGrace)
	l.admit(s, drop, strangers)
}

// admit hands a connection to the Accept that waits for it, if it is there already.
func (l *Listener) admit(s *stranger, drop func(*stranger), strangers map[int]*stranger) {
	h := &s.hello
	v := l.waiting[h.token]
	if v == nil {
		return
	}
	if v.need == 0 {
		if h.index != 0 {
			return // the first connection decides; it may be right behind
		}
		v.first, v.from = *h, s.from
		v.spare = h.flags&helloProbe != 0 || l.o.unmeasured(s.from.Addr())
		v.need = int(h.count)
		if v.spare {
			v.need++
		}
		for range v.need {
			v.fds = append(v.fds, -1)
		}
	}
	if h.count != v.first.count || int(h.index) >= v.need || v.fds[h.index] >= 0 {
		l.answer(s.fd, statusMalformed, 0, 0)
		drop(s)
		return
	}
	flags := v.flags
	if v.spare {
		flags |= helloProbe
	}
	if !l.answer(s.fd, statusOK, flags, uint32(v.window)) {
		drop(s)
		return
	}
	delete(strangers, s.fd)
	v.fds[h.index] = s.fd
	v.got++
	if v.got < v.need {
		// The epoll instance watches it until all have come: a dialer says nothing before, it can only die.
		l.guests[s.fd] = v
		return
	}
	l.ep.Remove(s.fd)
	l.settle(h.token, v, nil)
}

// lost ends an Accept some of whose connections are there, because one of them broke.
func (l *Listener) lost(fd int) {
	v := l.guests[fd]
	why := error(errors.New("it sent bytes before the path was set up"))
	var b [1]byte
	var one [1]sys.Iovec
	one[0].Set(b[:])
	switch n, e := sys.Recvv(fd, one[:]); {
	case e == sys.EAGAIN || e == sys.EINTR:
		return
	case e != 0:
		why = e
	case n == 0:
		why = errors.New("closed by the dialer")
	}
	l.settle(v.token, v, fmt.Errorf("the dialer at %s is gone after %d of %d connections: %w: %w", v.from, v.got, v.need, path.ErrDown, why))
}

// settle ends an Accept. Its connections are its own again.
func (l *Listener) settle(t path.Token, v *invitation, err error) {
	for _, fd := range v.fds {
		if l.guests[fd] == v {
			delete(l.guests, fd)
			l.ep.Remove(fd)
		}
	}
	delete(l.waiting, t)
	v.settled = true
	v.result <- err
}

// answer sends an answer; a new connection always has room for it.
func (l *Listener) answer(fd int, st status, flags, window uint32) bool {
	h := hello{version: version, kind: kindAnswer, status: st, flags: flags, window: window, frame: maxFrameBytes, blocks: maxFrameBlocks}
	var b [helloSize]byte
	h.put(b[:])
	var v [1]sys.Iovec
	v[0].Set(b[:])
	n, e := sys.Sendv(fd, v[:], 0)
	return e == 0 && n == helloSize
}
