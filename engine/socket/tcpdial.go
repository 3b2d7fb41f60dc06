package socket

import (
	"context"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
)

// dialing is one attempt to connect.
type dialing struct {
	port  *TCPPort
	fd    int
	tag   uint64
	limit *time.Timer
}

// dial begins an attempt. The caller holds p.rx. The error is one that no other attempt would mend; others lead to the next attempt.
func (p *TCPPort) dial() error {
	fd, err := p.socket()
	if err != nil {
		return err
	}
	if p.local.IsValid() {
		if err = sys.SetOption(fd, sys.SolSocket, sys.SoReuseAddr, 1); err == nil {
			err = sys.Bind(fd, family(p.local, p.ipv6), p.zone)
		}
		if err != nil {
			sys.Close(fd)
			return bindError(p.local, err)
		}
	}
	p.counts.attempts.Add(1)
	err = sys.Connect(fd, family(p.remote, p.ipv6), p.zone)
	if err != nil && !sys.IsErrno(err, sys.EINPROGRESS) {
		sys.Close(fd)
		p.missed(err)
		return nil
	}
	d := &dialing{port: p, fd: fd}
	if d.tag, err = events.add(fd, sys.EventOut|sys.EventOneShot, d); err != nil {
		sys.Close(fd)
		return err
	}
	d.limit = time.AfterFunc(p.o.ConnectTimeout, d.expire)
	p.dialing = d
	return nil
}

// ready implements watcher: the attempt is decided.
func (d *dialing) ready(uint32) {
	p := d.port
	p.rx.Lock()
	defer p.rx.Unlock()
	if p.dialing != d {
		return
	}
	err := sys.SocketError(d.fd)
	if err == nil {
		if _, e := sys.PeerAddr(d.fd); e != nil {
			err = e
		}
	}
	if err == nil && p.self(d.fd) {
		err = sys.ECONNREFUSED
	}
	if err != nil {
		d.stop(true)
		p.missed(err)
		return
	}
	d.stop(false)
	p.backoff.Reset()
	p.counts.connected.Add(1)
	p.admit(d.fd, p.remote)
}

// self reports whether a socket is connected to itself, which happens when the port that nobody listens on is chosen as its own.
func (p *TCPPort) self(fd int) bool {
	a, err := sys.LocalAddr(fd)
	b, err2 := sys.PeerAddr(fd)
	return err == nil && err2 == nil && a == b
}

// expire ends an attempt that takes too long.
func (d *dialing) expire() {
	p := d.port
	p.rx.Lock()
	defer p.rx.Unlock()
	if p.dialing == d {
		d.stop(true)
		p.missed(sys.ETIMEDOUT)
	}
}

// stop ends the attempt; with hang the socket is closed.
func (d *dialing) stop(hang bool) {
	d.port.dialing = nil
	d.limit.Stop()
	events.remove(d.fd, d.tag)
	if hang {
		sys.Close(d.fd)
	}
}

// missed notes that an attempt has failed. The caller holds p.rx.
func (p *TCPPort) missed(err error) {
	p.counts.failures.Add(1)
	failure := &ConnError{Remote: p.remote, Err: err}
	p.cause = failure
	if !p.o.Reconnect && time.Since(p.opened) >= p.o.ConnectTimeout {
		p.giveUp(failure)
		return
	}
	p.retryLater()
}

// retryLater sets the time of the next attempt. The caller holds p.rx.
func (p *TCPPort) retryLater() {
	if p.rx.Closed() {
		return
	}
	wait := p.backoff.Next()
	if p.again == nil {
		p.again = time.AfterFunc(wait, p.redial)
	} else {
		p.again.Reset(wait)
	}
}

func (p *TCPPort) redial() {
	p.rx.Lock()
	defer p.rx.Unlock()
	if p.rx.Closed() || p.dialing != nil || p.current.Load() != nil {
		return
	}
	if err := p.dial(); err != nil { // out of descriptors, say: later there may be some
		p.missed(err)
	}
}

// stopDialing ends all attempts. The caller holds p.rx.
func (p *TCPPort) stopDialing() {
	if p.again != nil {
		p.again.Stop()
	}
	if p.dialing != nil {
		p.dialing.stop(true)
	}
}

// WaitConnected waits until the port has a connection, or will have none, or the context ends. A port that accepts waits for one, too.
func (p *TCPPort) WaitConnected(ctx context.Context) error {
	for {
		p.rx.Lock()
		change, n, cause, closed := p.change, len(p.conns), p.cause, p.rx.Closed()
		p.rx.Unlock()
		switch {
		case closed:
			return engine.ErrClosed
		case n > 0:
			return nil
		case p.gone.Load():
			return cause
		}
		select {
		case <-change:
		case <-ctx.Done():
			p.rx.Lock()
			cause = p.cause
			p.rx.Unlock()
			if cause == nil {
				cause = &ConnError{Remote: p.remote, Err: sys.ETIMEDOUT}
			}
			return failed(cause, "no connection in time (%v)", ctx.Err())
		}
	}
}
