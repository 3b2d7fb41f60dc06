package mem

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails the run when a test left a goroutine, a region, a lease, a slot, a block or a
// registration behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if ls := LeakReport(); code == 0 && len(ls) > 0 {
		fmt.Fprintf(os.Stderr, "left behind by the tests:\n%s", ls)
		code = 1
	}
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func allocate(t testing.TB, o Options) *Region {
	t.Helper()
	r := must[*Region](t)(Alloc(o))
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func isUnmapped(r *Region) bool {
	select {
	case <-r.Unmapped():
		return true
	default:
		return false
	}
}
