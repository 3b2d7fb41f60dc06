package observe

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// ID names a transfer on both sides, in events, snapshots and errors.
type ID [16]byte

// NewID makes the ID of the nth transfer that the instance of a node began.
func NewID(instance, n uint64) ID {
	var id ID
	binary.BigEndian.PutUint64(id[:], instance)
	binary.BigEndian.PutUint64(id[8:], n)
	return id
}

// String gives 32 hexadecimal digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Instance is the instance of the node that began the transfer.
func (id ID) Instance() uint64 { return binary.BigEndian.Uint64(id[:]) }

// Number counts the transfers of that instance.
func (id ID) Number() uint64 { return binary.BigEndian.Uint64(id[8:]) }

// MarshalText gives the 32 hexadecimal digits of String.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads them.
func (id *ID) UnmarshalText(b []byte) error {
	if n, err := hex.Decode(id[:], b[:min(len(b), 2*len(id))]); err != nil || n != len(id) || len(b) != 2*len(id) {
		return fmt.Errorf("observe: id %q: expected %d hexadecimal digits", b, 2*len(id))
	}
	return nil
}
