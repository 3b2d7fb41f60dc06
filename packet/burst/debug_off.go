//go:build !invariants

package burst

type debug struct{}

func (*debug) fill(*Burst)          {}
func (*debug) empty(*Burst, string) {}
func (*debug) emptied() string      { return "" }

// Leaks lists who filled each burst that is not empty now, also those that are not referred to any
// more; without -tags invariants it knows nothing.
func Leaks() []string { return nil }
