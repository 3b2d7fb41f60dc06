package ibv

import (
	"bytes"
	"math/bits"
)

// fromBE32 turns a value that the library keeps in network order into an integer. It is its own
// inverse.
func fromBE32(v uint32) uint32 { return bits.ReverseBytes32(v) }

// text is a string of C in an array.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
