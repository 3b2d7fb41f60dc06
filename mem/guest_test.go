package mem

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/penstock-io/penstock/internal/sys"
)

// TestGuestNUMA allocates on two nodes, which a machine of CI does not have.
func TestGuestNUMA(t *testing.T) {
	// Node 1 has four huge pages, node 0 more than enough. They are reserved at boot, when memory
	// is in one piece.
	profile := guest.Numa
	profile.Kernel = []string{"hugepagesz=2M", "hugepages=0:16,1:4"}
	if guest.Enter(t, guest.Spec{Profile: profile}) {
		return
	}
	nodes, err := sys.MemoryNodes()
	if err != nil || len(nodes) != 2 {
		t.Fatalf("nodes with memory: %v, %v; expected two", nodes, err)
	}
	const pages = 2000
	for _, n := range nodes {
		t.Run(fmt.Sprintf("Node%d", n), func(t *testing.T) {
			r := allocate(t, Options{Name: "bound", Size: pages * sys.PageSize, NUMANode: OnNode(n)})
			on, err := r.PlacedOn()
			if err != nil || r.NUMANode() != n || on[n] != pages || len(on) != 1 {
				t.Errorf("NUMANode() = %d, pages by node %v, %v", r.NUMANode(), on, err)
			}
			// The kernel's own count of the pages of the mapping, without this project's calls.
			if got := numaMaps(t, r, n); got != pages {
				t.Errorf("numa_maps counts %d pages on node %d, expected %d", got, n, pages)
			}
			if got := numaMaps(t, r, 1-n); got != 0 {
				t.Errorf("numa_maps counts %d pages on node %d", got, 1-n)
			}
			lazy := allocate(t, Options{Size: 8 * sys.PageSize, NUMANode: OnNode(n), Lazy: true})
			clear(lazy.All().Bytes())
			if on, err := lazy.PlacedOn(); err != nil || on[n] != 8 {
				t.Errorf("lazy, touched: %v, %v", on, err)
			}
		})
	}
	t.Run("Missing", func(t *testing.T) {
		_, err := Alloc(Options{Size: 1, NUMANode: OnNode(2)})
		if !errors.Is(err, errNoNode) || !strings.Contains(err.Error(), "nodes with memory are [0 1]") {
			t.Errorf("node 2: %v", err)
		}
	})
	t.Run("HugePages", func(t *testing.T) {
		// What does not fit on node 1 must not come from node 0.
		for n, count := range map[int]string{0: "16", 1: "4"} {
			got, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages", n))
			if err != nil || strings.TrimSpace(string(got)) != count {
				t.Fatalf("node %d has %q huge pages, %v; expected %s", n, got, err, count)
			}
		}
		r := allocate(t, Options{Size: 4 * 2 << 20, Kind: Huge, NUMANode: OnNode(1)})
		if on, err := r.PlacedOn(); err != nil || r.NUMANode() != 1 || on[1] != 4 || len(on) != 1 {
			t.Errorf("NUMANode() = %d, pages by node %v, %v", r.NUMANode(), on, err)
		}
		_, err := Alloc(Options{Size: 2 << 20, Kind: Huge, NUMANode: OnNode(1)})
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "on NUMA node 1 and 0 are free") ||
			!strings.Contains(err.Error(), "node1/hugepages") {
			t.Errorf("a node without free huge pages: %v", err)
		}
		full := allocate(t, Options{Size: 2 << 20, Kind: Huge, NUMANode: OnNode(0)})
		if full.NUMANode() != 0 {
			t.Errorf("on node %d, expected 0", full.NUMANode())
		}
	})
	t.Run("FullNode", func(t *testing.T) {
		// The machine has enough for this, node 1 has not: without a refusal the kernel would kill
		// this process.
		avail, err := sys.NodeAvailable(1)
		if err != nil {
			t.Fatal(err)
		}
		const size = 450 << 20
		if all, err := sys.MemAvailable(); err != nil || all < size {
			t.Fatalf("the machine has %d bytes available, %v; the test needs %d", all, err, size)
		}
		_, err = Alloc(Options{Size: size, NUMANode: OnNode(1)})
		if err == nil || !strings.Contains(err.Error(), "available on NUMA node 1") {
			t.Errorf("%d bytes on a node with %d available: %v", size, avail, err)
		}
		// What fits is not refused.
		r := allocate(t, Options{Size: checkAvailable, NUMANode: OnNode(1)})
		if r.NUMANode() != 1 {
			t.Errorf("on node %d, expected 1", r.NUMANode())
		}
	})
}

// numaMaps is the number of pages of a region on a node as /proc/self/numa_maps has it.
func numaMaps(t *testing.T, r *Region, node int) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/numa_maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(maps), "\n") {
		if at, rest, _ := strings.Cut(line, " "); at == fmt.Sprintf("%x", sys.Address(r.data)) {
			for word := range strings.FieldsSeq(rest) {
				var n, pages int
				if _, err := fmt.Sscanf(word, "N%d=%d", &n, &pages); err == nil && n == node {
					return pages
				}
			}
			return 0
		}
	}
	t.Fatalf("numa_maps has no mapping at %x:\n%s", sys.Address(r.data), maps)
	return 0
}
