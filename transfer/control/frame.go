package control

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Layout of the frame; it is the same in every version of the protocol, so that any two versions
// can read each other's handshake.
const (
	HeaderSize   = 16         // bytes before the body
	Magic        = 0x504E4354 // "PNCT"
	FrameVersion = 1          // of the frame's layout, not of the protocol

	// MaxBody is the largest body in bytes; the handshake agrees on the smaller of both sides'
	// limits.
	MaxBody = 256 << 10
	// MinBody is the smallest limit that a side may ask for, and the limit until the handshake is
	// done.
	MinBody = 4 << 10

	offVersion, offType, offFlags, offLength, offCRC = 4, 5, 6, 8, 12
)

// FlagOptional marks a frame that a receiver ignores when it does not know its type. All other
// flags must be zero.
const FlagOptional uint16 = 1

// Type says what a frame's body is.
type Type uint8

// The types of frames. Numbers are never used again for something else.
const (
	TypeHello        Type = 1
	TypeWelcome      Type = 2
	TypeHeartbeat    Type = 3
	TypeGoodbye      Type = 4
	TypeRequest      Type = 5
	TypeResponse     Type = 6
	TypeNotification Type = 7
	TypeComplete     Type = 8
	TypeRevoked      Type = 9
)

var typeNames = [...]string{TypeHello: "hello", TypeWelcome: "welcome", TypeHeartbeat: "heartbeat",
	TypeGoodbye: "goodbye",
	TypeRequest: "request", TypeResponse: "response", TypeNotification: "notification", TypeComplete: "complete",
	TypeRevoked: "revoked"}

func (t Type) known() bool { return t > 0 && int(t) < len(typeNames) }

func (t Type) String() string {
	if t.known() {
		return typeNames[t]
	}
	return fmt.Sprintf("type %d", uint8(t))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frameCRC is the CRC-32C (RFC 3720, appendix B.4) over the first twelve bytes of the header and
// the body.
func frameCRC(header, body []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, header[:offCRC]), castagnoli, body)
}

// seal fills in the header of the frame that starts at b[at] and whose body reaches to the end of
// b.
func seal(b []byte, at int, t Type, flags uint16) {
	h, body := b[at:at+HeaderSize], b[at+HeaderSize:]
	binary.BigEndian.PutUint32(h, Magic)
	h[offVersion], h[offType] = FrameVersion, byte(t)
	binary.BigEndian.PutUint16(h[offFlags:], flags)
	binary.BigEndian.PutUint32(h[offLength:], uint32(len(body)))
	binary.BigEndian.PutUint32(h[offCRC:], frameCRC(h, body))
}

// AppendFrame adds a frame with m to b. On error b is returned as it was. The error wraps
// ErrTooLarge or BadRequest and names the field.
func AppendFrame(b []byte, m Message) ([]byte, error) {
	at := len(b)
	c := codec{b: append(b, make([]byte, HeaderSize)...), encode: true, what: m.Type().String()}
	m.fields(&c)
	if c.err != nil {
		return b[:at], c.err
	}
	if n := len(c.b) - at - HeaderSize; n > MaxBody {
		return b[:at], fmt.Errorf("control: %v of %d bytes, at most %d: %w", m.Type(), n, MaxBody, ErrTooLarge)
	}
	seal(c.b, at, m.Type(), 0)
	return c.b, nil
}

// header is a checked frame header.
type header struct {
	typ      Type
	optional bool
	length   int
}

// parseHeader reads the header in b[:HeaderSize]; limit bounds the body.
func parseHeader(b []byte, limit int) (header, error) {
	if m := binary.BigEndian.Uint32(b); m != Magic {
		return header{}, Errorf(Protocol,
			"frame starts with %#08x, expected %#08x: this is no penstock control connection", m, uint32(Magic))
	}
	if v := b[offVersion]; v != FrameVersion {
		return header{}, Errorf(Protocol, "frame layout %d, expected %d", v, FrameVersion)
	}
	h := header{typ: Type(b[offType])}
	flags := binary.BigEndian.Uint16(b[offFlags:])
	if flags&^FlagOptional != 0 {
		return header{}, Errorf(Protocol, "%v frame with flags %#04x, known are %#04x", h.typ, flags, FlagOptional)
	}
	h.optional = flags&FlagOptional != 0
	if h.typ.known() && h.optional {
		return header{}, Errorf(Protocol, "%v frame is marked optional", h.typ)
	}
	n := binary.BigEndian.Uint32(b[offLength:])
	if uint64(n) > uint64(limit) {
		return header{}, Errorf(Protocol, "%v frame with a body of %d bytes, at most %d now", h.typ, n, limit)
	}
	h.length = int(n)
	return h, nil
}

// checkFrame compares the checksum of a complete frame.
func checkFrame(head, body []byte) error {
	want, got := binary.BigEndian.Uint32(head[offCRC:]), frameCRC(head, body)
	if want != got {
		return Errorf(Protocol, "%v frame carries the checksum %#08x but its bytes give %#08x: damaged on the way",
			Type(head[offType]), want, got)
	}
	return nil
}

// ParseFrame reads the frame at the start of b and returns what follows it. It is for tools and
// tests; a Session does more checks. Byte slices in the message alias b. The error matches Protocol
// or BadRequest.
func ParseFrame(b []byte) (m Message, rest []byte, err error) {
	if len(b) < HeaderSize {
		return nil, b, Errorf(Protocol, "frame of %d bytes, the header alone takes %d", len(b), HeaderSize)
	}
	h, err := parseHeader(b, MaxBody)
	if err != nil {
		return nil, b, err
	}
	if len(b)-HeaderSize < h.length {
		return nil, b, Errorf(Protocol, "%v frame cut short: %d of %d body bytes", h.typ, len(b)-HeaderSize, h.length)
	}
	body := b[HeaderSize : HeaderSize+h.length : HeaderSize+h.length]
	if err := checkFrame(b[:HeaderSize], body); err != nil {
		return nil, b, err
	}
	m, err = parseMessage(h.typ, body)
	if err != nil {
		return nil, b, err
	}
	return m, b[HeaderSize+h.length:], nil
}

// parseMessage reads a body; byte slices in the result alias it.
func parseMessage(t Type, body []byte) (Message, error) {
	var m Message
	switch t {
	case TypeHello:
		m = new(Hello)
	case TypeWelcome:
		m = new(Welcome)
	case TypeHeartbeat:
		m = new(Heartbeat)
	case TypeGoodbye:
		m = new(Goodbye)
	case TypeRequest:
		m = new(Request)
	case TypeResponse:
		m = new(Response)
	case TypeNotification:
		m = new(Notification)
	case TypeComplete:
		m = new(Complete)
	case TypeRevoked:
		m = new(KeyRevoked)
	default:
		return nil, Errorf(Protocol, "unknown frame %v", t)
	}
	c := codec{b: body, what: t.String()}
	m.fields(&c)
	return m, c.finish()
}
