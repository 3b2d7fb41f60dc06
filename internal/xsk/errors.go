package xsk

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"github.com/penstock-io/penstock/internal/sys"
)

// Errors of this package; match them with errors.Is. The message says which, where, and what to do
// about it.
var (
	ErrInvalid     = errors.New("invalid AF_XDP configuration")
	ErrChunk       = fmt.Errorf("chunks that AF_XDP cannot use: %w", ErrInvalid)
	ErrAlignment   = fmt.Errorf("memory that AF_XDP cannot use: %w", ErrInvalid)
	ErrPageSize    = fmt.Errorf("wrong page size: %w", ErrInvalid)
	ErrMemlock     = errors.New("limit of locked memory reached")
	ErrNoMemory    = errors.New("the kernel has not enough memory")
	ErrPermission  = errors.New("AF_XDP needs a capability that this process lacks")
	ErrUnsupported = errors.New("not supported by this kernel")
	ErrZeroCopy    = errors.New("zero-copy refused")
	ErrBusy        = errors.New("queue in use")
	ErrNoQueue     = errors.New("no such queue")
	ErrInterface   = errors.New("interface gone or down")
	ErrClosed      = errors.New("closed")
)

// name is the interface for messages.
func name(ifindex int) string {
	if i, err := net.InterfaceByIndex(ifindex); err == nil {
		return i.Name
	}
	return fmt.Sprintf("interface %d", ifindex)
}

// queues is how many receive and transmit queues the interface has, 0 and 0 when that cannot be
// known here.
func queues(ifindex int) (rx, tx int) {
	i, err := net.InterfaceByIndex(ifindex)
	if err != nil {
		return 0, 0
	}
	dir := filepath.Join("/sys/class/net", i.Name, "queues")
	r, _ := filepath.Glob(filepath.Join(dir, "rx-*"))
	t, _ := filepath.Glob(filepath.Join(dir, "tx-*"))
	return len(r), len(t)
}

// has reports whether the process has a capability; when that cannot be known, it has.
func has(capability int) bool {
	ok, err := sys.HasCapability(capability)
	return ok || err != nil
}

// socketError explains why there is no socket.
func socketError(err error) error {
	switch {
	case sys.IsErrno(err, sys.EPERM) && !has(sys.CapNetRaw):
		return fmt.Errorf("xsk: CAP_NET_RAW is missing: run as root, or \"setcap "+
			"cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock+ep\" on the program: %w: %w", ErrPermission, err)
	case sys.IsErrno(err, sys.EPERM):
		return fmt.Errorf("xsk: AF_XDP sockets are forbidden here, although CAP_NET_RAW is there: look at the "+
			"seccomp profile of the container, or the security module: %w: %w", ErrPermission, err)
	case sys.IsErrno(err, sys.EAFNOSUPPORT):
		return fmt.Errorf("xsk: the kernel has no AF_XDP (CONFIG_XDP_SOCKETS): %w: %w", ErrUnsupported, err)
	}
	return fmt.Errorf("xsk: %w", err)
}

// registerError explains why the memory was refused.
func (u *Umem) registerError(err error) error {
	size := len(u.cfg.Memory)
	switch {
	case sys.IsErrno(err, sys.ENOBUFS):
		limit, _ := sys.LockLimit()
		need := uint64(size) * uint64(u.registered.Load()+1)
		return fmt.Errorf("xsk: %d bytes must be locked in memory, for %d in %d registrations, and what else this "+
			"user has locked; the limit (RLIMIT_MEMLOCK) is %d: "+
			"raise it with \"ulimit -l %d\" or LimitMEMLOCK=%d, or give the process CAP_IPC_LOCK: %w: %w",
			need, size, u.registered.Load()+1, limit, (need+1023)/1024, need, ErrMemlock, err)
	case sys.IsErrno(err, sys.ENOMEM):
		return fmt.Errorf("xsk: %d bytes cannot be pinned: give the umem less memory, or the machine more: %w: %w",
			size, ErrNoMemory, err)
	case sys.IsErrno(err, sys.EFAULT):
		return fmt.Errorf("xsk: the %d bytes of memory are not all mapped for reading and writing: %w: %w", size,
			ErrAlignment, err)
	case sys.IsErrno(err, sys.EOPNOTSUPP):
		return fmt.Errorf("xsk: the memory is of a kind whose pages cannot be pinned, such as a file on a disk: use "+
			"memory of a memfd or huge pages: %w: %w", ErrAlignment, err)
	case sys.IsErrno(err, sys.EINVAL):
		return fmt.Errorf("xsk: the kernel refuses %d bytes in chunks of %d, headroom %d, unaligned %t: %w: %w", size,
			u.cfg.ChunkSize, u.cfg.Headroom, u.cfg.Unaligned, ErrChunk, err)
	}
	return fmt.Errorf("xsk: %w", err)
}

// bindError explains why a queue was refused.
func bindError(c *QueueConfig, err error) error {
	at := fmt.Sprintf("xsk: queue %d of %s", c.Queue, name(c.Interface))
	switch {
	case errors.Is(err, ErrBusy):
		return err
	case sys.IsErrno(err, sys.ENODEV), sys.IsErrno(err, sys.ENXIO):
		return fmt.Errorf("%s: there is no such interface in this network namespace (any more): %w: %w", at,
			ErrInterface, err)
	case sys.IsErrno(err, sys.ENETDOWN):
		return fmt.Errorf("%s: the interface is down: \"ip link set %s up\": %w: %w", at, name(c.Interface),
			ErrInterface, err)
	case sys.IsErrno(err, sys.EINVAL):
		rx, tx := queues(c.Interface)
		switch n := max(rx, tx); {
		case n > 0 && c.Queue >= n:
			return fmt.Errorf("%s: it has %d receive and %d transmit queues: expected 0 to %d; ethtool -L changes "+
				"their number: %w: %w", at, rx, tx, n-1, ErrNoQueue, err)
		case c.MultiBuffer:
			return fmt.Errorf("%s: refused; packets in several chunks (MultiBuffer) need Linux 6.6: %w: %w", at,
				ErrUnsupported, err)
		}
		return fmt.Errorf("%s: refused: is the number of the queue below that of the interface's queues? %w: %w", at,
			ErrNoQueue, err)
	case sys.IsErrno(err, sys.EPERM), sys.IsErrno(err, sys.EACCES):
		return fmt.Errorf("%s: %w: %w", at, ErrPermission, err)
	case sys.IsErrno(err, sys.ENOMEM):
		return fmt.Errorf("%s: %w: %w", at, ErrNoMemory, err)
	}
	return fmt.Errorf("%s: %w", at, err)
}

// zeroCopyError explains why a queue is not in zero-copy mode.
func zeroCopyError(c *QueueConfig, err error) error {
	at := fmt.Sprintf("xsk: queue %d of %s", c.Queue, name(c.Interface))
	switch {
	case sys.IsErrno(err, sys.EOPNOTSUPP) && c.MultiBuffer:
		return fmt.Errorf("%s: the driver has no zero-copy for AF_XDP, or not for packets in several chunks "+
			"(MultiBuffer): %w: %w", at, ErrZeroCopy, err)
	case sys.IsErrno(err, sys.EOPNOTSUPP):
		return fmt.Errorf("%s: the driver has no zero-copy for AF_XDP: %w: %w", at, ErrZeroCopy, err)
	case sys.IsErrno(err, sys.EINVAL):
		return fmt.Errorf("%s: the driver refuses zero-copy with this chunk size, MTU, number of queues or "+
			"alignment, or needs its XDP program first: %w: %w", at, ErrZeroCopy, err)
	}
	return fmt.Errorf("%s: %w: %w", at, ErrZeroCopy, err)
}
