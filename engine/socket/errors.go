package socket

import (
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
)

// Errors are numbers of errors that sockets reported and that stopped nothing. Most are answers of
// other machines (ICMP), of which the kernel tells ports with one peer only; the packets that they
// answer had left and are counted so.
type Errors struct {
	Refused     uint64 // no socket has that port: ECONNREFUSED
	Unreachable uint64 // no way to the host or network
	TooLong     uint64 // longer than a link on the way takes
	Down        uint64 // the interface is down
	Other       uint64
}

type errorCounters struct{ refused, unreachable, tooLong, down, other atomic.Uint64 }

func (c *errorCounters) count(e sys.Errno) {
	switch e {
	case sys.ECONNREFUSED:
		c.refused.Add(1)
	case sys.ENETUNREACH, sys.EHOSTUNREACH:
		c.unreachable.Add(1)
	case sys.EMSGSIZE:
		c.tooLong.Add(1)
	case sys.ENETDOWN:
		c.down.Add(1)
	default:
		c.other.Add(1)
	}
}

// Errors are the errors that the port's sockets have reported.
func (p *UDPPort) Errors() Errors {
	return Errors{p.errs.refused.Load(), p.errs.unreachable.Load(), p.errs.tooLong.Load(), p.errs.down.Load(),
		p.errs.other.Load()}
}

// reason says why the kernel did not send a packet.
func reason(e sys.Errno) engine.Drop {
	switch e {
	case sys.EMSGSIZE:
		return engine.DropTooLong
	case sys.ENETUNREACH, sys.EHOSTUNREACH, sys.EADDRNOTAVAIL:
		return engine.DropNoRoute
	case sys.ENETDOWN, sys.EPIPE, sys.ECONNRESET, sys.ETIMEDOUT:
		return engine.DropDown
	}
	return engine.DropRefused
}
