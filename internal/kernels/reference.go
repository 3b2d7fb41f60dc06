package kernels

import (
	"encoding/binary"

	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/mem/vec"
)

// The kernels in Go. Each is its source in cl/ again, for the whole grid at once, and as plain as
// can be: it is what the others are compared with.

var le = binary.LittleEndian
var be = binary.BigEndian

// inside reports whether n bytes from off lie within size bytes, without overflow.
func inside(off, n, size uint64) bool { return off <= size && n <= size-off }

// rowInside reports whether n bytes from row i lie within size bytes, where rows are stride bytes
// apart.
func rowInside(i, stride, n, size uint64) bool {
	return (stride == 0 || i <= size/stride) && inside(i*stride, n, size)
}

func piece(table []byte, i uint64) (off, n uint64) {
	return le.Uint64(table[i*PieceBytes:]), le.Uint64(table[i*PieceBytes+8:])
}

func copyGo(_ driver.Grid, a []driver.GoArg) {
	dst, dstOff, src, srcOff, n := a[0].Bytes, a[1].U64(), a[2].Bytes, a[3].U64(), a[4].U64()
	vec.Copy(dst[dstOff:dstOff+n], src[srcOff:srcOff+n])
}

func fillGo(_ driver.Grid, a []driver.GoArg) {
	off, n, pattern := a[1].U64(), a[2].U64(), a[3].U64()
	dst := a[0].Bytes[off : off+n]
	for i := range dst {
		dst[i] = byte(pattern >> (i % 8 * 8))
	}
}

func gatherGo(_ driver.Grid, a []driver.GoArg) {
	dst, dstLen, stride, src, srcLen, pieces, count, refused := a[0].Bytes, a[1].U64(), a[2].U64(), a[3].Bytes,
		a[4].U64(), a[5].Bytes, a[6].U32(), a[7].Bytes
	for i := range uint64(count) {
		off, n := piece(pieces, i)
		if !inside(off, n, srcLen) || n > stride || !rowInside(i, stride, n, dstLen) {
			le.PutUint32(refused, le.Uint32(refused)+1)
			continue
		}
		copy(dst[i*stride:i*stride+n], src[off:off+n])
	}
}

func scatterGo(_ driver.Grid, a []driver.GoArg) {
	dst, dstLen, pieces, count, src, srcLen, stride, refused := a[0].Bytes, a[1].U64(), a[2].Bytes, a[3].U32(),
		a[4].Bytes, a[5].U64(), a[6].U64(), a[7].Bytes
	for i := range uint64(count) {
		off, n := piece(pieces, i)
		if !inside(off, n, dstLen) || n > stride || !rowInside(i, stride, n, srcLen) {
			le.PutUint32(refused, le.Uint32(refused)+1)
			continue
		}
		copy(dst[off:off+n], src[i*stride:i*stride+n])
	}
}

func checksumGo(_ driver.Grid, a []driver.GoArg) {
	sums, src, srcLen, pieces, count := a[0].Bytes, a[1].Bytes, a[2].U64(), a[3].Bytes, a[4].U32()
	for i := range uint64(count) {
		off, n := piece(pieces, i)
		sum := ^uint32(0)
		if inside(off, n, srcLen) {
			sum = onesSum(src[off : off+n])
		}
		le.PutUint32(sums[i*4:], sum)
	}
}

// onesSum is the one's complement sum (RFC 1071), folded to 16 bits.
func onesSum(p []byte) uint32 {
	var s uint64
	for ; len(p) >= 2; p = p[2:] {
		s += uint64(be.Uint16(p))
	}
	if len(p) == 1 {
		s += uint64(p[0]) << 8
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint32(s)
}

func processGo(_ driver.Grid, a []driver.GoArg) {
	results, slots, stride, count := a[0].Bytes, a[1].Bytes, a[2].U64(), a[3].U32()
	for i := range uint64(count) {
		r := results[i*ResultBytes:][:ResultBytes]
		clear(r)
		le.PutUint32(r, uint32(i))
		if stride < SlotHeader {
			le.PutUint32(r[4:], 2)
			continue
		}
		slot := slots[i*stride:][:stride]
		n := uint64(le.Uint32(slot[8:]))
		if n > stride-SlotHeader {
			le.PutUint32(r[4:], 2)
			continue
		}
		data := slot[SlotHeader:][:n]
		if le.Uint32(slot[12:])&1 != 0 {
			var ok bool
			if data, ok = udpPayload(data); !ok {
				le.PutUint32(r[4:], 3)
				continue
			}
		}
		if len(data) < 4 {
			le.PutUint32(r[4:], 1)
			continue
		}
		copy(r[8:], data[:min(len(data), 16)&^3])
	}
}

// udpPayload is the payload of UDP in a frame; ps_udp_payload of cl/penstock.h says which frames
// have one.
func udpPayload(p []byte) ([]byte, bool) {
	at := 12
	if len(p) < 14 {
		return nil, false
	}
	kind := be.Uint16(p[at:])
	for tags := 0; tags < 2 && (kind == 0x8100 || kind == 0x88a8); tags++ {
		at += 4
		if len(p) < at+2 {
			return nil, false
		}
		kind = be.Uint16(p[at:])
	}
	p = p[at+2:]
	switch kind {
	case 0x0800:
		if len(p) < 20 {
			return nil, false
		}
		head, total := int(p[0]&15)*4, int(be.Uint16(p[2:]))
		if p[0]>>4 != 4 || head < 20 || total < head || total > len(p) || p[9] != 17 || be.Uint16(p[6:])&0x3fff != 0 {
			return nil, false
		}
		p = p[head:total]
	case 0x86dd:
		if len(p) < 40 {
			return nil, false
		}
		n := int(be.Uint16(p[4:]))
		if p[0]>>4 != 6 || p[6] != 17 || n > len(p)-40 {
			return nil, false
		}
		p = p[40 : 40+n]
	default:
		return nil, false
	}
	if len(p) < 8 {
		return nil, false
	}
	n := int(be.Uint16(p[4:]))
	if n < 8 || n > len(p) {
		return nil, false
	}
	return p[8:n], true
}
