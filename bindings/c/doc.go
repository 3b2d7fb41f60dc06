//go:build cgo

// Command c exports bindings/abi as a shared library for C programs. make capi builds it (go build
// -buildmode=c-shared); penstock.h says what each call does. It has only what the border needs:
// package bindings/abi does the work, and here its arguments are copied from what C lends for the
// time of a call, and its errors become code and text. Nothing crosses the border but numbers and
// memory outside the Go heap.
//
// The directory client has the library for C that holds no Go: it asks penstock agent
// (bindings/agent).
package main

func main() {} // a library has none, and the linker wants one
