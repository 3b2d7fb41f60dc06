package testenv

import (
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/sys"
)

// Several tests at once have the pages that they asked for, and each takes away as many as it has added.
func TestHugePages(t *testing.T) {
	const size = 2 << 20
	if _, err := sys.HugePageState(size, -1); err != nil {
		t.Skip(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 5 {
				n, err := addHuge(size, 2)
				if h, _ := sys.HugePageState(size, -1); h.Total < n {
					t.Errorf("%d pages were added, %d are there", n, h.Total)
				}
				if back, e := addHuge(size, -n); back != -n {
					t.Errorf("%d pages were added (%v), %d taken away (%v)", n, err, -back, e)
				}
			}
		}()
	}
	wg.Wait()
}
