package neigh

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// EndpointSpec describes a destination of UDP datagrams in Ethernet frames.
type EndpointSpec struct {
	// SrcMAC is the port's address; zero where the queue writes it (engine.TxSpec.SourceMAC).
	// DstMAC is that of the next hop; zero to have it resolved.
	SrcMAC, DstMAC packet.MAC
	Src, Dst       netip.AddrPort // both IPv4 or both IPv6
	MTU            int            // bytes of an IP packet at most; 0 is 1500
	TTL            uint8          // or hop limit; 0 is 64
	TOS            uint8          // or traffic class
	Tagged         bool           // with a VLAN tag
	Tag            packet.TCI
	// NoChecksum leaves the UDP checksum away, which IPv4 allows.
	NoChecksum bool
}

// ResolveFunc finds the Ethernet address of the next hop to an address: Resolver.Resolve, or one
// made of Kernel.Resolve.
type ResolveFunc func(ctx context.Context, a netip.Addr) (packet.MAC, error)

// Endpoint is a destination with its headers ready. Any number of goroutines may use it; it never
// changes.
type Endpoint struct {
	spec   EndpointSpec
	frame  packet.UDPFrame
	header int // bytes
}

// NewEndpoint makes an Endpoint. It calls resolve, which may be nil, for a DstMAC that is missing;
// resolve may wait. The error wraps engine.ErrInvalid, or is that of resolve.
func NewEndpoint(ctx context.Context, spec EndpointSpec, resolve ResolveFunc) (*Endpoint, error) {
	bad := func(format string, args ...any) (*Endpoint, error) {
		return nil, fmt.Errorf("neigh: endpoint %v: %s: %w", spec.Dst, fmt.Sprintf(format, args...), engine.ErrInvalid)
	}
	src, dst := spec.Src.Addr(), spec.Dst.Addr()
	if spec.MTU == 0 {
		spec.MTU = 1500
	}
	switch {
	case !src.IsValid() || !dst.IsValid() || src.Is4() != dst.Is4() || src.Is4In6() || dst.Is4In6() ||
		src.Zone()+dst.Zone() != "":
		return bad("from %v to %v: expected two addresses of one family, without zones", src, dst)
	case spec.Dst.Port() == 0:
		return bad("port 0: expected 1 to 65535")
	case spec.NoChecksum && !src.Is4():
		return bad("no checksum over IPv6: receivers drop that (RFC 8200 section 8.1)")
	case spec.MTU < 68 || spec.MTU > 65535:
		return bad("MTU of %d: expected 68 to 65535", spec.MTU)
	case spec.DstMAC.IsZero() && dst.IsUnspecified():
		return bad("no host has the address %v", dst)
	}
	if spec.DstMAC.IsZero() {
		if m, ok := packet.MulticastMAC(dst); ok {
			spec.DstMAC = m
		} else if resolve == nil {
			return bad("no Ethernet address and no function to resolve it")
		} else if m, err := resolve(ctx, dst); err != nil {
			return nil, fmt.Errorf("neigh: endpoint %v: %w", spec.Dst, err)
		} else {
			spec.DstMAC = m
		}
	}
	e := &Endpoint{spec: spec}
	e.frame = packet.UDPFrame{SrcMAC: spec.SrcMAC, DstMAC: spec.DstMAC, Tagged: spec.Tagged, Tag: spec.Tag,
		Src: spec.Src, Dst: spec.Dst,
		TTL: spec.TTL, TOS: spec.TOS}
	e.header = e.frame.HeaderLen()
	return e, nil
}

// Spec is what it was made of, with the Ethernet address that was resolved.
func (e *Endpoint) Spec() EndpointSpec { return e.spec }

// HeaderLen is the number of bytes that Fill puts in front of the payload: the Headroom that a
// transmit queue needs.
func (e *Endpoint) HeaderLen() int { return e.header }

// MaxPayload is the longest payload in bytes that the MTU allows.
func (e *Endpoint) MaxPayload() int {
	n := e.header - packet.EthernetLen
	if e.spec.Tagged {
		n -= packet.VLANLen
	}
	return e.spec.MTU - n
}

// Fill makes packet i of b a frame to this destination: its last segment becomes payload bytes
// long, and Ethernet, IP and UDP headers with lengths and checksums stand in front of it, in the
// headroom of a packet with one segment, or in the first of two, which are for header and payload.
// The payload must be there already. It allocates nothing. The error, of fixed values, is
// packet.ErrLength (payload too long for the slot or the MTU) or packet.ErrHeadroom; the packet is
// as it was then.
func (e *Endpoint) Fill(b *burst.Burst, i, payload int) error {
	if payload < 0 || payload > e.MaxPayload() {
		return packet.ErrLength
	}
	f := e.frame
	if e.spec.NoChecksum {
		f.Checksum = packet.ChecksumNone
	}
	if b.Segments(i) == 1 {
		if b.Headroom(i) < e.header {
			return packet.ErrHeadroom
		}
		if !b.SetLen(i, 0, payload) {
			return packet.ErrLength
		}
		b.Prepend(i, e.header)
		_, err := f.Fill(b.Bytes(i, 0), payload)
		return err
	}
	if b.Segments(i) != 2 || b.SegmentCap(i, 0) < e.header {
		return packet.ErrHeadroom
	}
	if !b.SetLen(i, 1, payload) {
		return packet.ErrLength
	}
	b.SetLen(i, 0, e.header)
	head, data := b.Bytes(i, 0), b.Bytes(i, 1)
	if !e.spec.NoChecksum {
		f.Checksum = packet.ChecksumOffload
	}
	if _, err := f.Fill(head, payload); err != nil || e.spec.NoChecksum {
		return err
	}
	// The field holds the sum of the pseudo header; those of the header and of the payload, which
	// begins at an even offset, are added.
	u := packet.UDP(head[e.header-packet.UDPLen:])
	sum := uint32(^packet.Checksum(u)) + uint32(^packet.Checksum(data))
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	c := ^uint16(sum)
	if c == 0 {
		c = 0xffff // 0 says that there is none
	}
	u.SetChecksum(c)
	return nil
}
