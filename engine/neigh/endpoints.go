package neigh

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// EndpointSpec describes a destination of UDP datagrams in Ethernet frames.
type EndpointSpec struct {
	Name      string // not empty
	Interface string // that it is reached by; for the resolver and for people
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
// changes, and stays usable when it has been deleted.
type Endpoint struct {
	id     uint32
	spec   EndpointSpec
	frame  packet.UDPFrame
	header int // bytes
}

// Endpoints is a table of destinations by name and by number. The zero Endpoints is empty and
// ready; any goroutine may use it, and Get does not wait for others.
type Endpoints struct {
	mu   sync.Mutex // over changes
	last uint32
	byID atomic.Pointer[map[uint32]*Endpoint]
}

func (t *Endpoints) load() map[uint32]*Endpoint {
	if m := t.byID.Load(); m != nil {
		return *m
	}
	return nil
}

// Add adds a destination and returns it. It calls resolve, which may be nil, for a DstMAC that is
// missing; resolve may wait, and holds no other caller up. The error wraps engine.ErrExists for a
// name that is in use, engine.ErrInvalid, or is that of resolve.
func (t *Endpoints) Add(ctx context.Context, spec EndpointSpec, resolve ResolveFunc) (*Endpoint, error) {
	e, err := newEndpoint(spec)
	if err != nil {
		return nil, err
	}
	if _, err := t.Find(spec.Name); err == nil {
		return nil, fmt.Errorf("neigh: endpoint %q: %w", spec.Name, engine.ErrExists)
	}
	if spec.DstMAC.IsZero() {
		if m, ok := packet.MulticastMAC(spec.Dst.Addr()); ok {
			e.frame.DstMAC = m
		} else if resolve == nil {
			return nil, fmt.Errorf("neigh: endpoint %q: no Ethernet address and nobody to resolve it: %w", spec.Name,
				engine.ErrInvalid)
		} else if e.frame.DstMAC, err = resolve(ctx, spec.Dst.Addr()); err != nil {
			return nil, fmt.Errorf("neigh: endpoint %q: %w", spec.Name, err)
		}
		e.spec.DstMAC = e.frame.DstMAC
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := t.Find(spec.Name); err == nil {
		return nil, fmt.Errorf("neigh: endpoint %q: %w", spec.Name, engine.ErrExists)
	}
	m := maps.Clone(t.load())
	if m == nil {
		m = map[uint32]*Endpoint{}
	}
	t.last++
	e.id = t.last
	m[e.id] = e
	t.byID.Store(&m)
	return e, nil
}

func newEndpoint(spec EndpointSpec) (*Endpoint, error) {
	bad := func(format string, args ...any) (*Endpoint, error) {
		return nil, fmt.Errorf("neigh: endpoint %q: %s: %w", spec.Name, fmt.Sprintf(format, args...), engine.ErrInvalid)
	}
	src, dst := spec.Src.Addr(), spec.Dst.Addr()
	if spec.MTU == 0 {
		spec.MTU = 1500
	}
	switch {
	case spec.Name == "":
		return bad("expected a name")
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
		return bad("nobody can be at %v", dst)
	}
	e := &Endpoint{spec: spec}
	e.frame = packet.UDPFrame{SrcMAC: spec.SrcMAC, DstMAC: spec.DstMAC, Tagged: spec.Tagged, Tag: spec.Tag,
		Src: spec.Src, Dst: spec.Dst,
		TTL: spec.TTL, TOS: spec.TOS}
	e.header = e.frame.HeaderLen()
	return e, nil
}

// Get returns the destination with that number. The error is the bare engine.ErrNotFound; it
// allocates nothing.
func (t *Endpoints) Get(id uint32) (*Endpoint, error) {
	if e := t.load()[id]; e != nil {
		return e, nil
	}
	return nil, engine.ErrNotFound
}

// Find returns the destination of that name. The error wraps engine.ErrNotFound.
func (t *Endpoints) Find(name string) (*Endpoint, error) {
	for _, e := range t.load() {
		if e.spec.Name == name {
			return e, nil
		}
	}
	return nil, fmt.Errorf("neigh: endpoint %q: %w", name, engine.ErrNotFound)
}

// List returns all destinations, in the order in which they were added.
func (t *Endpoints) List() []*Endpoint {
	return slices.SortedFunc(maps.Values(t.load()), func(a, b *Endpoint) int { return int(int64(a.id) - int64(b.id)) })
}

// Delete takes a destination away. Its number is not given again. The error wraps
// engine.ErrNotFound.
func (t *Endpoints) Delete(id uint32) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := maps.Clone(t.load())
	if m[id] == nil {
		return fmt.Errorf("neigh: endpoint %d: %w", id, engine.ErrNotFound)
	}
	delete(m, id)
	t.byID.Store(&m)
	return nil
}

// ID is its number in the table, from 1.
func (e *Endpoint) ID() uint32 { return e.id }

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
