package transfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// One TCP port takes all that comes to a node: sessions, in the clear or by TLS, and the
// connections of their paths. The first bytes tell them from each other.

// errTaken ends the introduction of a connection that is no session: a path has it.
var errTaken = errors.New("transfer: a connection of a path")

// begun is a connection whose first bytes were read.
type begun struct {
	net.Conn
	first []byte
}

func (c *begun) Read(b []byte) (int, error) {
	if len(c.first) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.first)
	c.first = c.first[n:]
	return n, nil
}

// sort reads what a connection to a TCP port of the node begins with. A session goes on, the
// connection of a path is given to the listener that waits for it (errTaken), and anything else is
// refused. It is bounded as the handshake is that follows.
func (p *Peer) sort() error {
	c, ok := p.raw.(*net.TCPConn)
	if !ok || p.role != control.Acceptor {
		return nil
	}
	var b [setup.PreambleSize]byte
	c.SetReadDeadline(time.Now().Add(sys.PatienceOf(handshakeTimeout, c)))
	if n, err := io.ReadFull(c, b[:]); err != nil {
		return fmt.Errorf("no handshake: %d bytes came: %w", n, err)
	}
	c.SetReadDeadline(time.Time{})
	if isTLS := b[0] == 0x16 && b[1] == 3; isTLS || binary.BigEndian.Uint32(b[:]) == control.Magic {
		p.conn = &begun{c, b[:]}
		return nil
	}
	for _, d := range p.node.drivers {
		if d, ok := d.(setup.PortDriver); ok && d.Preamble() == b {
			if l := p.node.accepting.Opened(setup.Place{Driver: d.Name(), ByPort: true}); l != nil {
				l.(setup.Receiver).Receive(c, b)
				return errTaken
			}
			return fmt.Errorf("a connection of path %q, which no peer was offered", d.Name())
		}
	}
	p.turnAway(c, "this port is for nodes of penstock")
	return fmt.Errorf("its first bytes are %#x: neither TLS nor a node: %w", b[:], path.ErrProtocol)
}

// dialedTCP reports whether this side dialed the session over TCP.
func (p *Peer) dialedTCP() bool {
	_, ok := p.raw.(*net.TCPConn)
	return ok && p.role == control.Dialer
}

// byPort reports whether the connections of a driver's paths go where the control connection went.
func (p *Peer) byPort(d setup.Driver) bool {
	_, isTCP := p.raw.(*net.TCPConn)
	_, ok := d.(setup.PortDriver)
	return ok && isTCP
}
