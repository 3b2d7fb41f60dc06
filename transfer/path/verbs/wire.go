package verbs

import (
	"encoding/binary"
	"fmt"

	"github.com/penstock-io/penstock/transfer/path"
)

// version is that of everything in this file; both sides must have the same.
const version = 4

// frameType says what a frame on a queue pair is.
type frameType uint8

const (
	frameHello   frameType = iota + 1 // the first of the side that asked for the path: both ends are connected
	frameNotify                       // Imm, Bytes and a message for the owner of the peer's path
	frameAttach                       // asks for the address and the keys of an export
	frameGrant                        // the answer
	frameRefuse                       // the other answer
	frameRevoked                      // an export that was granted is no more
	frameReplace                      // a queue pair is replaced: number and sequence of the sender's new queue pair
	frameReady                        // the sender's end of a replaced queue pair can receive
	frameCredit                       // how many receives the sender has posted again, on all queue pairs
	frameBye                          // the sender closes the path
	frameFlush                        // what was written into memory of accelerators is to be made visible to them
	frameFlushed                      // it is, or the status says that it cannot be
	frameEnd
)

const (
	headerSize = 8
	notifySize = headerSize + 16
	maxQPs     = 8
	// frameSize is the size in bytes of the largest frame, and of each receive.
	frameSize = notifySize + path.MaxMessage
)

// grantKey is what an export is on one queue pair.
type grantKey struct {
	qp   uint8
	gen  uint32 // of the queue pair's queue pair: the key is good on that one only
	rkey uint32
}

// qpCredit is how many receives of a queue pair were posted again.
type qpCredit struct{ gen, consumed uint32 }

// frame is a message on a queue pair in parsed form. Which fields mean something depends on the
// type.
type frame struct {
	typ      frameType
	consumed uint32 // receives of the control queue pair that the sender has posted again, since the beginning
	qp       uint8

	key        path.Key
	imm, bytes uint64
	msg        []byte // of the received bytes
	rights     path.Rights
	flush      bool // of a grant: what is written there is seen after a flush
	addr, size uint64
	grants     [maxQPs]grantKey
	credit     [maxQPs]qpCredit
	n          int // of queue pairs or credit
	status     uint8
	gen        uint32
	qpn, psn   uint32 // as in qpAddress
	delivered  uint32 // messages that came by the queue pair before the new one
}

func put16(b []byte, v uint16) []byte { return binary.BigEndian.AppendUint16(b, v) }
func put32(b []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(b, v) }
func put64(b []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(b, v) }

// append writes the frame behind b, which should have room for frameSize bytes more, so that
// nothing is allocated.
func (f *frame) append(b []byte) []byte {
	start := len(b)
	b = append(b, byte(f.typ), f.qp, 0, 0)
	b = put32(b, f.consumed)
	switch f.typ {
	case frameNotify:
		b = put64(b, f.imm)
		b = put64(b, f.bytes)
		b = append(b, f.msg...)
	case frameAttach, frameRevoked:
		b = f.key.Append(b)
	case frameGrant:
		b = f.key.Append(b)
		b = put64(b, f.addr)
		b = put64(b, f.size)
		rights := byte(f.rights)
		if f.flush {
			rights |= grantFlush
		}
		b = append(b, rights, byte(f.n))
		for _, r := range f.grants[:f.n] {
			b = append(b, r.qp)
			b = put32(b, r.gen)
			b = put32(b, r.rkey)
		}
	case frameRefuse:
		b = f.key.Append(b)
		b = append(b, f.status)
	case frameReplace:
		b = put32(b, f.gen)
		b = put32(b, f.qpn)
		b = put32(b, f.psn)
		b = put32(b, f.delivered)
	case frameFlushed:
		b = append(b, f.status)
	case frameReady:
		b = put32(b, f.gen)
	case frameCredit:
		b = append(b, byte(f.n))
		for _, c := range f.credit[:f.n] {
			b = put32(b, c.gen)
			b = put32(b, c.consumed)
		}
	}
	binary.BigEndian.PutUint16(b[start+2:], uint16(len(b)-start-headerSize))
	return b
}

func malformed(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, path.ErrProtocol)...)
}

// parse reads a frame that came from the peer. What is valid in itself may still be nonsense in its
// place.
func (f *frame) parse(b []byte) error {
	if len(b) < headerSize {
		return malformed("a frame of %d bytes: expected %d or more", len(b), headerSize)
	}
	f.typ, f.qp, f.consumed = frameType(b[0]), b[1], binary.BigEndian.Uint32(b[4:])
	size := int(binary.BigEndian.Uint16(b[2:]))
	if size != len(b)-headerSize {
		return malformed("a frame of type %d says that it has %d bytes behind its header, and has %d", f.typ, size,
			len(b)-headerSize)
	}
	if f.qp >= maxQPs {
		return malformed("a frame of type %d for queue pair %d: there are at most %d", f.typ, f.qp, maxQPs)
	}
	b = b[headerSize:]
	fixed := func(n int) bool { return len(b) == n }
	ok := true
	switch f.typ {
	case frameNotify:
		if ok = len(b) >= 16 && len(b) <= 16+path.MaxMessage; ok {
			f.imm, f.bytes, f.msg = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), b[16:]
		}
	case frameAttach, frameRevoked:
		if ok = fixed(path.KeySize); ok {
			f.key = path.ParseKey(b)
		}
	case frameGrant:
		ok = f.parseGrant(b)
	case frameRefuse:
		if ok = fixed(path.KeySize + 1); ok {
			f.key, f.status = path.ParseKey(b), b[path.KeySize]
			ok = f.status > 0 && int(f.status) < len(refusals)
		}
	case frameReplace:
		if ok = fixed(16); ok {
			f.gen, f.qpn = binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
			f.psn, f.delivered = binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
			ok = f.qpn < 1<<24
		}
	case frameReady:
		if ok = fixed(4); ok {
			f.gen = binary.BigEndian.Uint32(b)
		}
	case frameCredit:
		if ok = len(b) > 0 && int(b[0]) <= maxQPs && fixed(1+8*int(b[0])); ok {
			f.n = int(b[0])
			for i := range f.n {
				c := b[1+8*i:]
				f.credit[i] = qpCredit{binary.BigEndian.Uint32(c), binary.BigEndian.Uint32(c[4:])}
			}
		}
	case frameHello, frameFlush, frameBye:
		ok = fixed(0)
	case frameFlushed:
		if ok = fixed(1); ok {
			f.status = b[0]
			ok = f.status <= flushFailed
		}
	default:
		return malformed("a frame of unknown type %d", f.typ)
	}
	if !ok {
		return malformed("a frame of type %d with %d bytes behind its header that make no sense", f.typ, len(b))
	}
	return nil
}

const grantFixed = path.KeySize + 18

// flushFailed is the status of a frameFlushed that brings bad news; 0 is good.
const flushFailed = 1

// grantFlush is the bit beside the rights of a grant that stands for frame.flush.
const grantFlush = 0x80

func (f *frame) parseGrant(b []byte) bool {
	if len(b) < grantFixed {
		return false
	}
	f.key = path.ParseKey(b)
	f.addr, f.size = binary.BigEndian.Uint64(b[path.KeySize:]), binary.BigEndian.Uint64(b[path.KeySize+8:])
	f.rights, f.n = path.Rights(b[path.KeySize+16]&^grantFlush), int(b[path.KeySize+17])
	f.flush = b[path.KeySize+16]&grantFlush != 0
	if f.n > maxQPs || len(b) != grantFixed+9*f.n || f.addr+f.size < f.addr || f.rights&^(path.Read|path.Write) != 0 {
		return false
	}
	for i := range f.n {
		c := b[grantFixed+9*i:]
		f.grants[i] = grantKey{c[0], binary.BigEndian.Uint32(c[1:]), binary.BigEndian.Uint32(c[5:])}
		if c[0] >= maxQPs {
			return false
		}
	}
	return true
}

// refusals are the reasons of a refusal by their number on the wire.
var refusals = [...]error{1: path.ErrKey, 2: path.ErrRevoked, 3: path.ErrRights, 4: path.ErrUnreachable,
	5: path.ErrUnavailable}
