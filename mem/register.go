package mem

import (
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
)

// Access says what a registration permits.
type Access uint8

const (
	ReadAccess  Access = 1 << iota // the device or path may read the memory
	WriteAccess                    // it may write it
)

func (a Access) String() string {
	var s []string
	if a&ReadAccess != 0 {
		s = append(s, "read")
	}
	if a&WriteAccess != 0 {
		s = append(s, "write")
	}
	if rest := a &^ (ReadAccess | WriteAccess); rest != 0 || a == 0 {
		s = append(s, fmt.Sprintf("access(%d)", uint8(rest)))
	}
	return strings.Join(s, "+")
}

// Registrar makes memory known to a device or a path before it is used: an RDMA adapter pins it and
// returns keys, a GPU maps it, Populate makes its pages present. RegCache keeps what it returns.
type Registrar interface {
	// Register registers a range that starts and ends on page boundaries, or at the ends of its
	// region. The region stays mapped until Deregister of the handle has returned. It may be called
	// from several goroutines.
	Register(s Span, a Access) (handle any, err error)
	// Deregister undoes one Register; the handle is not used again.
	Deregister(handle any) error
}

// Populate is the Registrar of host memory that needs no device: it makes the pages of a range
// present, so that first touch (about 2 GB/s) is paid at registration and not in the middle of a
// transfer. It pins nothing: pages may still be swapped out. Its handles are nil. Registering a
// part of a file that was truncated is an error, not a fault.
var Populate Registrar = populator{}

type populator struct{}

func (populator) Register(s Span, a Access) (any, error) {
	if s.Region.present {
		return nil, nil
	}
	b := s.Bytes()
	if b == nil {
		return nil, fmt.Errorf("kind %s is not host memory: %w", s.Region.kind, ErrUnavailable)
	}
	err := sys.Populate(b, a&WriteAccess != 0)
	if sys.IsErrno(err, sys.EINVAL) {
		err = touch(b)
	}
	if sys.IsErrno(err, sys.EFAULT) {
		err = fmt.Errorf("%w: the file behind the memory is shorter, or there is no memory for its pages (%w)",
			ErrFault, err)
	}
	return nil, err
}

func (populator) Deregister(any) error { return nil }

// touch reads one byte of each page, for kernels before 5.14. The pages of a memfd are then present
// too; only the first write to each still costs a short fault.
func touch(b []byte) error {
	var sink [1]byte
	for off := 0; off < len(b); off += sys.PageSize {
		if _, err := CopyGuarded(sink[:], b[off:off+1]); err != nil {
			return err
		}
	}
	_, err := CopyGuarded(sink[:], b[len(b)-1:])
	return err
}
