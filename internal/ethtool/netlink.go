package ethtool

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/netlink"
	"github.com/penstock-io/penstock/internal/sys"
)

// Numbers of linux/rtnetlink.h and linux/if_link.h.
const (
	rtmNewLink, rtmGetLink = 16, 18

	linkName, linkMTU, linkInfo = 3, 4, 18
	linkTxQueues, linkRxQueues  = 31, 32
	linkXDP                     = 43
	linkMinMTU, linkMaxMTU      = 50, 51
	linkInfoKind                = 1
	xdpAttached, xdpProgram     = 2, 4
)

// Numbers of linux/genetlink.h and linux/netdev.h.
const (
	genlController   = 16
	ctrlGetFamily    = 3
	ctrlFamilyID     = 1
	ctrlFamilyName   = 2
	genlHeader       = 4
	netdevFamily     = "netdev"
	netdevGet        = 1
	netdevIndex      = 1
	netdevFeatures   = 3
	netdevSegments   = 4
	netdevMetadata   = 5
	netdevXSKFeature = 6
)

// request is a message that asks for something.
func request(kind uint16, flags int, body []byte) []byte {
	return netlink.End(append(netlink.Begin(nil, kind, uint16(flags), 1), body...))
}

// ask sends a request to the kernel and calls each for every message of the answer.
func ask(open func() (int, error), req []byte, each func(netlink.Message)) error {
	fd, err := open()
	if err != nil {
		return err
	}
	defer sys.Close(fd)
	return sys.NetlinkAsk(fd, req, each)
}

// Link is what rtnetlink says about a network interface (man 7 rtnetlink, RTM_GETLINK).
type Link struct {
	Index          int
	Name           string
	Kind           string // "veth", "bond"; empty for hardware
	Loopback       bool
	Up             bool // switched on
	MTU            int  // bytes
	MinMTU, MaxMTU int  // bounds; 0 where the kernel names none
	RxQueues       int  // that the device can have
	TxQueues       int

	XDPMode    string // of the XDP program that is attached: "native", "generic", "hardware", "several"; empty: none
	XDPProgram uint32 // its number, see "bpftool prog show id"
}

// Links lists the interfaces of the calling thread's network namespace by their number.
func Links() ([]Link, error) {
	var out []Link
	err := ask(sys.NetlinkRouteAsk, request(rtmGetLink, sys.NetlinkDump, make([]byte, 16)), func(m netlink.Message) {
		if l, ok := parseLink(m); ok {
			out = append(out, l)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("ethtool: list of interfaces: %w", err)
	}
	slices.SortFunc(out, func(a, b Link) int { return a.Index - b.Index })
	return out, nil
}

// Link asks rtnetlink about the device.
func (d *Device) Link() (Link, error) {
	index, err := d.Index()
	if err != nil {
		return Link{}, err
	}
	body := make([]byte, 16)
	native.PutUint32(body[4:], uint32(index))
	var l Link
	found := false
	err = ask(sys.NetlinkRouteAsk, request(rtmGetLink, 0, body), func(m netlink.Message) {
		if x, ok := parseLink(m); ok {
			l, found = x, true
		}
	})
	if err == nil && !found {
		err = ErrMalformed
	}
	return l, d.wrap("link", err)
}

// xdpModes are the values of IFLA_XDP_ATTACHED.
var xdpModes = [...]string{"", "native", "generic", "hardware", "several"}

func parseLink(m netlink.Message) (l Link, ok bool) {
	if m.Kind != rtmNewLink || len(m.Body) < 16 {
		return l, false
	}
	l.Index = int(int32(native.Uint32(m.Body[4:])))
	flags := native.Uint32(m.Body[8:])
	l.Up, l.Loopback = flags&1 != 0, flags&8 != 0
	for kind, v := range netlink.Attributes(m.Body[16:]) {
		word := func(to *int) {
			if len(v) == 4 {
				*to = int(native.Uint32(v))
			}
		}
		switch kind {
		case linkName:
			l.Name = text(v)
		case linkMTU:
			word(&l.MTU)
		case linkMinMTU:
			word(&l.MinMTU)
		case linkMaxMTU:
			word(&l.MaxMTU)
		case linkRxQueues:
			word(&l.RxQueues)
		case linkTxQueues:
			word(&l.TxQueues)
		case linkInfo:
			for kind, v := range netlink.Attributes(v) {
				if kind == linkInfoKind {
					l.Kind = text(v)
				}
			}
		case linkXDP:
			for kind, v := range netlink.Attributes(v) {
				switch {
				case kind == xdpAttached && len(v) == 1 && int(v[0]) < len(xdpModes):
					l.XDPMode = xdpModes[v[0]]
				case kind == xdpProgram && len(v) == 4:
					l.XDPProgram = native.Uint32(v)
				}
			}
		}
	}
	return l, l.Name != ""
}

// XDP is what a device supports of XDP and AF_XDP, as its driver declares it (kernel:
// netlink/specs/netdev.yaml).
type XDP struct {
	Features    XDPFeatures
	ZCSegments  int // chunks of one frame in zero-copy mode; 0: no frames of several chunks there
	RxMetadata  XDPMetadata
	XSKFeatures uint64 // bit 0: times of sent packets, bit 1: checksums by the card, bit 2: sending at a given time
}

// XDPFeatures are the bits of xdp-features.
type XDPFeatures uint64

// The features.
const (
	XDPBasic          XDPFeatures = 1 << iota // native mode: drop, pass, send back
	XDPRedirect                               // to sockets (AF_XDP) and to other devices
	XDPTransmit                               // other devices may redirect to this one
	XDPZeroCopy                               // AF_XDP without a copy
	XDPOffload                                // the program runs in the card
	XDPRxChunks                               // received frames of several buffers (jumbo frames)
	XDPTransmitChunks                         // redirected frames of several buffers
)

var xdpNames = []string{"basic", "redirect", "ndo-xmit", "xsk-zerocopy", "hw-offload", "rx-sg", "ndo-xmit-sg"}

// Has reports whether all of o are there.
func (f XDPFeatures) Has(o XDPFeatures) bool { return f&o == o }

func (f XDPFeatures) String() string { return bitNames(uint64(f), xdpNames) }

// Lacks says which of the features the driver does not declare, in words that go into an error
// about what it refused; empty: it declares all, so the reason is another one (its present
// settings, a queue that is in use).
func (x XDP) Lacks(want XDPFeatures) string {
	missing := want &^ x.Features
	if missing == 0 {
		return ""
	}
	return fmt.Sprintf("the driver does not declare %v (it declares: %s)", missing,
		cmp.Or(x.Features.String(), "nothing"))
}

// XDPMetadata are the bits of xdp-rx-metadata-features: what a program can ask of a received
// packet.
type XDPMetadata uint64

// What can be asked.
const (
	XDPTimestamp XDPMetadata = 1 << iota
	XDPHash
	XDPVLANTag
)

var metadataNames = []string{"timestamp", "hash", "vlan-tag"}

func (m XDPMetadata) String() string { return bitNames(uint64(m), metadataNames) }

func bitNames(bits uint64, names []string) string {
	var out []string
	for i := range 64 {
		if bits>>i&1 == 0 {
			continue
		}
		if i < len(names) {
			out = append(out, names[i])
		} else {
			out = append(out, fmt.Sprintf("bit-%d", i)) // of a newer kernel
		}
	}
	return strings.Join(out, " ")
}

// XDPOf asks what a device of the calling thread's network namespace supports. The error wraps
// ErrNotSupported where the kernel cannot tell (before Linux 6.3), and ErrNoDevice where there is
// no such device.
func XDPOf(ifindex int) (XDP, error) {
	x, err := xdpOf(ifindex)
	return x, (&Device{name: fmt.Sprintf("interface %d", ifindex)}).wrap("XDP features", err)
}

func xdpOf(ifindex int) (x XDP, err error) {
	var family uint16
	req := netlink.AppendAttribute([]byte{ctrlGetFamily, 1, 0, 0}, ctrlFamilyName, append([]byte(netdevFamily), 0))
	err = ask(sys.NetlinkGeneric, request(genlController, 0, req), func(m netlink.Message) {
		if m.Kind == genlController && len(m.Body) >= genlHeader {
			for kind, v := range netlink.Attributes(m.Body[genlHeader:]) {
				if kind == ctrlFamilyID && len(v) == 2 {
					family = native.Uint16(v)
				}
			}
		}
	})
	if sys.IsErrno(err, sys.ENOENT) {
		return x, fmt.Errorf("this kernel has no family netdev, which came with Linux 6.3: %w", sys.EOPNOTSUPP)
	}
	if err != nil {
		return x, err
	}
	if family == 0 {
		return x, ErrMalformed
	}
	found := false
	req = netlink.AppendAttribute([]byte{netdevGet, 1, 0, 0}, netdevIndex, native.AppendUint32(nil, uint32(ifindex)))
	err = ask(sys.NetlinkGeneric, request(family, 0, req), func(m netlink.Message) {
		if m.Kind == family {
			x, found = parseXDP(m.Body)
		}
	})
	if err == nil && !found {
		err = ErrMalformed
	}
	return x, err
}

func parseXDP(b []byte) (x XDP, ok bool) {
	if len(b) < genlHeader {
		return x, false
	}
	for kind, v := range netlink.Attributes(b[genlHeader:]) {
		switch {
		case kind == netdevFeatures && len(v) == 8:
			x.Features, ok = XDPFeatures(native.Uint64(v)), true
		case kind == netdevMetadata && len(v) == 8:
			x.RxMetadata = XDPMetadata(native.Uint64(v))
		case kind == netdevXSKFeature && len(v) == 8:
			x.XSKFeatures = native.Uint64(v)
		case kind == netdevSegments && len(v) == 4:
			x.ZCSegments = int(native.Uint32(v))
		}
	}
	return x, ok
}
