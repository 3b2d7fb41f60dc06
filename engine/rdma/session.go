package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/internal/sys"
)

// connector is how ports find each other. There is one over TCP at the port's own address, for
// peers that exchange records before there is a queue pair between them, and beside it (overTCP);
// and one over the connection manager, for peers that do not (manager).
type connector interface {
	// bind accepts sessions at an address. A port of 0 is chosen.
	bind(at netip.AddrPort) (listener, error)
	// dial makes a session. from may be invalid, or have port 0.
	dial(ctx context.Context, from, to netip.AddrPort) (session, error)
}

// listener accepts sessions.
type listener interface {
	accept() (session, error)
	addr() netip.AddrPort
	close() error
}

// session carries the records of one connection.
type session interface {
	local() netip.AddrPort
	remote() netip.AddrPort
	// send leaves a record to be sent, in order. It does not wait.
	send(r *record)
	// serve does for the connection what its peer asks for, until it ends; the error says why. One
	// goroutine calls it.
	serve(c *conn) error
	// close sends what was left, within reason, and ends the session. serve returns with an error.
	// It does not wait.
	close()
	// wait waits until close has done everything.
	wait()
}

// overTCP is the connector over TCP.
type overTCP struct{}

type tcpListener struct{ l *net.TCPListener }

func (overTCP) bind(at netip.AddrPort) (listener, error) {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return nil, failed(engine.ErrInUse, "listening at %v: %v", at, err)
	}
	return tcpListener{l}, nil
}

func (l tcpListener) accept() (session, error) {
	c, err := l.l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	return newTCPSession(c), nil
}

func (l tcpListener) addr() netip.AddrPort {
	return conns.Unmapped(l.l.Addr().(*net.TCPAddr).AddrPort())
}

func (l tcpListener) close() error { return l.l.Close() }

func (overTCP) dial(ctx context.Context, from, to netip.AddrPort) (session, error) {
	c, err := conns.DialTCP(ctx, net.Dialer{}, from, to)
	if errors.Is(err, sys.ECONNREFUSED) {
		return nil, fmt.Errorf("%w; a peer that is not Penstock listens by rdma_cm: connect=cm", err)
	}
	if err != nil {
		return nil, err
	}
	return newTCPSession(c), nil
}

const (
	maxPending   = 1 << 20         // bytes of records that wait for the peer to read
	farewellTime = 2 * time.Second // for what is left when a session is closed
)

// tcpSession is a session over a TCP connection. A goroutine of its own writes.
type tcpSession struct {
	c       *net.TCPConn
	scratch [maxRecord]byte

	mu      sync.Mutex
	pending []byte
	ending  bool
	deaf    bool // the peer does not read
	wake    chan struct{}
	over    chan struct{}
}

func newTCPSession(c *net.TCPConn) *tcpSession {
	t := &tcpSession{c: c, wake: make(chan struct{}, 1), over: make(chan struct{})}
	go t.write()
	return t
}

func (t *tcpSession) local() netip.AddrPort {
	return conns.Unmapped(t.c.LocalAddr().(*net.TCPAddr).AddrPort())
}

func (t *tcpSession) remote() netip.AddrPort {
	return conns.Unmapped(t.c.RemoteAddr().(*net.TCPAddr).AddrPort())
}

func (t *tcpSession) send(r *record) {
	t.mu.Lock()
	if !t.ending {
		if t.pending = r.append(t.pending); len(t.pending) > maxPending {
			// a peer that does not read is as good as dead
			t.deaf = true
			t.c.CloseRead()
		}
	}
	t.mu.Unlock()
	t.stir()
}

func (t *tcpSession) stir() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// serve reads the peer's records.
func (t *tcpSession) serve(c *conn) error {
	for {
		r, err := t.receive()
		if err == nil {
			err = c.take(&r)
		} else if t.isDeaf() {
			err = errDeaf // what was read is only the end that this side has made
		}
		if err != nil {
			return err
		}
	}
}

// errDeaf is how a connection ends whose peer does not read.
var errDeaf = failed(engine.ErrDown, "the peer does not read what it is told: more than %d bytes wait", maxPending)

func (t *tcpSession) isDeaf() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.deaf
}

func (t *tcpSession) receive() (record, error) { return readRecord(t.c, t.scratch[:]) }

func (t *tcpSession) close() {
	t.mu.Lock()
	t.ending = true
	t.mu.Unlock()
	t.c.SetWriteDeadline(time.Now().Add(farewellTime))
	t.c.CloseRead()
	t.stir()
}

func (t *tcpSession) wait() { <-t.over }

// write sends what send has left.
func (t *tcpSession) write() {
	defer close(t.over)
	defer t.c.Close()
	var out []byte
	for range t.wake {
		t.mu.Lock()
		out, t.pending = t.pending, out[:0]
		ending := t.ending
		t.mu.Unlock()
		if _, err := t.c.Write(out); err != nil {
			t.c.CloseRead() // the receiving goroutine ends the connection, and closes the session
			if ending {
				return
			}
			continue
		}
		if ending {
			return
		}
	}
}
