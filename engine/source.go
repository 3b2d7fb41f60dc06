package engine

import (
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// setSource writes the Ethernet source address of packet i, wherever its segments end, for a
// transmit queue with TxSpec.SourceMAC. It is false, and the packet unchanged, where the CPU does
// not reach these bytes or the packet has fewer.
func setSource(b *burst.Burst, i int, mac packet.MAC) bool {
	const from, to = 6, 12
	if b.Segments(i) > 0 {
		if first := b.Bytes(i, 0); len(first) >= to {
			copy(first[from:to], mac[:])
			return true
		}
	}
	at := 0
	for k := range b.Segments(i) {
		n := int(b.Builder().Part(i, k).Len)
		if n > 0 && at < to && at+n > from && b.Bytes(i, k) == nil {
			return false
		}
		at += n
	}
	if at < to {
		return false
	}
	at = 0
	for k := 0; at < to; k++ {
		p := b.Bytes(i, k)
		n := int(b.Builder().Part(i, k).Len)
		if begin := max(from, at); at+n > from {
			copy(p[begin-at:], mac[begin-from:])
		}
		at += n
	}
	return true
}
