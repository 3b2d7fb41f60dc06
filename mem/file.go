package mem

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"

	"github.com/penstock-io/penstock/internal/sys"
)

// AdoptFile maps a regular file for reading, without copying it: its bytes come from the page cache
// as they are touched. Writing to them kills the process. The region has no descriptor (FD is -1),
// so peers reach it over sockets.
//
// Others may still truncate the file, and touching bytes past its new end is a SIGBUS, which kills
// a Go process; replacing it by renaming another over it is harmless. Where the file is not under
// your control, copy out of it with CopyGuarded.
//
// AdoptFile refuses pipes, devices, directories and empty files, and does not wait for a pipe's
// other end.
func AdoptFile(path string) (*Region, error) {
	fd, err := sys.OpenRead(path)
	if err != nil {
		return nil, fmt.Errorf("mem: adopt: %w", err)
	}
	r, err := adoptFD(path, fd)
	return r, errors.Join(err, sys.Close(fd)) // a mapping outlives its descriptor
}

// AdoptOpenFile is AdoptFile for a file that is open already. The file stays the caller's, who may
// close it at once.
func AdoptOpenFile(f *os.File) (*Region, error) {
	defer runtime.KeepAlive(f)
	conn, err := f.SyscallConn() // unlike Fd it leaves the file's mode alone
	if err != nil {
		return nil, fmt.Errorf("mem: adopt %s: %w", f.Name(), err)
	}
	var r *Region
	cerr := conn.Control(func(fd uintptr) { r, err = adoptFD(f.Name(), int(fd)) })
	if cerr != nil {
		return nil, fmt.Errorf("mem: adopt %s: %w", f.Name(), cerr)
	}
	return r, err
}

func adoptFD(name string, fd int) (*Region, error) {
	size, regular, err := sys.RegularSize(fd)
	switch {
	case err != nil:
		return nil, fmt.Errorf("mem: adopt %s: %w", name, err)
	case !regular:
		return nil, fmt.Errorf("mem: adopt %s: it is not a regular file", name)
	case size == 0:
		return nil, fmt.Errorf("mem: adopt %s: the file is empty", name)
	case size > math.MaxInt:
		return nil, fmt.Errorf("mem: adopt %s: %d bytes are more than can be mapped", name, size)
	}
	b, err := sys.Mmap(fd, 0, int(size), sys.ProtRead, sys.MapShared)
	if err != nil {
		return nil, fmt.Errorf("mem: adopt %s: %w", name, err)
	}
	return newRegion(name, Mapping{
		Kind: Foreign, Bytes: b, Size: uint64(size), PageSize: sys.PageSize, FD: -1, NUMANode: -1, ReadOnly: true,
		Free: func() error { return sys.Munmap(b) },
	}), nil
}
