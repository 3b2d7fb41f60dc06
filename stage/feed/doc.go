// Package feed is a stage that hands packets to a persistent GPU kernel and returns its results.
//
//	receive queue -> ring of descriptors -> kernel -> ring of results -> application, or a transmit queue
//
// The packets stay in the slots into which the engine received them; rings (package ring,
// Descriptors) carry descriptors, in memory that CPU and accelerator share. Therefore the queue
// receives into one region that kernels reach: host_pinned in files, or the memory of package
// gpumem that an engine writes. A packet is one segment, of any size.
//
//	s, err := feed.New(q, engine.StageSpec{Queue: "rx", Options: feed.Options{Kernel: "echo", Pool: pool}})
//	rx := engine.NewRx(s, engine.Batching{Packets: 64})
//
// The kernels are those of internal/kernels (parse, echo, power, gemm), or a user's own in OpenCL C
// or PTX from a file; docs/feed.md has their signature. A kernel changes the packet in its place,
// drops it, gives it a flow id and a hash, and with Options.Row writes a row of results, which is
// the packet's second segment and is released with it.
//
// The same program runs on CUDA, on OpenCL and, in Go, on the runtime host (package gpu). A kernel
// on a processor leaves when nothing comes, and the doorbell of the next packets launches it again.
// While packets are with the kernel, the owner of the stage polls for results.
package feed
