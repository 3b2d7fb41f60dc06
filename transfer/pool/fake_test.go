package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errRefused = errors.New("refused")

// server makes fake connections and knows which of them live.
type server struct {
	latency time.Duration // of a dial
	life    time.Duration // after which a connection dies by itself; 0: never
	inside  func()        // called in each dial

	mu     sync.Mutex
	fail   error // of dials
	dials  []time.Duration
	begin  time.Time
	atOnce int // dials under way
	most   int // most at once
	conns  []*fakeConn
	open   int
	peak   int // most open at once
}

type fakeConn struct {
	s      *server
	number int
	done   chan struct{}

	mu     sync.Mutex
	dead   bool
	users  int
	closed int
}

func newServer() *server { return &server{begin: time.Now()} }

func (s *server) dial(ctx context.Context) (*fakeConn, error) {
	s.mu.Lock()
	s.dials = append(s.dials, time.Since(s.begin))
	s.atOnce++
	s.most = max(s.most, s.atOnce)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.atOnce--
		s.mu.Unlock()
	}()
	if s.inside != nil {
		s.inside()
	}
	if s.latency > 0 {
		select {
		case <-time.After(s.latency):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return nil, s.fail
	}
	c := &fakeConn{s: s, number: len(s.conns), done: make(chan struct{})}
	s.conns = append(s.conns, c)
	s.open++
	s.peak = max(s.peak, s.open)
	if s.life > 0 {
		time.AfterFunc(s.life, c.die)
	}
	return c, nil
}

func (s *server) set(fail error) {
	s.mu.Lock()
	s.fail = fail
	s.mu.Unlock()
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dials)
}

// together is the largest number of dials at the same time.
func (s *server) together() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

func (c *fakeConn) closes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

func (c *fakeConn) die() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.dead {
		c.dead = true
		close(c.done)
	}
}

func (c *fakeConn) close() error {
	c.mu.Lock()
	c.closed++
	c.mu.Unlock()
	c.die()
	c.s.mu.Lock()
	c.s.open--
	c.s.mu.Unlock()
	return nil
}

func options(s *server) Options[*fakeConn] {
	return Options[*fakeConn]{
		Dial:  s.dial,
		Close: (*fakeConn).close,
		Done:  func(c *fakeConn) <-chan struct{} { return c.done },
	}
}

// bubble runs a test in virtual time.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func newPool(t testing.TB, o Options[*fakeConn]) *Pool[*fakeConn] {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func get(t testing.TB, p *Pool[*fakeConn]) *Lease[*fakeConn] {
	t.Helper()
	l, err := p.Get(context.Background(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// end closes the pool and checks that it left nothing: each connection was closed once.
func (s *server) end(t testing.TB, p *Pool[*fakeConn]) {
	t.Helper()
	if err := p.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if err := s.audit(); err != nil {
		t.Error(err)
	}
	c := p.Snapshot()
	if c.Living != 0 || c.Leases != 0 || c.Waiting != 0 || c.Dialing != 0 || c.Closed != uint64(len(s.conns)) {
		t.Errorf("a closed pool has %+v, %d connections were made", c, len(s.conns))
	}
	if _, err := p.Get(context.Background(), 0); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed pool serves: %v", err)
	}
}

func (s *server) audit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.mu.Lock()
		closed := c.closed
		c.mu.Unlock()
		if closed != 1 {
			return fmt.Errorf("connection %d was closed %d times", c.number, closed)
		}
	}
	if s.open != 0 {
		return fmt.Errorf("%d connections are open", s.open)
	}
	return nil
}
