// Package pathtest is the conformance suite of transfer paths.
//
// A path's own test connects two ends and hands them over:
//
//	func TestConformance(t *testing.T) {
//		pathtest.Run(t, pathtest.Factory{
//			New:        func(t testing.TB, a, b setup.Config) (path.Path, path.Path) { ... },
//			Boundaries: []int{frameSize, inlineLimit},
//		})
//	}
//
//	func TestProcesses(t *testing.T) { pathtest.RunProcess(t, driver) }
//
// Run works inside one process. RunProcess starts the test binary again as the other side, and
// stops and kills it.
//
// Where the contract leaves room the suite takes these readings, which are part of the contract
// from then on:
//
//   - A bad operation may be refused by Post or by its EventDone, with the same error.
//   - Operations count against the window from Post until their EventDone was polled, also when
//     they are done earlier. So a fresh path accepts exactly Capabilities().Window of them in a
//     row.
//   - Notify operations arrive in the order of posting. A Put or Get with Notify arrives after its
//     own bytes; its order with regard to other operations is open.
//   - A notification whose operation completed without an error is reported to the peer even if the
//     path is closed next.
//   - Between Revoke and the end of its Fence a one-sided path may still let the peer reach an
//     export that it reached before. Any other path refuses from Revoke on, and every path refuses
//     an export that the peer first names after Revoke.
//   - An operation that ended with an error, also ErrCanceled, has not notified the peer.
//   - Close ends with EventDown on both sides, also on the one that closed. Its Err wraps ErrDown.
//     Closing again does nothing.
//   - Stats: OpsPosted = OpsDone + OpsFailed + outstanding; OpsDone ended without an error. What
//     Post refused counts nowhere.
//
// NewMemory makes the smallest correct path; the suite's own tests break it on purpose in many ways
// and demand that the suite notices each.
package pathtest
