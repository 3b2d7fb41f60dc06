package rdma

import (
	"testing"
	"unsafe"

	"github.com/penstock-io/penstock/internal/dl"
)

// callString calls a function with a C string.
func callString(t testing.TB, f dl.Func, s string) uintptr {
	t.Helper()
	c, err := dl.CString(s)
	if err != nil {
		t.Fatal(err)
	}
	return f.Call1(uintptr(unsafe.Pointer(c)))
}
