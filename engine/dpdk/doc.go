// Package dpdk is the packet engine for whole Ethernet frames over DPDK's poll-mode drivers.
//
//	eng := dpdk.New()
//	port, err := eng.OpenPort(ctx, engine.PortSpec{Address: "0000:3b:00.0", RxQueues: 2, TxQueues: 1})
//	port, err = eng.OpenPort(ctx, engine.PortSpec{Address: "dpdk://net_memif0,role=client?descriptors=512"})
//
// An address is a place on the PCI bus, the name of an interface whose card has one, or the name of
// a virtual device; behind a comma it has arguments of the driver (DPDK calls all that devargs).
//
// DPDK is a library in C: builds with the tag dpdk have it, through package internal/cdpdk, and
// need libdpdk when they are compiled and when they run. Other builds know the engine
// (configurations are checked, the doctor looks at the machine), and Available says ErrNotBuilt
// with the commands that make such a build.
//
// The environment of DPDK (EAL) is started once for a process, by the first port, with the options
// of type EAL that this port has; it ends with the process.
package dpdk
