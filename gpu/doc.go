// Package gpu is one API over accelerators (devices, memory, streams, events, kernels) for CUDA,
// OpenCL and the host itself. Nothing needs a toolkit, neither to build nor to run; what is missing
// on a machine is an error that says what.
//
//	rt, err := host.Open(host.Options{})          // or cuda.Open, opencl.Open, or a Table that tries them in order
//	c, err := rt.Devices()[0].Open()               // a context owns everything else
//	s, err := c.NewStream(gpu.StreamOptions{})     // work in order
//	d, err := c.Alloc(gpu.MemoryOptions{Kind: gpu.DeviceMemory, Size: 1 << 20})
//	p, err := c.Alloc(gpu.MemoryOptions{Kind: gpu.PinnedMemory, Size: 1 << 20})
//	err = s.Copy(d.All(), p.All())                 // begins now or later, returns at once
//	err = s.Wait(ctx)                              // it is done
//
// # Devices and what they can do
//
// A [Device] has an [Info]: name, bus, NUMA node, memory, limits and [Capabilities], data that say
// of each capability whether the device has it, and why not. A call that a device cannot do returns
// an error that wraps [ErrUnsupported] and says the same.
//
// # Memory
//
//	DeviceMemory  of the device; copies reach it
//	PinnedMemory  of the host, page-locked: copies from and to it are fast and go on while the CPU does other things
//	MappedMemory  of the host, page-locked, and kernels reach it
//	SharedMemory  one address for kernels and the CPU
//
// A [Span] names bytes of a [Memory]. Memory has undefined content when it is new. Bytes that the
// CPU sees ([Memory.Bytes]) belong to it while no work that touches them is under way.
//
// # Streams
//
// A [Stream] does its work in order; streams do not wait for each other but through an [Event].
// [Stream.Enqueue] takes a batch of [Op] and allocates nothing; Copy, Fill, Launch, Record and
// WaitFor are batches of one. All return before the work is done, though they may wait for room
// where a driver's queue is full. [Stream.Write] and [Stream.Read] copy from and to any Go memory,
// and return when that is done.
//
// # Kernels
//
// A [Program] has kernels in one or more forms: OpenCL C, PTX, Go. [Context.Load] takes the form
// that the device runs. [Kernel.Prepare] checks the arguments against the kernel's [Signature] and
// makes a [Call], which can be launched any number of times without an allocation and changed by
// [Call.Set]. Grids have one dimension. Package internal/kernels has ours.
//
// # Ownership
//
// Who opens or allocates something closes it. A context is closed last: with something of it still
// open, Close is an error that wraps [ErrInUse] and says what, and nothing is closed. Before
// memory, a call or a module is closed, the caller must know that the work which uses it is done:
// by Stream.Wait, Stream.Query, Event.Wait, Event.Query or Stream.Close. (Otherwise Close waits for
// all work of the context, and hangs behind a persistent kernel.) Close twice does nothing.
//
// Builds with -tags invariants panic when memory, a call or a module is closed under work whose end
// no wait or query has seen, and when two goroutines use a stream at once, and say in ErrInUse
// where each open object came from.
//
// # Threads
//
// All methods may be called from any goroutine. A Stream and a Call have one user at a time, but
// for Wait, Query and Close of a Stream that gets no more work. Event: one goroutine records it,
// any waits.
//
// # Errors
//
// They wrap one of [ErrUnavailable], [ErrOutOfMemory], [ErrDeviceLost], [ErrArch], [ErrBuild],
// [ErrDriver], [ErrUnsupported] for what the runtime said (as an [*Error] with the library's own
// code), or [ErrClosed], [ErrInUse], [ErrBounds], [ErrArgument] for what this package refused
// before anything was done. After [ErrDeviceLost] every call of the context fails with the same
// error but Close, which works for everything, in any state; open a new context.
package gpu
