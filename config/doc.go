// Package config parses and validates the YAML description of streams and transfers, and reports
// every mistake at once with its position. Each report has file, line and column, an excerpt, what
// was expected, and the nearest right key.
//
//	cfg, problems := config.Load("rx.yaml", text, config.Options{})
//	fmt.Print(problems.Text(text))
//	if cfg == nil {
//		return problems.Err()
//	}
//	for i := range cfg.Interfaces {
//		spec := cfg.Interfaces[i].PortSpec() // for an engine
//	}
//
// It opens nothing: no file, no device, nothing below /sys. What it should know of a machine comes
// as a Host; without one only the file is looked at, and the result is the same on every machine.
//
// There is one schema with two spellings. The first is ours, below the key penstock. The second is
// that of DAQIRI, below daqiri.cfg or with its keys at the top of the file: every key that DAQIRI
// knows is known here, and its files load. Sizes, rates and times have units (4MiB, 10Gbps, 50us),
// ports may be ranges, addresses CIDR blocks of either IP version. Migrate turns the second
// spelling into the first and keeps the comments.
//
// A Diagnostic has one of four severities. An Error means that the file contradicts itself or the
// schema; Load returns no Config then. Needs means that the file is right, but that it asks for
// something that this program or this machine does not have, or that a placeholder such as
// <0000:00:00.0> is still to be filled in: the Config is there, and opening that part of it would
// fail. A Warning is probably a mistake, a Note is good to know.
//
// One table (table.go) has all keys with their types, ranges, defaults and meaning. The parser, the
// suggestions, Explain, Schema (a JSON Schema for editors) and Reference (docs/config.md) all read
// it.
package config
