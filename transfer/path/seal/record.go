package seal

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Sizes of a record in bytes.
const (
	HeaderSize  = 5
	TrailerSize = 1 + tagSize // the type of the content, and the tag
	Overhead    = HeaderSize + TrailerSize
	MaxContent  = 1 << 14
	MaxRecord   = MaxContent + Overhead // that this package makes
	UpdateSize  = Overhead + 5          // a record with a KeyUpdate, which Sealer.Update writes

	tagSize = 16
	// The standard permits padding up to this size of the encrypted part.
	maxCipher = MaxContent + 256
)

// Type is the type of a record's content (RFC 8446 section 5.1).
type Type uint8

// The types of content.
const (
	Alert     Type = 21
	Handshake Type = 22
	Data      Type = 23
)

// Limit is how many blocks are encrypted with one key unless Options say less. RFC 8446 section 5.5
// permits 2^24.5 records of full size, which is 2^34.5 blocks. The bound behind it is on blocks, so
// that smaller records cost less. This is 2^34: about 275 GB.
const Limit = 1 << 34

// Options of a direction; both ends need the same.
type Options struct {
	// Limit is how many blocks are encrypted with one key, see Blocks; 0 means the constant Limit,
	// which is also the most. At least 2048, so that a record of full size fits.
	Limit uint64
}

// ErrRecord is what a record that must not be accepted is refused with; the text says why. It is
// final: the connection cannot be used any more.
var ErrRecord = errors.New("record refused")

// ErrTag is the ErrRecord of a record that was not sealed by the other end with the key and number
// that are due: it was changed, repeated, moved or left out on the way, or the ends have different
// secrets.
var ErrTag = fmt.Errorf("%w: its tag does not match", ErrRecord)

// ErrSpent is returned when a key has reached its limit and cannot be changed.
var ErrSpent = errors.New("seal: the key has encrypted as much as is safe")

var (
	errHeader = fmt.Errorf("%w: its header is not that of encrypted data", ErrRecord)
	errSize   = fmt.Errorf("%w: its size is outside of what is permitted", ErrRecord)
	errCut    = fmt.Errorf("%w: it has not the size that its header says", ErrRecord)
	errEmpty  = fmt.Errorf("%w: it has no type of content", ErrRecord)
	errType   = fmt.Errorf("%w: it holds neither data nor a key update", ErrRecord)
	errUpdate = fmt.Errorf("%w: a message that is no plain key update", ErrRecord)
	errLimit  = fmt.Errorf("%w: the peer has not changed its key in time", ErrRecord)
	errRoom   = errors.New("seal: no room for the content and the byte behind it")
)

func (o Options) limit() (uint64, error) {
	switch {
	case o.Limit == 0:
		return Limit, nil
	case o.Limit < 2048 || o.Limit > Limit:
		return 0, fmt.Errorf("seal: a limit of %d blocks: expected 2048 to %d", o.Limit, uint64(Limit))
	}
	return o.Limit, nil
}

// Sealer seals one direction of a connection. It is for one goroutine at a time.
type Sealer struct{ half }

// NewSealer starts a direction with its traffic secret.
func NewSealer(s Secret, o Options) (*Sealer, error) {
	x := new(Sealer)
	return x, x.start(s, o)
}

// Due reports whether the key must be changed before a record with n bytes of content is sealed.
func (s *Sealer) Due(n int) bool {
	return s.used+Blocks(n)+Blocks(5) > s.limit || s.seq == 1<<64-2
}

// Seal makes a record of rec[HeaderSize:HeaderSize+n], where it is, and returns its size, n +
// Overhead. rec must have that size at least; n is at most MaxContent. The caller asks Due before.
func (s *Sealer) Seal(rec []byte, t Type, n int) int {
	rec = rec[: n+Overhead : n+Overhead]
	rec[0], rec[1], rec[2] = byte(Data), 3, 3
	binary.BigEndian.PutUint16(rec[3:], uint16(n+TrailerSize))
	rec[HeaderSize+n] = byte(t)
	plain := rec[HeaderSize : HeaderSize+n+1]
	s.aead.Seal(plain[:0], s.next(), plain, rec[:HeaderSize])
	s.used += Blocks(n)
	return n + Overhead
}

// Update writes a KeyUpdate into rec, changes the key, and returns the record's size. rec needs
// UpdateSize bytes.
func (s *Sealer) Update(rec []byte) (int, error) {
	rec = rec[:UpdateSize]
	binary.BigEndian.PutUint32(rec[HeaderSize:], keyUpdate<<24|1)
	rec[HeaderSize+4] = 0 // no update is requested in turn
	n := s.Seal(rec, Handshake, 5)
	return n, s.update()
}

const keyUpdate = 24

// Used is how many blocks this key has encrypted.
func (s *Sealer) Used() uint64 { return s.used }

// RecordSize is the size of the record that begins with b, from its header. It is 0 while b is
// shorter than a header. A header that no record of encrypted data has is refused.
func RecordSize(b []byte) (int, error) {
	if len(b) < HeaderSize {
		return 0, nil
	}
	if Type(b[0]) != Data || b[1] != 3 || b[2] != 3 {
		return 0, errHeader
	}
	n := int(binary.BigEndian.Uint16(b[3:]))
	if n < TrailerSize || n > maxCipher {
		return 0, errSize
	}
	return HeaderSize + n, nil
}

// Opener opens one direction of a connection. It is for one goroutine at a time.
type Opener struct {
	half
	err error
}

// NewOpener starts a direction with its traffic secret.
func NewOpener(s Secret, o Options) (*Opener, error) {
	x := new(Opener)
	return x, x.start(s, o)
}

// Open opens the next record, which rec must be as a whole, and returns its content. It is placed
// at the start of dst, which needs room for one byte more than the content (see ContentRoom), all
// of which is overwritten, also when the record is refused; with a nil dst it is placed where it
// was in rec. Where a KeyUpdate was opened, the type is Handshake and the content is empty. Every
// error is final and comes again.
func (o *Opener) Open(dst, rec []byte) (Type, []byte, error) {
	if o.err != nil {
		return 0, nil, o.err
	}
	t, b, err := o.open(dst, rec)
	if err != nil && err != errRoom {
		o.err = err
	}
	return t, b, err
}

// ContentRoom is how many bytes of room Open needs for a record of size n.
func ContentRoom(n int) int { return n - HeaderSize - tagSize }

func (o *Opener) open(dst, rec []byte) (Type, []byte, error) {
	n, err := RecordSize(rec)
	if err != nil {
		return 0, nil, err
	}
	if n != len(rec) {
		return 0, nil, errCut
	}
	room := ContentRoom(n)
	if dst == nil {
		dst = rec[HeaderSize:]
	} else if len(dst) < room {
		return 0, nil, errRoom
	}
	o.used += Blocks(room - 1)
	if o.used > o.limit {
		return 0, nil, errLimit
	}
	b, err := o.aead.Open(dst[:0:room], o.next(), rec[HeaderSize:], rec[:HeaderSize])
	if err != nil {
		return 0, nil, ErrTag
	}
	// Section 5.4: what follows the content's type is zeros.
	k := len(b) - 1
	for k >= 0 && b[k] == 0 {
		k--
	}
	if k < 0 {
		return 0, nil, errEmpty
	}
	t := Type(b[k])
	b = b[:k]
	if len(b) > MaxContent {
		return 0, nil, errSize
	}
	switch t {
	case Data:
		return t, b, nil
	case Handshake:
		if len(b) != 5 || binary.BigEndian.Uint32(b) != keyUpdate<<24|1 || b[4] != 0 {
			return 0, nil, errUpdate
		}
		return t, b[:0], o.update()
	}
	return 0, nil, errType
}
