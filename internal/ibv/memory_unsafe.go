package ibv

import (
	"unsafe"

	"github.com/penstock-io/penstock/internal/dl"
)

// The sizes that the hot paths count with.
const (
	sendWRSize = 128
	recvWRSize = 32
	sgeSize    = 16
	wcSize     = 48
)

// These do not compile when a size is another.
var (
	_ [unsafe.Sizeof(cSendWR{})]struct{} = [sendWRSize]struct{}{}
	_ [unsafe.Sizeof(cRecvWR{})]struct{} = [recvWRSize]struct{}{}
	_ [unsafe.Sizeof(SGE{})]struct{}     = [sgeSize]struct{}{}
	_ [unsafe.Sizeof(WC{})]struct{}      = [wcSize]struct{}{}
)

// temp is one zero structure of C memory for the arguments or the results of a call. free gives it
// back.
type temp[T any] struct {
	v   *T
	mem []byte
}

func newTemp[T any]() (temp[T], error) {
	var t T
	mem, err := dl.Alloc(max(int(unsafe.Sizeof(t)), 1))
	if err != nil {
		return temp[T]{}, err
	}
	return temp[T]{dl.At[T](dl.Address(mem)), mem}, nil
}

// p is the structure's address.
func (t temp[T]) p() uintptr { return dl.Address(t.mem) }

func (t temp[T]) free() { dl.Free(t.mem) }

// newTemps are n structures in a row.
func newTemps[T any](n int) ([]T, []byte, error) {
	var t T
	mem, err := dl.Alloc(max(n, 1) * int(unsafe.Sizeof(t)))
	if err != nil {
		return nil, nil, err
	}
	return structs[T](mem, n), mem, nil
}

// structs are the first n structures in C memory.
func structs[T any](mem []byte, n int) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(mem))), n)
}

// sizeOf is the size of a structure in bytes.
func sizeOf[T any]() uintptr {
	var t T
	return unsafe.Sizeof(t)
}

// poll gives the library the caller's slice, which the call forces to the heap and keeps there.
func poll(f dl.Func, cq uintptr, wc []WC) int32 {
	return int32(f.Call3(cq, uintptr(len(wc)), uintptr(unsafe.Pointer(unsafe.SliceData(wc)))))
}

// extended is the part of a context that lies before it, or nil where there is none. It may be
// shorter than cExtended: ask has before using a field.
func extended(ctx uintptr) *cExtended {
	if dl.At[cContext](ctx).abiCompat != abiExtended {
		return nil
	}
	return dl.At[cExtended](ctx - unsafe.Sizeof(cExtended{}))
}

// has reports whether the library's extended context reaches to the field at offset off of
// cExtended. sz counts everything from the beginning of the structure to the end of the context
// behind it.
func (x *cExtended) has(off uintptr) bool {
	return x != nil && x.sz >= unsafe.Sizeof(cExtended{})-off+unsafe.Sizeof(cContext{})
}

// Offsets of the optional functions.
const (
	offQueryPort     = unsafe.Offsetof(cExtended{}.queryPort)
	offQueryRT       = unsafe.Offsetof(cExtended{}.queryRTValues)
	offCreateCQEx    = unsafe.Offsetof(cExtended{}.createCQEx)
	offQueryDeviceEx = unsafe.Offsetof(cExtended{}.queryDeviceEx)
	offDestroyFlow   = unsafe.Offsetof(cExtended{}.destroyFlow)
	offCreateFlow    = unsafe.Offsetof(cExtended{}.createFlow)
	offCreateQPEx    = unsafe.Offsetof(cExtended{}.createQPEx)
	offGetSRQNum     = unsafe.Offsetof(cExtended{}.getSRQNum)
	offCreateSRQEx   = unsafe.Offsetof(cExtended{}.createSRQEx)
	offOpenXRCD      = unsafe.Offsetof(cExtended{}.openXRCD)
	offCloseXRCD     = unsafe.Offsetof(cExtended{}.closeXRCD)
)

// nameOffset is where a device's name lies.
const nameOffset = unsafe.Offsetof(cDevice{}.name)

// addressOf is where C memory begins, and freeTemps its end.
func addressOf(mem []byte) uintptr { return dl.Address(mem) }
func freeTemps(mem []byte)         { dl.Free(mem) }
