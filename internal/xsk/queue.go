package xsk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// Mode says how packets get between a card and the chunks.
type Mode uint8

// Modes of QueueConfig.
const (
	Auto     Mode = iota // zero-copy where the driver has it, else copy
	ZeroCopy             // or an error
	Copy                 // by the kernel, always possible
)

func (m Mode) String() string {
	switch m {
	case Auto:
		return "auto"
	case ZeroCopy:
		return "zero-copy"
	case Copy:
		return "copy"
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// QueueConfig describes a queue to open.
type QueueConfig struct {
	Interface int // index, in the calling thread's network namespace
	Queue     int // of the interface, from 0
	// FillSize and CompletionSize are the numbers of entries of the rings, powers of two; 0: 2048.
	// For a card that is at full speed the fill ring should have its descriptors and a burst more,
	// and so should the completion ring.
	FillSize, CompletionSize int
	Mode                     Mode
	NeedWakeup               bool // the kernel says when it wants to be called (XDP_USE_NEED_WAKEUP)
	MultiBuffer              bool // packets may take several chunks (XDP_USE_SG, since Linux 6.6)
}

// defaultRing is the size of a ring where the caller chose none.
const defaultRing = 2048

// maxRing is the largest ring that is tried: 2^22 entries are 64 MiB of the kernel's memory.
const maxRing = 1 << 22

func (c *QueueConfig) complete() error {
	if c.FillSize == 0 {
		c.FillSize = defaultRing
	}
	if c.CompletionSize == 0 {
		c.CompletionSize = defaultRing
	}
	switch {
	case c.Interface <= 0:
		return fmt.Errorf("xsk: interface %d: expected the index of an interface, from 1: %w", c.Interface, ErrInvalid)
	case c.Queue < 0 || c.Queue > 1<<16-1:
		return fmt.Errorf("xsk: queue %d: expected 0 to %d: %w", c.Queue, 1<<16-1, ErrInvalid)
	case c.Mode > Copy:
		return fmt.Errorf("xsk: %v: expected auto, zero-copy or copy: %w", c.Mode, ErrInvalid)
	}
	return errors.Join(ringSize("fill", c.FillSize), ringSize("completion", c.CompletionSize))
}

func ringSize(which string, n int) error {
	if n < 1 || n > maxRing || n&(n-1) != 0 {
		return fmt.Errorf("xsk: a %s ring of %d entries: expected a power of two from 1 to %d: %w", which, n, maxRing,
			ErrInvalid)
	}
	return nil
}

// Queue is a queue of an interface that belongs to this process: its fill and completion ring. Its
// sockets share them.
type Queue struct {
	umem     *Umem
	cfg      QueueConfig
	fd       int // the carrier, see the package
	fill     FillRing
	done     CompletionRing
	maps     [2][]byte
	zeroCopy bool
	why      error // not
	own      bool  // it registered the memory
	refs     int   // of its opener, its sockets, and queues that are opened with it as donor; under umem.mu
	closed   bool  // under umem.mu
}

// OpenQueue takes a queue of an interface. When it is in use, OpenQueue waits for it until ctx
// ends: the kernel gives a queue free some time after its last socket was closed, by this process
// or another, even a killed one. The error then wraps ErrBusy and the context's; a queue that
// another socket keeps looks the same. Once ctx has ended there is one attempt.
func (u *Umem) OpenQueue(ctx context.Context, c QueueConfig) (*Queue, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	fd, err := sys.XDPSocket()
	if err != nil {
		return nil, socketError(err)
	}
	q := &Queue{umem: u, cfg: c, fd: fd, refs: 1}
	q.fill.shut()
	q.done.shut()
	if err := q.open(ctx); err != nil {
		return nil, errors.Join(err, q.free())
	}
	u.enter(q)
	return q, nil
}

func (q *Queue) open(ctx context.Context) error {
	// The carrier receives nothing, but the kernel binds no socket without a ring of its own.
	if err := sys.SetXDPRing(q.fd, sys.XDPRingRx, 1); err != nil {
		return fmt.Errorf("xsk: %w", err)
	}
	_, _, fill, done, err := sys.XDPOffsets(q.fd)
	if err != nil {
		return fmt.Errorf("xsk: %w", err)
	}
	if q.maps[0], err = mapRing(q.fd, sys.XDPRingFill, q.cfg.FillSize, 8, fill); err != nil {
		return err
	}
	if q.maps[1], err = mapRing(q.fd, sys.XDPRingCompletion, q.cfg.CompletionSize, 8, done); err != nil {
		return err
	}
	if err := errors.Join(q.fill.open(q.maps[0], q.cfg.FillSize, fill),
		q.done.open(q.maps[1], q.cfg.CompletionSize, done)); err != nil {
		return err
	}
	if d := q.umem.donor(&q.cfg); d != nil {
		err := q.bind(ctx, sys.XDPSharedUmem, d.fd)
		q.zeroCopy, q.why = d.zeroCopy, d.why
		if closed := q.umem.release(d); err == nil || closed != nil || errors.Is(err, ErrBusy) {
			return errors.Join(err, closed)
		}
		// The donor's interface is gone, or this one cannot do as the donor does.
	}
	if err := q.umem.register(q.fd); err != nil {
		return err
	}
	q.own = true
	return q.choose(ctx)
}

// choose binds the carrier in the best mode that is asked for.
func (q *Queue) choose(ctx context.Context) error {
	var flags uint16
	if q.cfg.NeedWakeup {
		flags |= sys.XDPNeedWakeup
	}
	if q.cfg.MultiBuffer {
		flags |= sys.XDPUseSG
	}
	q.zeroCopy, q.why = false, nil
	if q.cfg.Mode == Copy {
		q.why = fmt.Errorf("xsk: queue %d of %s: copy mode was asked for: %w", q.cfg.Queue, name(q.cfg.Interface),
			ErrZeroCopy)
	} else {
		err := q.bind(ctx, flags|sys.XDPZeroCopy, -1)
		if err == nil {
			q.zeroCopy, err = sys.XDPZeroCopied(q.fd)
			return err
		}
		why := bindError(&q.cfg, err)
		if errors.Is(why, ErrInterface) || errors.Is(why, ErrNoQueue) && !q.exists() || errors.Is(why, ErrBusy) &&
			q.cfg.Mode == ZeroCopy {
			return why
		}
		// In use for zero-copy alone is a queue whose memory belongs to another provider: then copy
		// mode works.
		q.why = zeroCopyError(&q.cfg, err)
		if q.cfg.Mode == ZeroCopy {
			return q.why
		}
	}
	if err := q.bind(ctx, flags|sys.XDPCopy, -1); err != nil {
		return bindError(&q.cfg, err)
	}
	return nil
}

// exists reports whether the interface has the queue, as far as that can be known.
func (q *Queue) exists() bool {
	rx, tx := queues(q.cfg.Interface)
	return rx+tx == 0 || q.cfg.Queue < max(rx, tx)
}

// The pauses between two attempts at a queue that is in use. The kernel frees it in a work queue
// after a grace period of RCU, which is milliseconds on an idle machine.
const (
	firstPause = time.Millisecond
	lastPause  = 50 * time.Millisecond
)

// bind binds the carrier, and waits while the queue is in use. Its error is the kernel's, or wraps
// ErrBusy.
func (q *Queue) bind(ctx context.Context, flags uint16, shared int) error {
	var timer *time.Timer
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := sys.BindXDP(q.fd, q.cfg.Interface, q.cfg.Queue, flags, shared)
		if err == nil {
			return nil
		}
		if !sys.IsErrno(err, sys.EBUSY) {
			return err
		}
		if timer == nil {
			timer = time.NewTimer(pause)
			defer timer.Stop()
		} else {
			timer.Reset(pause)
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
			return fmt.Errorf("xsk: queue %d of %s: held by another AF_XDP socket, of this process or another (\"ss "+
				"--xdp\" lists them), or one that was closed and "+
				"that the kernel has not freed yet; both look alike: %w: %w: %w", q.cfg.Queue, name(q.cfg.Interface),
				ErrBusy, context.Cause(ctx), err)
		}
	}
}

func mapRing(fd int, r sys.XDPRing, n, size int, o sys.XDPRingOffset) ([]byte, error) {
	if err := sys.SetXDPRing(fd, r, n); err != nil {
		if sys.IsErrno(err, sys.ENOMEM) {
			return nil, fmt.Errorf("xsk: %w: use smaller rings: %w", ErrNoMemory, err)
		}
		return nil, fmt.Errorf("xsk: %w", err)
	}
	b, err := sys.MapXDPRing(fd, r, n, size, o)
	if err != nil {
		return nil, fmt.Errorf("xsk: %w", err)
	}
	return b, nil
}

// descSize is the size of a Desc in bytes (struct xdp_desc).
const descSize = 16

// Fill is the ring that gives chunks to the kernel to receive into.
func (q *Queue) Fill() *FillRing { return &q.fill }

// Completion is the ring that gives chunks back that were sent.
func (q *Queue) Completion() *CompletionRing { return &q.done }

// Config is what the queue was opened with, with defaults filled in.
func (q *Queue) Config() QueueConfig { return q.cfg }

// ZeroCopy reports whether the card itself reads and writes the chunks. If not, why says why not;
// it wraps ErrZeroCopy.
func (q *Queue) ZeroCopy() (yes bool, why error) { return q.zeroCopy, q.why }

// Close gives the queue up. Its rings stay mapped, and the queue taken, until its last socket is
// closed too; then the chunks that are in the rings are the caller's again. In zero-copy mode the
// card may still write for a moment: see Released.
func (q *Queue) Close() error {
	q.umem.mu.Lock()
	closed := q.closed
	q.closed = true
	q.umem.mu.Unlock()
	if closed {
		return nil
	}
	return q.umem.release(q)
}

// Released waits until the kernel has let go of the queue and its memory, or ctx ends. It is for
// queues that are closed with all their sockets, and is called in the queue's network namespace.
//
// In copy mode there is nothing to wait for before the memory is used for something else: the
// kernel copies into it only as long as a socket is open, and closing one waits for what is under
// way. In zero-copy mode the kernel takes the chunks from the card some time after the last socket
// was closed.
func (q *Queue) Released(ctx context.Context) error {
	q.umem.mu.Lock()
	open := q.refs > 0
	q.umem.mu.Unlock()
	if open {
		return fmt.Errorf("xsk: queue %d of %s: it or a socket of it is open: %w", q.cfg.Queue, name(q.cfg.Interface),
			ErrBusy)
	}
	// The kernel does not report it. A queue that can be opened is free.
	fd, err := sys.MemfdCreate("xsk", int64(sys.PageSize), 0)
	if err != nil {
		return fmt.Errorf("xsk: %w", err)
	}
	defer sys.Close(fd)
	page, err := sys.Mmap(fd, 0, sys.PageSize, sys.ProtRead|sys.ProtWrite, sys.MapShared)
	if err != nil {
		return fmt.Errorf("xsk: %w", err)
	}
	defer sys.Munmap(page)
	u, err := NewUmem(UmemConfig{Memory: page})
	if err != nil {
		return err
	}
	probe, err := u.OpenQueue(ctx, QueueConfig{Interface: q.cfg.Interface, Queue: q.cfg.Queue, FillSize: 1,
		CompletionSize: 1, Mode: Copy})
	switch {
	case err == nil:
		return probe.Close()
	case errors.Is(err, ErrInterface), errors.Is(err, ErrNoQueue):
		return nil
	}
	return err
}

// free gives back everything that the kernel holds for the queue.
func (q *Queue) free() error {
	q.fill.shut()
	q.done.shut()
	err := unmap(q.maps[:])
	err = errors.Join(err, sys.Close(q.fd))
	if q.own {
		q.umem.registered.Add(-1)
	}
	return err
}

func unmap(maps [][]byte) error {
	var err error
	for i, m := range maps {
		if m != nil {
			err = errors.Join(err, sys.Munmap(m))
			maps[i] = nil
		}
	}
	return err
}
