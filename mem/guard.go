package mem

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/vec"
)

// ErrFault means that memory could not be touched: the file behind it was truncated, a huge page was taken away, or it is
// not mapped. A *FaultError wraps it.
var ErrFault = errors.New("memory fault")

// FaultError says where a guarded copy met memory that cannot be touched.
type FaultError struct {
	// In says whose memory it was: "destination", "source", or "" when the address is in neither.
	In     string
	Offset int // of the byte at fault from the start of In
}

func (e *FaultError) Error() string {
	if e.In == "" {
		return "memory fault outside both slices of a copy"
	}
	return fmt.Sprintf("memory fault at byte %d of the %s: the file behind it was truncated or a page of it taken away", e.Offset, e.In)
}

func (e *FaultError) Unwrap() error { return ErrFault }

// CopyGuarded copies min(len(dst), len(src)) bytes, like copy, and turns a fault on either side (SIGBUS, SIGSEGV) into an
// error where it would have killed the process. It is for memory that somebody else can take away: a peer's memfd, a mapped
// file. n is the number of bytes copied, 0 after a fault: dst then holds an undefined mixture of old and new bytes.
// The error is a *FaultError and wraps ErrFault. Without a fault nothing is allocated and the guard costs about 20 ns.
//
// It guards against pages that cannot be touched, not against mappings that are gone: bytes must stay mapped while they
// are copied, or other memory may be found at their address.
func CopyGuarded(dst, src []byte) (n int, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			n, err = 0, faultError(v, dst, src)
		}
	}()
	return vec.Copy(dst, src), nil
}

// faultError makes an error of what a copy panicked with; what is not a fault goes on as a panic.
func faultError(v any, dst, src []byte) error {
	re, ok := v.(runtime.Error)
	if !ok {
		panic(v)
	}
	e := &FaultError{}
	if a, ok := re.(interface{ Addr() uintptr }); ok {
		// Of a range that both slices share, the destination is named.
		for _, side := range []struct {
			name string
			b    []byte
		}{{"destination", dst}, {"source", src}} {
			if off := a.Addr() - sys.Address(side.b); off < uintptr(len(side.b)) {
				e.In, e.Offset = side.name, int(off)
				break
			}
		}
	}
	return e
}
