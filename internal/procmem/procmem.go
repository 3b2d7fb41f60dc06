// Package procmem presents the memory of another process as regions of package mem, copied by
// process_vm_readv and process_vm_writev. Transfers reach them through bounce buffers, as they do
// memory of devices. The kernel permits that to who may trace the process (man 2 ptrace): the same
// user, and with Yama a parent or who the process has named by PR_SET_PTRACER.
package procmem

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
)

// Process is another process.
type Process struct {
	pid  int
	name string

	mu sync.RWMutex
	fd int // pidfd; -1 after Close
}

// Of is the process of that number, whose descriptor (sys.PeerProcess) it takes.
func Of(pid, fd int) *Process {
	return &Process{pid: pid, name: fmt.Sprintf("process %d", pid), fd: fd}
}

// Close gives the process back. Copies of its regions fail from then on.
func (p *Process) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd < 0 {
		return nil
	}
	err := sys.Close(p.fd)
	p.fd = -1
	return err
}

// Region is a region of size bytes of the process from an address on, of which the first and the
// last one can be read now. The process keeps them mapped until the region is unmapped; where it
// does not, copies fail.
func (p *Process) Region(name string, address, size uint64) (*mem.Region, error) {
	if address == 0 || size == 0 || address+size < address {
		return nil, fmt.Errorf("procmem: %d bytes at %#x: expected an address and a size: %w", size, address,
			mem.ErrBounds)
	}
	var b [1]byte
	for _, at := range []uint64{address, address + size - 1} {
		if err := p.copy(sys.ReadProcess, b[:], at); err != nil {
			return nil, err
		}
	}
	return mem.AdoptMapping(name, mem.Mapping{Kind: mem.Foreign, Size: size, PageSize: sys.PageSize, FD: -1,
		NUMANode: -1, Mover: &mover{p, address}})
}

// copy copies between this process and that one, while it runs.
func (p *Process) copy(call func(int, []byte, uint64) error, b []byte, address uint64) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	err := p.runs() // its number may be another one's later
	if err == nil {
		err = call(p.pid, b, address)
	}
	if err == nil {
		err = p.runs()
	}
	switch {
	case errors.Is(err, sys.EPERM):
		return fmt.Errorf("the kernel does not let this process reach the memory of process %d: both need the same "+
			"user, and with Yama (kernel.yama.ptrace_scope) that one has to name this one by PR_SET_PTRACER: %w: %w",
			p.pid, mem.ErrUnavailable, err)
	case errors.Is(err, sys.EFAULT):
		return fmt.Errorf("process %d has no %d bytes at %#x that can be copied, such as memory of a device: %w: %w",
			p.pid, len(b), address, mem.ErrUnavailable, err)
	}
	return err
}

func (p *Process) runs() error {
	if p.fd < 0 {
		return fmt.Errorf("process %d was given up: %w", p.pid, mem.ErrClosed)
	}
	n, err := sys.PollIn(0, p.fd)
	if err == nil && n >= 0 {
		err = fmt.Errorf("process %d has ended: %w", p.pid, mem.ErrClosed)
	}
	return err
}

// mover copies to and from memory of a process.
type mover struct {
	p  *Process
	at uint64
}

func (m *mover) Load(dst mem.Span, off uint64) (mem.Move, error) {
	return over{}, m.p.copy(sys.ReadProcess, dst.Bytes(), m.at+off)
}

func (m *mover) Store(off uint64, src mem.Span) (mem.Move, error) {
	return over{}, m.p.copy(sys.WriteProcess, src.Bytes(), m.at+off)
}

func (m *mover) Staging() mem.Provider { return mem.Pages } // nothing has to be pinned
func (m *mover) Device() string        { return m.p.name }

// over is a copy that has ended.
type over struct{}

func (over) Done() (bool, error)        { return true, nil }
func (over) Wait(context.Context) error { return nil }
