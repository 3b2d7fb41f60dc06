package socket

import (
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
)

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
