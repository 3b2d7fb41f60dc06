package ethtool

import (
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
)

// RSS is receive-side scaling (kernel: networking/scaling.rst): a packet's hash, modulo the table's
// length, is the place in the table of the queue that it goes to.
type RSS struct {
	Table    []uint32 // queues
	Key      []byte   // of the hash, 40 bytes in most cards
	Function uint8    // bit 0: Toeplitz, bit 1: XOR, bit 2: CRC32
	// Symmetric: the hash is made the same for both directions of a connection, by exclusive or of
	// the fields.
	Symmetric bool
}

const (
	rssHeader   = 24         // struct ethtool_rxfh, before the table
	rssNoChange = 0xffffffff // ETH_RXFH_INDIR_NO_CHANGE
	rssMost     = 1 << 16    // entries of a table, bytes of a key: more than any card has
)

// Default reports whether the table is what the kernel makes by itself for so many queues: entry i
// is i modulo their number (ethtool_rxfh_indir_default).
func (r RSS) Default(queues int) bool {
	for i, q := range r.Table {
		if queues <= 0 || int(q) != i%queues {
			return false
		}
	}
	return len(r.Table) > 0
}

// RSS asks for the table and the key.
func (d *Device) RSS() (r RSS, err error) {
	b := make([]byte, rssHeader)
	if err := d.do("RSS", cmdRSS, b); err != nil {
		return r, err
	}
	entries, key := native.Uint32(b[8:]), native.Uint32(b[12:])
	if entries > rssMost || key > rssMost {
		return r, d.wrap("RSS", fmt.Errorf("table of %d entries, key of %d bytes: %w", entries, key, ErrMalformed))
	}
	if entries == 0 && key == 0 {
		return r, d.wrap("RSS", sys.EOPNOTSUPP)
	}
	b = make([]byte, rssHeader+4*int(entries)+int(key))
	native.PutUint32(b[8:], entries)
	native.PutUint32(b[12:], key)
	if err := d.do("RSS", cmdRSS, b); err != nil {
		return r, err
	}
	r.Function, r.Symmetric = b[16], b[17]&1 != 0
	for i := range int(entries) {
		r.Table = append(r.Table, native.Uint32(b[rssHeader+4*i:]))
	}
	r.Key = append([]byte(nil), b[rssHeader+4*int(entries):]...)
	return r, nil
}

// SetRSSTable changes the table, which must have the device's length. nil gives the table back to
// the kernel, which spreads evenly and follows changes of the channels.
func (d *Device) SetRSSTable(table []uint32) error {
	b := make([]byte, rssHeader+4*len(table))
	native.PutUint32(b[8:], uint32(len(table)))
	for i, q := range table {
		native.PutUint32(b[rssHeader+4*i:], q)
	}
	return d.do(fmt.Sprintf("RSS table of %d entries", len(table)), cmdSetRSS, b)
}

// HashFields are the parts of a packet that go into its RSS hash.
type HashFields uint32

// The fields (RXH_* of linux/ethtool.h).
const (
	HashMAC     HashFields = 1 << 1 // destination
	HashVLAN    HashFields = 1 << 2
	HashProto   HashFields = 1 << 3
	HashSrc     HashFields = 1 << 4
	HashDst     HashFields = 1 << 5
	HashSrcPort HashFields = 1 << 6
	HashDstPort HashFields = 1 << 7

	// HashTuple is addresses and ports.
	HashTuple = HashSrc | HashDst | HashSrcPort | HashDstPort
)

// hashLetters are the fields in the letters of ethtool(8), bit 1 first.
const hashLetters = "mvtsdfn"

// String is the fields in the letters of ethtool(8), rx-flow-hash: "sdfn" is addresses and ports;
// empty: none.
func (f HashFields) String() string {
	var b []byte
	for i := range len(hashLetters) {
		if f>>(i+1)&1 != 0 {
			b = append(b, hashLetters[i])
		}
	}
	return string(b)
}

// ParseHashFields reads the form of String.
func ParseHashFields(s string) (f HashFields, err error) {
	for _, c := range []byte(s) {
		i := strings.IndexByte(hashLetters, c)
		if i < 0 {
			return 0, fmt.Errorf("ethtool: hash of %q: expected letters of %q", s, hashLetters)
		}
		f |= 1 << (i + 1)
	}
	return f, nil
}

// HashFields asks which fields of packets of a type go into the hash.
func (d *Device) HashFields(t FlowType) (HashFields, error) {
	b := make([]byte, rxnfcLen)
	native.PutUint32(b[4:], uint32(t))
	err := d.do(fmt.Sprintf("hash of %v", t), cmdHashFields, b)
	return HashFields(native.Uint64(b[8:])), err
}

// SetHashFields changes them. Many cards can do only addresses, with both ports or with none.
func (d *Device) SetHashFields(t FlowType, f HashFields) error {
	b := make([]byte, rxnfcLen)
	native.PutUint32(b[4:], uint32(t))
	native.PutUint64(b[8:], uint64(f))
	return d.do(fmt.Sprintf("hash of %v", t), cmdSetHashFields, b)
}

// RxQueues is how many receive queues the driver spreads over.
func (d *Device) RxQueues() (int, error) {
	b := make([]byte, rxnfcLen)
	err := d.do("receive queues", cmdRxQueues, b)
	return int(native.Uint64(b[8:])), err
}
