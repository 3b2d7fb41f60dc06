package sys

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// OpenProcess is a descriptor of a process, which PollIn reports once it has ended (man 2
// pidfd_open).
func OpenProcess(pid int) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	return fd, callError("pidfd_open", fmt.Sprintf("process %d", pid), err)
}

// ReadProcess copies len(b) bytes at an address of another process (man 2 process_vm_readv).
// EFAULT: not all of them are mapped there; EPERM: this process may not trace that one.
func ReadProcess(pid int, b []byte, address uint64) error {
	return processMemory(unix.ProcessVMReadv, "process_vm_readv", pid, b, address)
}

// WriteProcess copies b to an address of another process, as ReadProcess does from there. After an
// error a part of it may be written.
func WriteProcess(pid int, b []byte, address uint64) error {
	return processMemory(unix.ProcessVMWritev, "process_vm_writev", pid, b, address)
}

func processMemory(call func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error), name string, pid int, b []byte,
	address uint64) error {
	for len(b) > 0 {
		local := [1]unix.Iovec{{Base: unsafe.SliceData(b)}}
		local[0].SetLen(len(b))
		far := [1]unix.RemoteIovec{{Base: uintptr(address), Len: len(b)}}
		n, err := call(pid, local[:], far[:], 0)
		if err == nil && n == 0 {
			err = EFAULT
		}
		if err != nil {
			return callError(name, fmt.Sprintf("process %d", pid), err)
		}
		b, address = b[n:], address+uint64(n) // a part where the rest is not mapped, which the next call says
	}
	return nil
}
