package packet

import "encoding/binary"

// GRE is a view of a GRE header (RFC 2784) with the optional checksum, key and sequence number of
// RFC 2890.
type GRE []byte

// Valid reports whether the header with its optional fields is complete, of version 0 and without
// the source routes of RFC 1701 (a receiver drops such packets, RFC 2784 section 2.3). After that
// no method panics.
func (g GRE) Valid() bool {
	return len(g) >= GRELen && len(g) >= g.HeaderLen() && g.Version() == 0 && g[0]&0x4c == 0
}

// Version returns the version: 0, or 1 for PPTP.
func (g GRE) Version() uint8 { return g[1] & 7 }

// HeaderLen returns the length of the header with its optional fields in bytes.
func (g GRE) HeaderLen() int {
	return GRELen + 4*int(g[0]>>7+g[0]>>5&1+g[0]>>4&1)
}

// Protocol returns the EtherType of the payload.
func (g GRE) Protocol() EtherType { return EtherType(binary.BigEndian.Uint16(g[2:])) }

// HasChecksum returns the C flag.
func (g GRE) HasChecksum() bool { return g[0]&0x80 != 0 }

// HasKey returns the K flag.
func (g GRE) HasKey() bool { return g[0]&0x20 != 0 }

// HasSequence returns the S flag.
func (g GRE) HasSequence() bool { return g[0]&0x10 != 0 }

// Checksum returns the checksum over header and payload, and whether there is one.
func (g GRE) Checksum() (uint16, bool) {
	if !g.HasChecksum() {
		return 0, false
	}
	return binary.BigEndian.Uint16(g[4:]), true
}

// ChecksumOK reports whether the checksum, if there is one, is right. g must end where the payload
// ends.
func (g GRE) ChecksumOK() bool { return !g.HasChecksum() || Checksum(g) == 0 }

func (g GRE) keyAt() int { return GRELen + 4*int(g[0]>>7) }

// Key returns the key, and whether there is one.
func (g GRE) Key() (uint32, bool) {
	if !g.HasKey() {
		return 0, false
	}
	return binary.BigEndian.Uint32(g[g.keyAt():]), true
}

// Sequence returns the sequence number, and whether there is one.
func (g GRE) Sequence() (uint32, bool) {
	if !g.HasSequence() {
		return 0, false
	}
	return binary.BigEndian.Uint32(g[g.HeaderLen()-4:]), true
}

// VSID returns the virtual subnet of an NVGRE header (RFC 7637), 24 bits: the upper bits of the
// key. 0 without a key.
func (g GRE) VSID() uint32 { k, _ := g.Key(); return k >> 8 }

// FlowID returns the flow of an NVGRE header, 8 bits: the lower bits of the key. 0 without a key.
func (g GRE) FlowID() uint8 { k, _ := g.Key(); return uint8(k) }

// Payload returns what follows the header.
func (g GRE) Payload() []byte { return g[g.HeaderLen():] }

// SetProtocol sets the EtherType of the payload.
func (g GRE) SetProtocol(t EtherType) { binary.BigEndian.PutUint16(g[2:], uint16(t)) }

// SetKey sets the key, and reports whether the header has room for one.
func (g GRE) SetKey(v uint32) bool {
	if g.HasKey() {
		binary.BigEndian.PutUint32(g[g.keyAt():], v)
	}
	return g.HasKey()
}

// SetSequence sets the sequence number, and reports whether the header has room for one.
func (g GRE) SetSequence(v uint32) bool {
	if g.HasSequence() {
		binary.BigEndian.PutUint32(g[g.HeaderLen()-4:], v)
	}
	return g.HasSequence()
}

// FillChecksum computes the checksum, if the header has one. g must end where the payload ends.
func (g GRE) FillChecksum() {
	if g.HasChecksum() {
		binary.BigEndian.PutUint32(g[4:], 0)
		binary.BigEndian.PutUint16(g[4:], Checksum(g))
	}
}

// NVGREKey returns the key of an NVGRE header: subnet in the upper 24 bits, flow in the lower 8.
func NVGREKey(subnet uint32, flow uint8) uint32 { return subnet<<8 | uint32(flow) }

// GREHeader is the content of a GRE header. An NVGRE header (RFC 7637) is one with Protocol
// EtherTypeTEB, HasKey and Key NVGREKey(subnet, flow), without checksum and sequence number.
type GREHeader struct {
	Protocol    EtherType // of the payload
	HasChecksum bool      // leaves room; GRE.FillChecksum computes it when the payload is there
	HasKey      bool
	Key         uint32
	HasSequence bool
	Sequence    uint32
}

// Len returns the length of the header with its optional fields in bytes.
func (h *GREHeader) Len() int {
	n := GRELen
	for _, has := range [...]bool{h.HasChecksum, h.HasKey, h.HasSequence} {
		if has {
			n += 4
		}
	}
	return n
}

// Fill writes the header at the beginning of b and returns its length. Errors: ErrRoom.
func (h *GREHeader) Fill(b []byte) (int, error) {
	n := h.Len()
	if len(b) < n {
		return 0, ErrRoom
	}
	g := GRE(b[:n])
	clear(g)
	if h.HasChecksum {
		g[0] |= 0x80
	}
	if h.HasKey {
		g[0] |= 0x20
	}
	if h.HasSequence {
		g[0] |= 0x10
	}
	g.SetProtocol(h.Protocol)
	g.SetKey(h.Key)
	g.SetSequence(h.Sequence)
	return n, nil
}
