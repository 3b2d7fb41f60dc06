package verbs

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/path"
)

// Transport is the service of the adapter that carries the puts of a path. Its control connection and its gets are always reliable.
type Transport uint8

const (
	// AnyTransport is RC where this side dials, and what the dialer has where it listens.
	AnyTransport Transport = iota
	// RC is reliable connections: the adapters acknowledge and repeat.
	RC
	// UC is unreliable connections: nothing is acknowledged on the way. The receiver's path says what came, and what did not is written again.
	UC
	// DC is reliable connections that an adapter makes and ends by itself, which NVIDIA's cards have: a peer costs targets, and the queue pairs that
	// send are Options.Initiators for all peers.
	DC
)

func (t Transport) String() string {
	switch t {
	case AnyTransport:
		return "any transport"
	case RC:
		return "RC"
	case UC:
		return "UC"
	case DC:
		return "DC"
	}
	return fmt.Sprintf("transport(%d)", uint8(t))
}

// extra is how many rails a path has beside those that carry puts: UC has no reads.
func (t Transport) extra() int {
	if t == UC {
		return 1
	}
	return 0
}

// assign gives a link of a path with so many rails its work: with UC the last rail has the gets.
func (l *link) assign(rails int) {
	switch {
	case l.index == 0:
	case l.p.transport != UC:
		l.serves = path.Read | path.Write
	case l.index == rails:
		l.serves = path.Read
	default:
		l.serves, l.uc = path.Write, newUnreliable()
	}
}

// kind is the service of a link's queue pair.
func (l *link) kind() ibv.QPType {
	if l.uc != nil {
		return ibv.UC
	}
	return ibv.RC
}

// most bounds what one request of the link moves, in bytes.
func (l *link) most() uint64 {
	if l.uc != nil {
		return l.uc.limit
	}
	return 1 << 62
}

// depthOf is how many receives the peer has on the other end of a rail.
func (l *link) depthOf(peer *params) uint32 {
	if l.uc != nil {
		return ucDepth
	}
	return uint32(peer.msgDepth)
}

// pairs says for people which queue pairs serve this one peer.
func (p *Path) pairs() string {
	switch p.transport {
	case DC:
		return fmt.Sprintf("none that sends; %d DC targets: 1 for control, %d for puts and gets", len(p.links), len(p.rails))
	case UC:
		return fmt.Sprintf("%d: 1 for control (RC), %d for puts (UC), 1 for gets (RC)", len(p.links), len(p.rails)-1)
	}
	return fmt.Sprintf("%d: 1 for control (RC), %d for puts and gets (RC)", len(p.links), len(p.rails))
}
