package guest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// A pair of guests has these addresses at the two ends of its cable (interface link0). The second
// set is of loopback addresses, which lead through the cable all the same: for what refuses to
// speak to other machines.
var (
	Addrs         = [3]string{1: "10.9.0.1", 2: "10.9.0.2"}
	LoopbackAddrs = [3]string{1: "127.9.0.1", 2: "127.9.0.2"}
)

// meetPort is where guest 1 waits for guest 2.
const meetPort = "4009"

// A Meeting is a connection between the two halves of a test in a pair of guests.
type Meeting struct {
	conn net.Conn
	enc  *json.Encoder
	dec  *json.Decoder
}

// Meet connects the two guests of a pair. Each side calls it; the one that comes first waits for
// the other until ctx ends.
func Meet(ctx context.Context) (*Meeting, error) {
	switch ID() {
	case 1:
		l, err := net.Listen("tcp", net.JoinHostPort(Addrs[1], meetPort))
		if err != nil {
			return nil, fmt.Errorf("guest: meet: %w", err)
		}
		defer l.Close()
		defer context.AfterFunc(ctx, func() { l.Close() })()
		c, err := l.Accept()
		if err != nil {
			return nil, fmt.Errorf("guest: the other guest did not come: %w", errors.Join(err, ctx.Err()))
		}
		return newMeeting(c), nil
	case 2:
		for {
			// One attempt is short: the first segments may be lost while the other end is still
			// booting.
			d := net.Dialer{Timeout: 2 * time.Second}
			c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(Addrs[1], meetPort))
			if err == nil {
				return newMeeting(c), nil
			}
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("guest: the other guest cannot be reached: %w", err)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil, errors.New("guest: Meet is for a pair of guests (Spec.Guests = 2), inside")
}

func newMeeting(c net.Conn) *Meeting {
	return &Meeting{c, json.NewEncoder(c), json.NewDecoder(bufio.NewReader(c))}
}

// Send sends a value as JSON.
func (m *Meeting) Send(v any) error { return m.enc.Encode(v) }

// Recv waits for the next value, until the deadline that was set.
func (m *Meeting) Recv(v any) error { return m.dec.Decode(v) }

// SetDeadline bounds all that Send and Recv wait for.
func (m *Meeting) SetDeadline(t time.Time) error { return m.conn.SetDeadline(t) }

// Barrier waits until the other side calls Barrier with the same name.
func (m *Meeting) Barrier(name string) error {
	if err := m.Send(name); err != nil {
		return fmt.Errorf("guest: at %q: %w", name, err)
	}
	var got string
	if err := m.Recv(&got); err != nil {
		return fmt.Errorf("guest: at %q, waiting for the other guest: %w", name, err)
	}
	if got != name {
		return fmt.Errorf("guest: at %q, while the other guest is at %q", name, got)
	}
	return nil
}

// Close ends the connection.
func (m *Meeting) Close() error { return m.conn.Close() }
