// Package dl loads C libraries at run time and calls their functions without cgo. So one program
// runs on machines with and without libibverbs or libcuda, and says what is missing where it is.
//
// [Open] loads a library, [Library.Symbol] finds a function, [Func.Call] calls it. Calls in hot
// loops use Call0 to Call6, which allocate nothing and cost about as much as a call by cgo. What C
// keeps beyond a call is memory of [Alloc].
//
// Below it is purego, which makes a program without cgo a host for C: its threads, their C stacks
// and the loader. The calls are our own assembly, since purego's allocate. The package knows
// nothing of any library's types; that is the work of its users.
package dl

import "errors"

// ErrNotFound is wrapped by errors of [Open]: none of the names is a library that this process can
// load.
var ErrNotFound = errors.New("no such library")

// ErrNoSymbol is wrapped by errors of [Library.Symbol]: the library has no such function.
var ErrNoSymbol = errors.New("no such function")
