package tcp

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// pendingConn is a connection whose token is not known yet.
type pendingConn struct {
	fd    int
	from  netip.AddrPort
	buf   [helloSize]byte
	n     int // of buf
	hello hello
	until time.Time

	// With a secret: it was answered, and has to show that it has the same.
	inv *invitation
	ch  *channel
}

// meet takes a connection among the pending connections.
func (l *Listener) meet(s *pendingConn, now time.Time) {
	s.from = netip.AddrPortFrom(s.from.Addr().Unmap(), s.from.Port())
	s.until = now.Add(sys.Patience(l.silence, s.fd))
	if err := l.ep.Add(s.fd, sys.EventIn, uint64(s.fd)); err != nil {
		sys.Close(s.fd)
		return
	}
	if out, full := l.pending.Add(setup.Source(s.from.Addr()), s); full {
		l.forget(out)
		l.abandoned(out, errors.New("too many others from there wanted in"))
	}
	l.unknown[s.fd] = s
}

// forget closes the connection of a pending connection.
func (l *Listener) forget(s *pendingConn) {
	delete(l.unknown, s.fd)
	l.pending.Remove(s)
	sys.Close(s.fd)
}

// drop ends a pending connection, and what waits for it.
func (l *Listener) drop(s *pendingConn) {
	l.forget(s)
	l.abandoned(s, errors.New("it did not show its secret"))
}

// read takes in what a pending connection says.
func (l *Listener) read(s *pendingConn, now time.Time) {
	due := s.buf[:]
	if s.inv != nil {
		due = s.buf[:confirmSize]
	}
	if s.n == len(due) { // it hung up, or talks before it was answered
		l.drop(s)
		return
	}
	n, e := recv(s.fd, due[s.n:])
	if e == sys.EAGAIN || e == sys.EINTR {
		return
	}
	if e != 0 || n == 0 {
		l.drop(s)
		return
	}
	s.n += n
	if s.n < len(due) {
		return
	}
	if s.inv != nil {
		l.confirm(s)
		return
	}
	err := s.hello.parse(s.buf[:])
	switch {
	case errors.Is(err, errVersion):
		l.refuse(s.fd, statusVersion)
		if v := l.waiting[s.hello.token]; v != nil {
			l.resolve(s.hello.token, v,
				fmt.Errorf("the dialer at %s speaks version %d of the data protocol, this side version %d: update "+
					"the older one: %w",
					s.from, s.hello.version, version, path.ErrProtocol))
		}
		l.drop(s)
		return
	case err != nil || s.hello.kind != kindHello:
		l.refuse(s.fd, statusMalformed)
		l.drop(s)
		return
	}
	s.until = now.Add(sys.Patience(l.grace, s.fd))
	l.admit(s, now)
}

// refuseWith tells a dialer and the Accept that waits for it why there is no path.
func (l *Listener) refuseWith(s *pendingConn, v *invitation, st status, err error) {
	l.refuse(s.fd, st)
	l.resolve(s.hello.token, v, err)
	l.drop(s)
}

// confirm checks what a dialer shows of its secret.
func (l *Listener) confirm(s *pendingConn) {
	v := s.inv
	if v.resolved {
		l.drop(s)
		return
	}
	if err := s.ch.confirmed(s.buf[:confirmSize]); err != nil {
		l.resolve(v.token, v, fmt.Errorf("the dialer at %s knows the token, but %w", s.from, err))
		l.drop(s)
		return
	}
	s.inv = nil
	v.channels[s.hello.index] = s.ch
	l.complete(s, v)
}

// abandoned ends the Accept that one of its connections will not come to, because it was dropped
// before it was complete.
func (l *Listener) abandoned(s *pendingConn, why error) {
	if v := s.inv; v != nil && !v.resolved {
		l.resolve(v.token, v, fmt.Errorf("the dialer at %s is gone after %d of %d connections: %w: %w", s.from, v.got,
			v.need, path.ErrDown, why))
	}
}

// early reports whether a connection waits for the first one of its path, which may have lost a
// packet on its way. It does so for as long as an Accept waits for the path.
func (l *Listener) early(s *pendingConn) bool {
	if s.n != helloSize || s.hello.index == 0 {
		return false
	}
	v := l.waiting[s.hello.token]
	return v != nil && v.need == 0
}

// admit hands a connection to the Accept that waits for it, if it is there already.
func (l *Listener) admit(s *pendingConn, now time.Time) {
	h := &s.hello
	v := l.waiting[h.token]
	if v == nil {
		return
	}
	sealed, wants := v.flags&helloSealed != 0, h.flags&helloSealed != 0
	switch err := l.o.permits(s.from.Addr(), sealed); {
	case err != nil:
		l.refuseWith(s, v, statusPlain, err)
		return
	case sealed && !wants:
		l.refuseWith(s, v, statusPlain,
			fmt.Errorf("this side requires encryption and the dialer at %s has no secret: give both sides the secret "+
				"of one session: %w",
				s.from, path.ErrProtocol))
		return
	case !sealed && wants:
		l.refuseWith(s, v, statusSealed,
			fmt.Errorf("the dialer at %s requires encryption and this side has no secret: give both sides the secret "+
				"of one session: %w",
				s.from, path.ErrProtocol))
		return
	}
	if !sealed && checkUser(s.fd, s.from, v.users) != nil { // the peer's own connections may still come
		l.refuse(s.fd, statusUser)
		l.drop(s)
		return
	}
	if int(h.count) > v.streams {
		l.refuseWith(s, v, statusMalformed,
			fmt.Errorf("the dialer at %s comes with %d connections: expected at most %d: %w", s.from, h.count,
				v.streams, path.ErrProtocol))
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
		defer l.admitOthers(h.token, now)
	}
	if h.count != v.first.count || int(h.index) >= v.need || v.fds[h.index] >= 0 || v.begun&(1<<h.index) != 0 {
		l.refuse(s.fd, statusMalformed)
		l.drop(s)
		return
	}
	a := hello{version: version, kind: kindAnswer, flags: v.flags, window: uint32(v.window), frame: maxFrameBytes,
		blocks: maxFrameBlocks}
	if sealed {
		l.challenge(s, v, &a, now)
		return
	}
	if !l.answer(s.fd, &a, nil) {
		l.drop(s)
		return
	}
	l.complete(s, v)
}

// admitOthers admits those that were early.
func (l *Listener) admitOthers(token setup.Token, now time.Time) {
	for _, s := range l.unknown {
		if s.n == helloSize && s.hello.token == token {
			l.admit(s, now)
		}
	}
}

// challenge answers a dialer of an encrypted path: the answer, and the record that shows this
// side's secret. What is missing is the dialer's.
func (l *Listener) challenge(s *pendingConn, v *invitation, a *hello, now time.Time) {
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
		l.resolve(v.token, v, err)
		l.drop(s)
		return
	}
	s.ch.kernel, s.ch.why, s.ch.fixed = kernel, why, s.hello.flags&helloFixed != 0
	var rec [confirmSize]byte
	if !l.answer(s.fd, a, s.ch.confirm(rec[:])) {
		l.drop(s)
		return
	}
	s.inv, s.n, s.until = v, 0, now.Add(sys.Patience(l.silence, s.fd))
	v.begun |= 1 << s.hello.index
}

// complete adds a connection to its path.
func (l *Listener) complete(s *pendingConn, v *invitation) {
	h := &s.hello
	delete(l.unknown, s.fd)
	l.pending.Remove(s)
	v.fds[h.index] = s.fd
	v.got++
	if v.got < v.need {
		// The epoll instance watches it until all have come: a dialer says nothing before all are
		// answered, it can only die.
		l.guests[s.fd] = v
		return
	}
	l.ep.Remove(s.fd)
	l.resolve(h.token, v, nil)
}

// lost ends an Accept some of whose connections are there, because one of them broke.
func (l *Listener) lost(fd int) {
	v := l.guests[fd]
	if v.channels != nil && bits.OnesCount32(v.begun) == v.need {
		// Each connection was answered, so the dialer may have shown its secret on all of them and
		// have begun to send: nothing keeps the order between connections. What it sent is the
		// path's. If it has died, the connections that are missing tell.
		delete(l.guests, fd)
		l.ep.Remove(fd)
		return
	}
	why := error(errors.New("it sent bytes before the path was set up"))
	var b [1]byte
	switch n, e := recv(fd, b[:]); {
	case e == sys.EAGAIN || e == sys.EINTR:
		return
	case e != 0:
		why = e
	case n == 0:
		why = errors.New("closed by the dialer")
	}
	l.resolve(v.token, v, fmt.Errorf("the dialer at %s is gone after %d of %d connections: %w: %w", v.from, v.got,
		v.need, path.ErrDown, why))
}

// resolve ends an Accept with its result and stops watching its connections.
func (l *Listener) resolve(t setup.Token, v *invitation, err error) {
	for _, fd := range v.fds {
		if l.guests[fd] == v {
			delete(l.guests, fd)
			l.ep.Remove(fd)
		}
	}
	delete(l.waiting, t)
	v.resolved = true
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
	l.answer(fd, &hello{version: version, kind: kindAnswer, status: st, frame: maxFrameBytes, blocks: maxFrameBlocks},
		nil)
}

func recv(fd int, b []byte) (int, sys.Errno) {
	var v [1]sys.Iovec
	v[0].Set(b)
	return sys.Recvv(fd, v[:])
}
