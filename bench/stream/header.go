package stream

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/tensor/synth"
)

// HeaderLen is the length of a Header in bytes.
const HeaderLen = 18

// Sizes of a packet. They are those of an Ethernet frame with IPv4 and UDP and its frame check
// sequence, as in RFC 2544, section 9, whatever the engine sends: an engine of sockets sends the
// payload of such a frame.
const (
	MinSize = 64
	MaxSize = 9018

	fcsLen     = 4
	headersLen = 14 + 20 + 8 // Ethernet, IPv4, UDP
	// gapLen is what a frame takes on a link beyond its bytes: preamble and start delimiter (8),
	// and the gap to the next (12).
	gapLen = 20
)

// PayloadLen is the number of bytes of payload in a frame of size bytes, the Header included.
func PayloadLen(size int) int { return size - fcsLen - headersLen }

const (
	headerMagic   = 0xa7
	headerVersion = 1
	flagReflected = 1

	timeMask = 1<<48 - 1
)

// Header begins the payload of every test packet. On the wire it is, in network order:
//
//	byte  0     0xa7
//	byte  1     version (1) in the upper four bits; flags in the lower: 1 reflected
//	bytes 2-3   Run: the trial
//	bytes 4-5   Stream
//	bytes 6-9   Seq: the number in the stream, from 0
//	bytes 10-15 Due: nanoseconds, the lower 48 bits
//	bytes 16-17 CRC-16 of the bytes before (polynomial 0x1021, initial value 0xffff)
//
// The bytes behind it are the run's pattern, the same in each packet.
type Header struct {
	Run       uint16
	Stream    uint16
	Seq       uint32
	Due       uint64 // by the sender's monotonic clock; Since compares
	Reflected bool
}

// Kind says what a payload is.
type Kind uint8

// The kinds of payloads.
const (
	Intact  Kind = iota // a Header that is right
	Foreign             // something else: too short, or it does not begin as a Header does
	Damaged             // it begins as a Header, and its check is wrong
)

// Put writes the header at the beginning of b, which must have HeaderLen bytes.
func (h *Header) Put(b []byte) {
	_ = b[HeaderLen-1]
	b[0], b[1] = headerMagic, headerVersion<<4
	if h.Reflected {
		b[1] |= flagReflected
	}
	binary.BigEndian.PutUint16(b[2:], h.Run)
	binary.BigEndian.PutUint16(b[4:], h.Stream)
	binary.BigEndian.PutUint32(b[6:], h.Seq)
	binary.BigEndian.PutUint16(b[10:], uint16(h.Due>>32))
	binary.BigEndian.PutUint32(b[12:], uint32(h.Due))
	binary.BigEndian.PutUint16(b[16:], crc16(b[:16]))
}

// Parse reads a header from the beginning of b, whatever b is. h is unchanged unless the answer is
// Intact.
func (h *Header) Parse(b []byte) Kind {
	if len(b) < HeaderLen || b[0] != headerMagic || b[1]>>4 != headerVersion {
		return Foreign
	}
	if binary.BigEndian.Uint16(b[16:]) != crc16(b[:16]) {
		return Damaged
	}
	h.Reflected = b[1]&flagReflected != 0
	h.Run = binary.BigEndian.Uint16(b[2:])
	h.Stream = binary.BigEndian.Uint16(b[4:])
	h.Seq = binary.BigEndian.Uint32(b[6:])
	h.Due = uint64(binary.BigEndian.Uint16(b[10:]))<<32 | uint64(binary.BigEndian.Uint32(b[12:]))
	return Intact
}

// Since is how long before now, by the same clock, the packet was due, in nanoseconds; right for up
// to 39 hours either way.
func (h *Header) Since(now int64) int64 {
	return int64((uint64(now)-h.Due)<<16) >> 16
}

// crcTable is that of the CRC-16 of ITU-T V.41, which finds all errors of up to three bits in a
// header, and all bursts of up to 16.
var crcTable = func() (t [256]uint16) {
	for i := range t {
		c := uint16(i) << 8
		for range 8 {
			if c&0x8000 != 0 {
				c = c<<1 ^ 0x1021
			} else {
				c <<= 1
			}
		}
		t[i] = c
	}
	return t
}()

func crc16(b []byte) uint16 {
	c := uint16(0xffff)
	for _, x := range b {
		c = c<<8 ^ crcTable[byte(c>>8)^x]
	}
	return c
}

// pattern makes the bytes behind the headers of a run. For GEMM they are numbers from -1 up to 1,
// so that no product is infinite or not a number.
func pattern(n int, seed uint64, w Workload) []byte {
	p := make([]byte, (n+3)&^3)
	synth.Fill(p, seed)
	if w == GEMM {
		for i := 0; i < len(p); i += 4 {
			v := float32(int32(binary.LittleEndian.Uint32(p[i:]))) / (1 << 31)
			binary.LittleEndian.PutUint32(p[i:], math.Float32bits(v))
		}
	}
	return p[:n]
}

func checkSize(size int) error {
	if size < MinSize || size > MaxSize {
		return fmt.Errorf("%w: stream: packets of %d bytes: expected %d to %d, as frames with their check sequence",
			engine.ErrInvalid, size, MinSize, MaxSize)
	}
	return nil
}
