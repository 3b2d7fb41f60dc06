package rdma

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// address is what PortSpec.Address says.
type address struct {
	listen bool
	local  netip.AddrPort // to listen on; or with port 0, what to connect from; invalid: any
	remote netip.AddrPort // to connect to; invalid: none yet, Port.Connect says so
	text   string         // all of it
}

// parseAddress reads an address. Hosts are IP addresses: a device is chosen by them.
func parseAddress(s string) (a address, err error) {
	read, err := Spec.Address(s)
	if err != nil {
		return a, err
	}
	if read.Scheme == "" {
		return a, invalid("address %q: expected roce://IP:PORT to connect to, roce://IP:PORT?listen=1 to be connected to, or roce://IP to connect from later", s)
	}
	bad := func(format string, args ...any) (address, error) {
		return a, invalid("address %q: %s", s, fmt.Sprintf(format, args...))
	}
	rest, local := read.Where, read.Settings["local"]
	a.listen = read.Settings["listen"] == "true"
	if local != "" {
		ip, err := netip.ParseAddr(local)
		if err != nil || a.listen {
			return bad("local is %q: expected an IP address, and only for a port that connects", local)
		}
		a.local = netip.AddrPortFrom(ip.Unmap(), 0)
	}
	if rest == "" {
		if a.listen || local == "" {
			return bad("expected an IP address")
		}
		return a, nil
	}
	if ip, err := netip.ParseAddr(strings.Trim(rest, "[]")); err == nil {
		// without a port: who connects later, from there
		if a.listen || local != "" {
			return bad("expected a port")
		}
		a.local = netip.AddrPortFrom(ip.Unmap(), 0)
		return a, nil
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return bad("%q: expected IP:PORT, with an IPv6 address in brackets", rest)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return bad("port %q: expected 0 to 65535", port)
	}
	ip := netip.IPv6Unspecified()
	if host != "" {
		if ip, err = netip.ParseAddr(host); err != nil {
			return bad("host %q: expected an IP address", host)
		}
	}
	at := netip.AddrPortFrom(ip.Unmap(), uint16(n))
	switch {
	case a.listen:
		a.local = at
	case n == 0 || at.Addr().IsUnspecified():
		return bad("expected an address and a port to connect to, or listen=1")
	default:
		a.remote = at
	}
	return a, nil
}
