package fault

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// Conn is a net.Conn that misbehaves as planned. Like every net.Conn it may be read by one
// goroutine and written by another, and closed by a third.
type Conn struct {
	net.Conn
	rec      recorder
	up, down *flow
	stop     chan struct{}
	once     sync.Once
	cut      chan struct{} // closed by a cut

	rmu     sync.Mutex
	raw     []byte // read and not yet let pass
	pending []byte // let pass and not yet taken by Read
	rbuf    []byte
	wmu     sync.Mutex
	wbuf    []byte

	rlate, wlate deadline
}

// NewConn wraps a connection; number is what rules call conn, from 1. It fails on a plan that makes
// no sense for streams.
func NewConn(c net.Conn, p Plan, number int) (*Conn, error) {
	if err := p.Check(Bytes); err != nil {
		return nil, err
	}
	x := &Conn{Conn: c, stop: make(chan struct{}), cut: make(chan struct{}), rbuf: make([]byte, 32<<10)}
	x.up = newFlow(&p, number, Up, &x.rec, x.endWrite)
	x.down = newFlow(&p, number, Down, &x.rec, func() {})
	if p.refuses(number) {
		x.rec.add(Event{Kind: Refuse, Dir: Up})
		x.doCut()
	}
	return x, nil
}

func (c *Conn) endWrite() {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		w.CloseWrite()
	}
}

// Read gives what the plan lets pass. At a Short, and before every other event, it ends early.
func (c *Conn) Read(b []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if len(b) == 0 {
		return 0, nil
	}
	for {
		if len(c.pending) > 0 {
			n := copy(b, c.pending)
			c.pending = c.pending[n:]
			return n, nil
		}
		if err := c.due(c.down, &c.rlate); err != nil {
			return 0, err
		}
		if c.down.ended.Load() {
			return 0, io.EOF
		}
		if len(c.raw) == 0 {
			n, err := c.Conn.Read(c.rbuf[:min(len(b), len(c.rbuf))])
			if n == 0 {
				return 0, c.because(err)
			}
			c.raw = c.rbuf[:n]
			if err := c.due(c.down, &c.rlate); err != nil { // it may have been stalled meanwhile
				return 0, err
			}
		}
		var n int
		c.pending, n = c.down.take(c.raw)
		c.raw = c.raw[n:]
	}
}

// Write sends what the plan lets pass, in several writes when there are events on the way.
func (c *Conn) Write(b []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.wbuf = append(c.wbuf[:0], b...)
	for rest := c.wbuf; ; {
		if err := c.due(c.up, &c.wlate); err != nil {
			return len(b) - len(rest), err
		}
		if len(rest) == 0 {
			return len(b), nil
		}
		out, n := c.up.take(rest)
		if len(out) > 0 {
			if _, err := c.Conn.Write(out); err != nil {
				return len(b) - len(rest), c.because(err)
			}
		}
		rest = rest[n:]
	}
}

func (c *Conn) due(f *flow, late *deadline) error {
	switch err := f.due(c.stop, late.wait()); err {
	case nil:
		return nil
	case errCut:
		c.doCut()
		return c.because(nil)
	default:
		return c.because(os.ErrDeadlineExceeded)
	}
}

// because tells an error that a cut or Close made from others.
func (c *Conn) because(err error) error {
	select {
	case <-c.cut:
		return fmt.Errorf("%w: %w", ErrInjected, sys.ECONNRESET)
	default:
	}
	select {
	case <-c.stop:
		return net.ErrClosed
	default:
		return err
	}
}

func (c *Conn) doCut() {
	c.once.Do(func() {
		close(c.cut)
		close(c.stop)
		reset(c.Conn)
		c.release()
	})
}

func (c *Conn) release() {
	c.up.gate.open()
	c.down.gate.open()
	c.rlate.set(time.Time{})
	c.wlate.set(time.Time{})
}

// Close closes the connection.
func (c *Conn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		close(c.stop)
		err = c.Conn.Close()
		c.release()
	})
	return err
}

// SetDeadline applies to stalls, too.
func (c *Conn) SetDeadline(t time.Time) error {
	c.rlate.set(t)
	c.wlate.set(t)
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline applies to stalls, too.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.rlate.set(t)
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline applies to stalls, too.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.wlate.set(t)
	return c.Conn.SetWriteDeadline(t)
}

// Cut breaks the connection now.
func (c *Conn) Cut() {
	c.rec.add(Event{Kind: Cut, Dir: Both})
	c.doCut()
}

// Stall stops a direction until Resume.
func (c *Conn) Stall(d Direction) {
	c.rec.add(Event{Kind: Stall, Dir: d})
	for _, f := range []*flow{c.up, c.down} {
		if f.dir&d != 0 {
			f.gate.close(0)
		}
	}
}

// Resume ends all stalls of a direction, also planned ones.
func (c *Conn) Resume(d Direction) {
	for _, f := range []*flow{c.up, c.down} {
		if f.dir&d != 0 {
			f.gate.open()
		}
	}
}

// HalfClose ends a direction now. Down ends with the next Read that has something to read.
func (c *Conn) HalfClose(d Direction) {
	c.rec.add(Event{Kind: HalfClose, Dir: d})
	for _, f := range []*flow{c.up, c.down} {
		if f.dir&d != 0 && !f.ended.Swap(true) {
			f.end()
		}
	}
}

// Log is what was done until now.
func (c *Conn) Log() Log { return c.rec.snapshot() }

// reset closes a connection so that the other side sees a reset where the protocol has one.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	c.Close()
}

// deadline is a point in time that can be moved while others wait for it.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	c     chan struct{} // closed when it has passed
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.c == nil {
		d.c = make(chan struct{})
	}
	select {
	case <-d.c:
		d.c = make(chan struct{})
	default:
	}
	if t.IsZero() {
		return
	}
	c := d.c
	if wait := time.Until(t); wait > 0 {
		// A timer that Stop came too late for does nothing: it is not the deadline's any more.
		var mine *time.Timer
		mine = time.AfterFunc(wait, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.timer == mine {
				close(c)
				d.timer = nil
			}
		})
		d.timer = mine
		return
	}
	close(c)
}

func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.c == nil {
		d.c = make(chan struct{})
	}
	return d.c
}
