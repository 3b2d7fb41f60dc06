// Package mem manages the memory that networks read and write: regions, leases, pools, NUMA
// placement, and the registration cache.
//
// # Regions
//
// A [Region] is one contiguous mapping outside the Go heap, so the garbage collector neither moves
// nor scans it and its address can be given to a kernel, a peer process or a device. Regions of
// kind [Host] and [Huge] live in a memfd with seals against shrinking: another process can map them
// (package transfer/path/shm does) and cannot make either side fault by truncating the file.
// [Adopt] and [AdoptFile] turn memory that the user already has into a region. Other kinds come
// from a [Provider].
//
// A [Span] names bytes of a region by offset and length; it is inert and may be stored anywhere.
// The bytes themselves are valid only under a [Lease]: a region that was closed stays mapped until
// its last lease is released.
//
//	r, err := mem.Alloc(mem.Options{Name: "weights", Size: 64 << 20})
//	if err != nil { ... }
//	defer r.Close()
//	l, err := r.Lease()      // pins the mapping
//	copy(l.Bytes(), src)
//	l.Release()
//
// # Many pieces
//
//	Pool       slots of one size in one region, for packets and messages; a Cache per goroutine makes Get and Put cost
//	           tens of nanoseconds, and each handle is checked for double release and use after release
//	Allocator  blocks of several sizes under one budget, for tensors; Dedicated ones are each a memfd of their own
//
// Both count, report fragmentation or exhaustion, and refuse to lose track: closing them with
// pieces out is an error that says how many, and the memory stays until they are back.
//
// # Registration
//
// Devices must know memory before they use it, and pages must exist before they are copied to at
// full speed. A [Registrar] does that for one device; [RegCache] keeps its registrations.
// [Populate] is the Registrar of plain host memory: the first touch of a page costs far more than
// copying to it, and is so paid once, beforehand, and reported apart.
//
// # Memory that can go away
//
// A mapped file can be truncated by others, and a memfd that a peer may write can have holes
// punched into it by that peer. Touching a page that is gone is a SIGBUS, which kills a Go process:
// [CopyGuarded] makes it an error, and [Region.SealWrites] rules it out for memory that peers only
// read.
//
// # Finding mistakes
//
// [LeakReport] lists what is open or held. Builds with -tags invariants record who acquired each
// region, lease, slot, block and registration, fill released slots with the byte 0xDB, and panic on
// a second release of a lease, on a write to a released slot, and on a Cache used by two
// goroutines.
package mem
