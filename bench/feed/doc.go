// Package feed measures packets that go to a persistent GPU kernel and back, through rings of
// descriptors. Kernels of more and more work-items that stay (gpu.Resident) are measured beside the
// same kernel by a launch for each burst, and beside goroutines of the CPU that do the same work;
// and a single packet by stages.
//
//	r, err := feed.Run(ctx, feed.Options{Runtime: "opencl"})
//	if err != nil { ... }
//	r.Table(os.Stdout)
//
// The rules are those of package bench. Payload lies in memory that both sides see before a sample
// begins; each packet comes back once, in a descriptor with its number and the sum of its bytes,
// which is compared with what the CPU has summed.
package feed
