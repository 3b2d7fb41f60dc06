package conns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/penstock-io/penstock/engine"
)

// Dial begins to connect to the peer, unless that is done or has begun. The caller holds the lock.
func (s *Set[C, S]) Dial() {
	if s.gone || s.busy() {
		return
	}
	if s.again != nil {
		s.again.Stop()
	}
	s.begun = time.Now()
	s.attempt()
}

// busy reports whether there is a connection to the peer, or one is being made.
func (s *Set[C, S]) busy() bool {
	for _, c := range s.conns {
		if c.Base().Main {
			return true
		}
	}
	return s.dialing || s.life.Err() != nil
}

// attempt begins one attempt.
func (s *Set[C, S]) attempt() {
	dial := s.port.Dialer()
	if dial == nil {
		return
	}
	s.dialing = true
	s.running.Go(func() {
		ctx, cancel := context.WithTimeout(s.life, s.o.ConnectTimeout)
		defer cancel()
		x, err := s.dial(ctx, dial)
		s.lock.Lock()
		defer s.lock.Unlock()
		s.dialing = false
		switch {
		case s.life.Err() != nil && err == nil:
			s.port.Refuse(x, "")
		case s.life.Err() != nil:
		default:
			if err == nil {
				_, err = s.port.Admit(x, true)
			}
			if err != nil {
				s.missed(err)
			}
		}
	})
}

// dial makes a session, and counts it.
func (s *Set[C, S]) dial(ctx context.Context, dial func(context.Context) (S, error)) (S, error) {
	s.attempts.Add(1)
	x, err := dial(ctx)
	if err == nil {
		s.connected.Add(1)
	}
	return x, err
}

// missed notes that an attempt has failed.
func (s *Set[C, S]) missed(err error) {
	s.failures.Add(1)
	s.cause = &Error{Engine: s.engine, Remote: s.peer, Err: err}
	if late := time.Since(s.begun) >= s.o.ConnectTimeout; !s.o.Reconnect && late || s.attempts.Load() == 1 &&
		errors.As(err, new(Final)) {
		s.giveUp()
		return
	}
	s.retry()
}

// retry sets the time of the next attempt.
func (s *Set[C, S]) retry() {
	wait := s.pause.Next()
	if s.again != nil {
		s.again.Reset(wait)
		return
	}
	s.again = time.AfterFunc(wait, func() {
		s.lock.Lock()
		defer s.lock.Unlock()
		if !s.busy() {
			s.attempt()
		}
	})
}

// giveUp says that there will be no connection any more.
func (s *Set[C, S]) giveUp() {
	s.table.Lock()
	s.gone = true
	s.table.Unlock()
	s.port.Fail(0, s.cause)
	s.changed()
}

// acceptPause is how long a port that cannot accept waits until it tries again.
const acceptPause = 100 * time.Millisecond

// Accept accepts sessions until that fails with net.ErrClosed.
func (s *Set[C, S]) Accept(accept func() (S, error)) {
	s.running.Go(func() {
		for {
			x, err := accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // no descriptors, say: the others wait in the kernel
				s.failures.Add(1)
				pause, cancel := context.WithTimeout(s.life, acceptPause)
				<-pause.Done()
				cancel()
				continue
			}
			s.lock.Lock()
			switch {
			case s.life.Err() != nil:
				s.port.Refuse(x, "")
			case len(s.conns) >= s.o.MaxConns:
				s.refused.Add(1)
				s.port.Refuse(x, "too many connections")
			default:
				s.accepted.Add(1)
				_, s.cause = s.port.Admit(x, false)
			}
			s.lock.Unlock()
		}
	})
}

// Go runs a goroutine that Stop waits for.
func (s *Set[C, S]) Go(fn func()) { s.running.Go(fn) }

// WaitConnected implements Connections.
func (s *Set[C, S]) WaitConnected(ctx context.Context) error {
	for {
		s.lock.Lock()
		change, cause, gone, n := s.change, s.cause, s.gone, 0
		for _, c := range s.conns {
			if c.Base().Met {
				n++
			}
		}
		s.lock.Unlock()
		switch {
		case s.life.Err() != nil:
			return engine.ErrClosed
		case n > 0:
			return nil
		case gone:
			return cause
		case ctx.Err() == nil:
		case cause == nil:
			return &Error{Engine: s.engine, Remote: s.peer, Err: ctx.Err()}
		default:
			return fmt.Errorf("%s: no connection in time (%v): %w", s.engine, ctx.Err(), cause)
		}
		select {
		case <-change:
		case <-ctx.Done():
		}
	}
}

// Connect makes a connection besides the one to the peer of the port's address, and returns its id.
func (s *Set[C, S]) Connect(ctx context.Context, to netip.AddrPort, dial func(context.Context) (S, error)) (id uint32,
	err error) {
	s.lock.Lock()
	closed, full := s.life.Err() != nil, len(s.conns) >= s.o.MaxConns
	if !closed { // Stop waits for it, since it uses what the port gives up then
		s.running.Add(1)
		defer s.running.Done()
	}
	s.lock.Unlock()
	switch {
	case closed:
		return 0, engine.ErrClosed
	case full:
		return 0, fmt.Errorf("%s: the port has %d connections, which MaxConns allows: %w", s.engine, s.o.MaxConns,
			engine.ErrFull)
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.ConnectTimeout)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	x, err := s.dial(ctx, dial)
	s.lock.Lock()
	defer s.lock.Unlock()
	switch {
	case s.life.Err() != nil:
		if err == nil {
			s.port.Refuse(x, "")
		}
		return 0, engine.ErrClosed
	case err != nil:
		s.failures.Add(1)
		return 0, &Error{Engine: s.engine, Remote: to, Err: err}
	}
	c, err := s.port.Admit(x, false)
	if err != nil {
		return 0, &Error{Engine: s.engine, Remote: to, Err: err}
	}
	for b := c.Base(); ; {
		switch {
		case s.life.Err() != nil:
			s.End(c, engine.ErrClosed)
			return 0, engine.ErrClosed
		case b.Over:
			s.failures.Add(1)
			return 0, &Error{Engine: s.engine, Remote: to, Err: b.Cause}
		case b.Met:
			return b.ID, nil
		case ctx.Err() != nil:
			s.End(c, ctx.Err())
			return 0, &Error{Engine: s.engine, Remote: to, Err: ctx.Err()}
		}
		change := s.change
		s.lock.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
		}
		s.lock.Lock()
	}
}
