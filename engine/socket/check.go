package socket

import (
	"context"
	"net"
	"net/netip"

	"github.com/penstock-io/penstock/engine"
)

// PortCapabilities implements engine.Checker.
func (*Engine) PortCapabilities(spec engine.PortSpec) (engine.Capabilities, error) {
	a, udp, _, err := resolve(spec)
	if a.scheme == "tcp" {
		return tcpCapabilities(), err
	}
	return udp.capabilities(), err
}

// capabilities are those of a UDP port, as far as its options say.
func (o *UDPOptions) capabilities() engine.Capabilities {
	c := capabilities()
	c.Chains, c.Timestamps, c.HardwareTime, c.MaxPacket = false, true, true, maxPayload
	c.RxQueues, c.RxQueuesHint = o.Queues, "queues makes them more, of a port without a peer"
	c.TxSegmentation = "kernel"
	if o.NoGSO {
		c.TxSegmentation = "software"
	}
	if o.GRO {
		c.MinSlot, c.ExactDrops = groSlot, false
		c.Notes = append(c.Notes,
			"with GRO the kernel counts packets that it has put together as one when it drops them")
	}
	return c
}

// ConnIDs implements engine.Connector.
func (p *TCPPort) ConnIDs() (ids []uint32) {
	p.rx.Lock()
	defer p.rx.Unlock()
	for c := range p.conns.All() {
		ids = append(ids, c.ID)
	}
	return ids
}

// tcpCapabilities are those of a TCP port.
func tcpCapabilities() engine.Capabilities {
	c := capabilities()
	c.Stream, c.RxQueues = true, maxQueues
	c.Notes = []string{"the kernel takes no receive times of a byte stream"}
	return c
}

// CheckPort implements engine.Checker. Names are not looked up. A port holds what it is reached at,
// unless it shares that.
func (*Engine) CheckPort(ctx context.Context, spec engine.PortSpec) (holds string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	a, udp, tcp, err := resolve(spec)
	if err != nil {
		return "", err
	}
	device, shared := udp.Interface, udp.Queues > 1 || len(udp.Groups) > 0
	if a.scheme == "tcp" {
		device, shared = tcp.Interface, !a.listen
	}
	devices := []string{device}
	for _, g := range udp.Groups {
		devices = append(devices, g.Interface)
	}
	for _, device := range devices {
		if device == "" {
			continue
		}
		if _, err := net.InterfaceByName(device); err != nil {
			return "", failed(engine.ErrNotFound, "port %q: there is no interface %q here: see \"ip link\"",
				spec.Address, device)
		}
	}
	if ip, err := netip.ParseAddr(a.local.host); err == nil {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, 0)))
		if err != nil {
			return "", failed(engine.ErrUnavailable,
				"port %q: %v: expected an address of this machine: see \"ip addr\"", spec.Address, err)
		}
		c.Close()
	}
	if shared || a.local.port == 0 {
		return "", nil
	}
	return a.scheme + "://" + a.local.String(), nil
}
