package rdma

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/penstock-io/penstock/engine"
)

// Two ends of a connection exchange records over a byte stream of their own, beside the queue
// pairs. A record is a header and a body of fixed length for its kind, but for the texts, all
// big-endian:
//
//	0  magic    2 bytes, "PV"
//	2  version  1 byte
//	3  kind     1 byte
//	4  length   4 bytes, of the body
//
// A version or a kind that is not known, a length that is not that of the kind, and values out of
// range end the connection: the peer is another program, or broken.
const (
	recordMagic   = 0x5056
	recordVersion = 1
	recordHeader  = 8
	maxText       = 256 // bytes
	maxRecord     = recordHeader + 64 + maxText
)

// kind says what a record is for. One end of a connection receives by a channel: a queue pair of
// its own, which it offers to the other end and takes back. Channels of an end are numbered from 1
// on.
type kind uint8

const (
	kindHello    kind = 1 + iota // who I am; first, in both directions
	kindOffer                    // receiver: here is a queue pair that you can send to
	kindAccept                   // sender: and this is the one that I send with
	kindReady                    // receiver: mine is connected, so many messages may come
	kindWithdraw                 // receiver: send no more on this channel
	kindDrained                  // sender: I have sent so many messages on it in all, and no more will come
	kindSent                     // sender: I have sent so many so far, and wait for a credit
	kindBye                      // I close the connection; why, if it was for a fault
	numKinds
)

var kindNames = [numKinds]string{"", "hello", "offer", "accept", "ready", "withdraw", "drained", "sent", "bye"}

func (k kind) String() string {
	if k > 0 && k < numKinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// record is one record. Which fields it has its kind says.
type record struct {
	kind      kind
	transport Transport // hello
	channel   uint32    // all but hello and bye
	pair      pairInfo  // offer, accept
	longest   uint64    // bytes of a message; offer
	count     uint64    // messages that may come (ready), that were sent (drained, sent)
	text      string    // bye
}

// pairInfo is what the other end must know of a queue pair to connect its own.
type pairInfo struct {
	gid  [16]byte
	qpn  uint32 // 24 bits
	psn  uint32 // 24 bits
	qkey uint32 // of UD
	mtu  uint16 // of the path, bytes: 256 to 4096
	lid  uint16 // of the port, on InfiniBand
}

// bodyLen are the lengths of bodies; of a bye the least one.
var bodyLen = [numKinds]int{kindHello: 4, kindOffer: 44, kindAccept: 36, kindReady: 12, kindWithdraw: 4,
	kindDrained: 12, kindSent: 12, kindBye: 0}

// append adds the bytes of the record to b.
func (r *record) append(b []byte) []byte {
	text := r.text[:min(len(r.text), maxText)]
	be := binary.BigEndian
	b = be.AppendUint16(b, recordMagic)
	b = append(b, recordVersion, byte(r.kind))
	n := bodyLen[r.kind]
	if r.kind == kindBye {
		n = len(text)
	}
	b = be.AppendUint32(b, uint32(n))
	switch r.kind {
	case kindHello:
		return append(b, byte(r.transport), 0, 0, 0)
	case kindBye:
		return append(b, text...)
	}
	b = be.AppendUint32(b, r.channel)
	switch r.kind {
	case kindReady, kindDrained, kindSent:
		return be.AppendUint64(b, r.count)
	case kindOffer, kindAccept:
		b = append(b, r.pair.gid[:]...)
		b = be.AppendUint32(b, r.pair.qpn)
		b = be.AppendUint32(b, r.pair.psn)
		b = be.AppendUint32(b, r.pair.qkey)
		b = be.AppendUint16(b, r.pair.mtu)
		b = be.AppendUint16(b, r.pair.lid)
		if r.kind == kindOffer {
			b = be.AppendUint64(b, r.longest)
		}
	}
	return b
}

// parseHeader reads a header and says how long the body is, which is never more than maxText.
func parseHeader(h []byte) (k kind, n int, err error) {
	if len(h) < recordHeader {
		return 0, 0, garbled("%d bytes, a record has at least %d", len(h), recordHeader)
	}
	be := binary.BigEndian
	if m := be.Uint16(h); m != recordMagic {
		return 0, 0, garbled("it begins with %#04x and not with %#04x: not a peer of this engine", m, recordMagic)
	}
	if h[2] != recordVersion {
		return 0, 0, garbled("version %d; this program has version %d", h[2], recordVersion)
	}
	if k = kind(h[3]); k == 0 || k >= numKinds {
		return 0, 0, garbled("kind %d is not known", h[3])
	}
	length := be.Uint32(h[4:])
	if k == kindBye && length > maxText || k != kindBye && length != uint32(bodyLen[k]) {
		return 0, 0, garbled("%v of %d bytes, expected %d", k, length, bodyLen[k])
	}
	return k, int(length), nil
}

// parseBody reads the body of a record whose header parseHeader has taken.
func parseBody(k kind, b []byte) (r record, err error) {
	be := binary.BigEndian
	r.kind = k
	if n := bodyLen[k]; k != kindBye && len(b) != n {
		return r, garbled("%v of %d bytes, expected %d", k, len(b), n)
	}
	switch k {
	case kindHello:
		if r.transport = Transport(b[0]); r.transport >= numTransports {
			return r, garbled("transport %d is not known", b[0])
		}
		if b[1]|b[2]|b[3] != 0 {
			return r, garbled("hello with bytes that are not known: % x", b[1:])
		}
		return r, nil
	case kindBye:
		if len(b) > maxText {
			return r, garbled("bye of %d bytes, expected at most %d", len(b), maxText)
		}
		r.text = string(b)
		return r, nil
	}
	if r.channel = be.Uint32(b); r.channel == 0 {
		return r, garbled("%v of channel 0", k)
	}
	b = b[4:]
	switch k {
	case kindReady, kindDrained, kindSent:
		r.count = be.Uint64(b)
	case kindOffer, kindAccept:
		copy(r.pair.gid[:], b)
		r.pair.qpn, r.pair.psn, r.pair.qkey, r.pair.mtu = be.Uint32(b[16:]), be.Uint32(b[20:]), be.Uint32(b[24:]),
			be.Uint16(b[28:])
		r.pair.lid = be.Uint16(b[30:])
		switch r.pair.mtu {
		case 256, 512, 1024, 2048, 4096:
		default:
			return r, garbled("path MTU of %d bytes, expected 256, 512, 1024, 2048 or 4096", r.pair.mtu)
		}
		if r.pair.qpn>>24 != 0 || r.pair.psn>>24 != 0 {
			return r, garbled("queue pair %#x, sequence number %#x: expected 24 bits", r.pair.qpn, r.pair.psn)
		}
		if k == kindOffer {
			if r.longest = be.Uint64(b[32:]); r.longest > 1<<31 {
				return r, garbled("messages of up to %d bytes, expected at most 2^31", r.longest)
			}
		}
	}
	return r, nil
}

func garbled(format string, args ...any) error {
	return failed(engine.ErrConnect, "record: "+format, args...)
}

// readRecord reads one record. scratch has room for maxRecord bytes.
func readRecord(from io.Reader, scratch []byte) (record, error) {
	h := scratch[:recordHeader]
	if _, err := io.ReadFull(from, h); err != nil {
		return record{}, err
	}
	k, n, err := parseHeader(h)
	if err != nil {
		return record{}, err
	}
	body := scratch[recordHeader : recordHeader+n]
	if _, err := io.ReadFull(from, body); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return record{}, err
	}
	return parseBody(k, body)
}
