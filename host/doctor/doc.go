// Package doctor checks whether a machine meets the needs of a program or a configuration, and says
// how to fix what is missing.
//
//	facts := doctor.Look(ctx)                                     // this machine; or doctor.Open(recording)
//	report := doctor.Run(facts, doctor.Needs{Interfaces: []doctor.Interface{{Name: "eth0", Engine: "xdp"}}, Cores: []int{2, 3}})
//	fmt.Print(report)
//
// A check is data: [Checks] lists them with their reasons. Each finding of a [Report] has a
// [Verdict]. Without needs the machine is looked at in general, and nothing fails: a check warns of
// what costs speed for most. With needs a check fails where what is needed cannot be had as the
// machine is. What could not be read is [Unknown], with the reason, and never a guess. Run reads
// nothing and changes nothing: the same facts and needs give the same report.
//
// docs/doctor.md has all checks with their sources, and what a recording of a machine contains.
package doctor
