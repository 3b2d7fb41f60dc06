package sys

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Constants of mbind and get_mempolicy (linux/mempolicy.h), which package unix does not carry.
const (
	mpolBind  = 2
	mpolFNode = 1 << 0
	mpolFAddr = 1 << 1
)

// BindNode makes the pages of b, which starts on a page boundary, come from NUMA node when they are
// first touched (mbind with MPOL_BIND); pages that are present stay where they are. Of a shared
// mapping the rule belongs to the file and so holds for every process. ENOSYS: the kernel has no
// NUMA support. EINVAL: there is no such node, or it has no memory.
func BindNode(b []byte, node int) error {
	var mask [maxNodes / 64]uint64
	if node < 0 || node >= maxNodes {
		return callError("mbind", fmt.Sprintf("to NUMA node %d", node), EINVAL)
	}
	mask[node/64] = 1 << (node % 64)
	// The kernel reads maxnode-1 bits (man 2 mbind, BUGS).
	_, _, e := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), mpolBind,
		uintptr(unsafe.Pointer(&mask)), maxNodes+1, 0)
	if e != 0 {
		return callError("mbind", fmt.Sprintf("%d bytes to NUMA node %d", len(b), node), e)
	}
	return nil
}

// NodeOf asks on which NUMA node the page at the first byte of b is; it makes the page present if
// it was not. ENOSYS: the kernel has no NUMA support.
func NodeOf(b []byte) (int, error) {
	var node int32
	_, _, e := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&node)), 0, 0,
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), mpolFNode|mpolFAddr, 0)
	if e != 0 {
		return -1, callError("get_mempolicy", "MPOL_F_NODE|MPOL_F_ADDR", e)
	}
	return int(node), nil
}

// PageNodes asks on which NUMA node each base page of b is, for len(nodes) pages that lie stride
// bytes apart from the start of b: nodes[i] becomes the node, or minus the error number (-ENOENT:
// the page is not present). It touches no page (move_pages with no target). b must reach to the
// last page asked for.
func PageNodes(b []byte, stride int, nodes []int32) error {
	if len(nodes) == 0 {
		return nil
	}
	if stride <= 0 || (len(nodes)-1) > (len(b)-1)/stride {
		return callError("move_pages", fmt.Sprintf("%d pages %d bytes apart in %d bytes", len(nodes), stride, len(b)),
			EINVAL)
	}
	var pages [512]uintptr
	base := Address(b)
	for done := 0; done < len(nodes); {
		n := min(len(nodes)-done, len(pages))
		for i := range n {
			pages[i] = base + uintptr((done+i)*stride)
		}
		_, _, e := unix.Syscall6(unix.SYS_MOVE_PAGES, 0, uintptr(n), uintptr(unsafe.Pointer(&pages)), 0,
			uintptr(unsafe.Pointer(&nodes[done])), 0)
		if e != 0 {
			return callError("move_pages", fmt.Sprintf("asking for %d pages", n), e)
		}
		done += n
	}
	return nil
}
