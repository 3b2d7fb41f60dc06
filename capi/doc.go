//go:build cgo

// Command capi is the library for C: go build -buildmode=c-shared makes libpenstock.so of it (make capi). penstock.h says what each call
// does. It has only what the border needs: handles, errors as code and text, and copies of what C lends for the time of a call. Nothing
// crosses the border but numbers and memory outside the Go heap.
package main

func main() {} // a library has none, and the linker wants one
