// Package penstock brings bytes from a network to an accelerator, into memory that the accelerator can use, without copying
// them, over whichever path the machine has, and says which path that is and why.
//
// What works today is the transfer side between processes of one machine. Start with package transfer: open a node, export
// memory, and put or get spans of it; package mem has the memory, package path the contract that every way of moving bytes
// fulfils, and package tensor the formats. The command penstock shows all of it:
//
//	go run github.com/penstock-io/penstock/cmd/penstock demo
//
// ARCHITECTURE.md is the map of the packages and the laws that keep them apart; each law is a test in internal/laws.
package penstock
