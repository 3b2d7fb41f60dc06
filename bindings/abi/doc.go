// Package abi is what the C ABI does, without C: systems, memory, peers, transfers, listings,
// shares and packets behind numbers, and errors as codes. Its callers are the library for C
// (bindings/c), which has one [Table] for the process, and the agent (bindings/agent), which has
// one for each connection. bindings/c/penstock.h says what each call does.
package abi
