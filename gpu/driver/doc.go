// Package driver is the interface that a runtime of package gpu implements.
//
// Package gpu checks every call before it comes here (bounds, kinds, what is closed, what belongs
// to which context, types of arguments), counts what is alive, and remembers that a device is lost.
// So an implementation translates and nothing else: each method may take its arguments as they are.
// What a device cannot do it says in [Info.Capabilities], and is then not asked for it.
//
// # Rules
//
// All methods may be called from any goroutine, also at the same time, but those of one [Stream]
// and one [Call], which have one user at a time ([Stream.Wait] and [Stream.Query] excepted). A
// runtime whose library cares about threads (CUDA's current context) sees to that in itself.
//
// What is put into a stream runs in order. Methods that put something into a stream return before
// it is done and keep no Go memory; [Stream.Read] and [Stream.Write] return when it is done.
//
// Objects are closed in the order calls, kernels with their module, events, streams, memory,
// context, runtime; package gpu sees to that. Close works on a lost device too, and then gives back
// what can be given back.
//
// # Errors
//
// An error of the library is an [*Error], whose Kind is one of the sentinels. When the device is
// lost every later call may say so; package gpu remembers the first [ErrDeviceLost] of a context
// and does not call again but to close.
package driver
