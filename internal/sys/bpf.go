package sys

import "golang.org/x/sys/unix"

// More capabilities for HasCapability: what programs for the kernel may do.
const (
	CapPerfmon  = unix.CAP_PERFMON
	CapSysAdmin = unix.CAP_SYS_ADMIN
)

// More error numbers of bpf(2).
const (
	E2BIG   = unix.E2BIG
	ERANGE  = unix.ERANGE
	ENOLINK = unix.ENOLINK
)
