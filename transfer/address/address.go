package address

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/transfer/identity"
)

// Address is where connections come to a node: tcp://127.0.0.1:7070, tcp://[::1]:0,
// tcp://gpu-7@10.0.0.7:7070, tcp://:7070 for all addresses of the host, unix:///run/node.sock, or
// unix://@name for an abstract socket. What has a colon and no scheme is TCP: 127.0.0.1:7070,
// :7070.
type Address struct {
	Network, Addr string
	Expect        string // name that the certificate of the other side must have; "": any of the authority
	Local         bool   // what is sent there does not leave this machine
}

func (a Address) String() string {
	if a.Expect != "" {
		return a.Network + "://" + a.Expect + "@" + a.Addr
	}
	return a.Network + "://" + a.Addr
}

// Parse reads an address. Whether it may be used is for the node to say.
func Parse(s string) (Address, error) {
	network, addr, ok := strings.Cut(s, "://")
	if !ok && strings.Contains(s, ":") {
		network, addr, ok = "tcp", s, true
	}
	if !ok {
		return Address{}, fmt.Errorf("transfer: address %q: expected tcp://HOST:PORT, tcp://NAME@HOST:PORT or unix://PATH", s)
	}
	switch network {
	case "tcp":
		var name string
		if before, rest, named := strings.Cut(addr, "@"); named {
			if err := identity.CheckName(before); err != nil {
				return Address{}, fmt.Errorf("transfer: address %q: %w", s, err)
			}
			name, addr = before, rest
		}
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return Address{}, fmt.Errorf("transfer: address %q: %w", s, err)
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return Address{}, fmt.Errorf("transfer: address %q: port %q: expected a number up to 65535", s, port)
		}
		if host == "localhost" {
			host = "127.0.0.1"
		}
		ip, err := netip.ParseAddr(host)
		return Address{"tcp", net.JoinHostPort(host, port), name, err == nil && ip.IsLoopback()}, nil
	case "unix":
		if addr == "" || addr == "@" {
			return Address{}, fmt.Errorf("transfer: address %q: expected a path or @name after unix://", s)
		}
		if len(addr) > 100 {
			return Address{}, fmt.Errorf("transfer: address %q: a unix socket's path has at most 100 bytes", s)
		}
		return Address{"unix", addr, "", true}, nil
	}
	return Address{}, fmt.Errorf("transfer: address %q: scheme %q: expected tcp or unix", s, network)
}
