package pathtest

import (
	"errors"
	"testing"
)

// wantErr demands an error that wraps one of want.
func wantErr(t testing.TB, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if errors.Is(err, w) {
			return
		}
	}
	t.Errorf("%s: error %v; expected one that wraps %q", what, err, want)
}
