package mem

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/internal/sys"
)

// checkNode answers for a node that does not exist before any memory is taken.
func checkNode(node int) error {
	nodes, err := sys.MemoryNodes()
	if err != nil {
		return fmt.Errorf("NUMA node %d: %w", node, err)
	}
	if nodes == nil {
		return fmt.Errorf("NUMA node %d: this kernel has no NUMA support (no /sys/devices/system/node): %w", node,
			ErrUnavailable)
	}
	if !slices.Contains(nodes, node) {
		return fmt.Errorf("NUMA node %d: %w; the nodes with memory are %v", node, errNoNode, nodes)
	}
	return nil
}

var errNoNode = errors.New("this machine has no such node, or it has no memory")

func bindError(err error, node int) error {
	switch {
	case sys.IsErrno(err, sys.ENOSYS):
		return fmt.Errorf("NUMA node %d: this kernel has no NUMA calls (%v): %w", node, err, ErrUnavailable)
	case sys.IsErrno(err, sys.EPERM):
		return fmt.Errorf("NUMA node %d: %w; a container's seccomp profile may forbid mbind: allow it, or leave "+
			"NUMANode unset", node, err)
	case sys.IsErrno(err, sys.EINVAL):
		return fmt.Errorf("NUMA node %d: %w; the process may be confined to other nodes (cpuset.mems)", node, err)
	}
	return err
}

// sample is how many pages of an unbound region are asked for their node.
const sample = 64

// placed asks where the pages of b are, which are present. With node >= 0 each page is asked for
// and another answer is an error; with -1 a sample is taken and failure to ask is an answer of -1.
func placed(b []byte, page, node int) (int, error) {
	pages := len(b) / page
	stride := page
	if node < 0 {
		stride = max(pages/sample, 1) * page
	}
	got, all := -1, true
	err := eachNode(b, page, stride, func(n int) bool {
		if got >= 0 && n != got || n < 0 {
			all = false
		}
		if node >= 0 && n != node {
			got, all = n, false
			return false
		}
		got = n
		return all
	})
	switch {
	case node < 0 && (err != nil || !all):
		return -1, nil
	case err != nil:
		return -1, bindError(err, node)
	case !all:
		return -1, fmt.Errorf("NUMA node %d: the kernel put pages on node %d all the same", node, got)
	}
	return got, nil
}

// eachNode calls f with the node of every page that lies a multiple of stride bytes from the start
// of b, -1 for pages that are not present, until f returns false.
func eachNode(b []byte, page, stride int, f func(node int) bool) error {
	if page > sys.PageSize {
		// move_pages answers ENOENT for huge pages on some kernels; asking one by one is cheap for
		// the few there are.
		for off := 0; off < len(b); off += stride {
			n, err := sys.NodeOf(b[off:])
			if err != nil {
				return err
			}
			if !f(n) {
				return nil
			}
		}
		return nil
	}
	var nodes [512]int32
	for off := 0; off < len(b); {
		n := min((len(b)-off+stride-1)/stride, len(nodes))
		if err := sys.PageNodes(b[off:], stride, nodes[:n]); err != nil {
			return err
		}
		for _, v := range nodes[:n] {
			if !f(max(int(v), -1)) {
				return nil
			}
		}
		off += n * stride
	}
	return nil
}

// PlacedOn asks the kernel where every page of the region is now: the number of pages on each NUMA
// node, and under -1 the number of those that are not present (never touched, or swapped out). It
// costs about 0.1 us per page.
func (r *Region) PlacedOn() (map[int]int, error) {
	if r.data == nil {
		return nil, fmt.Errorf("mem: region %q: kind %s is not host memory: %w", r.name, r.kind, ErrUnavailable)
	}
	l, err := r.Lease()
	if err != nil {
		return nil, err
	}
	defer l.Release()
	out := map[int]int{}
	if err := eachNode(r.data, r.page, r.page, func(n int) bool { out[n]++; return true }); err != nil {
		return nil, fmt.Errorf("mem: region %q: %w", r.name, err)
	}
	return out, nil
}
