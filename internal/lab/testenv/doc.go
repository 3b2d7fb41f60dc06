// Package testenv provides what tests need from the machine: proven skips, a cache of built
// programs, and a ledger of what ran.
//
// The lab makes claims about networks, NICs, RDMA and GPUs provable on a machine that has none of
// them. Its parts:
//
//   - netns: hosts in network namespaces, joined by veth pairs or a bridge;
//   - guest: a Debian kernel under qemu that runs this project's test binaries;
//   - fake/verbs and fake/cuda: C libraries that stand in for libibverbs and libcuda;
//   - fault: seeded faults for connections and paths; proc: real processes that are killed for
//     real;
//   - peers: other people's tools at the far end.
//
// Two rules hold for all of them. A test skips only for a reason that an attempt proved, and does
// not skip at all where CI is set: [Missing]; or because of how it was built, which [LeaveOut]
// looks up. Nothing else in the repository skips a test. And nothing stays behind, also when the
// test process is killed: what lives in the kernel is held by descriptors and threads, which end
// with the process, and what lives in files is in one cache directory, by content.
//
// The package does not import testing, so that the benchmarks, which are part of the product, can
// use the same wrappers.
package testenv
