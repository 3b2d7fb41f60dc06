package conns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
)

// host is a port whose sessions are numbers.
type host struct {
	sync.Mutex
	set      Set[*line, int]
	o        Options
	dial     func(context.Context) (int, error)
	refused  []string
	failed   map[uint32]error
	orderly  bool
	assigned int
}

type line struct{ Conn }

func open(t *testing.T, o Options, peer string, dial func(context.Context) (int, error)) *host {
	t.Helper()
	h := &host{o: o, dial: dial, failed: map[uint32]error{}}
	if err := h.o.Complete(); err != nil {
		t.Fatal(err)
	}
	var to netip.AddrPort
	if peer != "" {
		to = netip.MustParseAddrPort(peer)
	}
	h.set.Open("test", h, h, &h.o, to)
	t.Cleanup(func() {
		h.Lock()
		h.set.Stop()
		h.set.EndAll()
		h.Unlock()
		h.set.Wait()
		if len(h.set.List()) > 0 {
			t.Error("a connection outlives its port")
		}
	})
	return h
}

func (h *host) Dialer() func(context.Context) (int, error) { return h.dial }

func (h *host) Admit(n int, main bool) (*line, error) {
	c := &line{Conn{Main: main, Remote: netip.AddrPortFrom(netip.IPv6Loopback(), uint16(n))}}
	h.set.Add(c)
	h.set.Up(c)
	return c, nil
}

func (h *host) Refuse(_ int, why string)               { h.refused = append(h.refused, why) }
func (h *host) Assign(*line)                           { h.assigned++ }
func (h *host) Sever(_ *line, err error) (error, bool) { return err, h.orderly }
func (h *host) Fail(id uint32, err error)              { h.failed[id] = err }
func (h *host) Changed()                               {}

func (h *host) begin() {
	h.Lock()
	defer h.Unlock()
	h.set.Dial()
}

// TestReconnect: a connection that ends is made again, under another id, and what is sent meanwhile
// waits.
func TestReconnect(t *testing.T) {
	var h *host
	events := make(chan Event, 16)
	down := errors.New("no process there")
	tries := 0
	h = open(t, Options{Reconnect: true, BackoffMin: 1, BackoffMax: 1, OnConn: func(e Event) {
		events <- e
	}}, "[::1]:7", func(context.Context) (int, error) {
		if tries++; tries%2 == 1 {
			return 0, down
		}
		return 7, nil
	})
	if c, why := h.set.To(0); c != nil || why != Wait {
		t.Errorf("before the first connection: %v, %v", c, why)
	}
	h.begin()
	for want := uint32(1); want <= 3; want++ {
		if e := <-events; !e.Up || e.ID != want {
			t.Fatalf("%+v, expected connection %d", e, want)
		}
		if c, _ := h.set.To(99); c == nil || c.ID != want || h.set.Main() != c || h.set.Find(c.Remote) != want ||
			h.set.Get(want) != c {
			t.Fatalf("connection %d: To is %v", want, c)
		}
		h.set.Finish(h.set.Main(), down)
		e := <-events
		var why *Error
		if e.Up || !errors.As(e.Err, &why) || why.ID != want || !errors.Is(e.Err, engine.ErrDown) ||
			!errors.Is(e.Err, down) {
			t.Fatalf("%+v", e)
		}
	}
	if n := h.set.Counts(); n.Connected < 3 || n.Failures < 3 || n.Attempts != n.Connected+n.Failures &&
		n.Attempts != n.Connected+n.Failures+1 {
		t.Errorf("%+v", n)
	}
}

// TestGivesUp: an error that no other attempt changes ends the first one, and so does time.
func TestGivesUp(t *testing.T) {
	never := errors.New("never")
	for _, h := range []*host{
		open(t, Options{Reconnect: true}, "[::1]:7", func(context.Context) (int, error) { return 0, Final{never} }),
		open(t, Options{ConnectTimeout: 1, BackoffMin: 1}, "[::1]:7", func(ctx context.Context) (int, error) {
			<-ctx.Done()
			return 0, never
		}),
	} {
		h.begin()
		if err := h.set.WaitConnected(t.Context()); !errors.Is(err, engine.ErrConnect) || !errors.Is(err, never) {
			t.Error(err)
		}
		h.Lock()
		if h.set.Gone() == nil || h.failed[0] == nil {
			t.Errorf("gone: %v, queues: %v", h.set.Gone(), h.failed)
		}
		h.Unlock()
		if _, why := h.set.To(0); why != engine.DropDown {
			t.Errorf("what is sent then: %v", why)
		}
	}
}

// TestAccept: connections beyond MaxConns are refused, and there is room again when one has ended.
func TestAccept(t *testing.T) {
	came := make(chan int)
	h := open(t, Options{MaxConns: 1}, "", nil)
	h.set.Accept(func() (int, error) {
		n, ok := <-came
		if !ok {
			return 0, net.ErrClosed
		}
		return n, nil
	})
	defer close(came)
	came <- 1
	came <- 2
	if err := h.set.WaitConnected(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, why := h.set.To(0); why != engine.DropNoRoute {
		t.Errorf("a packet without a destination: %v", why)
	}
	if err := h.set.CloseConn(1); err != nil || !errors.Is(h.set.CloseConn(1), engine.ErrNotFound) {
		t.Error(err)
	}
	came <- 3
	came <- 4
	n := h.set.Counts() // the third was admitted before the fourth was taken
	if n.Accepted != 2 || n.Refused < 1 || h.set.Get(2) == nil {
		t.Errorf("%+v", n)
	}
}

// TestConnect: a connection besides the peer's fails with its port, and with its context.
func TestConnect(t *testing.T) {
	h := open(t, Options{ConnectTimeout: time.Hour}, "", nil)
	to := netip.MustParseAddrPort("[::1]:9")
	id, err := h.set.Connect(t.Context(), to, func(context.Context) (int, error) { return 9, nil })
	if err != nil || h.set.Get(id) == nil || h.set.Main() != nil {
		t.Fatalf("%d, %v", id, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = h.set.Connect(ctx, to, func(ctx context.Context) (int, error) {
		cancel()
		<-ctx.Done()
		return 0, ctx.Err()
	})
	if !errors.Is(err, engine.ErrConnect) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	_, err = h.set.Connect(t.Context(), to, func(ctx context.Context) (int, error) {
		h.Lock()
		h.set.Stop()
		h.Unlock()
		<-ctx.Done()
		return 0, ctx.Err()
	})
	if err != engine.ErrClosed {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{ConnectTimeout: -1}, {BackoffMin: 2, BackoffMax: 1}, {BackoffMin: -1},
		{MaxConns: -1}} {
		if err := o.Complete(); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	var o Options
	if err := o.Complete(); err != nil || o.ConnectTimeout != 10*time.Second || o.MaxConns != 65536 {
		t.Errorf("%+v, %v", o, err)
	}
}
