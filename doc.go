// Package penstock brings bytes from a network or another process into memory that an accelerator
// can use, with no copy beyond what the path needs, and says which path it took, why, and how many
// copies that was. It has no code: the packages below are the library.
//
//   - Package system opens what a configuration file describes: memory, ports with queues and
//     flows, a node, applications. Start here for a program that runs a file.
//   - Package transfer moves memory between processes of one machine or of several: open a node,
//     export memory, put and get ranges of it. transfer/identity has the certificates that machines
//     need for it, transfer/path the contract of every way of moving bytes.
//   - Package engine receives and sends packets; the packages stage/... stand between its queues
//     and an application.
//   - Package mem has the memory of both, package tensor the formats, package gpu the accelerators.
//   - Package share serves and fetches files.
//
// The command penstock shows the transfers:
//
//	go run github.com/penstock-io/penstock/cmd/penstock demo
//
// ARCHITECTURE.md is the map of the packages and the laws that keep them apart; each law is a test
// in internal/laws.
package penstock
