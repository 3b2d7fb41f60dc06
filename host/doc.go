// Package host reads what a machine is: processors, memory, PCI devices, network interfaces, RDMA
// devices, GPUs, clocks, and the rights of this process.
//
//	f := host.Read(ctx, host.Live())
//	for _, n := range f.Nets { ... }
//
// Everything is read as files of a tree rooted at / ([fs.FS], names without the slash). What the
// kernel does not tell by a file (ethtool, the state of the clock, nvidia-smi) [Live] makes into
// files below penstock/, so that one tree holds all. [Record] reads a tree and writes down just
// what was read, without what identifies the machine; [Parse] makes a tree of it again, from which
// Read finds the same facts. So a report from another machine is a test here.
//
// Nothing fails: a file that is missing or may not be read is a fact too, in [Facts.Missing], and
// contents that make no sense count as missing. Reading changes nothing and needs no rights; with
// root it sees more (PCI Express capabilities).
package host
