// Package proc starts, stops, kills and restarts processes for tests.
//
//	p := proc.Start(t, proc.Spec{Path: penstock, Args: []string{"node", "--listen", "tcp://127.0.0.1:0"}})
//	m, err := p.WaitLine(ctx, regexp.MustCompile(`listening on (\S+)`))
//	p.Stop()     // SIGSTOP, and it is stopped when this returns
//	p.Continue()
//	p.Kill()     // SIGKILL, to the process and everything it started
//	p = p.Restart()
//
// With Spec.Columns a process has a real terminal, whose keys a test presses and whose screen it
// reads: [Terminal].
//
// [Penstock] builds the real binary once and keeps it in the lab's cache; [Self] is this test
// binary, run again up to the calling test.
//
// What is started here does not stay behind. Every process leads a session or a process group of
// its own, and when it ends, whatever else is left of that group is killed and reaped. The kernel
// kills it when this process dies, and a watcher, a second copy of this program that holds one end
// of a pipe, then kills what it had started in its turn. So a test process that gets SIGKILL leaves
// nothing. Out of reach are only programs that make a session of their own on purpose (daemons).
package proc
