package system

import (
	"testing"
	"unsafe"

	"github.com/penstock-io/penstock/internal/dl"
)

// callString calls a C function with a string.
func callString(t *testing.T, f dl.Func, s string) uintptr {
	t.Helper()
	c, err := dl.CString(s)
	if err != nil {
		t.Fatal(err)
	}
	return f.Call1(uintptr(unsafe.Pointer(c)))
}
