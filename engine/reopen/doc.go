// Package reopen wraps ports so that they reopen a lost interface when it returns: queues stay,
// rules keep their ids, counters go on.
//
//	p, err := reopen.Open(ctx, eng, spec, reopen.Options{})
//
// While the interface is away receive queues have nothing to say, transmit queues have no
// descriptors (engine.ErrFull), and rules cannot be changed. What waited in its queues is dropped
// and counted as engine.DropClosed, what was to be sent by the engine's own reason. Pauses between
// attempts grow to Options.Most. LinkState tells when the interface was lost and when it was opened
// again.
package reopen
