// Package conns keeps the connections of a port: their ids, attempts, events and ordered ends, and
// the packets that wait for one. An engine adds what carries the bytes.
package conns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
)

// Options are the options about connections. The zero value is right for most.
type Options struct {
	// Background makes OpenPort return at once, while the connection is made in the background.
	// Otherwise it waits for the first connection until its context or ConnectTimeout ends.
	Background bool
	// ConnectTimeout bounds one attempt to connect, and OpenPort without Background; 0 is 10 s.
	ConnectTimeout time.Duration
	// Reconnect connects again when the connection has ended. What is sent meanwhile waits.
	Reconnect bool
	// BackoffMin and BackoffMax are the pauses between attempts: they double from the one to the
	// other, each less up to a half at random. 0 is 50 ms and 5 s.
	BackoffMin, BackoffMax time.Duration
	// MaxConns is the number of connections at a time; 0 is 65536. Others are refused.
	MaxConns int
	// OnConn is called when connections come and go, by a goroutine of the engine: it must not
	// wait.
	OnConn func(Event)
}

// Complete fills in what is zero.
func (o *Options) Complete() error {
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 10*time.Second)
	o.BackoffMin = cmp.Or(o.BackoffMin, 50*time.Millisecond)
	o.BackoffMax = cmp.Or(o.BackoffMax, max(5*time.Second, o.BackoffMin))
	o.MaxConns = cmp.Or(o.MaxConns, 65536)
	switch {
	case o.ConnectTimeout < 0:
		return fmt.Errorf("ConnectTimeout is %v: expected 0 or more: %w", o.ConnectTimeout, engine.ErrInvalid)
	case o.BackoffMin < 0 || o.BackoffMax < o.BackoffMin:
		return fmt.Errorf("BackoffMin %v and BackoffMax %v: expected the first to be the smaller one: %w", o.BackoffMin,
			o.BackoffMax, engine.ErrInvalid)
	case o.MaxConns < 1:
		return fmt.Errorf("MaxConns is %d: expected at least 1: %w", o.MaxConns, engine.ErrInvalid)
	}
	return nil
}

// Settings describe Options, for the Spec of an engine: schemes are those of the addresses that
// have connections, section is the key of the section of a file that has what concerns connecting.
func Settings(section string, schemes []string) []engine.Option {
	return []engine.Option{
		{Key: "connect_retry", DAQIRI: "retry_connect_s", Section: section, Schemes: schemes, Type: engine.Time, Min: 0,
			Max: 3600e9, Field: "Reconnect BackoffMin BackoffMax",
			Doc: "Pause between attempts to connect; 0: a connection that has ended is not made again. `mode: " +
				"client` has 1s without it, an address none."},
		{Key: "connect_retry_max", Section: section, Schemes: schemes, Type: engine.Time, Min: 1, Max: 3600e9,
			Field: "BackoffMax", Doc: "Pauses between attempts to connect double from `connect_retry` to this."},
		{Key: "connect_timeout", Section: section, Schemes: schemes, Type: engine.Time, Min: 0, Max: 3600e9,
			Default: "10s", Field: "!Background ConnectTimeout",
			Doc: "How long opening waits for the first connection; 0: it connects in the background."},
		{Key: "max_conns", Schemes: schemes, Type: engine.Int, Min: 1, Max: 1 << 20, Unit: "connections",
			Default: "65536", Field: "MaxConns", Doc: "Connections at a time; others are refused."},
	}
}

// Event says that a connection has come or gone.
type Event struct {
	ID     uint32
	Local  netip.AddrPort
	Remote netip.AddrPort
	Up     bool
	// Err says why it has gone, as an *Error; nil when it was closed in order.
	Err error
}

// Error is how a connection ended, or an attempt to connect. It wraps engine.ErrDown or
// engine.ErrConnect, and the cause.
type Error struct {
	Engine string
	ID     uint32 // 0 of an attempt
	Remote netip.AddrPort
	Err    error // nil where the peer ended it
}

// Error implements error.
func (e *Error) Error() string {
	switch {
	case e.ID == 0:
		return fmt.Sprintf("%s: connecting to %s: %v", e.Engine, e.Remote, e.Err)
	case e.Err == nil:
		return fmt.Sprintf("%s: connection %d to %s was closed by the peer", e.Engine, e.ID, e.Remote)
	}
	return fmt.Sprintf("%s: connection %d to %s: %v", e.Engine, e.ID, e.Remote, e.Err)
}

// Unwrap gives the sentinel and the cause.
func (e *Error) Unwrap() []error {
	kind := engine.ErrDown
	if e.ID == 0 {
		kind = engine.ErrConnect
	}
	if e.Err == nil {
		return []error{kind}
	}
	return []error{kind, e.Err}
}

// Counts are counts of a port's connections since it was opened.
type Counts struct {
	Accepted, Connected uint64
	Refused             uint64 // connections beyond MaxConns
	Attempts, Failures  uint64 // to connect
}

// Final is an error that no other attempt to connect would change.
type Final struct{ Err error }

func (f Final) Error() string { return f.Err.Error() }
func (f Final) Unwrap() error { return f.Err }

// Unmapped is an address as people write it: IPv4 as IPv4.
func Unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Ends are the addresses of both ends of a connection.
func Ends(c net.Conn) (local, remote netip.AddrPort) {
	return Unmapped(c.LocalAddr().(*net.TCPAddr).AddrPort()), Unmapped(c.RemoteAddr().(*net.TCPAddr).AddrPort())
}

// DialTCP connects to an address, from one that may be invalid or have port 0.
func DialTCP(ctx context.Context, d net.Dialer, from, to netip.AddrPort) (*net.TCPConn, error) {
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(from)
	}
	c, err := d.DialContext(ctx, "tcp", to.String())
	var op *net.OpError
	switch {
	case errors.As(err, &op): // the rest of it says where to
		return nil, op.Err
	case err != nil:
		return nil, err
	}
	t := c.(*net.TCPConn)
	if local, remote := Ends(t); local == remote { // the port without a listener was chosen as our own
		t.Close()
		return nil, os.NewSyscallError("connect", sys.ECONNREFUSED)
	}
	return t, nil
}
