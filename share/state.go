package share

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"

	"github.com/penstock-io/penstock/mem/vec"
)

// claim says what a partial file shall become.
type claim struct {
	name string
	size uint64
	tag  Tag
}

// chunkSize is the unit of what a state file vouches for, in bytes.
const chunkSize = 4 << 20

// chunksOf is how many chunks so many bytes have.
func chunksOf(size uint64) uint64 { return (size + chunkSize - 1) / chunkSize }

// end is where chunk i ends.
func (c *claim) end(i uint64) uint64 { return min((i+1)*chunkSize, c.size) }

// The state file is text, so that a person can read what a partial file is:
//
//	penstock partial file 1
//	name "weights.bin"
//	size 12000000
//	tag 000102030405060708090a0b0c0d0e0f
//	chunk 4194304
//	head 1a2b3c4d
//	5e6f7a8b 9cadbecf
//	...
//
// "head" is the CRC-32C of the lines before it. Each line behind it vouches for one chunk, from the
// first on: the CRC-32C of the chunk, and a check, the CRC-32C of head, number and checksum of the
// chunk in big-endian bytes. A line that is torn or damaged ends the list, so it may be appended to
// without being synced.
const (
	stateMagic = "penstock partial file 1\n"
	recordSize = 18
	maxHead    = 2048
)

// appendHead writes the head of a state file and returns its checksum.
func (c *claim) appendHead(b []byte) ([]byte, uint32) {
	at := len(b)
	b = append(b, stateMagic...)
	b = fmt.Appendf(b, "name %q\nsize %d\ntag %v\nchunk %d\n", c.name, c.size, c.tag, chunkSize)
	head := vec.CRC32C(0, b[at:])
	return fmt.Appendf(b, "head %08x\n", head), head
}

// appendRecord vouches for chunk i.
func appendRecord(b []byte, head uint32, i uint64, sum uint32) []byte {
	return fmt.Appendf(b, "%08x %08x\n", sum, recordCheck(head, i, sum))
}

func recordCheck(head uint32, i uint64, sum uint32) uint32 {
	var b [16]byte
	binary.BigEndian.PutUint32(b[:], head)
	binary.BigEndian.PutUint64(b[4:], i)
	binary.BigEndian.PutUint32(b[12:], sum)
	return vec.CRC32C(0, b[:])
}

// parseState reads a state file, which may be torn or damaged anywhere. ok is false when it says
// nothing; sums are the checksums of the first chunks, as many as it vouches for, and at most as
// many as the size allows. headLen is the length of what is before the first of them.
func parseState(b []byte) (c claim, sums []uint32, headLen int, ok bool) {
	rest, found := bytes.CutPrefix(b[:min(len(b), maxHead)], []byte(stateMagic))
	if !found {
		return claim{}, nil, 0, false
	}
	field := func(key string) string {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		value, is := bytes.CutPrefix(line, []byte(key+" "))
		if !whole || !is {
			found = false
			return ""
		}
		rest = after
		return string(value)
	}
	name, err := strconv.Unquote(field("name"))
	if err != nil || len(name) > MaxName {
		return claim{}, nil, 0, false
	}
	c.name = name
	if c.size, err = strconv.ParseUint(field("size"), 10, 64); err != nil || c.size > math.MaxInt64-chunkSize {
		return claim{}, nil, 0, false
	}
	tag, err := hex.DecodeString(field("tag"))
	if err != nil || len(tag) != len(c.tag) || field("chunk") != strconv.Itoa(chunkSize) || !found {
		return claim{}, nil, 0, false
	}
	copy(c.tag[:], tag)
	// One state has one form: what is written again has to be the same.
	want, head := c.appendHead(nil)
	if !bytes.HasPrefix(b, want) {
		return claim{}, nil, 0, false
	}
	b = b[len(want):]
	for i := uint64(0); i < chunksOf(c.size) && len(b) >= recordSize; i++ {
		sum, err := strconv.ParseUint(string(b[:8]), 16, 32)
		if err != nil || !bytes.Equal(b[:recordSize], appendRecord(nil, head, i, uint32(sum))) {
			break
		}
		sums = append(sums, uint32(sum))
		b = b[recordSize:]
	}
	return c, sums, len(want), true
}
