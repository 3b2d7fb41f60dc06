// Package cuda calls the CUDA driver API (libcuda.so.1) by dlopen, without a toolkit or headers. It
// is a thin typed layer; the runtime that Penstock's users see is gpu/cuda. [Load] finds the
// driver, [Driver.Devices] the cards, [Device.Retain] gives a [Context], from which come memory,
// streams, events and modules.
//
// # Threads
//
// To CUDA a context is current on a thread of the operating system, and goroutines change threads.
// So each method here that needs a context holds its thread (runtime.LockOSThread), makes its
// context current there, makes the call, and lets the thread go. This costs one short call of the
// driver more, and there is no wrong thread to call from: any goroutine may use any context at any
// time. The other designs lost: a thread for each context makes every call two switches between
// goroutines and lets one call that blocks stop all others; a thread that callers lock themselves
// is a rule that some caller breaks. A thread keeps the context that was last current on it;
// nothing relies on that, and nothing is harmed when that context has ended.
//
// # Ownership
//
// What a method creates belongs to its caller, who ends it once, after everything that uses it:
// this package counts no references and a handle that was ended is the driver's to refuse. Host
// memory of an asynchronous copy must be pinned or otherwise stay where it is until the stream has
// passed the copy: addresses are uintptr here, so that no Go memory is meant.
//
// # Errors
//
// An error of the driver is an [Error] with the call, its [Result] and what to do about it;
// errors.Is tells its kind ([ErrOutOfMemory], [ErrLost] and so on). A function that the installed
// driver lacks is a [Feature] that is missing ([Driver.Has]) and an error with ErrDriver from the
// methods that need it; only those of [Core] must be there. An error of asynchronous work appears
// at a later call, and stays where it means [ErrLost].
//
// Source of names, values and layouts: NVIDIA, "CUDA Driver API" reference manual.
package cuda
