// Package penstock brings bytes from a network or another process into memory that an accelerator can use, with no copy beyond what the
// path needs, and says which path it took, why, and how many copies that was.
//
// For transfers between processes of one machine or of several, start with package transfer: open a node, export memory, and
// put or get spans of it; package transfer/identity has the certificates that machines need for it, package mem the memory,
// package path the contract that every way of moving bytes fulfils, and package tensor the formats. Package share serves and
// fetches files. For streams of packets, start with package engine. The command penstock shows the transfers:
//
//	go run github.com/penstock-io/penstock/cmd/penstock demo
//
// # A configuration file
//
// This package opens what a file describes (package config): memory, ports with queues and flows, a node.
//
//	cfg, problems := config.Load("rx.yaml", text, config.Options{})
//	if cfg == nil {
//		return problems.Err()
//	}
//	s, err := penstock.Open(ctx, cfg, penstock.Options{}) // or all that is missing here, at once
//	defer s.Close()
//	rx, err := s.Rx("eth0", 0)
//	for b := burst.New(256); rx.Recv(ctx, b) == nil; b.Release() {
//		...
//	}
//
// The applications of the file (package app) run until Close: each takes the packets of its receive queue, which is not the program's then.
//
// MakePlan says beforehand what would be opened, and Options.Plan hears it from Open. System.Reload puts the flows of a changed file in
// force while packets go on, all or none; a Reloader does so when the file changes.
//
// A receive queue has a poller unless its poll_mode is direct: one for each cpu_core, pinned to it, which looks again for a while before it
// sleeps; queues without cpu_core have one each, which sleeps until something comes. poll_mode chooses otherwise (event, adaptive, busy). With
// direct the application's own goroutine polls. Between the queue and the poller stand its stages (engine.Stage). Either way System.Rx is where
// packets come out, in bursts as batch_size and timeout say.
//
// ARCHITECTURE.md is the map of the packages and the laws that keep them apart; each law is a test in internal/laws.
package penstock
