package sys

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// HugePages is the state of one size of huge pages, on one NUMA node or on the whole machine.
type HugePages struct {
	Size  int // bytes of one page
	Total int // pages that exist
	// Surplus is how many of Total the kernel gives up as soon as no mapping uses them: it added
	// them by itself, or a process took them from the pool while they were in use. 0 for a node.
	Surplus int
	Free    int // pages that a new mapping can have: free and not reserved by another mapping
	// More is the number of pages the kernel may add by itself when asked
	// (nr_overcommit_hugepages), if it finds memory.
	More int
	// Knob is the file that sets Total without Surplus: the kernel makes pages of the surplus
	// permanent before it adds others.
	Knob string
}

// HugePageState reads the kernel's counts for pages of size bytes; node -1 means the whole machine.
// The error says which sizes exist when this one does not.
func HugePageState(size, node int) (HugePages, error) {
	root := "/sys/kernel/mm/hugepages"
	if node >= 0 {
		root = fmt.Sprintf("/sys/devices/system/node/node%d/hugepages", node)
	}
	return hugePageState(root, size, node >= 0)
}

func hugePageState(root string, size int, perNode bool) (HugePages, error) {
	dir := filepath.Join(root, fmt.Sprintf("hugepages-%dkB", size>>10))
	h := HugePages{Size: size, Knob: filepath.Join(dir, "nr_hugepages")}
	if _, err := os.Stat(dir); err != nil {
		have, _ := filepath.Glob(filepath.Join(root, "hugepages-*"))
		for i := range have {
			have[i] = strings.TrimPrefix(filepath.Base(have[i]), "hugepages-")
		}
		if len(have) == 0 {
			return h, fmt.Errorf("this kernel has no huge pages (%s does not exist)", root)
		}
		return h, fmt.Errorf("this kernel has no huge pages of %d kB; it has %s", size>>10, strings.Join(have, ", "))
	}
	read := func(name string) (int, error) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return 0, err
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
		}
		return n, nil
	}
	var err error
	if h.Total, err = read("nr_hugepages"); err != nil {
		return h, err
	}
	if h.Free, err = read("free_hugepages"); err != nil {
		return h, err
	}
	if perNode { // reservations and overcommit are counted for the whole machine only
		return h, nil
	}
	reserved, err := read("resv_hugepages")
	if err != nil {
		return h, err
	}
	h.Free = max(h.Free-reserved, 0)
	if h.Surplus, err = read("surplus_hugepages"); err != nil {
		return h, err
	}
	more, err := read("nr_overcommit_hugepages")
	h.More = max(more-h.Surplus, 0)
	return h, err
}

// Command is the shell command that makes n pages free in addition to those in use.
func (h HugePages) Command(n int) string {
	return fmt.Sprintf("echo %d > %s", h.Total+max(n-h.Free, 0), h.Knob)
}
