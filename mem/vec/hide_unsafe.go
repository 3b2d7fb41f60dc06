//go:build !noasm && (amd64 || arm64)

package vec

import "unsafe"

// hide returns p. Being assembly, it cannot be seen through; and the result is a pointer like any
// other, which the runtime adjusts when the stack moves.
//
//go:noescape
func hide(p unsafe.Pointer) unsafe.Pointer
