package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
)

// ErrCorrupt reports that the shared part of a ring holds a value that no honest
// peer could have written. The side that saw it answers ErrCorrupt to every later
// call; the mapping has to be given up. Match it with errors.Is.
var ErrCorrupt = errors.New("ring: shared memory corrupt: peer wrote an impossible index or header")

// Layout of the message ring in shared memory, in bytes from the start. Words are
// 64-bit, in the machine's byte order.
//
//	0    head: cells got so far, written by the reader, read by the writer only
//	     when the ring looks full to it
//	128  cells of 64 bytes: ticket t lies at 128 + (t mod cells)*64
//
// A message takes consecutive tickets, which may wrap from the last cell to the
// first. Every cell starts with its commit word:
//
//	bits 24-63  ticket+1, low 40 bits
//	bits  8-23  length of the payload in bytes; 0xffff in cells after the first
//	bits  0-7   kind, chosen by the user;       0xff in cells after the first
//
// First cell: commit word, four words of the user, the first 24 bytes of payload.
// Further cells: commit word, the next 56 bytes of payload.
//
// The commit word of the first cell is stored last, so a reader that polls it sees
// the whole message or nothing, and reads no other line to know. Payload never
// lies on a commit word, and every cell gets one in every lap: a stale word is
// always exactly one lap old (or zero in the first lap), which is why 40 bits of
// ticket are enough and why anything else proves that the peer broke the rules.
const (
	messagesHead  = 0
	messagesCells = messagesHead + lineSize

	cellSize   = 64
	commitSize = 8
	wordsSize  = 8 * MessageWords

	firstPayload = cellSize - commitSize - wordsSize // payload bytes in the first cell
	nextPayload  = cellSize - commitSize             // in each further cell

	seqShift = 24
	seqMask  = 1<<(64-seqShift) - 1
	contTag  = 1<<seqShift - 1 // length and kind of a commit word after the first
)

// Limits of a message ring.
const (
	MessageWords = 4    // 64-bit words in every message
	MaxPayload   = 1024 // bytes of payload in one message

	MinMessageCells = 32 // room for the longest message, and a power of two
	MaxMessageCells = 1 << 24
)

// A line fails to compile if the layout breaks its rules: cells are lines, a
// 48-byte message (words and payload) fits in one, the longest message in the
// smallest ring, its length in its bits, and no length looks like a later cell.
const (
	_ = uint(0 - messagesCells%shareAlign)
	_ = uint(messagesCells - messagesHead - lineSize)
	_ = uint(0 - (cellSize - commitSize - wordsSize - firstPayload))
	_ = uint(wordsSize + firstPayload - 48)
	_ = uint(MinMessageCells - (1 + (MaxPayload-firstPayload+nextPayload-1)/nextPayload))
	_ = uint(1<<16 - 1 - 1 - MaxPayload)
)

// MessagesSize returns how many bytes of shared memory a message ring of at least
// cells cells takes: cells is rounded up to a power of two, at least
// MinMessageCells. It returns 0, which the constructors refuse, for more than
// MaxMessageCells or less than 1. A message takes MessageCells of its payload.
func MessagesSize(cells int) int {
	if cells < 1 || cells > MaxMessageCells {
		return 0
	}
	return messagesCells + roundCells(cells, MinMessageCells)*cellSize
}

// MessageCells returns how many cells a message with that many bytes of payload takes.
func MessageCells(payload int) int {
	if payload <= firstPayload {
		return 1
	}
	return 1 + (payload-firstPayload+nextPayload-1)/nextPayload
}

// Message is one message as the reader gets it: private memory of the caller, used
// again for the next Get. It takes a little over 1 KiB; keep one per reader.
type Message struct {
	Kind  uint8                // as given to Put
	Len   uint16               // bytes of payload, at most MaxPayload
	Words [MessageWords]uint64 // as given to Put
	Data  [MaxPayload]byte     // the payload is Data[:Len]; the rest is left over from earlier messages
}

// Payload returns the payload, valid until the next Get into m. A Len that the
// caller made larger than MaxPayload counts as MaxPayload.
func (m *Message) Payload() []byte { return m.Data[:min(int(m.Len), MaxPayload)] }

// messageCells checks mem and returns its cells and their number.
func messageCells(name string, mem []byte) ([]byte, uint64, error) {
	n := (len(mem) - messagesCells) / cellSize
	if len(mem) < messagesCells || n < MinMessageCells || MessagesSize(n) != len(mem) {
		return nil, 0, fmt.Errorf("ring: %s: %d bytes of memory do not make a message ring: want %d + %d*n bytes, n "+
			"a power of two from %d to %d (MessagesSize tells)",
			name, len(mem), messagesCells, cellSize, MinMessageCells, MaxMessageCells)
	}
	if err := checkAligned(name, mem); err != nil {
		return nil, 0, err
	}
	return mem[messagesCells:], uint64(n), nil
}

// MessagesWriter is the producing side of a message ring in memory that is shared
// with another process. It is for one goroutine at a time. Put does not allocate,
// except to report a payload that is too long.
type MessagesWriter struct {
	cells  []byte
	head   *atomic.Uint64 // written by the reader
	mask   uint64
	ticket uint64 // next cell: the truth, nowhere in shared memory
	seen   uint64 // head when last looked at and found possible
	err    error  // ErrCorrupt once seen

	_ [lineSize]byte // the reader's struct may be our neighbour on the heap
}

// NewMessagesWriter returns the producing side over mem, whose length is what
// MessagesSize gave, which was all zero when the two sides agreed to use it, and
// which starts on a multiple of 64 bytes. Each side attaches once: a ring cannot
// be taken over. The caller keeps mem mapped while the writer is in use.
func NewMessagesWriter(mem []byte) (*MessagesWriter, error) {
	return newMessagesWriter(mem, 0)
}

func newMessagesWriter(mem []byte, start uint64) (*MessagesWriter, error) {
	cells, n, err := messageCells("NewMessagesWriter", mem)
	if err != nil {
		return nil, err
	}
	return &MessagesWriter{cells: cells, head: wordAt(mem, messagesHead), mask: n - 1, ticket: start, seen: start}, nil
}

// commitOf is the ticket part of the commit word of ticket t.
func commitOf(t uint64) uint64 { return (t + 1) << seqShift }

// Put sends one message and reports whether there was room; if not, nothing was
// written. kind and the words a to d mean what the user wants. The payload is
// copied; it may be empty and is at most MaxPayload bytes. The error is
// ErrCorrupt, or says that the payload is too long.
func (w *MessagesWriter) Put(kind uint8, a, b, c, d uint64, payload []byte) (bool, error) {
	if len(payload) > MaxPayload {
		return false, fmt.Errorf("ring: MessagesWriter.Put: payload of %d bytes: at most %d fit in a message",
			len(payload), MaxPayload)
	}
	n := uint64(MessageCells(len(payload)))
	t := w.ticket
	if t+n-w.seen > w.mask+1 {
		ok, err := w.refresh(n)
		if !ok {
			return false, err
		}
	}
	off := int(t&w.mask) * cellSize
	first := w.cells[off : off+cellSize : off+cellSize]
	binary.NativeEndian.PutUint64(first[8:], a)
	binary.NativeEndian.PutUint64(first[16:], b)
	binary.NativeEndian.PutUint64(first[24:], c)
	binary.NativeEndian.PutUint64(first[32:], d)
	rest := payload[copy(first[commitSize+wordsSize:], payload):]
	for i := t + 1; i != t+n; i++ {
		o := int(i&w.mask) * cellSize
		cell := w.cells[o : o+cellSize : o+cellSize]
		binary.NativeEndian.PutUint64(cell, commitOf(i)|contTag)
		rest = rest[copy(cell[commitSize:], rest):]
	}
	w.ticket = t + n
	wordAt(w.cells, off).Store(commitOf(t) | uint64(len(payload))<<8 | uint64(kind))
	return true, nil
}

// refresh looks at the reader's head and reports whether n cells are free now.
func (w *MessagesWriter) refresh(n uint64) (bool, error) {
	if w.err != nil {
		return false, w.err
	}
	h := w.head.Load()
	// The reader's head only grows, and never beyond what we put.
	if h-w.seen > w.ticket-w.seen {
		w.err = ErrCorrupt
		w.seen = w.ticket - (w.mask + 1) // looks full from now on, so that every Put comes here
		return false, w.err
	}
	w.seen = h
	return w.ticket+n-h <= w.mask+1, nil
}

// Cells returns how many cells the ring has.
func (w *MessagesWriter) Cells() int { return int(w.mask + 1) }

// MessagesReader is the consuming side of a message ring in memory that is shared
// with another process. It is for one goroutine at a time. No call allocates.
type MessagesReader struct {
	commit *atomic.Uint64 // commit word of the next cell
	idle   uint64         // ticket part of that word while there is nothing to get
	ticket uint64         // next cell: the truth, of which *head is a copy for the writer
	laps   bool           // the first lap is over
	start  uint64         // ticket of the first cell ever
	cells  []byte
	head   *atomic.Uint64
	mask   uint64
	err    error // ErrCorrupt once seen

	_ [lineSize]byte // the writer's struct may be our neighbour on the heap
}

// NewMessagesReader returns the consuming side over mem; see NewMessagesWriter for
// what mem must be.
func NewMessagesReader(mem []byte) (*MessagesReader, error) {
	return newMessagesReader(mem, 0)
}

// newMessagesReader starts the tickets at start, so that tests reach the wraps of
// 2^40 and 2^64. A wrap must not come in the first lap, where zero means untouched.
func newMessagesReader(mem []byte, start uint64) (*MessagesReader, error) {
	cells, n, err := messageCells("NewMessagesReader", mem)
	if err != nil {
		return nil, err
	}
	r := &MessagesReader{cells: cells, head: wordAt(mem, messagesHead), mask: n - 1, ticket: start, start: start}
	r.aim()
	return r, nil
}

// aim prepares commit and idle for the cell at ticket.
func (r *MessagesReader) aim() {
	r.commit = wordAt(r.cells, int(r.ticket&r.mask)*cellSize)
	if !r.laps && r.ticket-r.start > r.mask {
		r.laps = true
	}
	r.idle = 0
	if r.laps {
		r.idle = (r.ticket - r.mask) & seqMask // commitOf the ticket one lap ago
	}
}

// Ready reports whether the next Get has something to say: a message, or an error.
// It is one load of one shared line, for pollers.
func (r *MessagesReader) Ready() bool { return r.commit.Load()>>seqShift != r.idle }

// Get copies the next message out into m, frees its cells, and reports whether
// there was one; m is undefined if not. Afterwards m is private: what the peer
// writes later does not reach it. Kind, Words and payload are the peer's word, to
// be checked now; the error is ErrCorrupt.
func (r *MessagesReader) Get(m *Message) (bool, error) {
	word := r.commit.Load() // read once: everything below goes by this copy
	seq := word >> seqShift
	if seq == r.idle {
		return false, nil
	}
	if r.err != nil {
		return false, r.err
	}
	length := int(word >> 8 & 0xffff)
	if seq != (r.ticket+1)&seqMask || length > MaxPayload {
		return false, r.corrupt()
	}
	off := int(r.ticket&r.mask) * cellSize
	first := r.cells[off : off+cellSize : off+cellSize]
	m.Kind = uint8(word)
	m.Len = uint16(length)
	m.Words[0] = binary.NativeEndian.Uint64(first[8:])
	m.Words[1] = binary.NativeEndian.Uint64(first[16:])
	m.Words[2] = binary.NativeEndian.Uint64(first[24:])
	m.Words[3] = binary.NativeEndian.Uint64(first[32:])
	data := m.Data[:length]
	data = data[copy(data, first[commitSize+wordsSize:]):]
	t := r.ticket + 1
	for ; len(data) > 0; t++ {
		o := int(t&r.mask) * cellSize
		cell := r.cells[o : o+cellSize : o+cellSize]
		if binary.NativeEndian.Uint64(cell) != commitOf(t)|contTag {
			return false, r.corrupt()
		}
		data = data[copy(data, cell[commitSize:]):]
	}
	r.ticket = t
	r.head.Store(t)
	r.aim()
	return true, nil
}

// corrupt marks the ring as unusable.
func (r *MessagesReader) corrupt() error {
	r.err = ErrCorrupt
	r.idle = seqMask + 1 // no commit word has it: Ready and Get always answer
	return r.err
}

// Cells returns how many cells the ring has.
func (r *MessagesReader) Cells() int { return int(r.mask + 1) }

// roundCells returns cells rounded up to a power of two that is at least low.
func roundCells(cells, low int) int {
	if cells <= low {
		return low
	}
	return 1 << bits.Len(uint(cells-1))
}
