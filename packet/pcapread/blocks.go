package pcapread

import (
	"bufio"
	"encoding/binary"
	"fmt"
)

// Blocks of pcapng.
const (
	sectionBlock, interfaceBlock = 0x0a0d0d0a, 1
	nameBlock, secretsBlock      = 4, 10
	byteOrder                    = 0x1a2b3c4d

	maxBlock      = 16 << 20 // bytes
	maxInterfaces = 4096     // of a section
)

// blocks passes on the bytes of a pcapng file, and checks the length of each block before. It
// changes the type of those blocks that the parser would keep to one that it skips.
type blocks struct {
	r          *bufio.Reader
	order      binary.ByteOrder
	at, end    int64 // where in the file the next byte is, and the end of its block
	interfaces int   // of the section
}

// Read implements io.Reader.
func (b *blocks) Read(p []byte) (int, error) {
	if b.at == b.end {
		if err := b.begin(); err != nil {
			return 0, err
		}
	}
	n, err := b.r.Read(p[:min(int64(len(p)), max(b.end-b.at, 0))])
	b.at += int64(n)
	return n, err
}

// begin looks at the head of a block. One that the end of the file cuts the parser refuses.
func (b *blocks) begin() error {
	h, _ := b.r.Peek(12)
	b.end = b.at + 12
	if len(h) < 4 {
		return nil
	}
	kind := b.order.Uint32(h)
	if kind == nameBlock || kind == secretsBlock {
		b.order.PutUint32(h, 0x7fffffff) // reserved for local use
	}
	if len(h) < 12 {
		return nil
	}
	if kind == sectionBlock { // the same in both orders
		b.interfaces, b.order = 0, binary.LittleEndian
		if binary.BigEndian.Uint32(h[8:]) == byteOrder {
			b.order = binary.BigEndian
		}
	}
	n := b.order.Uint32(h[4:])
	if n < 12 || n%4 != 0 || n > maxBlock {
		return fmt.Errorf("the block at byte %d has a length of %d bytes: expected 12 to %d, a multiple of 4", b.at, n,
			maxBlock)
	}
	if kind == interfaceBlock {
		if b.interfaces++; b.interfaces > maxInterfaces {
			return fmt.Errorf("the block at byte %d: expected at most %d interfaces in a section", b.at, maxInterfaces)
		}
	}
	b.end = b.at + int64(n)
	return nil
}
