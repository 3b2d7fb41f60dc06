package system

import (
	"fmt"
	"os"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"go.uber.org/goleak"
)

// TestMain fails the run when a test left a goroutine, memory or a lease behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		if l := mem.LeakReport(); len(l) > 0 {
			fmt.Fprint(os.Stderr, l)
			code = 1
		}
	}
	os.Exit(code)
}
