// Package gpucard runs every test that needs an NVIDIA card and writes a result file. `make
// gpu-test` builds it (a test binary that needs nothing but the driver) and runs it;
// docs/gpu-test.md has the words for people.
//
// Run by go test, as in CI, the package tests the program itself: on the lab's fake driver, which
// the result file then names, and without any driver.
package gpucard
