package share

import (
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/tensor"
)

// Errors of this package; match them with errors.Is. Those of package transfer and of the peer
// (control.Error) come through as well.
var (
	// ErrExists means that there is something under the name already, and overwriting was not asked
	// for.
	ErrExists = errors.New("share: it exists already")
	// ErrBusy means that another process or upload is writing the same file.
	ErrBusy = errors.New("share: another writer has the file")
	// ErrNoSpace means that the disk, or a quota, has no room for the file.
	ErrNoSpace = errors.New("share: no space left")
	// ErrChanged means that the content changed while it was read. Nothing of it is kept.
	ErrChanged = errors.New("share: the content changed meanwhile")
	// ErrUnsafe means that a path leads through something that this package does not follow or
	// write: a symbolic link, a device, a file with several links.
	ErrUnsafe = errors.New("share: not a plain file or directory")
	// ErrSize means that a file says that it has 0 bytes and has more, as most files of /proc do:
	// only reading it to its end says how many.
	ErrSize = errors.New("share: the file reports 0 bytes and has more, as files of /proc do")
	// ErrRefused means that the other side does not permit it, or has no room for it.
	ErrRefused = errors.New("share: refused by the other side")
	// ErrDigest means that the SHA-256 of a content is not the expected one. The error is a
	// *DigestError where this side found out.
	ErrDigest = errors.New("share: the SHA-256 is not the expected one")
	// ErrClosed means that the Server is closed.
	ErrClosed = errors.New("share: closed")
)

// Tag identifies a content: equal tags of one name mean equal bytes. The zero Tag means that it is
// not known.
type Tag [16]byte

func (t Tag) String() string { return hex.EncodeToString(t[:]) }

// PartialError is an operation that ended early and left a partial file, from which the next
// attempt goes on.
type PartialError struct {
	Name    string // of the file at the other side
	Partial string // path of the partial file; "" where it is at the other side
	Good    uint64 // bytes from the beginning that were verified and need not be moved again
	Size    uint64 // of the whole file, bytes
	Err     error  // why it ended
}

func (e *PartialError) Error() string {
	where := "the other side has a partial file of it"
	if e.Partial != "" {
		where = e.Partial + " is partial"
	}
	return fmt.Sprintf("share: %q: %s: %d of %d bytes are good: %v", Printable(e.Name), where, e.Good, e.Size, e.Err)
}

func (e *PartialError) Unwrap() error { return e.Err }

// DigestError is a content whose SHA-256 is not the expected one. It matches ErrDigest.
type DigestError struct {
	Name      string // of the file at the other side
	Kept      string // path where the content that came is; "" if it was not kept, or was never a copy
	Want, Got [32]byte
}

func (e *DigestError) Error() string {
	s := fmt.Sprintf("%v: %q: expected %x, got %x", ErrDigest, Printable(e.Name), e.Want, e.Got)
	if e.Kept != "" {
		s += ", which is kept as " + e.Kept
	}
	return s
}

// Unwrap makes it match ErrDigest.
func (e *DigestError) Unwrap() error { return ErrDigest }

// Entry is one name in the catalog of a node.
type Entry struct {
	Name       string
	Size       uint64       // bytes
	Tensor     *tensor.Desc // nil if it is not a tensor, or not said
	Tag        Tag          // zero: not known
	Generation uint64       // grows when the name is exported again; starts again with the other process
}

// Progress is how far one file is.
type Progress struct {
	Name string // at the other side
	File string // path of the file here: that of the output, or of the file that is uploaded; "" for a Stream
	// Bytes are in place and verified, Size is the whole. Start of them were there at the
	// beginning, from an earlier attempt.
	Bytes, Size, Start uint64
	Via                string // the path that bytes took last, such as "tcp"; "" if it is not known yet
}
