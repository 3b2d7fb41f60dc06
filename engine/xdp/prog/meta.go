package prog

import "encoding/binary"

// MetaSize is the size of what the program puts in front of a packet, in bytes.
const MetaSize = 24

// The layout, in the byte order of the machine.
const (
	metaMagicAt = 0
	metaRuleAt  = 4
	metaHashAt  = 8
	metaQueueAt = 12
	metaFlagsAt = 14
	metaTimeAt  = 16

	metaMagic = 0x504b4d31 // "PKM1": the last digit is the version of the layout
)

// The flags of a Meta.
const (
	metaHash = 1 << iota
	metaTime
)

// Meta is what the program says about a packet. AF_XDP copies it into the UMEM, where it ends at
// the first byte of the frame.
type Meta struct {
	Rule  uint32 // ID of the rule that accepted the packet; 0: none, or one without ID
	Queue uint16 // logical queue
	// Hash is the NIC's hash of the packet, and Time the NIC's receive time in nanoseconds, where
	// the driver has them.
	Hash    uint32
	Time    int64
	HasHash bool
	HasTime bool
}

// TakeMeta reads the Meta in the last MetaSize bytes of b, which are those in front of a frame, and
// wipes it, so that the next packet in this memory is not taken for one that has it. ok is false if
// there is none. It allocates nothing.
func TakeMeta(b []byte) (m Meta, ok bool) {
	if len(b) < MetaSize {
		return m, false
	}
	b = b[len(b)-MetaSize:]
	if binary.NativeEndian.Uint32(b[metaMagicAt:]) != metaMagic {
		return m, false
	}
	binary.NativeEndian.PutUint32(b[metaMagicAt:], 0)
	flags := binary.NativeEndian.Uint16(b[metaFlagsAt:])
	return Meta{
		Rule:    binary.NativeEndian.Uint32(b[metaRuleAt:]),
		Queue:   binary.NativeEndian.Uint16(b[metaQueueAt:]),
		Hash:    binary.NativeEndian.Uint32(b[metaHashAt:]),
		Time:    int64(binary.NativeEndian.Uint64(b[metaTimeAt:])),
		HasHash: flags&metaHash != 0,
		HasTime: flags&metaTime != 0,
	}, true
}
