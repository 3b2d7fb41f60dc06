package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// The wire format, version 1; docs/protocol.md has it in words and tables. All integers are
// big-endian. A frame is
//
//	header (64 bytes) | table | payload | message
//
// where each of the last three may be missing. The golden bytes in wire_test.go pin it down.
const (
	version    = 1
	frameMagic = 0x5053 // "PS"
	helloMagic = 0x504e5354

	headerSize = 64
	helloSize  = 64
	blockSize  = 16 // one entry of a table
	wantSize   = blockSize + path.KeySize
)

// Limits that both sides hold without negotiating. What a hello announces may be lower, never
// higher.
const (
	maxStreams     = 16
	maxWindow      = 4096
	maxFrameBytes  = 4 << 20 // payload of one frame
	maxFrameBlocks = 1024    // entries of one table
	minWindow      = 1
	// maxRequested is how many blocks one side may have requested by GET and not yet got.
	maxRequested = 4096
)

type frameType uint8

const (
	framePut    frameType = iota + 1 // payload for one block
	framePutv                        // payload for a table of blocks
	frameGet                         // asks for a table of blocks
	frameData                        // payload of a requested operation
	frameNotify                      // imm and message
	frameAck                         // everything up to a sequence number was dealt with
	frameRefuse                      // an operation's frame or request was refused
	frameCancel                      // requests of an operation need not be served any more
	frameBye                         // the sender closes the path
	frameTypes
)

// Flags of a frame.
const (
	flagNotify uint16 = 1 << iota // Put, Putv: deliver imm and message when the payload is in place
	flagEnd                       // Data: the last frame of a request
	flagCRC                       // payload and message are covered by the payload checksum
	flagPart                      // Put: the block goes on after this frame
	flagAck                       // frames of the other direction are acknowledged; any type but Ack
	flagBulk                      // Get: large, whatever it asks for
	flagKeys                      // Get: each entry of the table has a key of its own
	flagKnown  = flagNotify | flagEnd | flagCRC | flagPart | flagAck | flagBulk | flagKeys
)

// header is the fixed part of each frame. The meaning of where and imm depends on the type:
//
//	          where                          imm
//	Put       offset in the export           the notification's; with flagPart the bytes from here to the block's end
//	Putv      blocks<<32 | table checksum    the notification's
//	Get       offset in the first block      first block<<32 | blocks
//	Data      offset in the first block      first block
//	Notify    bytes of the operation         the notification's
//	Ack       sequence number                0
//	Refuse    bytes that will not come       reason
type header struct {
	typ     frameType
	flags   uint16
	msg     uint16 // bytes of message
	crc     uint32 // CRC32C of payload and message; of the table in a Get
	seq     uint32 // counts the frames of this stream and direction, from 0
	payload uint32 // bytes; of the table in a Get
	ack     uint16 // with flagAck: by how much the acknowledged sequence number grew
	op      uint64 // names the operation for its initiator, 48 bits
	key     path.Key
	where   uint64
	imm     uint64
}

func (h *header) put(b []byte) {
	b = b[:headerSize]
	binary.BigEndian.PutUint16(b[0:], frameMagic)
	b[2] = version
	b[3] = byte(h.typ)
	binary.BigEndian.PutUint16(b[4:], h.flags)
	binary.BigEndian.PutUint16(b[6:], h.msg)
	binary.BigEndian.PutUint32(b[8:], 0)
	binary.BigEndian.PutUint32(b[12:], h.crc)
	binary.BigEndian.PutUint32(b[16:], h.seq)
	binary.BigEndian.PutUint32(b[20:], h.payload)
	binary.BigEndian.PutUint64(b[24:], uint64(h.ack)<<48|h.op)
	binary.BigEndian.PutUint32(b[32:], h.key.Index)
	binary.BigEndian.PutUint32(b[36:], h.key.Epoch)
	binary.BigEndian.PutUint64(b[40:], h.key.Secret)
	binary.BigEndian.PutUint64(b[48:], h.where)
	binary.BigEndian.PutUint64(b[56:], h.imm)
	binary.BigEndian.PutUint32(b[8:], headerSum(b))
}

// headerSum is the CRC32C of the header without its own field (bytes 8 to 11).
func headerSum(b []byte) uint32 {
	return vec.CRC32C(vec.CRC32C(0, b[:8]), b[12:headerSize])
}

// Errors of the wire format. They are static: refusing a hostile peer costs nothing.
var (
	errMagic       = errors.New("frame does not start with the magic number")
	errVersion     = errors.New("frame of another version")
	errHeaderSum   = errors.New("header checksum does not match")
	errType        = errors.New("unknown frame type")
	errFlags       = errors.New("unknown frame flags")
	errSeq         = errors.New("frame out of sequence")
	errLength      = errors.New("frame longer than negotiated")
	errMessageSize = errors.New("message longer than negotiated")
	errShape       = errors.New("parts of the frame contradict each other")
	errBlocks      = errors.New("number of blocks outside what was negotiated")
	errTableSum    = errors.New("checksum of a request's table does not match")
	errRequests    = errors.New("more requests than the window permits")
	errUnknownOp   = errors.New("frame for an operation that is not waiting for it")
	errAck         = errors.New("acknowledgement of a frame that was not sent")
	errReason      = errors.New("unknown reason")
	errChecksum    = errors.New("frame without the checksum that was negotiated")
)

// parse reads and checks what can be checked without knowing the path's state.
func (h *header) parse(b []byte) error {
	b = b[:headerSize]
	if binary.BigEndian.Uint16(b[0:]) != frameMagic {
		return errMagic
	}
	if b[2] != version {
		return errVersion
	}
	if binary.BigEndian.Uint32(b[8:]) != headerSum(b) {
		return errHeaderSum
	}
	*h = header{
		typ:     frameType(b[3]),
		flags:   binary.BigEndian.Uint16(b[4:]),
		msg:     binary.BigEndian.Uint16(b[6:]),
		crc:     binary.BigEndian.Uint32(b[12:]),
		seq:     binary.BigEndian.Uint32(b[16:]),
		payload: binary.BigEndian.Uint32(b[20:]),
		ack:     binary.BigEndian.Uint16(b[24:]),
		op:      binary.BigEndian.Uint64(b[24:]) & (1<<48 - 1),
		key:     path.ParseKey(b[32:]),
		where:   binary.BigEndian.Uint64(b[48:]),
		imm:     binary.BigEndian.Uint64(b[56:]),
	}
	if h.typ == 0 || h.typ >= frameTypes {
		return errType
	}
	if h.flags&^flagKnown != 0 {
		return errFlags
	}
	return h.checkShape()
}

// checkShape refuses parts that the type does not have.
func (h *header) checkShape() error {
	var payload, notify, end bool
	switch h.typ {
	case framePut, framePutv:
		payload, notify = true, true
	case frameGet:
		payload = true
	case frameData:
		payload, end = true, true
	case frameNotify:
		notify = true
		if h.flags&flagNotify == 0 {
			return errShape
		}
	}
	if h.payload != 0 && !payload || h.flags&flagNotify != 0 && !notify || h.flags&flagEnd != 0 && !end {
		return errShape
	}
	if h.flags&flagAck != 0 && h.typ == frameAck || h.flags&flagAck == 0 && h.ack != 0 {
		return errShape
	}
	if h.flags&(flagBulk|flagKeys) != 0 && h.typ != frameGet {
		return errShape
	}
	if h.msg != 0 && h.flags&flagNotify == 0 {
		return errShape
	}
	if h.flags&flagPart != 0 && (h.typ != framePut || h.flags&flagNotify != 0 || h.imm < uint64(h.payload)) {
		return errShape
	}
	if h.msg > path.MaxMessage {
		return errMessageSize
	}
	if h.payload > maxFrameBytes {
		return errLength
	}
	return nil
}

// block is one entry of a table: where in the export, and how many bytes.
type block struct {
	off uint64
	n   uint32
}

func (k block) put(b []byte) {
	b = b[:blockSize]
	binary.BigEndian.PutUint64(b, k.off)
	binary.BigEndian.PutUint32(b[8:], k.n)
	binary.BigEndian.PutUint32(b[12:], 0)
}

func parseBlock(b []byte) block {
	b = b[:blockSize]
	return block{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])}
}

// want is a block that is asked for, and the export that it lies in. The table of a request has the
// keys only with flagKeys.
type want struct {
	block
	key path.Key
}

// entrySize is that of an entry of a request's table.
func (h *header) entrySize() int {
	if h.flags&flagKeys != 0 {
		return wantSize
	}
	return blockSize
}

func (h *header) putWant(b []byte, w want) {
	w.put(b)
	if h.flags&flagKeys != 0 {
		w.key.Append(b[:blockSize])
	}
}

func (h *header) parseWant(b []byte) want {
	w := want{parseBlock(b), h.key}
	if h.flags&flagKeys != 0 {
		w.key = path.ParseKey(b[blockSize:])
	}
	return w
}

// reason is why something was refused, on the wire.
type reason uint64

const (
	refusedKey reason = iota + 1
	refusedRevoked
	refusedRights
	refusedBounds
	refusedIntegrity
	refusedCanceled
	refusedUnreachable
	reasons
)

func reasonOf(err error) reason {
	switch err { // Resolve returns the bare errors
	case path.ErrRevoked:
		return refusedRevoked
	case path.ErrRights:
		return refusedRights
	case path.ErrBounds:
		return refusedBounds
	case path.ErrIntegrity:
		return refusedIntegrity
	case path.ErrCanceled:
		return refusedCanceled
	case path.ErrUnreachable:
		return refusedUnreachable
	}
	return refusedKey
}

var reasonErrors = [reasons]error{
	refusedKey:       fmt.Errorf("tcp: refused by the peer: %w", path.ErrKey),
	refusedRevoked:   fmt.Errorf("tcp: refused by the peer: %w", path.ErrRevoked),
	refusedRights:    fmt.Errorf("tcp: refused by the peer: %w", path.ErrRights),
	refusedBounds:    fmt.Errorf("tcp: refused by the peer: %w", path.ErrBounds),
	refusedIntegrity: fmt.Errorf("tcp: damaged on the way to the peer: %w", path.ErrIntegrity),
	refusedCanceled:  fmt.Errorf("tcp: %w", path.ErrCanceled),

	refusedUnreachable: fmt.Errorf("tcp: refused by the peer, whose CPU cannot reach this memory: %w",
		path.ErrUnreachable),
}

var errDamagedHere = fmt.Errorf("tcp: damaged on the way from the peer: %w", path.ErrIntegrity)

// What a hello says and asks.
const (
	helloChecksum uint32 = 1 << iota // wants the payload checksum
	_                                // not used
	helloSealed                      // after this handshake the sender encrypts, and expects the same
	helloFixed                       // the sender cannot follow a change of keys
	helloKnown    = helloChecksum | helloSealed | helloFixed
)

const nonceSize = 12

type helloKind uint8

const (
	kindHello helloKind = iota + 1
	kindAnswer
)

// status is the answer's verdict.
type status uint8

const (
	statusOK status = iota
	statusVersion
	statusToken
	statusMalformed
	statusPlain  // the listener requires encryption
	statusSealed // the listener has no secret to encrypt with
	statusUser   // the dialer belongs to another user of the machine
)

// hello opens each connection, from the dialer; the answer has the same form. The first 40 bytes
// mean the same in every version, so that sides of different versions can tell each other so.
type hello struct {
	version       uint8
	kind          helloKind
	status        status
	flags         uint32
	window        uint32
	token         setup.Token
	index, count  uint16          // which of how many connections
	frame, blocks uint32          // the most that the sender takes in one frame
	nonce         [nonceSize]byte // with helloSealed: random, so that no handshake is like another
}

func (h *hello) put(b []byte) {
	b = b[:helloSize]
	clear(b)
	binary.BigEndian.PutUint32(b[0:], helloMagic)
	b[4] = h.version
	b[5] = byte(h.kind)
	b[6] = byte(h.status)
	binary.BigEndian.PutUint32(b[8:], h.flags)
	binary.BigEndian.PutUint32(b[12:], h.window)
	copy(b[16:32], h.token[:])
	binary.BigEndian.PutUint16(b[32:], h.index)
	binary.BigEndian.PutUint16(b[34:], h.count)
	binary.BigEndian.PutUint32(b[40:], h.frame)
	binary.BigEndian.PutUint32(b[44:], h.blocks)
	copy(b[48:60], h.nonce[:])
	binary.BigEndian.PutUint32(b[60:], vec.CRC32C(0, b[:60]))
}

// parse reads a hello. With errVersion the fields that all versions share are filled in.
func (h *hello) parse(b []byte) error {
	b = b[:helloSize]
	if binary.BigEndian.Uint32(b) != helloMagic {
		return errMagic
	}
	if binary.BigEndian.Uint32(b[60:]) != vec.CRC32C(0, b[:60]) {
		return errHeaderSum
	}
	*h = hello{
		version: b[4], kind: helloKind(b[5]), status: status(b[6]),
		flags:  binary.BigEndian.Uint32(b[8:]),
		window: binary.BigEndian.Uint32(b[12:]),
		token:  setup.Token(b[16:32]),
		index:  binary.BigEndian.Uint16(b[32:]),
		count:  binary.BigEndian.Uint16(b[34:]),
		frame:  binary.BigEndian.Uint32(b[40:]),
		blocks: binary.BigEndian.Uint32(b[44:]),
		nonce:  [nonceSize]byte(b[48:60]),
	}
	if h.version != version {
		return errVersion
	}
	if h.flags&^helloKnown != 0 {
		return errFlags
	}
	if h.kind == kindAnswer && h.status != statusOK {
		return nil // the rest means nothing
	}
	if h.window < minWindow || h.frame < headerSize || h.blocks == 0 {
		return errShape
	}
	if h.kind == kindHello && (h.count == 0 || h.count > maxStreams || h.index >= h.count) {
		return errShape
	}
	return nil
}
