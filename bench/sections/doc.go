// Package sections runs the bench sections of a configuration file, as DAQIRI's benchmark programs
// run them.
//
//	c, said := config.Load(name, text, config.Options{})
//	changes := sections.Fit(c, host) // what is not on this machine is replaced by what is, and listed
//	plan := sections.MakePlan(c, sections.Options{Host: host})
//	plan.Table(os.Stdout, changes)
//	r, err := sections.Run(ctx, c, plan, changes, sections.Options{Duration: 10 * time.Second})
//
// MakePlan is pure: it says what would run, or everything that is missing for it with the places in
// the file, and opens nothing.
//
// # Accounting
//
// A sender numbers its packets in a stream.Header behind the packet's own headers, where the
// payload has room for it besides the sequence number that the file asks for, and fills the rest
// with a pattern. Receivers that share the process know all of that: each packet that was sent was
// received once, or was dropped by a port that says why, and what is left of that sum is shown. Of
// packets of other programs only packets and bytes are counted.
//
// Behind a reorder plan a receiver gets batches. Then the file's own number says which packet is at
// each place of a batch, and its payload is compared as the plan converts it.
package sections
