// Package gpumemtest is the conformance suite of package gpumem, for any runtime.
//
//	func TestMemory(t *testing.T) {
//		gpumemtest.Run(t, gpumemtest.Harness{Open: func(t testing.TB) *gpu.Runtime { ... }})
//	}
//
// Each check runs on every device that Open finds, and fails when a region, an object of the
// context, a goroutine or a descriptor is left. Nothing about time is asserted.
package gpumemtest
