package verbs

import (
	"github.com/penstock-io/penstock/transfer/path"
)

// cursor is how far an operation has been cut into pieces.
type cursor struct {
	block int
	off   uint64 // bytes of the block
}

// piece is what one request moves: n bytes of a block from off.
type piece struct {
	block int
	off   uint64
	n     uint64
}

// granule is the size of the parts in which local memory is registered: no piece crosses from one
// to the next. A small region is registered at once, of a large one what is used.
const granule = 256 << 20

// next cuts the next piece off: at most limit bytes, within one block and one granule of its
// region.
func (c *cursor) next(copies []path.Copy, limit uint64) (piece, bool) {
	for c.block < len(copies) {
		s := &copies[c.block].Local
		if c.off >= s.Len {
			c.block, c.off = c.block+1, 0
			continue
		}
		at := s.Off + c.off
		n := min(s.Len-c.off, limit, granule-at%granule)
		p := piece{c.block, c.off, n}
		c.off += n
		return p, true
	}
	return piece{}, false
}

// done says that nothing is left. What is left may be blocks without bytes.
func (c *cursor) done(copies []path.Copy) bool {
	for c.block < len(copies) && c.off >= copies[c.block].Local.Len {
		c.block, c.off = c.block+1, 0
	}
	return c.block >= len(copies)
}
