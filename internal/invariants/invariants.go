// Package invariants says whether this build checks ownership rules at run time (build tag
// invariants).
//
// Build with -tags invariants to turn the checks on: double release, use after release, leaks with
// the stack that acquired, freed memory scribbled. Without the tag Enabled is a false constant and
// the compiler removes the checks, so they may be as slow as they like.
package invariants

import "fmt"

// Broken panics, for code that only runs where Enabled.
func Broken(format string, args ...any) { panic("invariant broken: " + fmt.Sprintf(format, args...)) }

// Insist panics unless ok. Its arguments may allocate, also where ok: what must not allocate asks
// first, and calls Broken.
func Insist(ok bool, format string, args ...any) {
	if !ok {
		Broken(format, args...)
	}
}
