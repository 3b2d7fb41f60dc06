package engine

import "github.com/penstock-io/penstock/flow"

// Rules is the table of steering rules of a port. Any goroutine may use it.
type Rules interface {
	// List returns the rules in force, highest priority first.
	List() []flow.Rule
}
