package verbs

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// address is what PortSpec.Address says.
type address struct {
	listen bool
	local  netip.AddrPort // to listen on; or with port 0, what to connect from; invalid: any
	remote netip.AddrPort // to connect to; invalid: none yet, Port.Connect says so
	device string
	gid    int // as in Options
	how    *Transport
	by     *Connector
}

// parseAddress reads an address. Hosts are IP addresses: a device is chosen by them.
func parseAddress(s string) (address, error) {
	a, err := readAddress(s)
	if err != nil {
		return a, invalid("address %q: %v", s, err)
	}
	return a, nil
}

func readAddress(s string) (a address, err error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok || scheme != "roce" && scheme != "rdma" {
		return a, fmt.Errorf("expected roce://IP:PORT to connect to, roce://IP:PORT?listen=1 to be connected to, or roce://IP to connect from later")
	}
	rest, query, _ := strings.Cut(rest, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return a, fmt.Errorf("query %q: %v", query, err)
	}
	var local string
	for k, v := range values {
		if len(v) != 1 {
			return a, fmt.Errorf("%s is there %d times", k, len(v))
		}
		switch k {
		case "listen":
			if a.listen, err = strconv.ParseBool(v[0]); err != nil {
				return a, fmt.Errorf("listen is %q: expected 1 or 0", v[0])
			}
		case "local":
			local = v[0]
		case "device":
			if a.device = v[0]; a.device == "" || strings.ContainsAny(a.device, "/ ") {
				return a, fmt.Errorf("device is %q: expected the name of an RDMA device", v[0])
			}
		case "gid":
			n, err := strconv.ParseUint(v[0], 10, 15)
			if err != nil {
				return a, fmt.Errorf("gid is %q: expected a place in the device's table, 0 and up", v[0])
			}
			a.gid = int(n) + 1
		case "transport":
			t, err := ParseTransport(v[0])
			if err != nil {
				return a, fmt.Errorf("transport is %q: expected RC, UC or UD", v[0])
			}
			a.how = &t
		case "connect":
			by, err := ParseConnector(v[0])
			if err != nil {
				return a, fmt.Errorf("connect is %q: expected tcp or cm", v[0])
			}
			a.by = &by
		case "engine":
			if v[0] != "ibverbs" {
				return a, fmt.Errorf("engine is %q: expected ibverbs", v[0])
			}
		default:
			return a, fmt.Errorf("%q is not known: expected listen, local, device, gid, transport or connect", k)
		}
	}
	if local != "" {
		ip, err := netip.ParseAddr(local)
		if err != nil || a.listen {
			return a, fmt.Errorf("local is %q: expected an IP address, of one who connects", local)
		}
		a.local = netip.AddrPortFrom(ip.Unmap(), 0)
	}
	if rest == "" {
		if a.listen || local == "" {
			return a, fmt.Errorf("expected an IP address")
		}
		return a, nil
	}
	if ip, err := netip.ParseAddr(strings.Trim(rest, "[]")); err == nil { // without a port: who connects later, from there
		if a.listen || local != "" {
			return a, fmt.Errorf("expected a port")
		}
		a.local = netip.AddrPortFrom(ip.Unmap(), 0)
		return a, nil
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return a, fmt.Errorf("%q: expected IP:PORT, with an IPv6 address in brackets", rest)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return a, fmt.Errorf("port %q: expected 0 to 65535", port)
	}
	ip := netip.IPv6Unspecified()
	if host != "" {
		if ip, err = netip.ParseAddr(host); err != nil {
			return a, fmt.Errorf("host %q: expected an IP address", host)
		}
	}
	at := netip.AddrPortFrom(ip.Unmap(), uint16(n))
	switch {
	case a.listen:
		a.local = at
	case n == 0 || at.Addr().IsUnspecified():
		return a, fmt.Errorf("expected an address and a port to connect to, or listen=1")
	default:
		a.remote = at
	}
	return a, nil
}
