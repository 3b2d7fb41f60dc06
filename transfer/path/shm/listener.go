package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// Listener takes connections of all peers of a node and gives each to the Accept that waits for its
// token.
type Listener struct {
	driver Driver
	addr   string
	sock   *net.UnixListener
	work   sync.WaitGroup
	closed chan struct{}
	once   sync.Once

	mu sync.Mutex
	// of the Accepts that wait; one that was given its connection is not there any more
	waiters map[setup.Token]chan *pendingConn
	pending setup.Pending[*pendingConn] // connections that have not been given to an Accept
}

// pendingConn is a connection in the handshake.
type pendingConn struct {
	c    *net.UnixConn
	pid  int
	gone chan struct{} // closed when it leaves Listener.pending

	// Guarded by Listener.mu.
	hello hello
	known bool // its hello was read; it waits for its Accept
}

// Addr is the name of the abstract socket, starting with "@".
func (l *Listener) Addr() string { return l.addr }

// Close stops accepting: waiting Accepts return an error. Paths that are set up stay.
func (l *Listener) Close() error {
	var err error
	l.once.Do(func() {
		close(l.closed)
		err = l.sock.Close()
		l.mu.Lock()
		for _, s := range l.pending.All() { // each goroutine that reads a hello stops; no new one starts after that
			s.c.SetDeadline(time.Unix(1, 0))
		}
		l.mu.Unlock()
	})
	l.work.Wait()
	return err
}

func (l *Listener) accept() {
	defer l.work.Done()
	for {
		c, err := l.sock.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors or the like: the next connection may fare better, but do not spin
			// meanwhile.
			t := time.NewTimer(10 * time.Millisecond)
			select {
			case <-l.closed:
				t.Stop()
				return
			case <-t.C:
			}
			continue
		}
		c.SetDeadline(time.Now().Add(handshakeTime))
		pid, uid, err := credentials(c)
		if err != nil || uid != sys.EffectiveUID() {
			if err == nil {
				refuse(c, refusedUser, fmt.Sprintf("it belongs to user id %d, the listener to %d", uid,
					sys.EffectiveUID()))
			}
			c.Close()
			continue
		}
		l.mu.Lock()
		s := &pendingConn{c: c, pid: pid, gone: make(chan struct{})}
		if out, full := l.pending.Add(strconv.Itoa(pid), s); full {
			close(out.gone)
			out.c.Close()
		}
		select {
		case <-l.closed: // Close may have gone through pending already
			c.SetDeadline(time.Unix(1, 0))
		default:
		}
		l.mu.Unlock()
		l.work.Add(1)
		go l.meet(s)
	}
}

// leave takes s out of pending and reports whether it was there: the caller that takes it out owns
// the connection.
func (l *Listener) leave(s *pendingConn) bool {
	if !l.pending.Remove(s) {
		return false
	}
	close(s.gone)
	return true
}

// refuse says why a connection is about to be closed; the deadline of the connection bounds it.
func refuse(c *net.UnixConn, status uint16, words string) {
	c.Write(welcome{status: status, version: Version, words: words}.append(nil))
}

// meet reads the hello of a pending connection and gives it to its Accept, which may come later.
func (l *Listener) meet(s *pendingConn) {
	defer l.work.Done()
	b, fds, err := readPacket(s.c)
	closeAll(fds)
	var h hello
	if err == nil {
		if h, err = parseHello(b); err != nil {
			refuse(s.c, refusedOther, "not a hello of the shm protocol")
		}
	}
	if err == nil {
		l.mu.Lock()
		s.hello, s.known = h, true
		if w := l.waiters[h.token]; w != nil && l.leave(s) {
			delete(l.waiters, h.token)
			w <- s
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		// No Accept waits for this token yet: the offer may have been faster than it.
		t := time.NewTimer(handshakeTime)
		select {
		case <-s.gone:
		case <-l.closed:
		case <-t.C:
		}
		t.Stop()
	}
	l.mu.Lock()
	mine := l.leave(s)
	l.mu.Unlock()
	if !mine {
		return
	}
	if err == nil {
		s.c.SetWriteDeadline(time.Now().Add(handshakeTime))
		refuse(s.c, refusedToken, "no handshake has this token")
	}
	s.c.Close()
}

// Accept waits for the peer that presents token. It answers ErrProtocol when that peer speaks
// another version.
func (l *Listener) Accept(ctx context.Context, token setup.Token, cfg setup.Config) (path.Path, error) {
	p, err := l.acceptToken(ctx, token, cfg)
	if err != nil {
		return nil, fmt.Errorf("transfer/path/shm: accept: %w", err)
	}
	return p, nil
}

func (l *Listener) acceptToken(ctx context.Context, token setup.Token, cfg setup.Config) (*Path, error) {
	window, err := checkConfig(cfg)
	if err != nil {
		return nil, err
	}
	ctl, fd, failed := newControl(window) // now, so that the dialer does not wait for it
	drop := func() {
		if failed == nil {
			ctl.unmap()
			sys.Close(fd)
		}
	}
	s, err := l.wait(ctx, token)
	if err != nil {
		drop()
		return nil, err
	}
	defer s.c.Close()
	if s.hello.version != Version {
		drop()
		refuse(s.c, refusedVersion, "another version")
		return nil, fmt.Errorf("the peer (process %d) speaks version %d of the shm protocol, this side version %d: "+
			"run the same release on both sides: %w",
			s.pid, s.hello.version, Version, path.ErrProtocol)
	}
	if w := int(s.hello.window); w < window {
		drop()
		window = w
		ctl, fd, failed = newControl(window)
	}
	s.c.SetDeadline(time.Now().Add(handshakeTime))
	defer context.AfterFunc(ctx, func() { s.c.SetDeadline(time.Unix(1, 0)) })()
	if failed != nil {
		refuse(s.c, refusedOther, "no control memory")
		return nil, failed
	}
	err = l.welcome(ctx, s, fd, window)
	sys.Close(fd)
	if err != nil {
		ctl.unmap()
		return nil, err
	}
	p, err := newPath(s.c, ctl, cfg, window, s.pid, "accepted", s.hello.flags&l.driver.flags()&flagHelps != 0)
	if err != nil {
		return nil, err
	}
	if _, err := s.c.Write([]byte(ready)); err != nil {
		p.Close()
		return nil, handshakeError(ctx, err)
	}
	return p, nil
}

// welcome hands over the control memory and waits until the peer says that it accepted it.
func (l *Listener) welcome(ctx context.Context, s *pendingConn, fd, window int) error {
	w := welcome{version: Version, flags: l.driver.flags(), window: uint32(window)}
	if _, _, err := s.c.WriteMsgUnix(w.append(nil), sys.RightsMessage(fd), nil); err != nil {
		return handshakeError(ctx, err)
	}
	return expectReady(ctx, s.c)
}

// expectReady reads the last packet of each side.
func expectReady(ctx context.Context, c *net.UnixConn) error {
	b, fds, err := readPacket(c)
	closeAll(fds)
	if err != nil {
		return handshakeError(ctx, err)
	}
	if string(b) != ready {
		return fmt.Errorf("%d bytes where the peer should say that it is ready: %w", len(b), path.ErrProtocol)
	}
	return nil
}

// wait returns the connection that presented token.
func (l *Listener) wait(ctx context.Context, token setup.Token) (*pendingConn, error) {
	w := make(chan *pendingConn, 1)
	l.mu.Lock()
	if l.waiters[token] != nil {
		l.mu.Unlock()
		return nil, errors.New("another Accept waits for the same token; a token is used once")
	}
	for _, s := range l.pending.All() {
		if s.known && s.hello.token == token {
			l.leave(s)
			l.mu.Unlock()
			return s, nil
		}
	}
	l.waiters[token] = w
	l.mu.Unlock()
	var err error
	select {
	case s := <-w:
		return s, nil
	case <-ctx.Done():
		err = fmt.Errorf("no peer presented the token: %w", ctx.Err())
	case <-l.closed:
		err = fmt.Errorf("the listener was closed: %w", path.ErrDown)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiters[token] == w {
		delete(l.waiters, token)
	} else {
		(<-w).c.Close()
	}
	return nil, err
}
