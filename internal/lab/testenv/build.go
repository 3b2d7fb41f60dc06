package testenv

import "github.com/penstock-io/penstock/internal/invariants"

// Invariants reports whether this binary was built with -tags invariants.
const Invariants = invariants.Enabled
