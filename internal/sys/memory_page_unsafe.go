package sys

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unsafe"
)

// MappedPageSize is the size in bytes of the smallest page that b's memory is mapped with (man 5
// proc, KernelPageSize in smaps). It takes as long as the kernel takes to look at every page of the
// process: it is for setting up.
func MappedPageSize(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, fmt.Errorf("the page size of no memory: %w", EINVAL)
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	from := uint64(uintptr(unsafe.Pointer(&b[0])))
	return smallestPage(f, from, from+uint64(len(b)))
}

// smallestPage reads the smaps of a process. All of [from, to) must be mapped.
func smallestPage(r io.Reader, from, to uint64) (int, error) {
	s := bufio.NewScanner(r)
	at, in, least := from, false, uint64(0)
	for s.Scan() {
		line := s.Text()
		if kb, ok := strings.CutPrefix(line, "KernelPageSize:"); ok {
			if !in {
				continue
			}
			n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kb), "kB")), 10, 32)
			if err != nil || n == 0 {
				return 0, fmt.Errorf("/proc/self/smaps: line %q: expected a number of kB", line)
			}
			if n <<= 10; least == 0 || n < least {
				least = n
			}
			if at >= to {
				return int(least), nil
			}
			continue
		}
		// A mapping begins with "from-to perms ..."; every other line has a colon first.
		bounds, _, _ := strings.Cut(line, " ")
		lo, hi, ok := strings.Cut(bounds, "-")
		if !ok {
			continue
		}
		l, err1 := strconv.ParseUint(lo, 16, 64)
		h, err2 := strconv.ParseUint(hi, 16, 64)
		if err1 != nil || err2 != nil {
			continue
		}
		if in = l <= at && at < h; in {
			at = h
		}
	}
	if err := s.Err(); err != nil {
		return 0, fmt.Errorf("/proc/self/smaps: %w", err)
	}
	return 0, fmt.Errorf("/proc/self/smaps: memory at %#x is not mapped: %w", at, EFAULT)
}
