package cuda

import (
	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// slow says that this build does more than users' builds do, and allocates for it.
const slow = testenv.Race || invariants.Enabled
