// Package tune changes settings of network interfaces and of the host for receiving at speed, and
// restores them.
//
//	plan, err := tune.Nic(ctx, "eth0", tune.Goals{Queues: 4})
//	fmt.Print(plan)                       // nothing was changed
//	result, err := plan.Apply(ctx, tune.Options{})
//	result, err = tune.Undo(ctx, "eth0", tune.Options{})
//
// [Host] makes the plan for the machine apart from its interfaces, [Driver] for giving a network
// card to a driver for programs in user space, or back.
//
// A [Plan] is inert data: steps, each with the setting, the value that it has and the one that it
// should have, the reason, the command that does it by hand, and the right that it takes. It prints
// as a table and goes through JSON. What cannot be known on a machine (a file of /sys that is not
// there, a driver that does not answer) is in Plan.Unknown and stops nothing. docs/tune.md has the
// reason of each step with its source.
//
// [Plan.Apply] does the steps in order, looks at each whether it is so, and stops at the first that
// is not. Before each change it writes down, in a file of the state directory, what was there: so
// [Undo] works after an error, after a kill in the middle, and after several Apply, and restores
// what was there before the first one. It leaves alone what another process has changed since, and
// says so. Settings of this kind end with the machine's boot: then there is nothing to undo.
//
// Everything is about the network namespace of the calling thread, which is that of the process
// unless the caller has changed it.
package tune
