// Package guest runs test binaries in a Debian kernel under qemu, with RDMA, NICs, an IOMMU and
// NUMA nodes.
//
// A guest needs no root, no KVM and no special hardware: qemu translates the processor (TCG), the
// kernel comes out of Debian's package without being installed, and the root file system is an
// archive in memory made of the host's own programs. So a machine of CI gets what it does not have:
// Soft-RoCE devices, NICs behind an IOMMU, NUMA nodes, queueing disciplines, and zero-copy sends
// that a NIC really does without a copy. A guest boots in about three seconds.
//
// A test asks for a guest in its first line and runs itself in it:
//
//	func TestGuestSomething(t *testing.T) {
//		if guest.Enter(t, guest.Spec{Profile: guest.Net}) {
//			return // the guest has given its verdict
//		}
//		// from here on: inside the guest, as root, alone on the machine
//	}
//
// Outside, [Enter] boots the guest with this test's binary, has it run exactly this test, and
// reports what comes back: logs, subtests, skips and failures, with the guest's kernel log where
// something failed. Inside, it returns false. A pair of guests joined by a cable is [Spec].Guests =
// 2: both run the same test, which asks [ID] which half it is.
//
// How a guest is made, file by file: profile.go says what each kind of guest has; kernel.go finds,
// fetches and unpacks the kernel; modules.go and libs.go find what a module or a program needs;
// image.go and cpio.go write the root file system; qemu.go starts the machine and listens to it;
// events.go reads the output of a test binary; enter.go ties it to testing.
//
// Nothing stays behind: the machine is tied to the thread that started it and dies with this
// process, its files are descriptors without a name. Kernels and images stay in the lab's cache
// (testenv.CacheDir).
package guest
