package tcp

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/path"
)

// Switch turns something on or off, or leaves it to this package.
type Switch uint8

const (
	Auto Switch = iota
	On
	Off
)

// Options are the same for all paths of a Driver. The zero value is a good choice. All of them are set before a socket
// connects or listens, and read back: Path.Explain tells what the kernel made of them.
type Options struct {
	// Addr is where Listen listens: an IP address with a port, 0 for any. "" means "127.0.0.1:0". Beyond loopback peers get a
	// path only with encryption (path.Config.Secret), unless Insecure is set. On 0.0.0.0 and :: see Advertise.
	Addr string
	// CongestionControl is "auto" (also ""), "system" or the name of an algorithm. Auto measures the available ones when the
	// first large operation comes, on a connection of its own, and remembers the fastest for each remote host; the system's
	// choice wins unless another one is more than a tenth faster in two rounds. Large operations wait for it, some 50 ms and
	// at most about 100. If other work on the machine leaves it uncertain, the path uses the system's choice and the next
	// path to that host measures again.
	CongestionControl string
	// MeasureNow does the measurement as soon as a path is set up.
	MeasureNow bool
	// SndBuf and RcvBuf are the sizes of the socket buffers in bytes; 0 leaves them to the kernel, which adapts them.
	SndBuf, RcvBuf int
	// NoDelay (TCP_NODELAY) sends small frames at once. Auto is on.
	NoDelay Switch
	// QuickAck (TCP_QUICKACK) acknowledges segments at once. Auto leaves it to the kernel.
	QuickAck Switch
	// FastOpen (TCP_FASTOPEN) saves a round trip when a path is set up, where net.ipv4.tcp_fastopen allows it. Auto is off.
	FastOpen Switch
	// BusyPoll is how many microseconds the kernel polls the network adapter on behalf of a read (SO_BUSY_POLL); 0 leaves
	// it alone. Loopback has no adapter to poll.
	BusyPoll int
	// ZeroCopy (MSG_ZEROCOPY) sends large payload from its pages. Auto is off on loopback, where the kernel copies it in any
	// case. On switches itself off when the kernel reports nothing but copies.
	ZeroCopy Switch
	// KTLS lets the kernel encrypt and decrypt (kTLS) on paths with a secret, each direction by itself; the other end does
	// not need it. Auto is on where the kernel has it. On is an error where it does not. The kernel cannot change keys: such a
	// path ends before a key has encrypted more than is safe, some 275 GB in one direction of one connection.
	KTLS Switch
	// Insecure permits paths without encryption to and from addresses other than loopback. Whoever is on the way can then
	// read and change everything.
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
		return a, fmt.Errorf("tcp: address %q: %w; expected an IP address and a port such as 127.0.0.1:0 or [::1]:0", s, err)
	}
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port()), nil
}

// reachable refuses to dial what must not be or cannot be dialed.
func (o *Options) reachable(a netip.AddrPort, sealed bool) error {
	if a.Addr().IsUnspecified() {
		return fmt.Errorf("tcp: address %s is that of a listener on all interfaces and leads nowhere: put the address of the control connection in its place (Advertise): %w", a, path.ErrUnavailable)
	}
	return o.permits(a.Addr(), sealed)
}

// permits refuses a path beyond this host that is not encrypted.
func (o *Options) permits(host netip.Addr, sealed bool) error {
	if sealed || o.Insecure || host.IsLoopback() {
		return nil
	}
	return fmt.Errorf("tcp: address %s is not loopback and the session has no secret to encrypt with: give both nodes an identity, or say Insecure: %w", host, path.ErrUnavailable)
}

// Advertise is the address for an Offer of a listener whose own is addr. A listener on all interfaces (0.0.0.0 or ::) cannot
// know by which of its addresses a peer reaches it, but control, an end of the control connection with that peer, does: it is
// the local address at the node that listens, or the remote address at the node that dials, which is the better one where
// addresses are translated on the way. A control connection that is no IP connection does not leave the host, and the
// loopback address is taken. The error wraps path.ErrUnavailable if the peer came over IPv6 and the listener has IPv4 only.
func Advertise(addr string, control net.Addr) (string, error) {
	a, err := address(addr)
	if err != nil {
		return "", err
	}
	if !a.Addr().IsUnspecified() {
		return a.String(), nil
	}
	host := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if t, ok := control.(*net.TCPAddr); ok {
		host = t.AddrPort().Addr().Unmap().WithZone("")
	}
	switch {
	case !host.IsValid() || host.IsUnspecified():
		return "", fmt.Errorf("tcp: the control connection has the address %v, which names no host: expected an end of an established connection: %w", control, path.ErrUnavailable)
	case host.Is6() && a.Addr().Is4():
		return "", fmt.Errorf("tcp: the listener on %s has IPv4 only, and the control connection came over IPv6 (%s): listen on [::]: %w", a, host, path.ErrUnavailable)
	}
	return netip.AddrPortFrom(host, a.Port()).String(), nil
}

type setting struct {
	name       string
	level, opt int
	value      int
	listen     bool // only for the listening socket
	connect    bool // only for a connecting socket
	doubled    bool // the kernel reports twice of what was set
	afterwards bool // the kernel forgets it; it is set again on the connection
}

// settings lists what the options ask of the kernel.
func (o *Options) settings() []setting {
	var s []setting
	if o.NoDelay == Off {
		s = append(s, setting{name: "TCP_NODELAY", level: sys.SolTCP, opt: sys.TCPNoDelay, value: 0})
	} else {
		s = append(s, setting{name: "TCP_NODELAY", level: sys.SolTCP, opt: sys.TCPNoDelay, value: 1})
	}
	if o.SndBuf > 0 {
		s = append(s, setting{name: "SO_SNDBUF", level: sys.SolSocket, opt: sys.SoSndBuf, value: o.SndBuf, doubled: true})
	}
	if o.RcvBuf > 0 {
		s = append(s, setting{name: "SO_RCVBUF", level: sys.SolSocket, opt: sys.SoRcvBuf, value: o.RcvBuf, doubled: true})
	}
	if o.BusyPoll > 0 {
		s = append(s, setting{name: "SO_BUSY_POLL", level: sys.SolSocket, opt: sys.SoBusyPoll, value: o.BusyPoll})
	}
	if o.ZeroCopy == On {
		s = append(s, setting{name: "SO_ZEROCOPY", level: sys.SolSocket, opt: sys.SoZeroCopy, value: 1})
	}
	if o.QuickAck != Auto {
		v := 0
		if o.QuickAck == On {
			v = 1
		}
		s = append(s, setting{name: "TCP_QUICKACK", level: sys.SolTCP, opt: sys.TCPQuickAck, value: v, afterwards: true})
	}
	if o.FastOpen == On {
		s = append(s, setting{name: "TCP_FASTOPEN", level: sys.SolTCP, opt: sys.TCPFastOpen, value: 64, listen: true},
			setting{name: "TCP_FASTOPEN_CONNECT", level: sys.SolTCP, opt: sys.TCPFastOpenConnect, value: 1, connect: true})
	}
	return s
}

// prepare sets a new socket up, before it listens or connects.
func (o *Options) prepare(fd int, host netip.Addr, listen bool) error {
	for _, s := range o.settings() {
		if s.listen && !listen || s.connect && listen {
			continue
		}
		if err := sys.SetOption(fd, s.level, s.opt, s.value); err != nil {
			return fmt.Errorf("tcp: %s = %d: %w", s.name, s.value, err)
		}
	}
	return initialCongestion(fd, o, host)
}

// again repeats what a connection does not inherit or the kernel takes back.
func (o *Options) again(fd int) {
	for _, s := range o.settings() {
		if s.afterwards {
			sys.SetOption(fd, s.level, s.opt, s.value) // only a hint; Explain reads it back
		}
	}
}

// readBack says what the kernel made of the options.
func (o *Options) readBack(fd int) string {
	var parts []string
	for _, s := range o.settings() {
		v, err := sys.Option(fd, s.level, s.opt)
		switch {
		case s.listen:
			continue
		case err != nil:
			parts = append(parts, fmt.Sprintf("%s cannot be read: %v", s.name, err))
		case s.doubled && v != 2*s.value:
			parts = append(parts, fmt.Sprintf("%s %d asked, %d granted (net.core limits; the kernel doubles what it grants for its own use: %d)", s.name, s.value, v/2, v))
		case s.doubled:
			parts = append(parts, fmt.Sprintf("%s %d (%d with the kernel's own use)", s.name, s.value, v))
		case v != s.value:
			parts = append(parts, fmt.Sprintf("%s %d asked, the kernel says %d", s.name, s.value, v))
		default:
			parts = append(parts, fmt.Sprintf("%s %d", s.name, v))
		}
	}
	for _, s := range [...]struct {
		name string
		opt  int
		skip bool
	}{{"SO_SNDBUF", sys.SoSndBuf, o.SndBuf > 0}, {"SO_RCVBUF", sys.SoRcvBuf, o.RcvBuf > 0}} {
		if v, err := sys.Option(fd, sys.SolSocket, s.opt); err == nil && !s.skip {
			parts = append(parts, fmt.Sprintf("%s left to the kernel (now %d)", s.name, v))
		}
	}
	return strings.Join(parts, ", ")
}

func (p *Path) explain(d deal, o *Options) {
	sum := "off: one side does not want it"
	if d.crc {
		sum = "CRC32C over each frame, checked by the receiver"
	}
	if p.sealed {
		sum = "the tag of AES-128-GCM over each record, checked before anything of it counts"
	}
	share := ""
	if p.data > 1 {
		share = fmt.Sprintf("; the first connection carries operations below %d KiB, the others what is larger", stripeMin>>10)
	}
	spare := ""
	if len(p.fds) > p.data {
		spare = " and one for measuring"
	}
	copies := "copies: none in user space but for what shares a read with its header, one in each kernel"
	if n := p.userCopies(); n > 0 {
		copies = fmt.Sprintf("copies: %d passes in user space, for the encryption, and one in each kernel", n)
	}
	p.lines = []string{
		fmt.Sprintf("tcp to %s: data connections: %d%s; window %d, frames of up to %d KiB%s", p.peer, p.data, spare, p.window, p.frame>>10, share),
		copies,
		"integrity: " + sum,
		"encryption: " + p.sealLine,
		"socket options, read back: " + o.readBack(p.fds[0]),
	}
}
