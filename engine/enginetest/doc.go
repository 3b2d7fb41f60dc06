// Package enginetest is the conformance suite of packet engines. Each engine runs it in its own
// tests:
//
//	func TestConformance(t *testing.T) {
//		enginetest.Run(t, enginetest.Harness{Open: func(t testing.TB) enginetest.Pair {
//			... // open two connected ports
//			return enginetest.Pair{A: a, B: b}
//		}})
//	}
//
// The suite adds queues and pools to the ports, sends packets that carry their sender, number,
// length and a checksum, and looks at every byte that arrives. What an engine cannot do it says
// through the Capabilities of its ports, and is not asked for; what it claims is checked. Every
// check also demands that no goroutine, no descriptor and no packet memory is left over.
//
// # The suite can fail
//
// The suite's own tests run it over sound engines with a mistake between them and the suite, one
// mistake at a time: each must be noticed by the checks that look at it, and by no other.
//
// # Programs
//
// A Program is random traffic made from a seed: queues that come and go, bursts of random sizes
// from several senders, and an application that releases, echoes, forwards, drops and stalls at
// random. Executed over two engines it must deliver the same bytes.
package enginetest
