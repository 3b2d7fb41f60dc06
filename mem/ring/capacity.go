package ring

import (
	"fmt"
	"math/bits"
	"reflect"
)

// lineSize is the distance, in bytes, that keeps two words from sharing a
// cache line or the adjacent line that processors prefetch with it.
const lineSize = 128

// MaxCapacity is the largest number of items a heap ring may be asked for.
const MaxCapacity = 1 << 30

// maxBytes bounds the slots of one heap ring. The runtime kills a process that
// asks for more memory than the address space has; an error is kinder.
const maxBytes = 1 << 40

// roundCapacity returns the number of slots for a ring of type name that is
// asked for capacity items of slotSize bytes: the next power of two, at least 2.
func roundCapacity(name string, capacity int, slotSize uintptr) (uint64, error) {
	if capacity < 1 || capacity > MaxCapacity {
		return 0, fmt.Errorf("ring: %s: capacity %d is out of range: want 1 to %d items", name, capacity, MaxCapacity)
	}
	// One slot would make "filled for ticket t" and "free for ticket t+1" the
	// same sequence number.
	n := uint64(2)
	if capacity > 2 {
		n = 1 << bits.Len64(uint64(capacity-1))
	}
	if slotSize > 0 && n > maxBytes/uint64(slotSize) {
		return 0, fmt.Errorf("ring: %s: capacity %d of %d-byte slots needs more than %d GiB: lower the capacity or "+
			"store pointers",
			name, capacity, slotSize, maxBytes>>30)
	}
	return n, nil
}

// holdsPointers reports whether a value of type t can keep other memory alive.
func holdsPointers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Bool,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr,
		reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return false
	case reflect.Array:
		return t.Len() > 0 && holdsPointers(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if holdsPointers(t.Field(i).Type) {
				return true
			}
		}
		return false
	default:
		return true
	}
}
