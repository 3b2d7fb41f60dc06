// Package bounce copies packets between an engine's host memory and the memory of an accelerator,
// for engines whose device cannot reach it.
//
// A Port stands before the port of an engine. Queues whose pools the engine can use are the
// engine's own. Where a pool is device memory, the engine works on page-locked host memory that the
// port adds, and each byte is copied once, by the accelerator:
//
//	port = bounce.New(port, bounce.Options{})
//	q, err := port.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{headers, payload}}) // payload is of kind mem.Device
//
// # Receiving
//
// One pool of device memory takes whole packets; two, the first in host memory, take headers and
// payloads: headers stay where the CPU reads them. A burst comes out when its copies are over, in
// the order in which the engine received, so that kernels of any stream see its bytes:
// Burst.Segment says where they lie (mem.Span, and by way of Region.Handle the *gpu.Memory);
// Burst.Bytes is nil there. While a few bursts are being copied the next ones are received. The
// slots of the host memory go back to the engine when their copy is over, those of the device when
// the burst is released.
//
// When the device pool has no free slot, packets are dropped as engine.DropNoDeviceBuffers; those
// of byte streams, and of engines that lose nothing, wait in the engine instead. When the device is
// lost, the queue ends with an error that wraps gpu.ErrDeviceLost, and what was being copied is
// dropped as engine.DropDown.
//
// # Sending
//
// A transmit queue with a pool of device memory gives packets whose payload kernels fill. Send
// copies them into host memory of the engine's queue, and has them sent when the copies are over:
// kernels must have written them before. Forward takes packets of any memory that the device
// reaches, and copies each.
//
// # What it costs
//
// Copied of the statistics counts the bytes. A burst is one batch of work for the device: a copy
// for each segment, and an event. Nothing is allocated for it. A receive queue has a goroutine
// while its owner sleeps until a copy is over, a transmit queue has one always.
package bounce
