// Package cudatest asks a driver of CUDA everything that package internal/cuda relies on: copies,
// order, arguments of kernels, virtual memory, sharing with other processes, errors. The tests of
// internal/cuda run it on the lab's fake driver, and `make gpu-test` on a real card, so that both
// are held to the same. Its kernels are PTX by hand (kernels.ptx), which a card runs and of which
// the fake runs C functions of the same names.
//
// A card may lack what a check is about: the check then says so and is skipped.
package cudatest
