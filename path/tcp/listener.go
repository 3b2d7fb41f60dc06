package tcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/path"
)

const (
	helloTimeout = 2 * time.Second        // for a stranger to say hello
	tokenGrace   = 2 * time.Second        // for Accept to come after a dialer that was quicker: on a busy machine half a second was too short
	acceptPause  = 100 * time.Millisecond // before the next try, when the process can have no more files
	backlog      = 1024
)

// ErrListenerClosed is what Accept returns after Close.
var ErrListenerClosed = errors.New("tcp: listener is closed")

// Listener accepts the connections of all peers of a node. One goroutine reads their hellos; it sleeps while nothing comes.
type Listener struct {
	o       Options
	addr    netip.AddrPort
	fd      int
	ep      *sys.Epoll
	bell    int
	done    chan struct{}           // closed when the goroutine is gone
	pending path.Pending[*stranger] // of the goroutine: who has not shown a known token, the same as its strangers

	mu      sync.Mutex // guards the rest
	closed  bool
	grace   time.Duration // tokenGrace, tests are less patient
	waiting map[path.Token]*invitation
	guests  map[int]*invitation // connections of paths that are not complete yet
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
	settled  bool
	token    path.Token
}

// stranger is a connection whose token is not known yet.
type stranger struct {
	fd    int
	from  netip.AddrPort
	buf   [helloSize]byte
	n     int
	hello hello
	until time.Time

	// With a secret: it was answered, and has to show that it has the same.
	inv  *invitation
	ch   *channel
	rec  [confirmSize]byte
	recN int
}

// Listen opens the listening socket; see Options.Addr.
func (d *Driver) Listen() (path.Listener, error) { return d.listen(d.o.Addr) }

// ListenAt is Listen on an address of this host, unless Options.Addr says where; it makes the driver a path.HostListener.
func (d *Driver) ListenAt(host netip.Addr) (path.Listener, error) {
	if d.o.Addr != "" || !host.IsValid() {
		return d.Listen()
	}
	return d.listen(netip.AddrPortFrom(host, 0).String())
}

func (d *Driver) listen(at string) (path.Listener, error) {
	addr, err := address(at)
	if err != nil {
		return nil, err
	}
	l := &Listener{o: d.o, fd: -1, bell: -1, grace: tokenGrace, done: make(chan struct{}), waiting: map[path.Token]*invitation{}, guests: map[int]*invitation{}}
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
	if l.ep, err = sys.NewParkingEpoll(); err != nil {
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
	window, streams, flags, err := terms(cfg)
	if err != nil {
		return nil, err
	}
	sealed := flags&helloSealed != 0
	if err := l.o.permits(l.addr.Addr(), sealed); err != nil {
		return nil, err
	}
	v := &invitation{token: token, window: window, streams: streams, flags: flags, users: cfg.Users, result: make(chan error, 1)}
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
		if v.settled {
			l.mu.Unlock()
			err = <-v.result
			break
		}
		l.settle(token, v, nil) // the result is not read any more
		sys.Ring(l.bell)        // for those who came early
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
	p, err := newPath(v.fds, v.from, cfg.Reach(), agree(window, flags, &v.first), v.channels, &l.o)
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
		l.pending.Remove(s)
		sys.Close(s.fd)
		l.abandoned(s, errors.New("it did not show its secret"))
	}
	var ev [64]sys.EpollEvent
	timeout := -1
	var pause time.Time // until then the listening socket is not in the epoll instance
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
				if !l.accept(strangers, now) {
					// The socket stays ready: it would keep this goroutine from sleeping.
					l.ep.Remove(l.fd)
					pause = now.Add(acceptPause)
				}
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
			if retry && s.n == helloSize && s.inv == nil {
				l.admit(s, now, drop, strangers)
				if strangers[s.fd] != s {
					continue
				}
			}
			left := s.until.Sub(now)
			if l.early(s) {
				continue
			}
			if left <= 0 {
				if s.n == helloSize && s.inv == nil {
					l.refuse(s.fd, statusToken)
				}
				drop(s)
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
func (l *Listener) accept(strangers map[int]*stranger, now time.Time) bool {
	for {
		fd, from, err := sys.AcceptTCP(l.fd)
		switch {
		case err == nil:
		case sys.IsErrno(err, sys.EMFILE), sys.IsErrno(err, sys.ENFILE), sys.IsErrno(err, sys.ENOBUFS), sys.IsErrno(err, sys.ENOMEM):
			return false
		default:
			return true // none left, or a connection that died in the queue; the next event tells
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		s := &stranger{fd: fd, from: from, until: now.Add(helloTimeout)}
		if err := l.ep.Add(fd, sys.EventIn, uint64(fd)); err != nil {
			sys.Close(fd)
			continue
		}
		if out, full := l.pending.Add(path.Source(from.Addr()), s); full {
			delete(strangers, out.fd)
			sys.Close(out.fd)
			l.abandoned(out, errors.New("too many others from there wanted in"))
		}
		strangers[fd] = s
	}
}

// read takes in what a stranger says.
func (l *Listener) read(s *stranger, now time.Time, drop func(*stranger), strangers map[int]*stranger) {
	if s.inv != nil {
		l.confirm(s, drop, strangers)
		return
	}
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
		l.refuse(s.fd, statusVersion)
		if v := l.waiting[s.hello.token]; v != nil {
			l.settle(s.hello.token, v, fmt.Errorf("the dialer at %s speaks version %d of the data protocol, this side version %d: update the older one: %w",
				s.from, s.hello.version, version, path.ErrProtocol))
		}
		drop(s)
		return
	case err != nil || s.hello.kind != kindHello:
		l.refuse(s.fd, statusMalformed)
		drop(s)
		return
	}
	s.until = now.Add(l.grace)
	l.admit(s, now, drop, strangers)
}

// refuseWith tells a dialer and the Accept that waits for it why there is no path.
func (l *Listener) refuseWith(s *stranger, v *invitation, st status, err error, drop func(*stranger)) {
	l.refuse(s.fd, st)
	l.settle(s.hello.token, v, err)
	drop(s)
}

// confirm takes in what a dialer shows of its secret.
func (l *Listener) confirm(s *stranger, drop func(*stranger), strangers map[int]*stranger) {
	var b [1]sys.Iovec
	b[0].Set(s.rec[s.recN:])
	n, e := sys.Recvv(s.fd, b[:])
	if e == sys.EAGAIN || e == sys.EINTR {
		return
	}
	if e != 0 || n == 0 {
		drop(s)
		return
	}
	s.recN += n
	v := s.inv
	if s.recN < confirmSize {
		return
	}
	if v.settled {
		drop(s)
		return
	}
	if err := s.ch.confirmed(s.rec[:]); err != nil {
		l.settle(v.token, v, fmt.Errorf("the dialer at %s knows the token, but %w", s.from, err))
		drop(s)
		return
	}
	s.inv = nil
	v.channels[s.hello.index] = s.ch
	l.complete(s, v, strangers)
}

// abandoned ends the Accept that one of its connections will not come to, because it was dropped before it was complete.
func (l *Listener) abandoned(s *stranger, why error) {
	if v := s.inv; v != nil && !v.settled {
		l.settle(v.token, v, fmt.Errorf("the dialer at %s is gone after %d of %d connections: %w: %w", s.from, v.got, v.need, path.ErrDown, why))
	}
}

// early reports whether a connection waits for the first one of its path, which may have lost a packet on its way. It does so for as
// long as an Accept waits for the path.
func (l *Listener) early(s *stranger) bool {
	if s.n != helloSize || s.inv != nil || s.hello.index == 0 {
		return false
	}
	v := l.waiting[s.hello.token]
	return v != nil && v.need == 0
}

// admit hands a connection to the Accept that waits for it, if it is there already.
func (l *Listener) admit(s *stranger, now time.Time, drop func(*stranger), strangers map[int]*stranger) {
	h := &s.hello
	v := l.waiting[h.token]
	if v == nil {
		return
	}
	sealed, wants := v.flags&helloSealed != 0, h.flags&helloSealed != 0
	switch err := l.o.permits(s.from.Addr(), sealed); {
	case err != nil:
		l.refuseWith(s, v, statusPlain, err, drop)
		return
	case sealed && !wants:
		l.refuseWith(s, v, statusPlain, fmt.Errorf("this side requires encryption and the dialer at %s has no secret: give both sides the secret of one session: %w",
			s.from, path.ErrProtocol), drop)
		return
	case !sealed && wants:
		l.refuseWith(s, v, statusSealed, fmt.Errorf("the dialer at %s requires encryption and this side has no secret: give both sides the secret of one session: %w",
			s.from, path.ErrProtocol), drop)
		return
	}
	if !sealed && checkUser(s.fd, s.from, v.users) != nil { // the peer's own connections may still come
		l.refuse(s.fd, statusUser)
		drop(s)
		return
	}
	if int(h.count) > v.streams {
		l.refuseWith(s, v, statusMalformed, fmt.Errorf("the dialer at %s comes with %d connections: expected at most %d: %w", s.from, h.count, v.streams, path.ErrProtocol), drop)
		return
	}
	if v.need == 0 {
		if h.index != 0 {
			return // the first connection decides; they come at the same time, see early
		}
		v.first, v.from = *h, s.from
		v.need = int(h.count)
		for range v.need {
			v.fds = append(v.fds, -1)
		}
		v.channels = make([]*channel, v.need)
		defer l.admitOthers(h.token, now, drop, strangers)
	}
	if h.count != v.first.count || int(h.index) >= v.need || v.fds[h.index] >= 0 || v.begun&(1<<h.index) != 0 {
		l.refuse(s.fd, statusMalformed)
		drop(s)
		return
	}
	a := hello{version: version, kind: kindAnswer, flags: v.flags, window: uint32(v.window), frame: maxFrameBytes, blocks: maxFrameBlocks}
	if sealed {
		l.challenge(s, v, &a, now, drop)
		return
	}
	if !l.answer(s.fd, &a, nil) {
		drop(s)
		return
	}
	l.complete(s, v, strangers)
}

// admitOthers admits those that were early.
func (l *Listener) admitOthers(token path.Token, now time.Time, drop func(*stranger), strangers map[int]*stranger) {
	for _, s := range strangers {
		if s.n == helloSize && s.inv == nil && s.hello.token == token {
			l.admit(s, now, drop, strangers)
		}
	}
}

// challenge answers a dialer of an encrypted path: the answer, and the record that shows this side's secret. What is
// missing is the dialer's.
func (l *Listener) challenge(s *stranger, v *invitation, a *hello, now time.Time, drop func(*stranger)) {
	kernel, why, err := l.o.attach(s.fd)
	if kernel {
		a.flags |= helloFixed
	}
	if err == nil {
		rand.Read(a.nonce[:])
		var b [helloSize]byte
		a.put(b[:])
		s.ch, err = newChannel(v.secret, false, &s.hello, s.buf[:], b[:], l.o.sealLimit)
	}
	if err != nil {
		l.settle(v.token, v, err)
		drop(s)
		return
	}
	s.ch.kernel, s.ch.why, s.ch.fixed = kernel, why, s.hello.flags&helloFixed != 0
	var rec [confirmSize]byte
	if !l.answer(s.fd, a, s.ch.confirm(rec[:])) {
		drop(s)
		return
	}
	s.inv, s.until = v, now.Add(helloTimeout)
	v.begun |= 1 << s.hello.index
}

// complete adds a connection to its path.
func (l *Listener) complete(s *stranger, v *invitation, strangers map[int]*stranger) {
	h := &s.hello
	delete(strangers, s.fd)
	l.pending.Remove(s)
	v.fds[h.index] = s.fd
	v.got++
	if v.got < v.need {
		// The epoll instance watches it until all have come: a dialer says nothing before all are answered, it can only die.
		l.guests[s.fd] = v
		return
	}
	l.ep.Remove(s.fd)
	l.settle(h.token, v, nil)
}

// lost ends an Accept some of whose connections are there, because one of them broke.
func (l *Listener) lost(fd int) {
	v := l.guests[fd]
	if v.channels != nil && bits.OnesCount32(v.begun) == v.need {
		// Each connection was answered, so the dialer may have shown its secret on all of them and have begun to send: nothing keeps
		// the order between connections. What it sent is the path's. If it has died, the connections that are missing tell.
		delete(l.guests, fd)
		l.ep.Remove(fd)
		return
	}
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

// answer sends an answer and what follows it; a new connection always has room for both.
func (l *Listener) answer(fd int, a *hello, more []byte) bool {
	var b [helloSize + confirmSize]byte
	a.put(b[:])
	size := helloSize + copy(b[helloSize:], more)
	var v [1]sys.Iovec
	v[0].Set(b[:size])
	n, e := sys.Sendv(fd, v[:], 0)
	return e == 0 && n == size
}

func (l *Listener) refuse(fd int, st status) {
	l.answer(fd, &hello{version: version, kind: kindAnswer, status: st, frame: maxFrameBytes, blocks: maxFrameBlocks}, nil)
}
