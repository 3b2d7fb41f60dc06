package packet

import "encoding/binary"

// RSSKey is the key of a Toeplitz hash, 40 bytes as network cards take it.
type RSSKey [40]byte

// MicrosoftKey is the key of the published verification vectors (Microsoft, "Verifying the RSS hash
// calculation"), which drivers use by default. With it the two directions of a connection hash
// differently.
var MicrosoftKey = RSSKey{
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
	0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
	0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
}

// maxHashed is how many bytes of input a 40-byte key covers: two IPv6 addresses and two ports.
const maxHashed = 36

// ToeplitzBits returns the Toeplitz hash of data bit by bit, as the definition says: for each bit
// that is set, the 32 bits of the key that begin at its position are added without carry. It is
// what the tables of Toeplitz are checked against. Bytes behind the 36th are ignored.
func ToeplitzBits(key *RSSKey, data []byte) uint32 {
	window := binary.BigEndian.Uint64(key[:])
	var hash uint32
	for i, v := range data[:min(len(data), maxHashed)] {
		for bit := range 8 {
			if v>>(7-bit)&1 != 0 {
				hash ^= uint32(window >> (32 - bit))
			}
		}
		window <<= 8
		if i+8 < len(key) {
			window |= uint64(key[i+8])
		}
	}
	return hash
}

// Toeplitz computes Toeplitz hashes of one key with a table per input byte (36 KiB; a hash of IPv4
// touches 12 KiB of it at most). Make it once with NewToeplitz; it never changes after that, so any
// number of goroutines can use it.
type Toeplitz struct {
	table [maxHashed][256]uint32
}

// NewToeplitz returns the tables of key.
func NewToeplitz(key *RSSKey) *Toeplitz {
	t := new(Toeplitz)
	for i := range t.table {
		window := uint64(binary.BigEndian.Uint32(key[i:]))<<8 | uint64(key[i+4])
		for v := range t.table[i] {
			for bit := range 8 {
				if v>>(7-bit)&1 != 0 {
					t.table[i][v] ^= uint32(window >> (8 - bit))
				}
			}
		}
	}
	return t
}

// Bytes returns the hash of data. Bytes behind the 36th are ignored.
func (t *Toeplitz) Bytes(data []byte) uint32 {
	var hash uint32
	for i, v := range data[:min(len(data), maxHashed)] {
		hash ^= t.table[i][v]
	}
	return hash
}

// word is the part of a hash that comes from the 4 bytes of v at offset at.
func (t *Toeplitz) word(at int, v uint32) uint32 {
	rows := (*[4][256]uint32)(t.table[at:])
	return rows[0][v>>24] ^ rows[1][v>>16&255] ^ rows[2][v>>8&255] ^ rows[3][v&255]
}

// IPv4 returns the hash of two IPv4 addresses as numbers in host order (10.0.0.1 is 0x0a000001).
func (t *Toeplitz) IPv4(src, dst uint32) uint32 { return t.word(0, src) ^ t.word(4, dst) }

// IPv4Ports returns the hash of two IPv4 addresses and two ports, all as numbers in host order.
func (t *Toeplitz) IPv4Ports(src, dst uint32, srcPort, dstPort uint16) uint32 {
	return t.word(0, src) ^ t.word(4, dst) ^ t.word(8, uint32(srcPort)<<16|uint32(dstPort))
}

// IPv6 returns the hash of two IPv6 addresses.
func (t *Toeplitz) IPv6(src, dst *[16]byte) uint32 {
	var hash uint32
	for i := 0; i < 16; i += 4 {
		hash ^= t.word(i, binary.BigEndian.Uint32(src[i:])) ^ t.word(16+i, binary.BigEndian.Uint32(dst[i:]))
	}
	return hash
}

// IPv6Ports returns the hash of two IPv6 addresses and two ports.
func (t *Toeplitz) IPv6Ports(src, dst *[16]byte, srcPort, dstPort uint16) uint32 {
	return t.IPv6(src, dst) ^ t.word(32, uint32(srcPort)<<16|uint32(dstPort))
}

// Frame returns the hash that a network card gives the parsed frame l, with hashing of IP, TCP and
// UDP switched on: addresses and ports when it has ports and is no fragment (all fragments of a
// datagram must get one hash), addresses for other IP packets, and 0 for all else. frame is the
// slice that was parsed.
func (t *Toeplitz) Frame(frame []byte, l *Layers) uint32 {
	ports := l.HasPorts && !l.IsFragment()
	switch l.IPVersion {
	case 4:
		a := frame[l.L3:]
		src, dst := binary.BigEndian.Uint32(a[12:]), binary.BigEndian.Uint32(a[16:])
		if ports {
			return t.IPv4Ports(src, dst, l.SrcPort, l.DstPort)
		}
		return t.IPv4(src, dst)
	case 6:
		a := frame[l.L3:]
		src, dst := (*[16]byte)(a[8:]), (*[16]byte)(a[24:])
		if ports {
			return t.IPv6Ports(src, dst, l.SrcPort, l.DstPort)
		}
		return t.IPv6(src, dst)
	}
	return 0
}
