// Package laws keeps the laws of the house (ARCHITECTURE.md) as tests over the source tree: which
// package may import which, where unsafe, system calls, assembly and cgo may be, that every package
// and exported name is documented, and that files stay small.
package laws
