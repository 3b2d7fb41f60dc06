package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Where things lie in a frame, in bytes.
const (
	HeaderSize = 42 // Ethernet, IPv4, UDP
	stampAt    = HeaderSize
	originAt   = stampAt + 8
	patternAt  = 56
	// Port is the UDP port that all packets go to.
	Port = 5001
)

// ErrFrame is wrapped by errors about frames with a wrong byte.
var ErrFrame = errors.New("a wrong byte in a packet")

// MACs of the sender and the receiver in the frames that the program makes.
var (
	SourceMAC = [6]byte{2, 0x77, 0, 0, 0, 1}
	TargetMAC = [6]byte{2, 0x77, 0, 0, 0, 2}
)

func patternWord(slot uint32, at int) uint64 {
	return uint64(slot+1)*0x9e3779b97f4a7c15 + uint64(uint32(at))*0xd1b54a32d192ed03
}

// WriteHeaders writes the headers of a frame of size bytes into the first HeaderSize bytes of f. It
// does the arithmetic that the program in C does.
func WriteHeaders(f []byte, size int) {
	f = f[:HeaderSize:HeaderSize]
	copy(f, TargetMAC[:])
	copy(f[6:], SourceMAC[:])
	copy(f[12:], "\x08\x00\x45\x00\x00\x00\x00\x00\x00\x00\x40\x11\x00\x00\x0a\x4d\x00\x01\x0a\x4d\x00\x02")
	binary.BigEndian.PutUint16(f[16:], uint16(size-14))
	var sum uint32
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(f[24:], ^uint16(sum>>16+sum))
	binary.BigEndian.PutUint16(f[34:], 4000)
	binary.BigEndian.PutUint16(f[36:], Port)
	binary.BigEndian.PutUint32(f[38:], uint32(size-34)<<16)
}

// MakeFrame writes a frame as large as f, of slot number slot, which is its sequence number too.
func MakeFrame(f []byte, slot uint32) {
	WriteHeaders(f, len(f))
	Stamp(f, uint64(slot))
	binary.LittleEndian.PutUint32(f[originAt:], slot)
	f[originAt+4], f[originAt+5] = 0, 0
	for at := patternAt; at < len(f); at += 8 {
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], patternWord(slot, at))
		copy(f[at:], w[:])
	}
}

// Stamp writes a sequence number.
func Stamp(f []byte, seq uint64) { binary.LittleEndian.PutUint64(f[stampAt:], seq) }

// SwapMACs exchanges the addresses of a frame, as a forwarder does.
func SwapMACs(f []byte) {
	_ = f[11]
	to := [6]byte(f)
	copy(f[:6], f[6:12])
	copy(f[6:12], to[:])
}

// CheckFrame checks every byte of a frame that should have size bytes, and returns its sequence
// number. Its MAC addresses may have been exchanged. The error wraps ErrFrame.
func CheckFrame(f []byte, size int) (seq uint64, err error) {
	if len(f) != size || size < patternAt {
		return 0, fmt.Errorf("%w: %d bytes: expected %d", ErrFrame, len(f), size)
	}
	var want [HeaderSize]byte
	WriteHeaders(want[:], size)
	if string(f[12:HeaderSize]) != string(want[12:]) {
		return 0, fmt.Errorf("%w: headers % x: expected % x", ErrFrame, f[12:HeaderSize], want[12:])
	}
	a, b := [6]byte(f), [6]byte(f[6:])
	if !(a == TargetMAC && b == SourceMAC || a == SourceMAC && b == TargetMAC) || f[originAt+4] != 0 ||
		f[originAt+5] != 0 {
		return 0, fmt.Errorf("%w: addresses % x % x, padding % x", ErrFrame, a, b, f[originAt+4:patternAt])
	}
	slot := binary.LittleEndian.Uint32(f[originAt:])
	var w [8]byte
	for at := patternAt; at < size; at += 8 {
		binary.LittleEndian.PutUint64(w[:], patternWord(slot, at))
		n := min(8, size-at)
		if string(f[at:at+n]) != string(w[:n]) {
			return 0, fmt.Errorf("%w: % x at %d of slot %d: expected % x", ErrFrame, f[at:at+n], at, slot, w[:n])
		}
	}
	return binary.LittleEndian.Uint64(f[stampAt:]), nil
}
