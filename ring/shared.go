package ring

import (
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
)

// ErrCorrupt reports that the shared part of a ring holds a value that no honest
// peer could have written. The side that saw it answers ErrCorrupt to every later
// call; the mapping has to be given up. Match it with errors.Is.
var ErrCorrupt = errors.New("ring: shared memory corrupt: peer wrote an impossible index or header")

// Layout of the cell ring in shared memory, in bytes from the start. Words are
// 64-bit, in the machine's byte order.
//
//	0    tail: tickets put so far, written by the writer
//	128  head: tickets got so far, written by the reader
//	256  cells: ticket t lies at 256 + (t mod cells)*cellSize
const (
	sharedTail  = 0
	sharedHead  = sharedTail + lineSize
	sharedCells = sharedHead + lineSize
)

// Either line fails to compile if the layout breaks its rules: every part on a
// line of its own, cells aligned.
const (
	_ = uint(sharedHead - sharedTail - lineSize)
	_ = uint(sharedCells - sharedHead - lineSize)
	_ = uint(0 - sharedCells%shareAlign)
)

// Limits of a shared cell ring.
const (
	CellAlign      = 64      // cell sizes are multiples of this many bytes
	MaxCellSize    = 1 << 20 // bytes
	MaxSharedCells = 1 << 24
)

// SharedSize returns how many bytes of shared memory a ring of cells cells of
// cellSize bytes takes, or 0 if the ring cannot exist: cells must be a power of
// two up to MaxSharedCells and cellSize a multiple of CellAlign up to MaxCellSize.
func SharedSize(cells, cellSize int) int {
	if cells < 1 || cells > MaxSharedCells || cells&(cells-1) != 0 ||
		cellSize < CellAlign || cellSize > MaxCellSize || cellSize%CellAlign != 0 {
		return 0
	}
	return sharedCells + cells*cellSize
}

// shared is what both sides of a cell ring have: private, except for the bytes
// behind own, peer and cells.
type shared struct {
	own, peer *atomic.Uint64 // ticket that this side writes; ticket that the peer writes
	cells     []byte
	cellSize  uint64
	count     uint64 // cells, a power of two
	mask      uint64
	ticket    uint64 // this side's ticket: the truth, of which *own is a copy for the peer
	seen      uint64 // the peer's ticket when last looked at and found possible
	err       error  // ErrCorrupt once seen

	_ [lineSize]byte // the other side's struct may be our neighbour on the heap
}

func (s *shared) init(name string, mem []byte, cellSize, own, peer int, start uint64) error {
	if cellSize < CellAlign || cellSize > MaxCellSize || cellSize%CellAlign != 0 {
		return fmt.Errorf("ring: %s: cell size %d: want a multiple of %d up to %d bytes", name, cellSize, CellAlign, MaxCellSize)
	}
	cells := (len(mem) - sharedCells) / cellSize
	if len(mem) < sharedCells || SharedSize(cells, cellSize) != len(mem) {
		return fmt.Errorf("ring: %s: %d bytes of memory do not make a ring of %d-byte cells: want %d + %d*n bytes, n a power of two up to %d (SharedSize tells)",
			name, len(mem), cellSize, sharedCells, cellSize, MaxSharedCells)
	}
	if err := checkAligned(name, mem); err != nil {
		return err
	}
	s.own, s.peer = wordAt(mem, own), wordAt(mem, peer)
	s.cells = mem[sharedCells:]
	s.cellSize = uint64(cellSize)
	s.count = uint64(cells)
	s.mask = s.count - 1
	s.ticket, s.seen = start, start
	return nil
}

// split returns the one or two stretches of memory that hold n cells from ticket
// t on. Only private numbers decide where they lie.
func (s *shared) split(t, n uint64) (first, second []byte) {
	off := (t & s.mask) * s.cellSize
	size := n * s.cellSize
	if end := uint64(len(s.cells)); size > end-off {
		return s.cells[off:], s.cells[:size-(end-off)]
	}
	return s.cells[off : off+size], nil
}

// whole returns how many cells a caller's slice of n bytes holds, or an error if
// that is not a whole number.
func (s *shared) whole(op string, n int) (uint64, error) {
	cells := uint64(n) / s.cellSize
	if cells*s.cellSize != uint64(n) {
		return 0, fmt.Errorf("ring: %s: %d bytes are not a whole number of %d-byte cells", op, n, s.cellSize)
	}
	return cells, nil
}

// corrupt marks the ring as unusable.
func (s *shared) corrupt() error {
	s.err = ErrCorrupt
	return s.err
}

// SharedWriter is the producing side of a ring of fixed-size cells in memory that
// is shared with another process. It is for one goroutine at a time. No call
// allocates, except to report a slice of the wrong size.
type SharedWriter struct{ shared }

// NewSharedWriter returns the producing side over mem, whose length is what
// SharedSize gave, which was all zero when the two sides agreed to use it, and
// which starts on a multiple of 64 bytes. Each side attaches once: a ring cannot
// be taken over. The caller keeps mem mapped while the writer is in use.
func NewSharedWriter(mem []byte, cellSize int) (*SharedWriter, error) {
	return newSharedWriter(mem, cellSize, 0)
}

func newSharedWriter(mem []byte, cellSize int, start uint64) (*SharedWriter, error) {
	w := new(SharedWriter)
	if err := w.init("NewSharedWriter", mem, cellSize, sharedTail, sharedHead, start); err != nil {
		return nil, err
	}
	return w, nil
}

// Put copies one cell in and reports whether there was room. len(cell) must be
// the cell size.
func (w *SharedWriter) Put(cell []byte) (bool, error) {
	if uint64(len(cell)) != w.cellSize {
		return false, fmt.Errorf("ring: SharedWriter.Put: %d bytes: want one cell of %d", len(cell), w.cellSize)
	}
	n, err := w.PutBatch(cell)
	return n == 1, err
}

// PutBatch copies the first cells of src in, as many as there is room for, and
// returns their number; they appear to the reader at once. len(src) must be a
// multiple of the cell size.
func (w *SharedWriter) PutBatch(src []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	n, err := w.whole("SharedWriter.PutBatch", len(src))
	if err != nil {
		return 0, err
	}
	if w.count-(w.ticket-w.seen) < n {
		h := w.peer.Load()
		// The reader's ticket only grows, and never beyond what we put.
		if h-w.seen > w.ticket-w.seen {
			return 0, w.corrupt()
		}
		w.seen = h
		n = min(n, w.count-(w.ticket-h))
	}
	if n == 0 {
		return 0, nil
	}
	a, b := w.split(w.ticket, n)
	copy(b, src[copy(a, src):])
	w.ticket += n
	w.own.Store(w.ticket)
	return int(n), nil
}

// Cap returns how many cells the ring can hold.
func (w *SharedWriter) Cap() int { return int(w.count) }

// SharedReader is the consuming side of a ring of fixed-size cells in memory that
// is shared with another process. It is for one goroutine at a time. No call
// allocates, except to report a slice of the wrong size.
type SharedReader struct{ shared }

// NewSharedReader returns the consuming side over mem; see NewSharedWriter for
// what mem must be.
func NewSharedReader(mem []byte, cellSize int) (*SharedReader, error) {
	return newSharedReader(mem, cellSize, 0)
}

func newSharedReader(mem []byte, cellSize int, start uint64) (*SharedReader, error) {
	r := new(SharedReader)
	if err := r.init("NewSharedReader", mem, cellSize, sharedHead, sharedTail, start); err != nil {
		return nil, err
	}
	return r, nil
}

// Get copies the oldest cell out into dst and reports whether there was one.
// len(dst) must be the cell size.
func (r *SharedReader) Get(dst []byte) (bool, error) {
	if uint64(len(dst)) != r.cellSize {
		return false, fmt.Errorf("ring: SharedReader.Get: %d bytes: want one cell of %d", len(dst), r.cellSize)
	}
	n, err := r.GetBatch(dst)
	return n == 1, err
}

// GetBatch copies the oldest cells out into dst, as many as there are and as dst
// has room for, and returns their number. len(dst) must be a multiple of the cell
// size. Afterwards dst is private: the peer cannot change it any more.
func (r *SharedReader) GetBatch(dst []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.whole("SharedReader.GetBatch", len(dst))
	if err != nil {
		return 0, err
	}
	if r.seen-r.ticket < n {
		t := r.peer.Load()
		// The writer's ticket only grows, and never beyond what has room.
		if t-r.ticket > r.count || t-r.ticket < r.seen-r.ticket {
			return 0, r.corrupt()
		}
		r.seen = t
		n = min(n, t-r.ticket)
	}
	if n == 0 {
		return 0, nil
	}
	a, b := r.split(r.ticket, n)
	copy(dst[copy(dst, a):], b)
	r.ticket += n
	r.own.Store(r.ticket)
	return int(n), nil
}

// Ready reports whether the next Get has something to say: a cell, or an error.
// It is one load, for pollers.
func (r *SharedReader) Ready() bool {
	return r.seen != r.ticket || r.err != nil || r.peer.Load() != r.ticket
}

// Cap returns how many cells the ring can hold.
func (r *SharedReader) Cap() int { return int(r.count) }

// roundCells returns cells rounded up to a power of two that is at least low.
func roundCells(cells, low int) int {
	if cells <= low {
		return low
	}
	return 1 << bits.Len(uint(cells-1))
}
