package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/path"
)

// TestDialerDiesBetween: a dialer that dies, or misbehaves, after some of its connections ends the Accept at once, and the
// listener goes on.
func TestDialerDiesBetween(t *testing.T) {
	l, err := New(Options{CongestionControl: "reno"}).Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		name string
		end  func(*net.TCPConn)
		want string
	}{
		{"closed", func(c *net.TCPConn) { c.Close() }, "closed by the dialer"},
		{"reset", func(c *net.TCPConn) { c.SetLinger(0); c.Close() }, "reset"},
		{"talks", func(c *net.TCPConn) { c.Write([]byte("x")) }, "before the path was set up"},
	} {
		_, cb := configs()
		tok := newToken()
		accepted := make(chan error, 1)
		go func() {
			_, err := l.Accept(t.Context(), tok, cb)
			accepted <- err
		}()
		var conns []*net.TCPConn
		for i := range 2 { // of three
			nc, err := net.Dial("tcp", l.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			var b [helloSize]byte
			(&hello{version: version, kind: kindHello, window: 1, token: tok, index: uint16(i), count: 3, frame: 100, blocks: 1}).put(b[:])
			nc.Write(b[:])
			if _, err := io.ReadFull(nc, b[:]); err != nil {
				t.Fatal(err)
			}
			conns = append(conns, nc.(*net.TCPConn))
		}
		c.end(conns[0])
		err := <-accepted
		if !errors.Is(err, path.ErrDown) || !strings.Contains(err.Error(), "after 2 of 3 connections") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; expected ErrDown and %q", c.name, err, c.want)
		}
		// The other connection was cut with it.
		if n, err := conns[1].Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: the other connection got %d bytes", c.name, n)
		}
	}
	watched := func() int {
		l := l.(*Listener)
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.guests) + len(l.waiting)
	}
	if n := watched(); n != 0 {
		t.Errorf("the listener remembers %d paths that never were", n)
	}

	// An Accept that gives up midway leaves nothing behind either.
	_, cb := configs()
	tok := newToken()
	ctx, cancel := context.WithCancel(t.Context())
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept(ctx, tok, cb)
		accepted <- err
	}()
	nc, err := net.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var b [helloSize]byte
	(&hello{version: version, kind: kindHello, window: 1, token: tok, count: 2, frame: 100, blocks: 1}).put(b[:])
	nc.Write(b[:])
	if _, err := io.ReadFull(nc, b[:]); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-accepted; !errors.Is(err, context.Canceled) {
		t.Errorf("canceled midway: %v", err)
	}
	if n := watched(); n != 0 {
		t.Errorf("the listener still watches %d connections of it", n)
	}
	ca, cb := configs()
	tok = newToken()
	go func() {
		p, err := l.Accept(t.Context(), tok, cb)
		if err == nil {
			err = p.Close()
		}
		accepted <- err
	}()
	p, err := New(Options{CongestionControl: "reno"}).Dial(t.Context(), path.Offer{Addr: l.Addr(), Token: tok}, ca)
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if err := <-accepted; err != nil {
		t.Error(err)
	}
}
