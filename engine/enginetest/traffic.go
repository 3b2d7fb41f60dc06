package enginetest

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// A record is what one packet of the suite says, behind the headers where packets are frames. Its
// header, big-endian:
//
//	0  magic   4 bytes
//	4  sender  2 bytes, which are the UDP source port, less portBase, in frames
//	6  class   2 bytes, likewise of the destination port: what rules steer by
//	8  seq     4 bytes, counted for each sender
//	12 length  4 bytes, of the whole record
//	16 crc     4 bytes, CRC-32C of everything else
//
// The rest is a pattern of sender, seq and position.
const (
	recordHeader = 20
	recordMagic  = 0x70e25707
	frameHeader  = packet.EthernetLen + packet.IPv4Len + packet.UDPLen
	portBase     = 20000
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record is a record that was received.
type record struct {
	sender, class uint16
	seq           uint32
	length        int
	sum           uint32
}

// fillRecord writes a record over all of b, which holds at least recordHeader bytes.
func fillRecord(b []byte, sender, class uint16, seq uint32) {
	binary.BigEndian.PutUint32(b, recordMagic)
	binary.BigEndian.PutUint16(b[4:], sender)
	binary.BigEndian.PutUint16(b[6:], class)
	binary.BigEndian.PutUint32(b[8:], seq)
	binary.BigEndian.PutUint32(b[12:], uint32(len(b)))
	pattern(b[recordHeader:], uint64(sender)<<32|uint64(seq))
	binary.BigEndian.PutUint32(b[16:], recordSum(b))
}

func recordSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:16], castagnoli), castagnoli, b[recordHeader:])
}

// pattern fills b with bytes that depend on seed and position.
func pattern(b []byte, seed uint64) {
	x := seed*0x9e3779b97f4a7c15 + 1
	for len(b) >= 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(b, x)
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(x>>(8*i)) ^ 0x5a
	}
}

// parseRecord reads the record that b begins with. ok is false where there is none: the packet is
// not of the suite.
func parseRecord(b []byte) (r record, ok bool, err error) {
	if len(b) < recordHeader || binary.BigEndian.Uint32(b) != recordMagic {
		return r, false, nil
	}
	r = record{
		sender: binary.BigEndian.Uint16(b[4:]),
		class:  binary.BigEndian.Uint16(b[6:]),
		seq:    binary.BigEndian.Uint32(b[8:]),
		length: int(binary.BigEndian.Uint32(b[12:])),
		sum:    binary.BigEndian.Uint32(b[16:]),
	}
	if r.length < recordHeader || r.length > len(b) {
		return r, true, fmt.Errorf("record %d of sender %d has %d bytes, but only %d are there", r.seq, r.sender,
			r.length, len(b))
	}
	if sum := recordSum(b[:r.length]); sum != r.sum {
		return r, true, fmt.Errorf("record %d of sender %d, %d bytes: checksum %#x, expected %#x: its bytes have "+
			"changed", r.seq, r.sender,
			r.length, sum, r.sum)
	}
	return r, true, nil
}

// framer writes the headers of frames.
type framer struct {
	frame packet.UDPFrame
}

// Addresses of the benchmarking network (RFC 2544), which the Internet does not route.
var (
	addrA = netip.MustParseAddr("198.18.0.1")
	addrB = netip.MustParseAddr("198.18.0.2")
)

// fill writes the headers of a frame of which the record is the rest. It holds at least frameHeader
// bytes.
func (f *framer) fill(b []byte, sender, class uint16) error {
	f.frame.Src = netip.AddrPortFrom(addrA, portBase+sender)
	f.frame.Dst = netip.AddrPortFrom(addrB, portBase+class)
	_, err := f.frame.Fill(b, len(b)-frameHeader)
	return err
}

// put spreads data over the segments of packet i, each as long as it is or, the last, as long as
// needed. It reports whether all fitted.
func put(b *burst.Burst, i int, data []byte) bool {
	for k := range b.Segments(i) {
		n := min(len(data), b.SegmentCap(i, k))
		if b.Segments(i) > 1 {
			n = min(len(data), len(b.Bytes(i, k)))
		}
		if !b.SetLen(i, k, n) || copy(b.Bytes(i, k), data) != n {
			return false
		}
		data = data[n:]
	}
	return len(data) == 0
}
