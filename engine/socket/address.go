package socket

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/engine"
)

// address is what a port's address says.
type address struct {
	scheme string // udp or tcp
	local  endpoint
	remote endpoint // where host and port are "" there is none
	listen bool
}

// endpoint is a host, by name or number or "" for any, and a port.
type endpoint struct {
	host string
	port uint16
}

func (e endpoint) String() string { return net.JoinHostPort(e.host, strconv.Itoa(int(e.port))) }

func (e endpoint) given() bool { return e != endpoint{} }

// parseAddress reads the address of a port. Names are not looked up.
func parseAddress(s string) (a address, err error) {
	bad := func(format string, args ...any) (address, error) {
		return address{}, fmt.Errorf("socket: address %q: %s: %w", s, fmt.Sprintf(format, args...), engine.ErrInvalid)
	}
	read, err := Spec.Address(s)
	if err != nil {
		return a, err
	}
	a.scheme = read.Scheme
	if a.scheme == "" {
		return bad("expected udp://host:port or tcp://host:port")
	}
	if read.Where == "" && read.Settings["remote"] != "" {
		read.Where = ":0" // a sender needs no number that others know
	}
	at, err := parseEndpoint(read.Where)
	if err != nil {
		return bad("%v", err)
	}
	if v, ok := read.Settings["remote"]; ok {
		if a.remote, err = parseEndpoint(v); err == nil && (a.remote.host == "" || a.remote.port == 0) {
			err = fmt.Errorf("remote %q: expected host:port", v)
		}
	}
	if v, ok := read.Settings["local"]; ok && err == nil {
		a.local, err = parseEndpoint(v)
	}
	if err != nil {
		return bad("%v", err)
	}
	a.listen = read.Settings["listen"] == "true"
	if ip, err := netip.ParseAddr(at.host); err == nil && ip.IsMulticast() && a.scheme == "tcp" {
		return bad("%s is a multicast group, which has no connections: expected the address of a machine, or udp://",
			ip)
	}
	switch {
	case a.scheme == "udp" || a.listen:
		if a.local.given() {
			return bad("local is for tcp addresses that connect")
		}
		a.local = at
	case at.host == "" || at.port == 0:
		return bad("expected tcp://host:port to connect to, or tcp://host:port?listen=1 to be connected to")
	default:
		a.remote = at
	}
	return a, nil
}

func parseEndpoint(s string) (endpoint, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return endpoint{}, fmt.Errorf("%q: expected host:port, with an IPv6 address in brackets", s)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return endpoint{}, fmt.Errorf("port %q: expected 0 to 65535", port)
	}
	if strings.ContainsAny(host, "/?#@ ") {
		return endpoint{}, fmt.Errorf("host %q: expected a name or an address", host)
	}
	return endpoint{host, uint16(n)}, nil
}

// resolve finds the numbers of an endpoint, of the family of like if that is valid. A host that is
// "" becomes the unspecified address.
func (e endpoint) resolve(ctx context.Context, like netip.Addr) (netip.AddrPort, error) {
	if e.host == "" {
		a := netip.IPv6Unspecified()
		if like.Is4() {
			a = netip.IPv4Unspecified()
		}
		return netip.AddrPortFrom(a, e.port), nil
	}
	if a, err := netip.ParseAddr(e.host); err == nil {
		return netip.AddrPortFrom(a.Unmap(), e.port), nil
	}
	network := "ip"
	if like.Is4() {
		network = "ip4"
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, network, e.host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("socket: host %q: %w: %w", e.host, err, engine.ErrNotFound)
	}
	return netip.AddrPortFrom(found[0].Unmap(), e.port), nil
}

// family gives an address the form that a socket of the family wants.
func family(a netip.AddrPort, ipv6 bool) netip.AddrPort {
	switch {
	case ipv6 && a.Addr().Is4():
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
	case !ipv6 && a.Addr().Is4In6():
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	return a
}
