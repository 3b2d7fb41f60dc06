package testenv

import (
	"os"
	"strconv"

	"github.com/penstock-io/penstock/internal/sys"
)

// HugePages has the kernel add n huge pages of size bytes for the test, and takes them away with the test. Where it cannot, and fewer are
// free, the test is skipped with the kernel's answer. Tests of several processes may do so at once.
func HugePages(t TB, size, n int) {
	t.Helper()
	before, err := sys.HugePageState(size, -1)
	if err != nil {
		Record(t, "skip", "huge pages", err.Error())
		t.Skipf("%v", err)
		return
	}
	added, err := addHuge(size, n)
	t.Cleanup(func() {
		if _, err := addHuge(size, -added); err != nil && added > 0 {
			t.Errorf("testenv: huge pages are left: %v", err)
		}
	})
	if added == n {
		return
	}
	if h, e := sys.HugePageState(size, -1); e != nil || h.Free < n {
		Record(t, "skip", "huge pages", "memory")
		t.Skipf("%d huge pages of %d bytes were free, the test needs %d, and the kernel added %d: %v, %v", before.Free, size, n, added, err, e)
	}
}

// addHuge changes how many huge pages there are by n, and says by how many it did. Nobody else of the lab does so meanwhile.
func addHuge(size, n int) (int, error) {
	unlock, err := Lock("hugepages")
	if err != nil {
		return 0, err
	}
	defer unlock()
	before, err := sys.HugePageState(size, -1)
	if err != nil || n == 0 {
		return 0, err
	}
	if err := os.WriteFile(before.Knob, []byte(strconv.Itoa(max(0, before.Total+n))), 0); err != nil {
		return 0, err
	}
	after, err := sys.HugePageState(size, -1)
	return after.Total - before.Total, err
}
