package sys

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// MemoryNodes lists the NUMA nodes that have memory, in ascending order. A kernel built without
// NUMA has no list: the result is then empty and the error nil.
func MemoryNodes() ([]int, error) {
	const file = "/sys/devices/system/node/has_memory"
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	nodes, err := parseNodes(string(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return nodes, nil
}

// maxNodes bounds node numbers; Linux builds have at most 1024 nodes (CONFIG_NODES_SHIFT 10).
const maxNodes = 1024

// parseNodes reads the kernel's list format, such as "0-1,4" (man 7 cpuset, List format).
func parseNodes(s string) ([]int, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return nil, nil
	}
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		a, err := strconv.Atoi(low)
		if err != nil {
			return nil, fmt.Errorf("node list %q: %w", s, err)
		}
		b, err := strconv.Atoi(high)
		if err != nil {
			return nil, fmt.Errorf("node list %q: %w", s, err)
		}
		if a < 0 || b < a || b >= maxNodes {
			return nil, fmt.Errorf("node list %q: range %q is not within 0-%d in ascending order", s, part, maxNodes-1)
		}
		for ; a <= b; a++ {
			out = append(out, a)
		}
	}
	return out, nil
}
