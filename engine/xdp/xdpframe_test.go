package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
)

// Where things lie in a frame, in bytes.
const (
	frameHeaders = 42 // Ethernet, IPv4, UDP
	frameStamp   = frameHeaders
	frameOrigin  = frameStamp + 8
	framePattern = 56
	// framePort is the UDP port that all packets go to.
	framePort = 5001
)

// errFrame is wrapped by errors about frames with a wrong byte.
var errFrame = errors.New("a wrong byte in a packet")

// MACs of the sender and the receiver in the frames that the program makes.
var (
	sourceMAC = [6]byte{2, 0x77, 0, 0, 0, 1}
	targetMAC = [6]byte{2, 0x77, 0, 0, 0, 2}
)

func patternWord(slot uint32, at int) uint64 {
	return uint64(slot+1)*0x9e3779b97f4a7c15 + uint64(uint32(at))*0xd1b54a32d192ed03
}

// writeHeaders writes the headers of a frame of size bytes into the first frameHeaders bytes of f.
// It does the arithmetic that the program in C does.
func writeHeaders(f []byte, size int) {
	f = f[:frameHeaders:frameHeaders]
	copy(f, targetMAC[:])
	copy(f[6:], sourceMAC[:])
	copy(f[12:], "\x08\x00\x45\x00\x00\x00\x00\x00\x00\x00\x40\x11\x00\x00\x0a\x4d\x00\x01\x0a\x4d\x00\x02")
	binary.BigEndian.PutUint16(f[16:], uint16(size-14))
	var sum uint32
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(f[24:], ^uint16(sum>>16+sum))
	binary.BigEndian.PutUint16(f[34:], 4000)
	binary.BigEndian.PutUint16(f[36:], framePort)
	binary.BigEndian.PutUint32(f[38:], uint32(size-34)<<16)
}

// makeFrame writes a frame as large as f, of slot number slot, which is its sequence number too.
func makeFrame(f []byte, slot uint32) {
	writeHeaders(f, len(f))
	stampFrame(f, uint64(slot))
	binary.LittleEndian.PutUint32(f[frameOrigin:], slot)
	f[frameOrigin+4], f[frameOrigin+5] = 0, 0
	for at := framePattern; at < len(f); at += 8 {
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], patternWord(slot, at))
		copy(f[at:], w[:])
	}
}

// stampFrame writes a sequence number.
func stampFrame(f []byte, seq uint64) { binary.LittleEndian.PutUint64(f[frameStamp:], seq) }

// checkFrame checks every byte of a frame that should have size bytes, and returns its sequence
// number. The error wraps errFrame.
func checkFrame(f []byte, size int) (seq uint64, err error) {
	if len(f) != size || size < framePattern {
		return 0, fmt.Errorf("%w: %d bytes: expected %d", errFrame, len(f), size)
	}
	var want [frameHeaders]byte
	writeHeaders(want[:], size)
	if string(f[:frameHeaders]) != string(want[:]) || f[frameOrigin+4] != 0 || f[frameOrigin+5] != 0 {
		return 0, fmt.Errorf("%w: headers % x, padding % x: expected % x", errFrame, f[:frameHeaders],
			f[frameOrigin+4:framePattern], want)
	}
	slot := binary.LittleEndian.Uint32(f[frameOrigin:])
	var w [8]byte
	for at := framePattern; at < size; at += 8 {
		binary.LittleEndian.PutUint64(w[:], patternWord(slot, at))
		n := min(8, size-at)
		if string(f[at:at+n]) != string(w[:n]) {
			return 0, fmt.Errorf("%w: % x at %d of slot %d: expected % x", errFrame, f[at:at+n], at, slot, w[:n])
		}
	}
	return binary.LittleEndian.Uint64(f[frameStamp:]), nil
}

// A frame is right as it was made and with another number, and with no other change.
func TestRefFrame(t *testing.T) {
	for _, size := range []int{56, 61, 64, 1400, 8900} {
		f := make([]byte, size)
		makeFrame(f, 7)
		if seq, err := checkFrame(f, size); err != nil || seq != 7 {
			t.Fatalf("%d: %d, %v", size, seq, err)
		}
		stampFrame(f, 1<<60)
		if seq, err := checkFrame(f, size); err != nil || seq != 1<<60 {
			t.Errorf("%d: %d, %v", size, seq, err)
		}
		for at := range f {
			if at >= frameStamp && at < frameStamp+8 {
				continue
			}
			// Of 56 bytes nothing follows from the slot's number.
			if size == 56 && at >= frameOrigin && at < frameOrigin+4 {
				continue
			}
			f[at] ^= 4
			if _, err := checkFrame(f, size); !errors.Is(err, errFrame) {
				t.Errorf("%d: byte %d may be anything: %v", size, at, err)
			}
			f[at] ^= 4
		}
		if _, err := checkFrame(f, size+1); !errors.Is(err, errFrame) {
			t.Errorf("%v", err)
		}
	}
}
