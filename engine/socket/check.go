package socket

import (
	"context"
	"net"
	"net/netip"

	"github.com/penstock-io/penstock/engine"
)

var (
	_ engine.PortChecker  = (*Engine)(nil)
	_ engine.QueueChecker = (*Engine)(nil)
)

// CheckPort implements engine.PortChecker. Names are not looked up. A port holds what it is reached at, unless it shares that.
func (*Engine) CheckPort(ctx context.Context, spec engine.PortSpec) (holds string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	a, udp, tcp, err := settle(spec)
	if err != nil {
		return "", err
	}
	device, shared := udp.Interface, udp.Queues > 1 || len(udp.Groups) > 0
	if a.scheme == "tcp" {
		device, shared = tcp.Interface, !a.listen
	}
	if device != "" {
		if _, err := net.InterfaceByName(device); err != nil {
			return "", failed(engine.ErrNotFound, "port %q: there is no interface %q here: see \"ip link\"", spec.Address, device)
		}
	}
	if ip, err := netip.ParseAddr(a.local.host); err == nil {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, 0)))
		if err != nil {
			return "", failed(engine.ErrUnavailable, "port %q: %v: expected an address of this machine: see \"ip addr\"", spec.Address, err)
		}
		c.Close()
	}
	if shared || a.local.port == 0 {
		return "", nil
	}
	return a.scheme + "://" + a.local.String(), nil
}

// CheckRxQueue implements engine.QueueChecker.
func (*Engine) CheckRxQueue(port engine.PortSpec, spec engine.RxSpec, _ []engine.PoolSpec) error {
	if a, err := parseAddress(port.Address); err != nil || a.scheme == "udp" {
		return err
	}
	if spec.Timestamps || spec.HardwareTime {
		return failed(engine.ErrUnsupported, "receive queue %v: a byte stream has no receive times: a udp:// address has them", spec.ID)
	}
	return nil
}

// CheckTxQueue implements engine.QueueChecker.
func (*Engine) CheckTxQueue(engine.PortSpec, engine.TxSpec, []engine.PoolSpec) error { return nil }
