package mem

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem/vec"
)

// copyFault says where a guarded copy met memory that cannot be touched.
type copyFault struct {
	// In says whose memory it was: "destination", "source", or "" when the address is in neither.
	In     string
	Offset int // of the byte at fault from the start of In
}

func (e *copyFault) Error() string {
	if e.In == "" {
		return "memory fault outside both slices of a copy"
	}
	return fmt.Sprintf("memory fault at byte %d of the %s: the file behind it was truncated or a page of it taken away",
		e.Offset, e.In)
}

func (e *copyFault) Unwrap() error { return ErrFault }

// Guard calls f and returns ErrFault if f touched memory that cannot be touched (SIGBUS, SIGSEGV),
// which without Guard ends the process; f then has done a part of its work. Other panics of f go
// on. It is for memory that another process can take away: a peer's memfd, a mapped file. It
// allocates nothing and takes about 20 ns.
//
// It guards against pages that cannot be touched, not against mappings that are gone: bytes must
// stay mapped while f touches them, or other memory may be found at their address.
func Guard(f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			faultAddress(v)
			err = ErrFault
		}
	}()
	f()
	return nil
}

// faultAddress is where the fault was that v, a recovered panic, is about; what is not a fault goes
// on as a panic.
func faultAddress(v any) uintptr {
	e, ok := v.(runtime.Error)
	if !ok {
		panic(v)
	}
	a, ok := e.(interface{ Addr() uintptr })
	if !ok {
		panic(v)
	}
	return a.Addr()
}

// CopyGuarded copies min(len(dst), len(src)) bytes, like copy, under [Guard], and the error says
// where the fault was; it wraps ErrFault. n is the number of bytes copied, 0 after a fault: dst
// then holds an undefined mixture of old and new bytes.
func CopyGuarded(dst, src []byte) (n int, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			n, err = 0, faultError(faultAddress(v), dst, src)
		}
	}()
	return vec.Copy(dst, src), nil
}

// faultError says in which side of a copy an address is.
func faultError(at uintptr, dst, src []byte) error {
	e := &copyFault{}
	// Of a range that both slices share, the destination is named.
	for _, side := range []struct {
		name string
		b    []byte
	}{{"destination", dst}, {"source", src}} {
		if off := at - sys.Address(side.b); off < uintptr(len(side.b)) {
			e.In, e.Offset = side.name, int(off)
			break
		}
	}
	return e
}
