// Package device measures an accelerator through package gpu: copies, pipelines, launches, events
// and allocation.
//
//	r, err := device.Run(ctx, device.Options{Runtime: "cuda"})
//	if err != nil { ... }
//	r.Table(os.Stdout)
//
// The rules are those of package bench. Each sample of a row that moves bytes moves a pattern that
// no other sample had, and every byte of the destination is read back and compared. Copies of a
// card are printed beside the rate of its PCIe link, and copies within it beside the bandwidth of
// its memory; what the runtimes host and opencl do on the processor is printed beside the speed at
// which two cores copy memory. A figure above an enforced ceiling fails the report.
package device
