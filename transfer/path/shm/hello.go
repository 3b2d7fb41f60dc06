package shm

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// Version is the version of the protocol between the two sides of a path.
const Version = 3

// The handshake, one packet each, little-endian:
//
//	hello    dialer → listener   0 magic, 8 token, 24 version u16, 26 flags u16, 28 window u32
//	welcome  listener → dialer   0 magic, 8 status u16 = 0, 10 version u16, 12 flags u16, 14 reserved u16, 16 window u32; with the control memfd
//	refusal  listener → dialer   0 magic, 8 status u16 > 0, 10 version u16, then words for people
//	ready    dialer → listener   0 magic, 8 "ready"
//	ready    listener → dialer   0 magic, 8 "ready": it reads what the dialer leaves in the rings, also after the dialer's end
//
// Magic, token, version and status keep their places in every version, so that versions which
// differ can say so.
const (
	magic        = "penstkSM"
	helloSize    = 32
	welcomeSize  = 20
	ready        = magic + "ready"
	maxHandshake = 512

	flagHelps = 1 // this side copies a part of large transfers for its peer

	refusedVersion = 1
	refusedUser    = 2
	refusedToken   = 3
	refusedOther   = 4
)

type hello struct {
	token   setup.Token
	version uint16
	flags   uint16
	window  uint32
}

func (h hello) append(b []byte) []byte {
	b = append(b, magic...)
	b = append(b, h.token[:]...)
	b = binary.LittleEndian.AppendUint16(b, h.version)
	b = binary.LittleEndian.AppendUint16(b, h.flags)
	return binary.LittleEndian.AppendUint32(b, h.window)
}

// parseHello accepts any version: the caller compares it, and the rest means something only if it
// is ours.
func parseHello(b []byte) (h hello, err error) {
	if len(b) < helloSize || string(b[:8]) != magic {
		return h, fmt.Errorf("%d bytes that are no hello of this protocol: %w", len(b), path.ErrProtocol)
	}
	copy(h.token[:], b[8:])
	h.version = binary.LittleEndian.Uint16(b[24:])
	if h.version != Version {
		return h, nil
	}
	h.flags = binary.LittleEndian.Uint16(b[26:])
	h.window = binary.LittleEndian.Uint32(b[28:])
	if len(b) != helloSize || h.window == 0 || h.window > maxWindow {
		return h, fmt.Errorf("hello of %d bytes with window %d, expected %d bytes and 1 to %d: %w", len(b), h.window,
			helloSize, maxWindow, path.ErrProtocol)
	}
	return h, nil
}

type welcome struct {
	status  uint16
	version uint16
	flags   uint16
	window  uint32
	words   string // of a refusal
}

func (w welcome) append(b []byte) []byte {
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint16(b, w.status)
	b = binary.LittleEndian.AppendUint16(b, w.version)
	if w.status != 0 {
		return append(b, w.words[:min(len(w.words), 256)]...)
	}
	b = binary.LittleEndian.AppendUint16(b, w.flags)
	b = append(b, 0, 0)
	return binary.LittleEndian.AppendUint32(b, w.window)
}

func parseWelcome(b []byte) (w welcome, err error) {
	if len(b) < 12 || string(b[:8]) != magic {
		return w, fmt.Errorf("%d bytes that are no answer of this protocol: %w", len(b), path.ErrProtocol)
	}
	w.status = binary.LittleEndian.Uint16(b[8:])
	w.version = binary.LittleEndian.Uint16(b[10:])
	if w.status != 0 {
		// Words from a pending connection end up in an error message: plain characters only.
		words := b[12:min(len(b), 12+256)]
		w.words = string(bytes.Map(func(r rune) rune {
			if r < ' ' || r > '~' {
				return '?'
			}
			return r
		}, words))
		return w, nil
	}
	if len(b) != welcomeSize || w.version != Version {
		return w, fmt.Errorf("welcome of %d bytes in version %d, expected %d in version %d: %w", len(b), w.version,
			welcomeSize, Version, path.ErrProtocol)
	}
	w.flags = binary.LittleEndian.Uint16(b[12:])
	w.window = binary.LittleEndian.Uint32(b[16:])
	if w.window == 0 || w.window > maxWindow {
		return w, fmt.Errorf("welcome with window %d, expected 1 to %d: %w", w.window, maxWindow, path.ErrProtocol)
	}
	return w, nil
}

func (w welcome) refusal() error {
	switch w.status {
	case refusedVersion:
		return fmt.Errorf("the peer speaks version %d of the shm protocol, this side version %d: run the same "+
			"release on both sides: %w", w.version, Version, path.ErrProtocol)
	case refusedUser:
		return fmt.Errorf("the peer refused this process: %s: %w", w.words, path.ErrUnavailable)
	}
	return fmt.Errorf("the peer refused: %s: %w", w.words, path.ErrUnavailable)
}
