package convert

import (
	"encoding/binary"
	"fmt"
)

// Format is how samples lie in a packet. They are packed: sample i has the bits from i*Bits on.
type Format struct {
	// Bits of a sample: 4, 8, 12, 14, 16 or 32.
	Bits     int
	Unsigned bool
	// BigEndian: the most significant bit of a sample comes first, and the first sample of a byte is in its upper bits. Otherwise the
	// least significant bit comes first, and the first sample of a byte is in its lower bits.
	BigEndian bool
}

func (f Format) String() string {
	s, order := "int", "little-endian"
	if f.Unsigned {
		s = "uint"
	}
	if f.BigEndian {
		order = "big-endian"
	}
	return fmt.Sprintf("%s%d %s", s, f.Bits, order)
}

// unit is the smallest number of whole bytes that holds whole samples.
func (f Format) unit() int {
	switch f.Bits {
	case 12:
		return 3
	case 14:
		return 7
	}
	return max(f.Bits/8, 1)
}

// decoder reads samples from src to out, which has as many as src holds.
type decoder func(out []int64, src []byte)

// decoder is nil for a format that there is not.
func (f Format) decoder() decoder {
	switch f.Bits {
	case 4:
		first, second := uint(0), uint(4)
		if f.BigEndian {
			first, second = 4, 0
		}
		return func(out []int64, src []byte) {
			for i, b := range src {
				out[2*i], out[2*i+1] = f.extend(uint64(b>>first&15)), f.extend(uint64(b>>second&15))
			}
		}
	case 8:
		return func(out []int64, src []byte) {
			for i, b := range src {
				out[i] = f.extend(uint64(b))
			}
		}
	case 16:
		var order binary.ByteOrder = binary.LittleEndian
		if f.BigEndian {
			order = binary.BigEndian
		}
		return func(out []int64, src []byte) {
			for i := range out {
				out[i] = f.extend(uint64(order.Uint16(src[2*i:])))
			}
		}
	case 32:
		var order binary.ByteOrder = binary.LittleEndian
		if f.BigEndian {
			order = binary.BigEndian
		}
		return func(out []int64, src []byte) {
			for i := range out {
				out[i] = f.extend(uint64(order.Uint32(src[4*i:])))
			}
		}
	case 12, 14:
		return f.packed
	}
	return nil
}

// packed reads units of up to 7 bytes.
func (f Format) packed(out []int64, src []byte) {
	unit, bits := f.unit(), uint(f.Bits)
	n := uint(unit) * 8 / bits
	mask := uint64(1)<<bits - 1
	for k := uint(0); len(src) >= unit; src = src[unit:] {
		var v uint64
		for i, b := range src[:unit] {
			if f.BigEndian {
				v = v<<8 | uint64(b)
			} else {
				v |= uint64(b) << (8 * i)
			}
		}
		for i := range n {
			shift := i * bits
			if f.BigEndian {
				shift = (n - 1 - i) * bits
			}
			out[k+i] = f.extend(v >> shift & mask)
		}
		k += n
	}
}

// extend is the number that the lower Bits of v are.
func (f Format) extend(v uint64) int64 {
	if f.Unsigned {
		return int64(v)
	}
	return int64(v) << (64 - f.Bits) >> (64 - f.Bits)
}
