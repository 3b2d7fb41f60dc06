// Package system plans, opens, reloads and closes what a configuration file describes: memory,
// ports, a node, applications.
//
//	cfg, problems := config.Load("rx.yaml", text, config.Options{})
//	if cfg == nil {
//		return problems.Err()
//	}
//	s, err := system.Open(ctx, cfg, system.Options{}) // or all that is missing here, at once
//	defer s.Close()
//	rx, err := s.Rx("eth0", 0)
//	for b := burst.New(256); rx.Recv(ctx, b) == nil; b.Release() {
//		...
//	}
//
// The applications of the file (package stage/app) run until Close. Each takes the packets of its
// receive queue, which the program does not get then.
//
// MakePlan says beforehand what would be opened, and Options.Plan hears it from Open. System.Reload
// puts the flows of a changed file in force while packets go on, all or none; a Reloader does so
// when the file changes.
//
// A receive queue has a poller unless its poll_mode is direct: one for each cpu_core, pinned to it,
// which looks again for a while before it sleeps; queues without cpu_core have one each, which
// sleeps until something comes. poll_mode chooses otherwise (event, adaptive, busy). With direct
// the application's own goroutine polls. Between the queue and the poller stand its stages
// (engine.Stage). Either way System.Rx is where packets come out, in bursts as batch_size and
// timeout say.
package system
