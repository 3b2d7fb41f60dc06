package invariants

import (
	"context"
	"errors"
	"fmt"
)

// ErrContext is in the errors of functions that were given no context.
var ErrContext = errors.New("the context is nil, expected context.Background() or one made from it")

// Context returns an error that wraps ErrContext if ctx is nil, and panics where Enabled. where
// names the function.
func Context(ctx context.Context, where string) error {
	if ctx != nil {
		return nil
	}
	if Enabled {
		Broken("%s: %v", where, ErrContext)
	}
	return fmt.Errorf("%s: %w", where, ErrContext)
}
