package convert

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Format is how samples lie in a packet. They are packed: sample i has the bits from i*Bits on.
type Format struct {
	// Bits of a sample: 4, 8, 12, 14, 16 or 32.
	Bits     int
	Unsigned bool
	// BigEndian: the most significant bit of a sample comes first, and the first sample of a byte
	// is in its upper bits. Otherwise the least significant bit comes first, and the first sample
	// of a byte is in its lower bits.
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

// unit is the smallest number of whole bytes that holds whole samples; 0 for a format that there is
// not.
func (f Format) unit() int {
	switch f.Bits {
	case 4, 8:
		return 1
	case 12:
		return 3
	case 14:
		return 7
	case 16, 32:
		return f.Bits / 8
	}
	return 0
}

// decode reads samples from src to out, which has as many as src holds.
func (f Format) decode(out []int64, src []byte) {
	switch f.Bits {
	case 4:
		first, second := uint(0), uint(4)
		if f.BigEndian {
			first, second = 4, 0
		}
		for i, b := range src {
			out[2*i], out[2*i+1] = f.extend(uint64(b>>first&15)), f.extend(uint64(b>>second&15))
		}
	case 8:
		for i, b := range src {
			out[i] = f.extend(uint64(b))
		}
	case 16:
		for i := range out {
			v := binary.LittleEndian.Uint16(src[2*i:])
			if f.BigEndian {
				v = bits.ReverseBytes16(v)
			}
			out[i] = f.extend(uint64(v))
		}
	case 32:
		for i := range out {
			v := binary.LittleEndian.Uint32(src[4*i:])
			if f.BigEndian {
				v = bits.ReverseBytes32(v)
			}
			out[i] = f.extend(uint64(v))
		}
	default:
		f.packed(out, src)
	}
}

// packed reads units of up to 7 bytes.
func (f Format) packed(out []int64, src []byte) {
	unit, width := f.unit(), uint(f.Bits)
	n := uint(unit) * 8 / width
	mask := uint64(1)<<width - 1
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
			shift := i * width
			if f.BigEndian {
				shift = (n - 1 - i) * width
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
