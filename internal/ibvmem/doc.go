// Package ibvmem registers regions of package mem with RDMA devices: host memory, and accelerator
// memory by dma-buf or peer memory.
//
//	a := ibvmem.New(ctx, ibvmem.Options{})
//	mr, err := a.Register(pd, span, ibv.LocalWrite) // the device reads and writes the span's memory itself
//	if errors.Is(err, ibvmem.ErrNoWay) { ... }      // it cannot: the text says what is missing, and how to get it
//
// There are two ways to memory that the CPU does not reach. By dma-buf, the driver of the
// accelerator and that of the adapter share it through the kernel: it takes Linux 5.12, NVIDIA's
// open modules or amdgpu, and an adapter whose driver can. By peer memory, a module of the
// accelerator's vendor (nvidia-peermem) answers for its addresses. Which of them there is, the
// region, the adapter and /sys/module say before anything is tried; the reasons of a refusal come
// from package host, which the doctor asks too.
//
// Address of a registration: [ibv.MR.Addr] is that of the span's first byte, for requests of this
// side and of peers. It has nothing to do with an address of this process where the memory is a
// device's.
package ibvmem
