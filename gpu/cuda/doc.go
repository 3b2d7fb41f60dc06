// Package cuda is the runtime of package gpu for NVIDIA devices, over the driver library alone. No
// toolkit is needed, neither to build nor to run.
//
// A [gpu.Context] is the device's primary context, which the process has once: PyTorch and other
// users of CUDA in the same process share it, and a fault in their kernels loses it for all. Which
// thread a goroutine runs on does not matter: see package internal/cuda.
//
// Programs are loaded as PTX; the driver compiles it for the device. Of the forms that a program
// has, the newest architecture that the device runs and whose PTX the driver reads is taken.
//
// Memory of kind SharedMemory is page-locked host memory at one address for the CPU and all devices
// (unified addressing); it is not managed memory, whose pages move. Copies between two kinds of
// host memory, of which one is mapped, wait until they are done: CUDA makes no asynchronous ones.
//
// CapSharedAtomics means loads and stores of the system's scope. Read-modify-write operations of
// both sides on one word are atomic to each other only where the bus carries them (Grace, or PCIe
// with atomics): let each word have one writer.
//
// Waiting looks a few times, then sleeps in the driver, which holds a thread.
package cuda
