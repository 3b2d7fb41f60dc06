package xsk

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/sys"
)

// SocketConfig describes a socket to open on a queue.
type SocketConfig struct {
	// RxSize and TxSize are the numbers of entries of the rings, powers of two; 0: no such ring.
	// One at least must be there.
	RxSize, TxSize int
	BusyPoll       BusyPoll
	// SendBuffer bounds what the kernel has under way in copy mode, in bytes with its own overhead
	// (SO_SNDBUF). 0: room for the whole transmit ring, or what the kernel gives without
	// CAP_NET_ADMIN.
	SendBuffer int
}

// BusyPoll makes the calls of WakeRx and WakeTx do the card's work in the caller's thread instead
// of in interrupts (Linux Documentation/networking/napi.rst): call WakeRx again and again, whether
// the fill ring asks for it or not. The zero value leaves it off.
//
// With Prefer the kernel leaves a zero-copy socket's work to the poll alone, and polls what the
// card receives with. A driver that sends in another NAPI context, as virtio_net does, then sends
// nothing: give such a card a socket of its own for sending, without BusyPoll.
type BusyPoll struct {
	Prefer       bool // keep interrupts off while calls come often enough (SO_PREFER_BUSY_POLL)
	Microseconds int  // to poll for at most (SO_BUSY_POLL); more than net.core.busy_read needs CAP_NET_ADMIN
	Budget       int  // packets at once (SO_BUSY_POLL_BUDGET); 0: the kernel's
}

// Statistics are the kernel's counts of a socket. In copy mode RxDropped has the packets for which
// there was no chunk in the fill ring, each of which RxFillRingEmptyDescs counts too, and those too
// long for a chunk. In zero-copy mode a card without chunks drops packets by itself, and counts
// them itself.
type Statistics = sys.XDPStatistics

// Socket is a socket on a queue: its receive and transmit ring.
type Socket struct {
	queue  *Queue
	cfg    SocketConfig
	fd     int
	rx     RxRing
	tx     TxRing
	maps   [2][]byte
	closed atomic.Bool
}

// OpenSocket adds a socket to the queue. It receives what the interface's XDP program gives it
// (FD).
func (q *Queue) OpenSocket(c SocketConfig) (*Socket, error) {
	if c.RxSize == 0 && c.TxSize == 0 {
		return nil, fmt.Errorf("xsk: a socket without a receive and without a transmit ring: expected one of them: %w",
			ErrInvalid)
	}
	for _, r := range []struct {
		which string
		n     int
	}{{"receive", c.RxSize}, {"transmit", c.TxSize}} {
		if r.n != 0 {
			if err := ringSize(r.which, r.n); err != nil {
				return nil, err
			}
		}
	}
	q.umem.mu.Lock()
	if q.closed {
		q.umem.mu.Unlock()
		return nil, fmt.Errorf("xsk: queue %d of %s: %w", q.cfg.Queue, name(q.cfg.Interface), ErrClosed)
	}
	q.refs++
	q.umem.mu.Unlock()
	fd, err := sys.XDPSocket()
	if err != nil {
		return nil, errors.Join(socketError(err), q.umem.release(q))
	}
	s := &Socket{queue: q, cfg: c, fd: fd}
	s.rx.shut()
	s.tx.shut()
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Socket) open() error {
	rx, tx, _, _, err := sys.XDPOffsets(s.fd)
	if err != nil {
		return fmt.Errorf("xsk: %w", err)
	}
	if n := s.cfg.RxSize; n > 0 {
		if s.maps[0], err = mapRing(s.fd, sys.XDPRingRx, n, descSize, rx); err == nil {
			err = s.rx.open(s.maps[0], n, rx)
		}
		if err != nil {
			return err
		}
	}
	if n := s.cfg.TxSize; n > 0 {
		if s.maps[1], err = mapRing(s.fd, sys.XDPRingTx, n, descSize, tx); err == nil {
			err = s.tx.open(s.maps[1], n, tx)
		}
		if err != nil {
			return err
		}
		s.tune()
	}
	if err := s.busyPoll(); err != nil {
		return err
	}
	c := &s.queue.cfg
	if err := sys.BindXDP(s.fd, c.Interface, c.Queue, sys.XDPSharedUmem, s.queue.fd); err != nil {
		return bindError(c, err)
	}
	return nil
}

// txBudget is how many descriptors one call sends at most. More would save little of the call's
// cost, and keep the calling thread in the kernel for longer.
const txBudget = 256

// tune makes one call of the kernel's send as much as there is. What the kernel does not know or
// forbids is left as it is: it works, with more calls.
func (s *Socket) tune() {
	if s.cfg.SendBuffer == 0 {
		s.cfg.SendBuffer = min(s.cfg.TxSize*s.queue.umem.cfg.ChunkSize, 1<<29)
	}
	if sys.SetOption(s.fd, sys.SolSocket, sys.SoSndBufForce, s.cfg.SendBuffer) != nil {
		_ = sys.SetOption(s.fd, sys.SolSocket, sys.SoSndBuf, s.cfg.SendBuffer)
	}
	_ = sys.SetXDPTxBudget(s.fd, min(s.cfg.TxSize, txBudget))
}

func (s *Socket) busyPoll() error {
	b := s.cfg.BusyPoll
	if b == (BusyPoll{}) {
		return nil
	}
	prefer := 0
	if b.Prefer {
		prefer = 1
	}
	for _, o := range []struct {
		what    string
		name, v int
		set     bool
	}{
		{"SO_PREFER_BUSY_POLL", sys.SoPreferBusyPoll, prefer, b.Prefer},
		{"SO_BUSY_POLL", sys.SoBusyPoll, b.Microseconds, b.Microseconds != 0},
		{"SO_BUSY_POLL_BUDGET", sys.SoBusyPollBudget, b.Budget, b.Budget != 0},
	} {
		if !o.set {
			continue
		}
		err := sys.SetOption(s.fd, sys.SolSocket, o.name, o.v)
		switch {
		case err == nil:
		case sys.IsErrno(err, sys.EPERM):
			return fmt.Errorf("xsk: busy polling: %s = %d needs CAP_NET_ADMIN: %w: %w", o.what, o.v, ErrPermission, err)
		case sys.IsErrno(err, sys.ENOPROTOOPT):
			return fmt.Errorf("xsk: busy polling: %s is known since Linux 5.11: %w: %w", o.what, ErrUnsupported, err)
		default:
			return fmt.Errorf("xsk: busy polling: %s = %d: %w: %w", o.what, o.v, ErrInvalid, err)
		}
	}
	return nil
}

// FD is the socket's descriptor: the value for an XSKMAP, and what poll waits for: readable when
// there is something in the receive ring, writable when at least half of the transmit ring is free.
// In copy mode poll sends what is in the transmit ring. It does not show that the interface is
// gone: WakeRx and WakeTx do. The descriptor is the Socket's to close; while a duplicate of it is
// open, the socket stays open.
func (s *Socket) FD() int { return s.fd }

// Rx is the ring of packets that came; empty for ever if RxSize was 0.
func (s *Socket) Rx() *RxRing { return &s.rx }

// Tx is the ring of packets to send; without room for ever if TxSize was 0.
func (s *Socket) Tx() *TxRing { return &s.tx }

// NeedWakeTx reports whether the kernel must be called so that it sends what is in the transmit
// ring. Ask after Put or Submit.
func (s *Socket) NeedWakeTx() bool {
	return s.tx.NeedWakeup() || !s.queue.cfg.NeedWakeup && !s.queue.zeroCopy
}

// WakeTx makes the kernel send what is in the transmit ring. It does not wait and does not
// allocate. 0: it has looked at everything, or has stopped behind a descriptor that is invalid
// (Statistics): call again while Pending is not 0; sys.EAGAIN: there is more, or the send buffer is
// full: call again, after completions were taken if nothing moves; sys.EBUSY: the same, and the
// device dropped a packet, which counts as sent; sys.ENETDOWN: the interface is down; sys.ENXIO: it
// is gone.
//
// Whether the chunk of an invalid descriptor comes back in the completion ring depends on the
// kernel: recent ones return whatever address it had.
func (s *Socket) WakeTx() sys.Errno { return sys.XDPSend(s.fd) }

// WakeRx makes the driver take chunks from the fill ring and, with busy polling, receive. It does
// not wait and does not allocate. 0 is success; sys.ENETDOWN: the interface is down; sys.ENXIO: it
// is gone.
func (s *Socket) WakeRx() sys.Errno { return sys.XDPRecv(s.fd) }

// Statistics reads the kernel's counts of this socket. RxFillRingEmptyDescs counts for the whole
// queue.
func (s *Socket) Statistics(to *Statistics) error {
	if s.closed.Load() {
		return fmt.Errorf("xsk: %w", ErrClosed)
	}
	if e := sys.ReadXDPStatistics(s.fd, to); e != 0 {
		return fmt.Errorf("xsk: reading the statistics: %w", e)
	}
	return nil
}

// Close closes the socket. Nothing is received by it and nothing more of its transmit ring is taken
// when this returns; what was taken still comes back in the completion ring. Chunks that are in its
// receive and transmit ring are the caller's again when the whole queue is closed.
func (s *Socket) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.rx.shut()
	s.tx.shut()
	err := unmap(s.maps[:])
	err = errors.Join(err, sys.Close(s.fd))
	return errors.Join(err, s.queue.umem.release(s.queue))
}
