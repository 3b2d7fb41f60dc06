package driver

import "time"

// Runtime is one library of accelerators, loaded and initialised.
type Runtime interface {
	// Name is the runtime's: "cuda", "opencl", "host".
	Name() string
	// Version is that of its library or driver, for people.
	Version() string
	// Devices are found once, when the runtime is opened, and stay in that order. At least one.
	Devices() []Device
	// Close gives the library back. No context is open.
	Close() error
}

// Device is an accelerator.
type Device interface {
	// Info is found once, when the runtime is opened.
	Info() Info
	// Open makes a context, the owner of everything else.
	Open() (Context, error)
}

// MemorySpec says what memory is wanted.
type MemorySpec struct {
	Name  string // for messages
	Kind  Kind   // one that the device has
	Size  uint64 // bytes, at least 1
	Align uint64 // bytes: a power of two, at least Info.Align. ErrUnsupported where the runtime cannot
}

// StreamSpec says what stream is wanted.
type StreamSpec struct {
	Name string // for messages
	// Priority above 0 asks to run before, below 0 after the others. A hint, without effect where
	// CapPriorities is missing.
	Priority int
}

// Context owns memory, streams, events and modules of one device.
type Context interface {
	// Alloc makes memory of undefined content.
	Alloc(MemorySpec) (Memory, error)
	NewStream(StreamSpec) (Stream, error)
	// NewEvent makes an event; timing says that Elapsed will be asked for.
	NewEvent(timing bool) (Event, error)
	// Load makes the program's kernels ready: all of them, or it fails.
	Load(*Program) (Module, error)
	// MemoryInfo is the device's memory that is free, and all of it, in bytes. A runtime that does
	// not know what is free gives what it has not allocated itself.
	MemoryInfo() (free, total uint64, err error)
	// Close ends the context. Everything that it owned is closed.
	Close() error
}

// Memory is an allocation.
type Memory interface {
	// Addr is its address on the device, 0 where there is none: PinnedMemory, and runtimes without
	// CapAddresses.
	Addr() uint64
	// Bytes are the memory as the CPU sees it, nil where it does not.
	Bytes() []byte
	// Close gives it back. It may wait for all work of the context. The memory of a lost device is
	// given back as far as that can be.
	Close() error
}

// Stream is a queue of work that is done in order. Sizes are above 0, spans inside their memory,
// and source and destination do not overlap.
type Stream interface {
	// Copy puts a copy into the stream. At least one side is not PinnedMemory. Both belong to this
	// context.
	Copy(dst Memory, dstOff uint64, src Memory, srcOff, n uint64) error
	// Fill repeats the lower width bytes (1, 2 or 4) of pattern, little-endian. off and n are
	// multiples of width. The memory is not PinnedMemory.
	Fill(dst Memory, off, n uint64, pattern uint32, width int) error
	// Write copies from any Go memory, in the order of the stream, and returns when src may be used
	// again.
	Write(dst Memory, off uint64, src []byte) error
	// Read copies into any Go memory, in the order of the stream, and returns when it is there.
	Read(dst []byte, src Memory, off uint64) error
	// Launch runs a prepared call. Its arguments as they are now are what the kernel sees. The grid
	// is within Info's limits and not empty.
	Launch(c Call, g Grid) error
	// Record lets the event happen when what is in the stream now is done. An earlier record of the
	// event that has not happened is forgotten.
	Record(Event) error
	// WaitEvent lets what comes later in this stream wait for the event, as it was last recorded.
	WaitEvent(Event) error
	// Flush lets what is in the stream begin, where it has not yet. It is called once after a
	// batch.
	Flush() error
	// Query reports whether all is done.
	Query() (bool, error)
	// Wait waits until all is done that was put into the stream before. It is called from any
	// goroutine.
	Wait() error
	// Close ends the stream. All in it is done, or the device is lost.
	Close() error
}

// Event is a point in a stream.
type Event interface {
	// Query reports whether it has happened. It was recorded.
	Query() (bool, error)
	// Wait waits until it has happened, as it is recorded when Wait is called.
	Wait() error
	// Elapsed is the time between two events of this context that both have happened, negative
	// where this one was first.
	Elapsed(since Event) (time.Duration, error)
	Close() error
}

// Module is a loaded program.
type Module interface {
	// Kernel finds a kernel of the program by its number there.
	Kernel(i int) (Kernel, error)
	Close() error
}

// Kernel is a function of a module. It is closed with it.
type Kernel interface {
	// Prepare makes a call with arguments that fit the kernel's Signature.
	Prepare(args []Arg) (Call, error)
}

// Occupancy is a Kernel of a runtime with the capability CapResident.
type Occupancy interface {
	// Occupancy is how many groups of so many items the device runs at once, when it runs nothing
	// else; 0 where it does not run one.
	Occupancy(group uint32) (groups uint32, err error)
}

// Call is a kernel with its arguments.
type Call interface {
	// Set changes argument i, without an allocation unless that cannot be. Launches that are in a
	// stream keep what they had.
	Set(i int, a Arg) error
	Close() error
}

// PeerCopier is a Stream of a runtime that copies between memories of two contexts. Asked for where
// the capability CapPeer is there.
type PeerCopier interface {
	// CopyPeer is Stream.Copy where src, or dst, is of another context of the same runtime.
	CopyPeer(dst Memory, dstOff uint64, src Memory, srcOff, n uint64) error
}

// Adopter is a Context that registers host memory of others. Asked for where the capability
// CapAdopt is there.
type Adopter interface {
	// Adopt makes memory of kind MappedMemory, or PinnedMemory where CapMapped is missing, of bytes
	// outside the Go heap. Its Close unregisters them.
	Adopt(b []byte) (Memory, error)
}

// AddressAdopter is a Context of a runtime with the capability CapAdoptAddress.
type AddressAdopter interface {
	// AdoptAddress is device memory of this context's device that another library of this process
	// has allocated: size bytes from addr on, of kind DeviceMemory. It asks the driver what is
	// there, and refuses what is not wholly that. Its Close leaves the memory as it is, and is an
	// error where its owner has given it back before.
	AdoptAddress(addr, size uint64) (Memory, error)
}

// DMABufExporter is a Memory of a runtime with the capability CapDMABuf.
type DMABufExporter interface {
	// ExportDMABuf is a descriptor of the range, which the caller closes. It consists of whole
	// pages; off is below 0 for what is Around the memory.
	ExportDMABuf(off int64, n uint64) (fd int, err error)
}

// Surrounded is a Memory that may be a part of an allocation.
type Surrounded interface {
	// Around is how many bytes of the allocation lie before and after the memory.
	Around() (before, after uint64)
}

// WriteFlusher is a Context of a device whose Info says FlushWrites.
type WriteFlusher interface {
	// FlushWrites returns when what network cards have written into the memory of the context's
	// device so far is seen by work that begins afterwards. It allocates nothing.
	FlushWrites() error
}

// IPCExporter is a Memory of a runtime with the capability CapIPC.
type IPCExporter interface {
	// ExportIPC is a handle to be sent to another process of this machine, which opens the whole
	// allocation with IPCOpener.
	ExportIPC() ([]byte, error)
}

// IPCOpener is a Context of a runtime with the capability CapIPC.
type IPCOpener interface {
	// OpenIPC opens memory of another process, of kind DeviceMemory. size is what the exporter
	// said; Close ends the mapping.
	OpenIPC(handle []byte, size uint64) (Memory, error)
}
