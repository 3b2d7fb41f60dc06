// Package flowtest generates rules and traffic by seed for tests of flow rules, with a reference
// matcher.
//
//	rules := flowtest.Rules(1, 1000)
//	traffic := flowtest.NewTraffic(rules, flowtest.TrafficOptions{Seed: 2, Flows: 10_000, Skew: 1.1, Packets: 1 << 16})
//	for _, frame := range traffic.Frames { ... }
//
// Equal seeds give equal results on every machine.
package flowtest
