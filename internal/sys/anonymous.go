package sys

import "golang.org/x/sys/unix"

// MmapAnonymous maps size bytes of private zeroed memory outside the Go heap, present on first
// touch. Give it back with Munmap.
func MmapAnonymous(size int) ([]byte, error) {
	return Mmap(-1, 0, size, ProtRead|ProtWrite, MapPrivate|unix.MAP_ANONYMOUS)
}
