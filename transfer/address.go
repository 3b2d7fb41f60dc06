package transfer

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

// address is where connections come to a node: tcp://127.0.0.1:7070, tcp://[::1]:0,
// tcp://gpu-7@10.0.0.7:7070, tcp://:7070 for all addresses of the host, unix:///run/node.sock, or
// unix://@name for an abstract socket. What has a colon and no scheme is TCP: 127.0.0.1:7070,
// :7070.
type address struct {
	network, addr string
	expect        string // name that the certificate of the other side must have; "": any of the authority
	local         bool   // what is sent there does not leave this machine
}

func (a address) String() string {
	if a.expect != "" {
		return a.network + "://" + a.expect + "@" + a.addr
	}
	return a.network + "://" + a.addr
}

// CheckAddress says what is wrong with the text of an address, as Node.Connect does before it
// dials.
func CheckAddress(addr string) error {
	_, err := parseAddress(addr)
	return err
}

// parseAddress reads an address. Whether it may be used is for the node to say: see Node.allows.
func parseAddress(s string) (address, error) {
	network, addr, ok := strings.Cut(s, "://")
	if !ok && strings.Contains(s, ":") {
		network, addr, ok = "tcp", s, true
	}
	if !ok {
		return address{}, fmt.Errorf("transfer: address %q: expected tcp://HOST:PORT, tcp://NAME@HOST:PORT or unix://PATH", s)
	}
	switch network {
	case "tcp":
		var name string
		if before, rest, named := strings.Cut(addr, "@"); named {
			if err := identity.CheckName(before); err != nil {
				return address{}, fmt.Errorf("transfer: address %q: %w", s, err)
			}
			name, addr = before, rest
		}
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return address{}, fmt.Errorf("transfer: address %q: %w", s, err)
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return address{}, fmt.Errorf("transfer: address %q: port %q: expected a number up to 65535", s, port)
		}
		if host == "localhost" {
			host = "127.0.0.1"
		}
		ip, err := netip.ParseAddr(host)
		return address{"tcp", net.JoinHostPort(host, port), name, err == nil && ip.IsLoopback()}, nil
	case "unix":
		if addr == "" || addr == "@" {
			return address{}, fmt.Errorf("transfer: address %q: expected a path or @name after unix://", s)
		}
		if len(addr) > 100 {
			return address{}, fmt.Errorf("transfer: address %q: a unix socket's path has at most 100 bytes", s)
		}
		return address{"unix", addr, "", true}, nil
	}
	return address{}, fmt.Errorf("transfer: address %q: scheme %q: expected tcp or unix", s, network)
}

// allows refuses addresses at which the node would talk in the clear beyond this machine, unless
// Options.Insecure permits it.
func (n *Node) allows(a address) error {
	switch {
	case a.expect != "" && n.opts.Identity == nil:
		return fmt.Errorf("transfer: address %v: this node has no identity, so the other side cannot prove the "+
			"name %q: %w", a, a.expect, ErrPlaintext)
	case a.local || n.opts.Identity != nil:
		return nil
	case n.opts.Insecure:
		n.log.Warn("PLAINTEXT: whoever is on the way can read and change everything; give the node an identity "+
			"(penstock pair)", "address", a.String())
		n.account.Bus.Emit(observe.Event{Kind: observe.EventPlaintext, Address: a.String(),
			Security: path.SecurityNone.String()})
		return nil
	}
	return fmt.Errorf("transfer: address %v is beyond this machine, and this node has no identity (\"penstock pair\" "+
		"makes one) and no permission for plaintext: %w", a, ErrPlaintext)
}
