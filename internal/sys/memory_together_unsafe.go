package sys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// MapPart is a piece of a file. Offset and Size are multiples of its page size, in bytes.
type MapPart struct {
	FD     int
	Offset int64
	Size   int
}

// MapTogether maps pieces of files one behind the other, shared, for reading and writing, so that
// they are one range of addresses that begins at a multiple of align (a power of two, at least the
// largest page size of the first piece). The pages are those that other mappings of the files have
// as well. unmap ends the mapping; no slice of it may be touched afterwards.
func MapTogether(align int, parts ...MapPart) (b []byte, unmap func() error, err error) {
	size := 0
	for _, p := range parts {
		size += p.Size
	}
	if size <= 0 || align < PageSize || align&(align-1) != 0 {
		return nil, nil, callError("mmap", fmt.Sprintf("%d bytes in one range, aligned to %d", size, align), EINVAL)
	}
	// A range that no other mapping gets; the pieces go into it, and the rest stays unused.
	whole, err := unix.Mmap(-1, 0, size+align, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, nil, callError("mmap", fmt.Sprintf("a range of %d bytes", size+align), err)
	}
	unmap = func() error { return callError("munmap", fmt.Sprintf("%d bytes", len(whole)), unix.Munmap(whole)) }
	start := int(-Address(whole) & uintptr(align-1))
	b = whole[start : start+size : start+size]
	at := Address(b)
	for _, p := range parts {
		_, _, e := unix.Syscall6(unix.SYS_MMAP, at, uintptr(p.Size), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_SHARED|unix.MAP_FIXED, uintptr(p.FD),
			uintptr(p.Offset))
		if e != 0 {
			_ = unmap()
			return nil, nil, callError("mmap", fmt.Sprintf("%d bytes into a range", p.Size), e)
		}
		at += uintptr(p.Size)
	}
	return b, unmap, nil
}
