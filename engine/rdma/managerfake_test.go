package rdma

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/internal/ibv/cm"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
)

// onManager is the stand-in for both libraries.
func onManager(t *testing.T, script string) (*fake, managers) {
	t.Helper()
	f := onFake(t, script)
	if _, err := cm.Load(cm.Options{Path: f.engine.lib.Path}); err != nil {
		testenv.Missing(t, "the headers of librdmacm", err)
	}
	e := New(f.engine.lib.Path)
	e.cm = f.engine.lib.Path
	return f, managers{e, "192.0.2.1", "192.0.2.2"}
}

// TestManaged is what TestGuestSoftRoCE asks of the kernel's connection manager.
func TestManaged(t *testing.T) {
	for _, script := range []string{"mode wire", "mode post"} {
		t.Run(script, func(t *testing.T) {
			_, w := onManager(t, script)
			managed(t, w)
		})
	}
}

// attempt opens both ports and connects them until ctx ends; the error is that of the first step
// that failed.
func attempt(ctx context.Context, t *testing.T, w managers) (err error) {
	t.Helper()
	open := func(address string) *Port {
		if err != nil {
			return nil
		}
		p, e := w.e.OpenPort(within(t), engine.PortSpec{Address: address,
			Options: Options{Options: conns.Options{ConnectTimeout: time.Minute}}})
		if err = e; e != nil {
			return nil
		}
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Errorf("closing %s: %v", address, err)
			}
		})
		q, e := p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool(t, 2048, 64)}, Depth: 16})
		if err = e; e != nil {
			return nil
		}
		t.Cleanup(func() { q.Close() })
		return p.(*Port)
	}
	s := open("roce://" + w.host + ":0?listen=1&connect=cm")
	c := open("roce://" + w.own + "?connect=cm")
	if err != nil {
		return err
	}
	_, err = c.Connect(ctx, s.LocalAddr())
	return err
}

// afterCall is a context that ends a second after the k-th call of that name.
func (f *fake) afterCall(t *testing.T, call string, k int) context.Context {
	ctx, cancel := context.WithCancel(within(t))
	over := make(chan struct{})
	go func() {
		defer close(over)
		for ctx.Err() == nil && f.count(t, call) < k {
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
			}
		}
		select {
		case <-time.After(time.Second):
			cancel()
		case <-ctx.Done():
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-over
	})
	return ctx
}

// TestManagerFails: each call to the connection manager fails, the first of its kind, the second
// and so on. The caller that opens or connects gets the error, and nothing stays behind.
func TestManagerFails(t *testing.T) {
	f, w := onManager(t, "")
	for _, call := range []string{"rdma_create_event_channel", "rdma_create_id", "rdma_bind_addr", "rdma_listen",
		"rdma_resolve_addr", "rdma_resolve_route", "rdma_connect",
		"rdma_accept", "rdma_establish", "rdma_init_qp_attr", "rdma_get_cm_event", "cm_address", "cm_route",
		"cm_connect", "cm_accept", "ibv_create_cq", "ibv_modify_qp"} {
		t.Run(call, func(t *testing.T) {
			failed := 0
			for k, missed := 1, 0; ; k++ {
				f.run(t, fmt.Sprintf("reset; fail %s %d ENOBUFS", call, k))
				more := false
				t.Run(fmt.Sprint(k), func(t *testing.T) {
					ctx := within(t)
					if call == "rdma_get_cm_event" { // a side without events does not answer
						ctx = f.afterCall(t, call, k)
					}
					err := attempt(ctx, t, w)
					more = f.count(t, call) >= k
					switch {
					case err != nil && !more:
						t.Errorf("%v, and nothing has failed", err)
					case err != nil:
						failed++
						if !errors.Is(err, engine.ErrConnect) && !errors.Is(err, engine.ErrUnavailable) {
							t.Errorf("%v", err)
						}
					}
				})
				if r := f.report(t); r != "" {
					t.Fatalf("call %d: the fake reports:\n%s", k, r)
				}
				if !more && failed == 0 && missed < 10 { // both ends were connected before one of them made the call
					k, missed = 0, missed+1
					continue
				}
				if !more {
					break
				}
			}
			if failed == 0 {
				t.Error("no failure of it did any harm")
			}
			t.Logf("%d failures", failed)
		})
	}
}

// TestManagerGone: the ids of a process that is killed end without a goodbye, which the kernel then
// says; a device that is removed, events that do not belong there, and a queue pair that breaks end
// the connection at both sides.
func TestManagerGone(t *testing.T) {
	for _, c := range []struct {
		name   string
		do     func(t *testing.T, f *fake, c *Port)
		server string // what the server's event says; "": that the peer has closed
		client string
	}{
		{"killed", func(t *testing.T, f *fake, c *Port) {
			m := c.connector.(*manager)
			m.mu.Lock()
			defer m.mu.Unlock()
			for id := range m.links {
				if err := id.Close(); err != nil {
					t.Error(err)
				}
			}
		}, "", ""},
		{"removed", func(t *testing.T, f *fake, c *Port) { f.run(t, "cm remove 1") }, "", "removed"},
		{"odd", func(t *testing.T, f *fake, c *Port) { f.run(t, "cm addr_change; cm timewait; cm odd") }, "", "does not belong there"},
		{"broken", func(t *testing.T, f *fake, c *Port) {
			f.run(t, fmt.Sprintf("kill 1 %#x", c.conns.List()[0].out.x.qp.Num()))
		}, "", "queue pair"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, w := onManager(t, "mode wire")
			atServer, atClient := newEnds(), newEnds()
			s := w.server(t, Options{Options: conns.Options{OnConn: atServer.on}})
			p := w.client(t, s, Options{Options: conns.Options{OnConn: atClient.on}})
			rx(t, s, engine.RxSpec{Depth: 16})
			rx(t, p, engine.RxSpec{Depth: 16})
			met(t, s, p)
			atServer.next(t, true)
			atClient.next(t, true)
			// no side is still in a call that sets the connection up
			until(t, "both sides to be allowed to send", func() bool { return ready(s) && ready(p) })
			c.do(t, f, p)
			if c.client == "" { // a side that is gone gets no event
			} else if e := atClient.next(t, false); e.Err == nil || !strings.Contains(e.Err.Error(), c.client) {
				t.Errorf("the client: %+v, expected %q", e, c.client)
			}
			if e := atServer.next(t, false); (e.Err == nil) != (c.server == "") || e.Err != nil &&
				!strings.Contains(e.Err.Error(), c.server) {
				t.Errorf("the server: %+v, expected %q", e, c.server)
			}
		})
	}
}

// ready reports whether the peer of the port's only connection is known to be ready.
func ready(p *Port) bool {
	c := p.conns.List()[0]
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out != nil && c.out.ready
}

// TestManagerRejects: an answer belongs to the dial that it is for, and a device that is removed
// takes no more.
func TestManagerRejects(t *testing.T) {
	f, w := onManager(t, "")
	s := w.server(t, Options{})
	rx(t, s, engine.RxSpec{Depth: 16})
	c := w.open(t, "roce://"+w.own+"?connect=cm", Options{})
	rx(t, c, engine.RxSpec{Depth: 16})
	// Two dials at a time, one of them to an address without a listener: each has its own answer.
	for range 30 {
		type answer struct {
			nobody bool
			err    error
		}
		answers := make(chan answer)
		for _, nobody := range []bool{true, false} {
			to := s.LocalAddr()
			if nobody {
				to = netip.AddrPortFrom(netip.MustParseAddr(w.host), 4)
			}
			go func() {
				_, err := c.Connect(within(t), to)
				answers <- answer{nobody, err}
			}()
		}
		for range 2 {
			if a := <-answers; (a.err != nil) != a.nobody {
				t.Fatalf("to nobody %v: %v", a.nobody, a.err)
			}
		}
	}
	if n := s.Counts().Accepted; n != 30 {
		t.Errorf("%d accepted", n)
	}
	f.run(t, "cm remove 0")
	until(t, "the connections to end", func() bool { return len(s.conns.List()) == 0 && len(c.conns.List()) == 0 })
	if _, err := c.Connect(within(t), s.LocalAddr()); !errors.Is(err, cm.ErrRefused) {
		t.Errorf("to a device that is gone: %v", err)
	}
}

// TestManagerDeaf: a port whose connection manager gives no more events refuses to connect with
// that reason, and does not wait.
func TestManagerDeaf(t *testing.T) {
	f, w := onManager(t, "")
	s := w.server(t, Options{})
	rx(t, s, engine.RxSpec{Depth: 16})
	c := w.open(t, "roce://"+w.own+"?connect=cm", Options{Options: conns.Options{ConnectTimeout: time.Minute}})
	rx(t, c, engine.RxSpec{Depth: 16})
	// both ports' goroutines
	until(t, "the manager to listen", func() bool { return f.count(t, "rdma_get_cm_event") >= 2 })
	f.run(t, "fail rdma_get_cm_event 1 ENOBUFS")
	for range 2 {
		if _, err := c.Connect(within(t), s.LocalAddr()); !errors.Is(err, engine.ErrConnect) ||
			!strings.Contains(err.Error(), "tells no more") {
			t.Errorf("%v", err)
		}
	}
}

// TestManagerInfiniBand: datagrams by the connection manager are refused where an IP address is no
// way to the peer.
func TestManagerInfiniBand(t *testing.T) {
	_, w := onManager(t, "link infiniband")
	_, err := w.e.OpenPort(within(t), engine.PortSpec{Address: "roce://" + w.own + "?connect=cm&transport=UD"})
	if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "InfiniBand") {
		t.Errorf("%v", err)
	}
}
