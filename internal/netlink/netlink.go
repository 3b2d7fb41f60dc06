// Package netlink encodes and decodes netlink messages and attributes as bytes. It opens nothing:
// sockets are internal/sys's, and callers know what messages mean.
//
//	b := netlink.End(netlink.AppendAttribute(netlink.Begin(nil, kind, 0, seq), 3, []byte("eth0\x00")))
//	for m, rest, ok := netlink.Next(answer); ok; m, rest, ok = netlink.Next(rest) {
//		for kind, value := range netlink.Attributes(m.Body[16:]) { ... }
//	}
//
// Whatever the bytes are, reading them ends and stays within them.
package netlink

import (
	"encoding/binary"
	"iter"
)

// HeaderLen is the length of a message's header, in bytes.
const HeaderLen = 16

// Kinds of messages that every family has, and the flag of what is asked.
const (
	Error   = 2
	Done    = 3
	Request = 1
)

// native is the byte order of netlink.
var native = binary.NativeEndian

// Message is one message. Body is what is behind the header, and belongs to the owner of the bytes.
type Message struct {
	Kind uint16
	Seq  uint32
	Body []byte
}

// Next cuts the first message from b. It is false at the end, and when what is left is malformed.
func Next(b []byte) (m Message, rest []byte, ok bool) {
	if len(b) < HeaderLen {
		return m, nil, false
	}
	n := native.Uint32(b)
	if n < HeaderLen || uint64(n) > uint64(len(b)) {
		return m, nil, false
	}
	m = Message{native.Uint16(b[4:]), native.Uint32(b[8:]), b[HeaderLen:n]}
	return m, b[min((uint64(n)+3)&^3, uint64(len(b))):], true
}

// Errno is what a message of kind Error says: the number of an error, 0 for an acknowledgement. It
// is false if the message is malformed.
func (m Message) Errno() (errno int, ok bool) {
	if len(m.Body) < 4 {
		return 0, false
	}
	e := int32(native.Uint32(m.Body))
	return int(-e), e <= 0 && e > -4096
}

// NextAttribute cuts the first attribute from b, its kind without the flags for nested and for byte
// order. It is false at the end, and when what is left is malformed.
func NextAttribute(b []byte) (kind uint16, value, rest []byte, ok bool) {
	if len(b) < 4 {
		return 0, nil, nil, false
	}
	n := native.Uint16(b)
	if n < 4 || int(n) > len(b) {
		return 0, nil, nil, false
	}
	return native.Uint16(b[2:]) & 0x3fff, b[4:n], b[min((int(n)+3)&^3, len(b)):], true
}

// Attributes are the attributes in b by their kinds, up to the first that is malformed.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for kind, v, rest, ok := NextAttribute(b); ok; kind, v, rest, ok = NextAttribute(rest) {
			if !yield(kind, v) {
				return
			}
		}
	}
}

// Begin appends the header of a message to b; End completes it.
func Begin(b []byte, kind, flags uint16, seq uint32) []byte {
	b = append(b, make([]byte, HeaderLen)...)
	m := b[len(b)-HeaderLen:]
	native.PutUint16(m[4:], kind)
	native.PutUint16(m[6:], flags|Request)
	native.PutUint32(m[8:], seq)
	return b
}

// End writes the length of a message that is alone in b.
func End(b []byte) []byte {
	native.PutUint32(b, uint32(len(b)))
	return b
}

// AppendAttribute appends an attribute, padded to the next.
func AppendAttribute(b []byte, kind uint16, value []byte) []byte {
	b = native.AppendUint16(b, uint16(4+len(value)))
	b = native.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}
