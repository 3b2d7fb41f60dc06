package sys

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// FileLimit is the number of descriptors that this process may have (RLIMIT_NOFILE, ulimit -n).
// Package os has raised the soft limit to the hard one when the process started.
func FileLimit() (uint64, error) { return limit(unix.RLIMIT_NOFILE, "RLIMIT_NOFILE") }

// AddressLimit is the number of bytes of address space that this process may have (RLIMIT_AS,
// ulimit -v), or the largest uint64 when that is unlimited.
func AddressLimit() (uint64, error) { return limit(unix.RLIMIT_AS, "RLIMIT_AS") }

func limit(which int, name string) (uint64, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(which, &l); err != nil {
		return 0, callError("getrlimit", name, err)
	}
	return l.Cur, nil
}

// MapLimit is the number of mappings that a process may have (vm.max_map_count).
func MapLimit() (uint64, error) { return readNumber("/proc/sys/vm/max_map_count") }

// MemoryLimit is the number of bytes of memory that this process can use: what the machine has, or
// what its control group (v2) or one above it may have, if that is less.
func MemoryLimit() (uint64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, callError("sysinfo", "", err)
	}
	least := uint64(info.Totalram) * uint64(info.Unit)
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return least, nil
	}
	for line := range bytes.Lines(b) {
		group, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "0::/")
		if !ok {
			continue
		}
		for dir := path.Join("/sys/fs/cgroup", group); strings.HasPrefix(dir, "/sys/fs/cgroup"); dir = path.Dir(dir) {
			if n, err := readNumber(dir + "/memory.max"); err == nil { // "max", and no such file: not limited there
				least = min(least, n)
			}
		}
	}
	return least, nil
}

func readNumber(file string) (uint64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || n == math.MaxUint64 {
		return 0, fmt.Errorf("%s: %q: expected a number", file, b)
	}
	return n, nil
}
