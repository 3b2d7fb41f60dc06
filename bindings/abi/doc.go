// Package abi implements the C ABI without C: it keeps systems, memory, peers, transfers and
// packets behind numbers, and reports errors as codes. Its callers are the library for C
// (bindings/c), which has one [Table] for the process, and the agent (bindings/agent), which has
// one for each connection. bindings/c/penstock.h says what each call does.
package abi
