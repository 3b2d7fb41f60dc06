// Package gpumem provides device memory and pinned host memory of accelerators as regions of
// package mem. [mem.Device] is memory of the device; [mem.HostPinned] is host memory from and to
// which the device copies at full speed.
//
//	p, err := gpumem.New(c, gpumem.Options{})      // c is a *gpu.Context
//	r, err := mem.Alloc(mem.Options{Kind: mem.Device, Size: n, Provider: p})
//	h, err := mem.Alloc(mem.Options{Kind: mem.HostPinned, Size: n, Provider: p})
//	mv, err := r.Mover().Store(0, h.All())         // begins, and returns
//	err = mv.Wait(ctx)                             // every byte is in place
//	k.Prepare(gpu.Buffer(gpumem.Memory(r).All()))  // for kernels
//
// Pools, allocators and registration caches take such regions as they take any other; a slot of a
// pool of device memory costs no call of the driver.
//
// # Device memory
//
// A region is an allocation of its own. Where the device exports memory (IPC, dma-buf), which is
// done by whole blocks of the driver, it is of 2 MiB or a multiple and begins at one, so that
// nothing else is handed over with it: pools should divide it. The CPU sees the bytes where the
// runtime lets it (gpu.CapDeviceBytes), unless Options.Opaque is set; elsewhere [mem.Region.Mover]
// copies. A region of a device is not zeroed.
//
// # Pinned memory
//
// It is made of ordinary pages in a sealed memfd, on the NUMA node of the device, and then
// registered with the runtime, so that every path of the network and every peer on this machine
// reaches it too. Where a runtime cannot register memory that exists (gpu.CapAdopt), it is memory
// of that runtime without a descriptor, and Region.Note says so. Pinned pages are always present:
// Options.Lazy has no effect. With Options.PageSize of 2 MiB or 1 GiB it is huge pages.
//
// # Copies
//
// Copies run on a few streams of the Provider, side by side. From and to memory that the runtime
// knows (regions of a Provider of the same context) they are asynchronous. Other memory goes
// through a pinned buffer in two halves, one of which the CPU fills while the device empties the
// other, and the copy is over when Load or Store returns. In steady state nothing is allocated, but
// where Wait gets a context that can end before the copy does.
//
// Copies are in no order with each other or with other streams: a caller that stores what a kernel
// made waits for the kernel first, and launches kernels that need what is stored when the Move is
// over.
//
// A Move ends when its user sees that the copy is over. One that its user drops costs an event
// until the garbage collector has found it, and its memory is safe: a region is given back when the
// copies that were put in before are done.
//
// # Adoption and other processes
//
// [Provider.Adopt] makes a region of a gpu.Memory that exists, [Provider.AdoptAddress] of a device
// address that some other library gave. [Provider.Export] and [Provider.Open] carry a region to
// another process of this machine, whole. [Provider.MapCPU] lets the CPU reach device memory where
// driver and kernel allow that.
//
// # Order of closing
//
// Regions first, then the Provider, then the context. [Provider.Close] refuses while a region is
// there.
package gpumem
