package packet

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/penstock-io/penstock/mem/vec"
)

// Sum is a running sum of the internet checksum (RFC 1071): a one's complement sum of 16-bit words,
// not yet folded. The zero Sum is the empty one. Sums are values; methods return the new sum:
//
//	sum := packet.PseudoSum(src, dst, packet.ProtoUDP, length).Add(header).Add(payload).Checksum()
type Sum uint64

// vectorSum is the length from which vec.Sum is faster than what Add does itself.
const vectorSum = 256

// Add returns the sum with the bytes of p, which count as 16-bit words in network order. Only the
// last piece of a packet may have an odd length: it is padded with a zero byte.
func (s Sum) Add(p []byte) Sum {
	if len(p) >= vectorSum {
		return s.AddUint16(vec.Sum(p))
	}
	acc, carry := uint64(s), uint64(0)
	for len(p) >= 32 {
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(p), 0)
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(p[8:]), carry)
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(p[16:]), carry)
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(p[24:32]), carry)
		acc, carry = bits.Add64(acc, 0, carry)
		acc += carry
		p = p[32:]
	}
	for len(p) >= 8 {
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(p), 0)
		acc += carry
		p = p[8:]
	}
	if len(p) > 0 { // the rest, at the left of a word of zeros
		var rest uint64
		if len(p) >= 4 {
			rest = uint64(binary.BigEndian.Uint32(p)) << 32
			p = p[4:]
			rest |= tail(p) << 8
		} else {
			rest = tail(p) << 40
		}
		acc, carry = bits.Add64(acc, rest, 0)
		acc += carry
	}
	return Sum(acc)
}

// tail returns up to three bytes at the left of 24 bits.
func tail(p []byte) uint64 {
	switch len(p) {
	case 3:
		return uint64(p[0])<<16 | uint64(p[1])<<8 | uint64(p[2])
	case 2:
		return uint64(p[0])<<16 | uint64(p[1])<<8
	case 1:
		return uint64(p[0]) << 16
	}
	return 0
}

// AddUint16 returns the sum with one more word.
func (s Sum) AddUint16(v uint16) Sum { return s.add(uint64(v)) }

// AddUint32 returns the sum with two more words.
func (s Sum) AddUint32(v uint32) Sum { return s.add(uint64(v)) }

func (s Sum) add(v uint64) Sum {
	acc, carry := bits.Add64(uint64(s), v, 0)
	return Sum(acc + carry)
}

// Fold returns the one's complement sum in 16 bits.
func (s Sum) Fold() uint16 {
	v := uint64(s)>>32 + uint64(s)&0xffffffff
	v = v>>16 + v&0xffff
	v = v>>16 + v&0xffff
	v = v>>16 + v&0xffff
	return uint16(v)
}

// Checksum returns the complement of Fold: the value of a checksum field that was zero when it was
// summed. Summing with the right checksum in place gives 0.
func (s Sum) Checksum() uint16 { return ^s.Fold() }

// Checksum returns the internet checksum of p.
func Checksum(p []byte) uint16 { return Sum(0).Add(p).Checksum() }

// PseudoSum returns the sum of the pseudo header that TCP, UDP and ICMPv6 put before their own
// bytes: for IPv4 that of RFC 793, for IPv6 that of RFC 8200 section 8.1. length counts the
// transport header and its payload. src and dst are of one family; an IPv4 address in IPv6 form
// counts as IPv6.
func PseudoSum(src, dst netip.Addr, proto Proto, length uint32) Sum {
	s := Sum(length) + Sum(proto)
	if src.Is4() && dst.Is4() {
		a, b := src.As4(), dst.As4()
		return s + Sum(binary.BigEndian.Uint32(a[:])) + Sum(binary.BigEndian.Uint32(b[:]))
	}
	a, b := src.As16(), dst.As16()
	return s.Add(a[:]).Add(b[:])
}

// UpdateChecksum returns checksum after one 16-bit word that it covers has changed from old to new:
// equation 3 of RFC 1624.
func UpdateChecksum(checksum, old, new uint16) uint16 {
	return ^Sum(uint32(^checksum) + uint32(^old) + uint32(new)).Fold()
}

// UpdateChecksum32 is UpdateChecksum for 32 bits that begin at an even offset, such as an IPv4
// address.
func UpdateChecksum32(checksum uint16, old, new uint32) uint16 {
	return ^Sum(uint64(^checksum) + uint64(^old) + uint64(new)).Fold()
}

// UpdateChecksumBytes is UpdateChecksum for bytes that begin at an even offset, such as an IPv6
// address. old and new have one even length.
func UpdateChecksumBytes(checksum uint16, old, new []byte) uint16 {
	return ^Sum(0).AddUint16(^checksum).AddUint16(^Sum(0).Add(old).Fold()).Add(new).Fold()
}

// ChecksumMode says who computes a transport checksum.
type ChecksumMode uint8

// The modes.
const (
	ChecksumAuto ChecksumMode = iota // ChecksumFull, except ChecksumNone for VXLAN over IPv4, as RFC 7348 asks for
	ChecksumFull                     // computed here; the payload must be in the buffer
	// UDP: 0, which tells the receiver that there is none; over IPv6 only for tunnels (RFC 6935)
	ChecksumNone
	// the folded sum of the pseudo header, which network cards and the kernel finish
	ChecksumOffload
)
