package rawqp

import (
	"testing"
	"unsafe"

	"github.com/penstock-io/penstock/internal/dl"
)

// ask calls a function of a library with a C string.
func ask(t testing.TB, lib *dl.Library, name, s string) uintptr {
	t.Helper()
	f, err := lib.Symbol(name)
	if err != nil {
		t.Fatal(err)
	}
	c, err := dl.CString(s)
	if err != nil {
		t.Fatal(err)
	}
	return f.Call1(uintptr(unsafe.Pointer(c)))
}
