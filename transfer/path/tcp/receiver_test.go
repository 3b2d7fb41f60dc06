package tcp

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// port is a TCP port whose connections go to a receiver once their preamble was read.
func port(t *testing.T, l setup.Receiver) (addr string) {
	t.Helper()
	p, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	go func() {
		for {
			c, err := p.Accept()
			if err != nil {
				return
			}
			var b [setup.PreambleSize]byte
			if _, err := io.ReadFull(c, b[:]); err != nil {
				c.Close()
				continue
			}
			l.Receive(c.(*net.TCPConn), b)
		}
	}()
	return p.Addr().String()
}

// TestReceiver sets paths up over a port that is not the listener's, and sends it unknown
// connections.
func TestReceiver(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		d := New(Options{})
		l, err := d.Receiver()
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if l.Addr() != "" {
			t.Errorf("it has the address %s", l.Addr())
		}
		hurry(l)
		addr := port(t, l)
		ca, cb := configs()
		if sealed {
			ca.Secret, cb.Secret = aSecret(), aSecret()
		}
		tok := newToken()
		accepted := make(chan error, 1)
		go func() {
			p, err := l.Accept(t.Context(), tok, cb)
			if err == nil {
				err = p.Close()
			}
			accepted <- err
		}()
		p, err := d.Dial(t.Context(), setup.Offer{Addr: addr, Token: tok}, ca)
		if err != nil {
			t.Fatal(err)
		}
		if err := <-accepted; err != nil {
			t.Error(err)
		}
		p.Close()
		if _, err := d.Dial(t.Context(), setup.Offer{Addr: addr, Token: tok}, ca); !errors.Is(err, path.ErrProtocol) ||
			!strings.Contains(err.Error(), "does not expect this token") {
			t.Errorf("a token that was used: %v", err)
		}
		// Beyond the preamble nothing comes, or what is no hello.
		m := l.(*Listener)
		m.mu.Lock()
		m.silence = quick
		m.mu.Unlock()
		pre := d.Preamble()
		var silent []net.Conn
		for _, more := range []string{"", "x", strings.Repeat("x", helloSize)} {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			io.WriteString(c, string(pre[:])+more)
			c.SetReadDeadline(time.Now().Add(5 * helloTimeout))
			silent = append(silent, c)
		}
		for i, c := range silent {
			if b, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) || len(b) > helloSize {
				t.Errorf("unknown connection %d: %d bytes came, %v", i, len(b), err)
			}
		}
		unknown := func() int {
			m.mu.Lock()
			defer m.mu.Unlock()
			return len(m.unknown) + m.pending.Len() + len(m.guests) + len(m.waiting)
		}
		if n := unknown(); n != 0 {
			t.Errorf("%d unknown connections stay", n)
		}
		// A receiver that is closed takes nothing over.
		l.Close()
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.Write(pre[:])
		c.SetReadDeadline(time.Now().Add(5 * helloTimeout))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after Close: %v", err)
		}
	}
}
