package packet

import "encoding/binary"

// ECPRIType is the type of an eCPRI message.
type ECPRIType uint8

// The message types of eCPRI 2.0, section 3.2.4.
const (
	ECPRIData    ECPRIType = 0 // IQ data: PC_ID, SEQ_ID
	ECPRIBits    ECPRIType = 1 // bit sequence: PC_ID, SEQ_ID
	ECPRIControl ECPRIType = 2 // real-time control data: RTC_ID, SEQ_ID
	ECPRIGeneric ECPRIType = 3 // generic data transfer: PC_ID and SEQ_ID of 32 bits
	ECPRIMemory  ECPRIType = 4 // remote memory access
	ECPRIDelay   ECPRIType = 5 // one-way delay measurement
	ECPRIReset   ECPRIType = 6 // remote reset
	ECPRIEvent   ECPRIType = 7 // event indication
)

const ecpriRevision = 1 // of the specifications 1.x and 2.0

// ECPRI is a view of an eCPRI message: the payload of EtherType 0xaefe, or of UDP at a port that
// both ends agreed on. In both cases that is frame[l.Payload:l.End] of a parsed frame. Another
// message or padding may follow it.
type ECPRI []byte

// Valid reports whether the common header is complete, of revision 1, its payload lies within the
// slice, and the identifiers of its message type lie within its payload. After that no method
// panics.
func (e ECPRI) Valid() bool {
	return len(e) >= ECPRILen && e.Revision() == ecpriRevision && ECPRILen+e.PayloadLen() <= len(e) &&
		e.PayloadLen() >= e.idLen()
}

// Revision returns the protocol revision: 1.
func (e ECPRI) Revision() uint8 { return e[0] >> 4 }

// Concatenated reports whether another message follows in the same frame: see Next.
func (e ECPRI) Concatenated() bool { return e[0]&1 != 0 }

// Type returns the message type.
func (e ECPRI) Type() ECPRIType { return ECPRIType(e[1]) }

// PayloadLen returns the number of bytes behind the common header, as its field says.
func (e ECPRI) PayloadLen() int { return int(binary.BigEndian.Uint16(e[2:])) }

// Payload returns what follows the common header; it begins with the identifiers of the message
// type.
func (e ECPRI) Payload() []byte { return e[ECPRILen : ECPRILen+e.PayloadLen()] }

func (e ECPRI) idLen() int { return e.Type().idLen() }

// idLen returns how many bytes of identifiers the payload of a message begins with.
func (t ECPRIType) idLen() int {
	switch t {
	case ECPRIData, ECPRIBits, ECPRIControl:
		return 4
	case ECPRIGeneric:
		return 8
	}
	return 0
}

// PCID returns the identifier of a physical channel (16 bits; 32 in generic data transfers), and
// whether the message type has one.
func (e ECPRI) PCID() (uint32, bool) {
	switch e.Type() {
	case ECPRIData, ECPRIBits:
		return uint32(binary.BigEndian.Uint16(e[4:])), true
	case ECPRIGeneric:
		return binary.BigEndian.Uint32(e[4:]), true
	}
	return 0, false
}

// RTCID returns the identifier of a real-time control message, and whether this is one.
func (e ECPRI) RTCID() (uint16, bool) {
	if e.Type() != ECPRIControl {
		return 0, false
	}
	return binary.BigEndian.Uint16(e[4:]), true
}

// ID returns PCID or RTCID, whichever the message type has.
func (e ECPRI) ID() (uint32, bool) {
	if id, ok := e.RTCID(); ok {
		return uint32(id), true
	}
	return e.PCID()
}

// Seq returns the sequence identifier (16 bits; 32 in generic data transfers), and whether the
// message type has one.
func (e ECPRI) Seq() (uint32, bool) {
	switch e.idLen() {
	case 4:
		return uint32(binary.BigEndian.Uint16(e[6:])), true
	case 8:
		return binary.BigEndian.Uint32(e[8:]), true
	}
	return 0, false
}

// Next returns the message behind this one, which begins at a multiple of 4 bytes; nil when there
// is none. Check Valid on it.
func (e ECPRI) Next() ECPRI {
	at := (ECPRILen + e.PayloadLen() + 3) &^ 3
	if !e.Concatenated() || at >= len(e) {
		return nil
	}
	return e[at:]
}

// SetConcatenated says whether another message follows.
func (e ECPRI) SetConcatenated(more bool) {
	e[0] &^= 1
	if more {
		e[0] |= 1
	}
}

// SetType sets the message type.
func (e ECPRI) SetType(t ECPRIType) { e[1] = byte(t) }

// SetPayloadLen sets the number of bytes behind the common header.
func (e ECPRI) SetPayloadLen(n uint16) { binary.BigEndian.PutUint16(e[2:], n) }

// SetID sets PC_ID or RTC_ID, and reports whether the message type has one. Types other than
// ECPRIGeneric keep the lower 16 bits.
func (e ECPRI) SetID(v uint32) bool {
	switch e.idLen() {
	case 4:
		binary.BigEndian.PutUint16(e[4:], uint16(v))
	case 8:
		binary.BigEndian.PutUint32(e[4:], v)
	default:
		return false
	}
	return true
}

// SetSeq sets the sequence identifier, and reports whether the message type has one. Types other
// than ECPRIGeneric keep the lower 16 bits.
func (e ECPRI) SetSeq(v uint32) bool {
	switch e.idLen() {
	case 4:
		binary.BigEndian.PutUint16(e[6:], uint16(v))
	case 8:
		binary.BigEndian.PutUint32(e[8:], v)
	default:
		return false
	}
	return true
}

// ECPRIHeader is the content of an eCPRI common header and of the identifiers behind it.
type ECPRIHeader struct {
	Type         ECPRIType
	Concatenated bool
	ID           uint32 // PC_ID or RTC_ID, of 16 bits except for ECPRIGeneric; ignored by types that have none
	Seq          uint32 // SEQ_ID, likewise
}

// Len returns the length of the common header and of the identifiers that belong to Type: 4, 8 or
// 12.
func (h *ECPRIHeader) Len() int {
	return ECPRILen + h.Type.idLen()
}

// Fill writes common header and identifiers at the beginning of b and returns their length. payload
// is the number of bytes that follow them in the message. Errors: ErrRoom, ErrLength, ErrField.
func (h *ECPRIHeader) Fill(b []byte, payload int) (int, error) {
	n := h.Len()
	switch {
	case len(b) < n:
		return 0, ErrRoom
	case payload < 0 || payload > 0xffff-(n-ECPRILen):
		return 0, ErrLength
	case n == ECPRILen+4 && (h.ID > 0xffff || h.Seq > 0xffff):
		return 0, ErrField
	}
	e := ECPRI(b[:n])
	e[0] = ecpriRevision << 4
	e.SetConcatenated(h.Concatenated)
	e.SetType(h.Type)
	e.SetPayloadLen(uint16(n - ECPRILen + payload))
	e.SetID(h.ID)
	e.SetSeq(h.Seq)
	return n, nil
}
