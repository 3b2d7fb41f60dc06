// Package flowtest makes rules and traffic for tests and benchmarks of package flow and of the
// engines that carry rules out: sets of rules by seed, frames that meet a match or just miss it,
// Zipf traffic, and a matcher so plain that it can be believed.
//
//	rules := flowtest.Rules(1, 1000)
//	traffic := flowtest.NewTraffic(rules, flowtest.TrafficOptions{Seed: 2, Flows: 10_000, Skew: 1.1, Packets: 1 << 16})
//	for _, frame := range traffic.Frames { ... }
//
// Equal seeds give equal results on every machine.
package flowtest
