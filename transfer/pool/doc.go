// Package pool keeps connections to one address: it dials on demand, checks, shares and backs off.
//
//	p, err := pool.New(pool.Options[net.Conn]{
//		Dial:  func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) },
//		Close: func(c net.Conn) error { return c.Close() },
//		Max:   8,
//	})
//	lease, err := p.Get(ctx, 0)
//	defer lease.Release()
//	lease.Conn().Write(...)
//
// A [Lease] is the right to use a connection; it is given back by Release, once or more often.
// Several leases share one connection where Options.Users allows it.
//
// # Rules
//
//   - Waiters are served in the order of coming; a waiter leaves when its context ends.
//   - A connection that is known to be dead is never handed out: its Done is looked at each time.
//   - A failed dial fails no waiter by itself. After it the pool waits, with full jitter, up to a
//     bound that grows with each failure in a row, and tries again, one dial at a time, for as long
//     as a caller waits or Min is not reached. A waiter gives up when its context ends, when as
//     many dials as it asked for have failed while it waited, or when a dial fails in a way that
//     Options.Permanent calls permanent; later callers restart.
//   - A connection that lived no longer than the next wait would be counts as a failed dial, so
//     that a server which accepts and hangs up is not dialed in a loop; Lease.Good says that one
//     was of use.
//   - No lock is held while a function of Options runs.
package pool
