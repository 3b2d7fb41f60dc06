// Package gputest is the conformance suite of the runtimes of package gpu. Each runtime runs it in
// its own tests:
//
//	func TestConformance(t *testing.T) {
//		gputest.Run(t, gputest.Harness{Open: func(t testing.TB) *gpu.Runtime {
//			rt, err := host.Open(host.Options{})
//			...
//			return rt
//		}})
//	}
//
// It runs on every device that Open finds. What a device cannot do it says in its capabilities, and
// must then refuse; what it claims is checked. Bytes are compared, also those beside the ones that
// were written, and no time is. Each check demands that nothing is left: no object, goroutine,
// descriptor.
//
// Checks that need work which certainly is not done yet hold a stream by a resident kernel
// (kernels.Hold), where the device can run one, or by Harness.Block.
//
// Runtimes that are broken on purpose, made of package gpu/host, show that the suite notices.
package gputest
