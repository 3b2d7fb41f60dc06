package job

import (
	"cmp"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/transfer/pool"
)

// Retry says how often a job tries again, and how long it waits before. The zero value means the
// defaults.
//
// The n-th wait in a row is a random time between nothing and First×Factor^(n-1), at most Max
// ([pool.Backoff]). The first failure after progress is tried again at once if a session or a path
// was lost, since setting it up again takes its time anyway. Progress is a piece that was verified:
// it sets both limits back. So a job over a bad link goes on as long as it gets somewhere, and ends
// all the same, for it has a bounded number of pieces.
type Retry struct {
	First  time.Duration // 0: 50 ms
	Max    time.Duration // 0: 5 s
	Factor float64       // 0: 2
	// Attempts is how many may fail in a row without progress, dials that fail included; 0 means
	// 32, of which the waits add up to about a minute, in which a server can be restarted. A
	// negative number is no limit.
	Attempts int
	// Total is how long a job goes on after the last progress, or after the first session without
	// any was lost; 0 means 2 minutes, a negative time no limit. A session that lives may take as
	// long as it likes (see Options.Stall).
	Total time.Duration
}

// The defaults of Retry.
const (
	DefaultAttempts   = 32
	DefaultRetryTotal = 2 * time.Minute
)

// complete fills what is 0 from other, then from the defaults, and checks the result.
func (r Retry) complete(other Retry) (Retry, error) {
	r.First, r.Max, r.Factor = cmp.Or(r.First, other.First), cmp.Or(r.Max, other.Max), cmp.Or(r.Factor, other.Factor)
	r.Attempts = cmp.Or(r.Attempts, other.Attempts, DefaultAttempts)
	r.Total = cmp.Or(r.Total, other.Total, DefaultRetryTotal)
	b := r.backoff()
	r.First, r.Max, r.Factor = b.First, b.Max, b.Factor
	if err := b.Validate(); err != nil {
		return r, fmt.Errorf("transfer: retry: %w", err)
	}
	return r, nil
}

func (r Retry) backoff() pool.Backoff {
	return pool.Backoff{First: r.First, Max: r.Max, Factor: r.Factor}.WithDefaults()
}
