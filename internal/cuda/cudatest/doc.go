// Package cudatest checks that a CUDA driver, real or fake, does what package internal/cuda relies
// on. The tests of internal/cuda run it on the lab's fake driver, and `make gpu-test` on a real
// card, so that both are held to the same. Its kernels are PTX by hand (kernels.ptx), which a card
// runs and of which the fake runs C functions of the same names.
//
// A card may lack what a check is about: the check then says so and is skipped.
package cudatest
