package shm

import (
	"fmt"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem/ring"
	"github.com/penstock-io/penstock/transfer/path"
)

// The control memory is one sealed memfd of base pages that the accepting side makes. Offsets in
// bytes:
//
//	0    parked word of side 0 (the accepting side); 128: of side 1. Written by its side when it goes to sleep or wakes,
//	     and set back to 0 by the peer that takes it upon itself to ring.
//	256  claim word of side 0's copy job, 384: its done word; 512 and 640: the same for side 1. See help.go.
//	4096 message ring from side 0 to side 1, then the one from side 1 to side 0, each on a page of its own.
//
// Each word is alone on a pair of cache lines. Whatever a side reads here is the peer's word: it is
// copied out, checked and never used as an address.
const (
	parkedAt  = 0
	claimAt   = 256
	doneAt    = 384
	wordsStep = 128
	jobStep   = 256
	ringsAt   = 4096
)

// Values of a parked word. Any other value counts as parked.
const (
	awake       = 0
	parked      = 1 // asleep: ring after a message
	parkedRoom  = 2 // asleep and waiting for room in its ring: ring also after taking a message out
	shut        = 3 // the path is closed on this side: what is put from now on may not be read
	minCells    = 64
	maxCells    = 4096
	maxWindow   = 1 << 16
	pageMask    = 4095
	controlName = "penstock:shm-control"
)

// cells is the size of a message ring: two cells for each operation of the window, so that plain
// notifications never wait.
func cells(window int) int { return min(max(2*window, minCells), maxCells) }

func ringBytes(window int) int { return (ring.MessagesSize(cells(window)) + pageMask) &^ pageMask }

// controlBytes follows from the window alone, which both sides know; no size is ever taken from the
// peer.
func controlBytes(window int) int {
	return (ringsAt + 2*ringBytes(window) + sys.PageSize - 1) &^ (sys.PageSize - 1)
}

// control is one side's view of the control memory.
type control struct {
	mem        []byte
	tx         *ring.MessagesWriter
	rx         *ring.MessagesReader
	ownParked  *atomic.Uint64
	peerParked *atomic.Uint64
	ownClaim   *atomic.Uint64 // our job: chunks that we and the peer claim
	ownDone    *atomic.Uint64 // our job: chunks that the peer has finished
	peerClaim  *atomic.Uint64
	peerDone   *atomic.Uint64
}

// newControl makes the control memory; the caller closes fd once it has been sent.
func newControl(window int) (c *control, fd int, err error) {
	size := controlBytes(window)
	fd, err = sys.MemfdCreate(controlName, int64(size), 0)
	if err != nil {
		return nil, -1, err
	}
	if err = sys.AddSeals(fd, sys.SealShrink|sys.SealGrow|sys.SealSeal); err == nil {
		c, err = mapControl(fd, 0, window)
	}
	if err != nil {
		sys.Close(fd)
		return nil, -1, err
	}
	return c, fd, nil
}

// openControl maps control memory that came from the peer, once it is what it must be.
func openControl(fd, window int) (*control, error) {
	if ok, err := sys.IsSharedMemory(fd); err != nil || !ok {
		return nil, fmt.Errorf("control memory is not a memfd of base pages (%v): %w", err, path.ErrProtocol)
	}
	if err := checkSealed(fd, 0, uint64(controlBytes(window))); err != nil {
		return nil, fmt.Errorf("control memory: %w", err)
	}
	return mapControl(fd, 1, window)
}

// checkSealed says whether fd is a memfd that has size bytes at off and can never shrink, so that
// no access to them can fault.
func checkSealed(fd int, off, size uint64) error {
	seals, err := sys.Seals(fd)
	if err != nil {
		return fmt.Errorf("the peer sent a file that cannot be sealed (%v): %w", err, path.ErrProtocol)
	}
	if seals&sys.SealShrink == 0 {
		return fmt.Errorf("the peer sent a memfd that it could truncate (seals %#x, expected F_SEAL_SHRINK): %w", seals,
			path.ErrProtocol)
	}
	n, err := sys.FileSize(fd)
	if err != nil {
		return err
	}
	if n < 0 || uint64(n) < off+size {
		return fmt.Errorf("the peer sent a memfd of %d bytes and said %d at %d: %w", n, size, off, path.ErrProtocol)
	}
	return nil
}

func mapControl(fd, side, window int) (*control, error) {
	size := controlBytes(window)
	m, err := sys.Mmap(fd, 0, size, sys.ProtRead|sys.ProtWrite, sys.MapShared|sys.MapPopulate)
	if err != nil {
		return nil, err
	}
	peer := 1 - side
	n := ring.MessagesSize(cells(window))
	at := func(side int) []byte { off := ringsAt + side*ringBytes(window); return m[off : off+n : off+n] }
	c := &control{
		mem:        m,
		ownParked:  wordAt(m, parkedAt+side*wordsStep),
		peerParked: wordAt(m, parkedAt+peer*wordsStep),
		ownClaim:   wordAt(m, claimAt+side*jobStep),
		ownDone:    wordAt(m, doneAt+side*jobStep),
		peerClaim:  wordAt(m, claimAt+peer*jobStep),
		peerDone:   wordAt(m, doneAt+peer*jobStep),
	}
	if c.tx, err = ring.NewMessagesWriter(at(side)); err == nil {
		c.rx, err = ring.NewMessagesReader(at(peer))
	}
	if err != nil {
		sys.Munmap(m)
		return nil, err
	}
	return c, nil
}

func (c *control) unmap() error { return sys.Munmap(c.mem) }
