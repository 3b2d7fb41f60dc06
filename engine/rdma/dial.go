package rdma

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/penstock-io/penstock/engine"
)

// dial begins an attempt to connect to the port's peer. The caller holds p.mu.
func (p *Port) dial() {
	if p.o.Connect == ByCM && len(p.rx.Live()) == 0 {
		return // AddRxQueue does
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.o.ConnectTimeout)
	p.dialing = cancel
	p.counts.attempts.Add(1)
	p.running.Add(1)
	go func() {
		defer p.running.Done()
		defer cancel()
		ch, err := p.connector.dial(ctx, p.a.local, p.a.remote)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.dialing = nil
		switch {
		case p.closed && err == nil:
			ch.close()
		case p.closed:
		case err != nil:
			p.missed(err)
		default:
			if p.o.Connect == ByTCP {
				p.backoff.Reset()
			}
			p.counts.connected.Add(1)
			p.admit(ch, true)
		}
	}()
}

// missed notes that an attempt has failed. The caller holds p.mu.
func (p *Port) missed(err error) {
	p.counts.failures.Add(1)
	failure := &ConnError{Remote: p.a.remote, Err: err}
	p.cause = failure
	if !p.o.Reconnect && time.Since(p.opened) >= p.o.ConnectTimeout {
		p.giveUp(failure)
		return
	}
	p.retryLater()
}

// retryLater sets the time of the next attempt. The caller holds p.mu.
func (p *Port) retryLater() {
	if p.closed {
		return
	}
	wait := p.backoff.Next()
	if p.again == nil {
		p.again = time.AfterFunc(wait, p.redial)
	} else {
		p.again.Reset(wait)
	}
}

func (p *Port) redial() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed && p.dialing == nil && p.primary.Load() == nil && !p.attempting() {
		p.dial()
	}
}

// stopDialing ends all attempts. The caller holds p.mu.
func (p *Port) stopDialing() {
	if p.again != nil {
		p.again.Stop()
	}
	if p.dialing != nil {
		p.dialing()
	}
}

// giveUp says that there will be no connection any more. The caller holds p.mu.
func (p *Port) giveUp(err error) {
	p.gone.Store(true)
	for _, q := range p.rx.Live() {
		q.fail(err)
	}
	p.changed()
}

// acceptPause is how long a port that cannot accept waits until it tries again.
const acceptPause = 100 * time.Millisecond

// acceptAll accepts connections until the listener is closed.
func (p *Port) acceptAll(l listener) {
	defer p.running.Done()
	for {
		ch, err := l.accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		p.mu.Lock()
		switch {
		case p.closed && err == nil:
			ch.close()
		case p.closed:
			p.mu.Unlock()
			return
		case err != nil: // no descriptors, say: the others wait in the kernel
			p.counts.failures.Add(1)
			p.mu.Unlock()
			pause := time.NewTimer(acceptPause)
			select {
			case <-pause.C:
			case <-p.control.end:
			}
			pause.Stop()
			continue
		case len(p.conns) >= p.o.MaxConns:
			p.counts.refused.Add(1)
			ch.send(&record{kind: kindBye, text: "too many connections"})
			ch.close()
		default:
			p.counts.accepted.Add(1)
			p.admit(ch, false)
		}
		p.mu.Unlock()
	}
}

// WaitConnected waits until the port has a connection, or will have none, or the context ends. A port that accepts waits for one, too.
func (p *Port) WaitConnected(ctx context.Context) error {
	for {
		p.mu.Lock()
		change, n, cause, closed := p.change, 0, p.cause, p.closed
		for _, c := range p.conns {
			if c.met {
				n++
			}
		}
		p.mu.Unlock()
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
			p.mu.Lock()
			cause = p.cause
			p.mu.Unlock()
			if cause == nil {
				cause = &ConnError{Remote: p.a.remote, Err: ctx.Err()}
			}
			return failed(cause, "no connection in time (%v)", ctx.Err())
		}
	}
}

// Connect connects to another port, besides the one in the address, and returns the id of the connection. It is what one calls whose
// address names no peer, as that of DAQIRI's clients.
func (p *Port) Connect(ctx context.Context, to netip.AddrPort) (id uint32, err error) {
	if p.a.listen {
		return 0, failed(engine.ErrUnsupported, "port %q accepts connections", p.name)
	}
	if !to.IsValid() || to.Port() == 0 {
		return 0, invalid("Connect to %v: expected an IP address and a port", to)
	}
	p.mu.Lock()
	closed, full, early := p.closed, len(p.conns) >= p.o.MaxConns, p.o.Connect == ByCM && len(p.rx.Live()) == 0
	if !closed { // Close waits for it, since it uses what Close gives up
		p.running.Add(1)
		defer p.running.Done()
	}
	p.mu.Unlock()
	switch {
	case closed:
		return 0, engine.ErrClosed
	case early:
		return 0, failed(engine.ErrNotReady, "port %q connects by rdma_cm, and has no receive queue: AddRxQueue comes before Connect", p.name)
	case full:
		return 0, failed(engine.ErrFull, "port %q has %d connections, which MaxConns allows", p.name, p.o.MaxConns)
	}
	ctx, cancel := context.WithTimeout(ctx, p.o.ConnectTimeout)
	defer cancel()
	p.counts.attempts.Add(1)
	attempt, giveUp := context.WithCancel(ctx)
	defer giveUp()
	defer context.AfterFunc(p.life, giveUp)()
	ch, err := p.connector.dial(attempt, p.a.local, to)
	if err != nil {
		p.counts.failures.Add(1)
		if p.life.Err() != nil {
			return 0, engine.ErrClosed
		}
		return 0, &ConnError{Remote: to, Err: err}
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		ch.close()
		ch.wait()
		return 0, engine.ErrClosed
	}
	p.counts.connected.Add(1)
	c := p.admit(ch, false)
	for {
		change, met, over, cause := p.change, c.met, p.conns[c.id] != c, c.cause
		p.mu.Unlock()
		switch {
		case met && !over:
			return c.id, nil
		case over:
			p.counts.failures.Add(1)
			return 0, &ConnError{Remote: to, Err: cause}
		}
		select {
		case <-change:
			p.mu.Lock()
		case <-ctx.Done():
			p.mu.Lock()
			p.end(c, ctx.Err())
			p.mu.Unlock()
			return 0, &ConnError{Remote: to, Err: ctx.Err()}
		}
	}
}
