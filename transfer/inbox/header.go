package inbox

import (
	"encoding/binary"

	"github.com/penstock-io/penstock/transfer/path"
)

// HeaderSize is the length in bytes of what precedes the caller's message in a notification: kind
// (1), tag (4), number of the transfer (8), bytes of the whole transfer (8), all big-endian. It
// fits into the first cell of a message over shared memory.
const HeaderSize = 21

// Header says of which transfer a notification is.
type Header struct {
	Kind   path.OpKind
	Tag    uint32
	Number uint64
	Bytes  uint64
}

// Append appends the header to b.
func (h Header) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(append(b, byte(h.Kind)), h.Tag)
	b = binary.BigEndian.AppendUint64(b, h.Number)
	return binary.BigEndian.AppendUint64(b, h.Bytes)
}

// Parse reads the header of a notification, and returns the message behind it. It returns false
// when that is shorter than a header.
func Parse(b []byte) (h Header, msg []byte, ok bool) {
	if len(b) < HeaderSize {
		return h, nil, false
	}
	h = Header{path.OpKind(b[0]), binary.BigEndian.Uint32(b[1:]), binary.BigEndian.Uint64(b[5:]),
		binary.BigEndian.Uint64(b[13:])}
	return h, b[HeaderSize:], true
}
