// Package cuda builds a stand-in for libcuda.so.1, a driver without a GPU, with scripted errors. It
// finds what a GPU lets pass or punishes much later (a call on a thread without a context, memory
// freed under a running copy, an allocation that would hang behind a resident kernel), and a script
// makes it fail as a GPU does once a month.
//
// [Build] compiles the library; load it by the path that it returns. Every symbol has the name and
// arguments of the real driver's (_v2 and so on; the plain names too through cuGetProcAddress), so
// the code under test needs nothing but the path. A call that is missing is missing as a symbol:
// arrays, textures, managed memory, memory pools, cuMemcpy3D, cubins, graphs.
//
// # What it does
//
// Device memory is real memory that the CPU cannot touch: a device pointer is an address in a
// reservation without access, and the bytes behind it are mapped elsewhere, where only copies and
// kernels reach them. Allocations up to 1 MiB share blocks of 2 MiB and begin at multiples of 512
// bytes, as on hardware, so they are not page aligned and IPC shares their neighbours (reported).
// New memory is filled with 0xc5 and freed memory with 0xdd (large memory at its ends). A block
// holds one file descriptor, a memfd: it is what IPC handles, dma-buf exports and shareable handles
// give to others. Addresses are not used again until the reservation (1 TiB) has gone round.
//
// Each stream has a thread. Operations are asynchronous wherever the manual's "API synchronization
// behavior" lets them be, the default stream waits for blocking streams and they for it, and the
// manual's "might be synchronous" is taken at its worst: a copy with pageable memory waits for its
// stream and for itself. Threads of streams block all signals.
//
// Contexts are current per OS thread. Handles are numbers that are never used twice: a stale one is
// known for what it was. An error of the device (an illegal address in a kernel, or a scripted one)
// is invisible until something synchronises, then stays on that device until the process starts
// again, as the manual says of CUDA_ERROR_ILLEGAL_ADDRESS.
//
// Kernels are C functions. A module is PTX text, of which the fake reads version, target, entries
// with their parameters, and globals; a kernel's body is the function of its name in the library
// $PENSTOCK_FAKE_CUDA_KERNELS (see [Kernels]) or one given to penstock_fake_cuda_kernel. It runs
// once per launch on the stream's thread and asks for the bytes behind each pointer, with bounds. A
// resident kernel (NAME_resident is exported too) runs until the host lets it go: while one does,
// calls that synchronise implicitly (allocate, free, pin, register, load, a copy behind it) are
// violations and return CUDA_ERROR_TIMEOUT where hardware would hang. So synchronise with a
// resident kernel's stream before you free anything.
//
// # The report
//
// Every violation has the result that the manual gives it, and is also written down, with the
// call's number and thread: penstock_fake_cuda_report lists them and all that is still alive,
// penstock_fake_cuda_violations and _live count, _calls counts the calls of a function, _restart
// makes the process new. fake.h has the details. $PENSTOCK_FAKE_CUDA_REPORT names a file to which a
// process that ends adds its report. A free under queued work, or of a context with work, succeeds
// (after waiting) and is a violation all the same. Warnings are about what is allowed but rarely
// meant.
//
// # Scripts
//
// penstock_fake_cuda_script, or $PENSTOCK_FAKE_CUDA at cuInit, takes lines (or parts separated by
// semicolons):
//
//	fail CALL [call N | always] RESULT     the N-th call from now (the next one, every one) gives RESULT
//	sticky CALL [call N | always] RESULT   after that call the device fails: RESULT appears when something synchronises, and stays
//	devices N                              before cuInit; 2 without it, at most 16
//	device D memory SIZE                   D is a number or *; 8G without it; SIZE as 64M, 80G
//	device D attribute NAME VALUE          as DMA_BUF_SUPPORTED 0, or 124 0
//	driver VERSION                         as 12040; 12080 without it. Limits cuGetProcAddress and the PTX version
//	latency copy|launch DURATION           each such operation takes so much longer: 20ms, 500us
//	peers on|off                           whether devices reach each other's memory
//	resident allow|refuse                  with allow, implicit synchronisation behind a resident kernel is only a warning
//
// CALL is a name as cuMemAlloc (every version of it) or cuMemAlloc_v2, or * for any call. RESULT is
// CUDA_ERROR_OUT_OF_MEMORY, OUT_OF_MEMORY or 2. # begins a comment. A mistake is an error with line
// and column, and nothing of the script holds.
//
// # What it cannot show
//
// It has no caches, no PCIe and no relaxed memory: a missing fence or flush, writes of a NIC that
// overtake each other, GPUDirect ordering, all work here (the attributes can be scripted, the
// effects cannot). It runs no PTX and does not check instructions; a kernel is one CPU thread, so
// races between GPU threads, divergence, occupancy, shared memory and launch limits beyond the
// declared ones do not exist. Times mean nothing, priorities neither. It frees and allocates as
// fast as memory, so code that should pool is not slow here: count calls instead. A free in the
// exporting process does not disturb an importer, whom hardware would hand undefined memory. A
// dma-buf is a memfd and only begins where a block does; a range elsewhere is
// CUDA_ERROR_NOT_SUPPORTED, with a warning. Globals with initialisers are refused. Results are
// those of the manual; real drivers differ from it in places, and between versions.
//
// # The check program
//
// [Check] builds a C program that runs named checks, each in a process of its own. Most of them ask
// what any driver must do: they are how the fake is compared with hardware. To do that, take the
// program (it needs glibc and nothing else; loading a library rules out a static one) to a machine
// with a GPU and run `check libcuda.so.1`. TestChecks logs where it is.
package cuda
