package config

import "slices"

// Diagnose makes a Diagnostic about the value at a path, in the manner of Load: its place is that
// of the value in the file, or of the section around it. It is for packages that open what a Config
// describes, and find there what this one cannot know.
func (c *Config) Diagnose(s Severity, code Code, path, message, expected, hint string) Diagnostic {
	at := c.nearestSource(path)
	return Diagnostic{Severity: s, Code: code, File: c.name, At: at.At, Width: max(1, at.Width), Path: path,
		Message: message, Expected: expected, Hint: hint}
}

// Needs are what Load found that the file asks for and that is not here, or that is still to be
// filled in, such as <0000:00:00.0>: its diagnostics of this severity. There are none of a Config
// that a program wrote; Check says them.
func (c *Config) Needs() Diagnostics { return slices.Clone(c.needs) }
