package tcp

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
)

// Switch turns something on or off, or leaves it to this package.
type Switch uint8

// The values of Switch.
const (
	Auto Switch = iota
	On
	Off
)

// check returns an error if an option has a value that it cannot have here.
func (o *Options) check() error {
	if _, err := address(o.Addr); err != nil {
		return fmt.Errorf("Options.Addr: %w", err)
	}
	if o.KTLS > Off {
		return fmt.Errorf("tcp: Options.KTLS %d: expected Auto, On or Off", o.KTLS)
	}
	if name := o.CongestionControl; name != "" && name != CongestionSystem {
		fd, err := sys.SocketTCP(false)
		if err != nil {
			return err
		}
		defer sys.Close(fd)
		return o.initialCongestion(fd, netip.Addr{})
	}
	return nil
}

// Options are the same for all paths of a Driver. The zero value is a good choice. Path.Explain
// tells what the kernel made of them.
type Options struct {
	// Addr is where Listen listens: an IP address with a port, 0 for any. "" means "127.0.0.1:0".
	// Beyond loopback peers get a path only with encryption (setup.Config.Secret), unless Insecure
	// is set. It is one address of this host. A node listens for peers of unix sockets there; what
	// comes to its own ports it hands to a Receiver.
	Addr string
	// CongestionControl is "", "system" or the name of an algorithm. "" and "system" take what the
	// administrator chose (net.ipv4.tcp_congestion_control); "" takes cubic or reno in the place of
	// one that paces (bbr) on loopback, where pacing serves nothing.
	CongestionControl string
	// ZeroCopy (MSG_ZEROCOPY) sends large payload from its pages, where the path does not encrypt.
	// It is worth trying on network adapters that read them; on loopback the kernel copies in any
	// case and it is slower. It switches itself off when the kernel reports nothing but copies.
	ZeroCopy bool
	// KTLS lets the kernel encrypt and decrypt (kTLS) on paths with a secret, each direction by
	// itself; the other end does not need it. Auto is on where the kernel has it. On is an error
	// where it does not. The kernel cannot change keys: such a path ends before a key has encrypted
	// more than is safe, some 275 GB in one direction of one connection.
	KTLS Switch
	// Insecure permits paths without encryption to and from addresses other than loopback. An
	// attacker on the way can then read and change everything.
	Insecure bool

	sealLimit uint64 // tests: blocks for each key
}

// address parses a listening or peer address.
func address(s string) (netip.AddrPort, error) {
	if s == "" {
		s = "127.0.0.1:0"
	}
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return a, fmt.Errorf("tcp: address %q: %w; expected an IP address and a port such as 127.0.0.1:0 or [::1]:0", s,
			err)
	}
	if a.Addr().Unmap().IsUnspecified() {
		return a, fmt.Errorf("tcp: address %s names no host: expected one address of the host that listens: %w", a,
			path.ErrUnavailable)
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), nil
}

// permits refuses a path beyond this host that is not encrypted.
func (o *Options) permits(host netip.Addr, sealed bool) error {
	if sealed || o.Insecure || host.IsLoopback() {
		return nil
	}
	return fmt.Errorf("tcp: address %s is not loopback and the session has no secret to encrypt with: give both "+
		"nodes an identity, or say Insecure: %w", host, path.ErrUnavailable)
}

// checkUser refuses a connection in the clear with a loopback address whose other end belongs to a
// user who is not let in. What else is in the clear, Insecure permits.
func checkUser(fd int, remote netip.AddrPort, u path.Users) error {
	local, err := sys.LocalAddr(fd)
	if err != nil {
		return err
	}
	if !local.Addr().Unmap().IsLoopback() && !remote.Addr().IsLoopback() {
		return nil
	}
	return u.Permit(sys.TCPPeerUID(fd))
}

// prepare sets a new socket up, before it listens or connects.
func (o *Options) prepare(fd int, host netip.Addr) error {
	if err := sys.SetOption(fd, sys.SolTCP, sys.TCPNoDelay, 1); err != nil {
		return fmt.Errorf("tcp: TCP_NODELAY: %w", err)
	}
	if o.ZeroCopy {
		if err := sys.SetOption(fd, sys.SolSocket, sys.SoZeroCopy, 1); err != nil {
			return fmt.Errorf("tcp: SO_ZEROCOPY: %w", err)
		}
	}
	return o.initialCongestion(fd, host)
}

// readBack says what the kernel makes of a socket.
func readBack(fd int) string {
	var parts []string
	for _, s := range [...]struct {
		name       string
		level, opt int
	}{{"TCP_NODELAY", sys.SolTCP, sys.TCPNoDelay}, {"SO_SNDBUF", sys.SolSocket, sys.SoSndBuf},
		{"SO_RCVBUF", sys.SolSocket, sys.SoRcvBuf}} {
		v, err := sys.Option(fd, s.level, s.opt)
		if err != nil {
			parts = append(parts, fmt.Sprintf("%s cannot be read: %v", s.name, err))
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %d", s.name, v))
	}
	return strings.Join(parts, ", ") + " (buffers are left to the kernel, which adapts them)"
}

func (p *Path) explain(d deal) {
	sum := "off: one side does not want it"
	if d.crc {
		sum = "CRC32C over each frame, checked by the receiver"
	}
	if p.sealed {
		sum = "the tag of AES-128-GCM over each record, checked before anything of it counts"
	}
	share := ""
	if p.data > 1 {
		share = fmt.Sprintf("; the first connection carries operations below %d KiB, the others what is larger",
			stripeMin>>10)
	}
	copies := "copies: none in user space but for what shares a read with its header, one in each kernel"
	if n := p.userCopies(); n > 0 {
		copies = fmt.Sprintf("copies: %d passes in user space, for the encryption, and one in each kernel", n)
	}
	p.lines = []string{
		fmt.Sprintf("tcp to %s: data connections: %d; window %d, frames of up to %d KiB%s", p.peer, p.data, p.window,
			p.frame>>10, share),
		copies,
		"integrity: " + sum,
		"encryption: " + p.sealLine,
		"socket options, read back: " + readBack(p.fds[0]),
	}
}
