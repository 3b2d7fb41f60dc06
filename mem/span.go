package mem

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/handles"
	"github.com/penstock-io/penstock/internal/invariants"
)

// Lease is the right to touch a region's bytes. Release it once; copies of the value share that one
// release. The zero Lease leases nothing.
type Lease struct {
	r *Region
	h handles.Handle
}

// Bytes are the region's bytes, valid until Release; nil for memory that the CPU cannot reach.
func (l Lease) Bytes() []byte {
	if l.r == nil {
		return nil
	}
	return l.r.data
}

// Region is the leased region, nil for the zero Lease.
func (l Lease) Region() *Region { return l.r }

// Release ends the lease; the last one of a closed region unmaps it. A second Release, of a copy as
// well, changes nothing and returns an error that wraps ErrReleased; builds with -tags invariants
// panic with both stacks. The error is otherwise that of unmapping. The zero Lease has nothing to
// release, and no error.
func (l Lease) Release() error {
	if l.r == nil {
		return nil
	}
	if invariants.Enabled {
		leases.released(l)
	}
	if !l.r.leases.Give(l.h) {
		return fmt.Errorf("mem: lease on region %q: %w", l.r.name, ErrReleased)
	}
	return l.r.release()
}

// Span names Len bytes of a region from Off. It holds no lease: a caller that touches the bytes
// must hold one.
type Span struct {
	Region *Region
	Off    uint64
	Len    uint64
}

// Bytes are the span's bytes, nil for memory that the CPU cannot reach. The caller must hold a
// lease on the region for as long as it uses them, and the span must be Valid.
func (s Span) Bytes() []byte {
	if s.Region.data == nil {
		return nil
	}
	return s.Region.data[s.Off : s.Off+s.Len : s.Off+s.Len]
}

// Sub names n bytes from off within the span; the error wraps ErrBounds.
func (s Span) Sub(off, n uint64) (Span, error) {
	if off > s.Len || n > s.Len-off {
		name := "none"
		if s.Region != nil {
			name = s.Region.name
		}
		return Span{}, fmt.Errorf("mem: region %q: offset %d + %d bytes in a span of %d: %w", name, off, n, s.Len,
			ErrBounds)
	}
	return Span{Region: s.Region, Off: s.Off + off, Len: n}, nil
}

// Valid reports whether the span lies inside its region.
func (s Span) Valid() bool {
	return s.Region != nil && s.Off <= s.Region.Len() && s.Len <= s.Region.Len()-s.Off
}
