package transfer

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// address is where a node's control connections come in: tcp://127.0.0.1:7070, tcp://[::1]:0, unix:///run/node.sock, or
// unix://@name for an abstract socket.
type address struct{ network, addr string }

func (a address) String() string { return a.network + "://" + a.addr }

// parseAddress checks an address. Until peers can prove who they are, TCP is only for this machine: any address but
// loopback is refused.
func parseAddress(s string) (address, error) {
	network, addr, ok := strings.Cut(s, "://")
	if !ok {
		return address{}, fmt.Errorf("transfer: address %q: expected tcp://HOST:PORT or unix://PATH", s)
	}
	switch network {
	case "tcp":
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return address{}, fmt.Errorf("transfer: address %q: %w", s, err)
		}
		if host == "localhost" {
			host = "127.0.0.1"
		}
		ip, err := netip.ParseAddr(host)
		if err != nil {
			return address{}, fmt.Errorf("transfer: address %q: host: expected 127.0.0.1, [::1] or localhost: %w", s, ErrNotLoopback)
		}
		if !ip.IsLoopback() {
			return address{}, fmt.Errorf("transfer: address %q: %w", s, ErrNotLoopback)
		}
		return address{"tcp", net.JoinHostPort(host, port)}, nil
	case "unix":
		if addr == "" || addr == "@" {
			return address{}, fmt.Errorf("transfer: address %q: expected a path or @name after unix://", s)
		}
		if len(addr) > 100 {
			return address{}, fmt.Errorf("transfer: address %q: a unix socket's path has at most 100 bytes", s)
		}
		return address{"unix", addr}, nil
	}
	return address{}, fmt.Errorf("transfer: address %q: scheme %q: expected tcp or unix", s, network)
}
