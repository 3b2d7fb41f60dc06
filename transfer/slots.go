package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/mem"
)

// Staging, first part: the memory. docs/staging.md tells how all of it works.
//
// Why it cannot hang: a piece takes a slot of the peer's lease first, and one of this node's slots last. A piece with the last
// waits for nothing but copies, a path and the peer's answer about bytes that are in a slot already, for which the peer takes
// nothing more; all of these end. So slots of a node always come back, then those of leases do, and then leases. A holder of
// memory that others wait for never waits for memory that comes earlier in this order, on whatever nodes the two are.

const (
	// maxStagingSlot is the size in bytes of a large slot: long enough that what a copy and a request cost besides does not matter.
	maxStagingSlot = 4 << 20
	// smallerSlots is by how much slots for small transfers are smaller. They are apart, so that these never wait for large ones.
	smallerSlots = 16
	// stagedAtOnce is how many pieces of a transfer are staged at once: while one is on the path others are loaded and stored.
	stagedAtOnce = 4
	// leasedLarge and leasedSmall are the slots that one peer is lent at most.
	leasedLarge = stagedAtOnce
	leasedSmall = 2 * stagedAtOnce

	defaultStaging = 16 * maxStagingSlot
	minStaging     = 512 << 10
)

// staging is a node's pinned host memory for bytes on their way to or from memory of devices, and what it lends to its peers.
type staging struct {
	pools [2]slots // large, small
	quota uint64   // bytes to lend to peers, besides the pools

	mu      sync.Mutex // guards what follows
	lent    uint64
	running int // transfers that are being staged
	closed  bool
	idle    chan struct{} // closed when it is closed and nothing runs
}

// class is the index of the slots for a transfer.
func class(small bool) int {
	if small {
		return 1
	}
	return 0
}

// open divides so many bytes into slots.
func (s *staging) open(bytes uint64) error {
	if bytes == 0 {
		bytes = defaultStaging
	}
	if bytes < minStaging {
		return fmt.Errorf("transfer: Options.Staging is %d bytes: expected at least %d, or 0 for %d", bytes, minStaging, uint64(defaultStaging))
	}
	const page = 4 << 10
	large := min(bytes/8, maxStagingSlot) &^ (smallerSlots*page - 1)
	small := large / smallerSlots
	s.quota, s.idle = bytes, make(chan struct{})
	s.pools[0].size, s.pools[0].most = large, int((bytes-leasedSmall*small)/large)
	s.pools[1].size, s.pools[1].most = small, leasedSmall
	for i := range s.pools {
		s.pools[i].idle = make(chan struct{})
	}
	return nil
}

// small reports whether a transfer of so many bytes takes small slots.
func (s *staging) small(bytes uint64) bool { return bytes <= s.pools[1].size }

// begin enters a transfer that is staged; it fails when the node is closing.
func (s *staging) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running++
	return true
}

func (s *staging) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running--; s.running == 0 && s.closed {
		close(s.idle)
	}
}

// lend takes bytes of what may be lent, and returns false when there are not so many left.
func (s *staging) lend(bytes uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes > s.quota-s.lent {
		return false
	}
	s.lent += bytes
	return true
}

func (s *staging) unlend(bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent -= bytes
}

// close waits for what is under way, which ends soon once the peers are gone, and gives the memory back.
func (s *staging) close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	if s.running == 0 {
		close(s.idle)
	}
	s.mu.Unlock()
	<-s.idle
	var err error
	for i := range s.pools {
		err = errors.Join(err, s.pools[i].close())
	}
	return err
}

// slots are equal pieces of pinned host memory, made when they are first needed and kept.
type slots struct {
	size uint64
	most int // to be made

	mu      sync.Mutex // guards what follows
	free    []*stagingSlot
	made    int // that exist, or are being made
	out     int // of these, not free
	waiting []chan slotTurn
	closed  bool
	idle    chan struct{} // closed when it is closed and none is out
}

// slotTurn answers a waiter for a slot. The channel is buffered.
type slotTurn struct {
	slot *stagingSlot
	err  error
}

// stagingSlot is a region of its own, with a lease for as long as it exists.
type stagingSlot struct {
	region *mem.Region
	lease  mem.Lease
	device string // whose staging memory it is
}

// span is the first n bytes.
func (x *stagingSlot) span(n uint64) mem.Span { return mem.Span{Region: x.region, Len: n} }

func (x *stagingSlot) close() error {
	x.lease.Release()
	return x.region.Close()
}

// take waits for a slot, in turn. It is the caller's until give.
func (s *slots) take(ctx context.Context, m mem.Mover) (*stagingSlot, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	if n := len(s.free); n > 0 && len(s.waiting) == 0 {
		pick := n - 1
		for i, x := range s.free {
			if x.device == m.Device() {
				pick = i
			}
		}
		x := s.free[pick]
		s.free[pick] = s.free[n-1]
		s.free = s.free[:n-1]
		s.out++
		s.mu.Unlock()
		return s.fit(x, m), nil
	}
	if s.made < s.most {
		s.made++
		s.out++
		s.mu.Unlock()
		x, err := newStagingSlot(m, s.size)
		if err == nil {
			return x, nil
		}
		s.mu.Lock()
		s.made--
		s.drop()
		if s.made == 0 || s.closed { // there are none to wait for
			for _, w := range s.waiting {
				w <- slotTurn{err: err}
			}
			s.waiting = nil
			s.mu.Unlock()
			return nil, err
		}
	}
	w := make(chan slotTurn, 1)
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()
	select {
	case turn := <-w:
		return s.turn(turn, m)
	case <-ctx.Done():
	}
	s.mu.Lock()
	for i, x := range s.waiting {
		if x == w {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			s.mu.Unlock()
			return nil, ctx.Err()
		}
	}
	s.mu.Unlock()
	if turn := <-w; turn.slot != nil { // just now
		s.give(turn.slot)
	}
	return nil, ctx.Err()
}

func (s *slots) turn(t slotTurn, m mem.Mover) (*stagingSlot, error) {
	if t.err != nil {
		return nil, t.err
	}
	return s.fit(t.slot, m), nil
}

// fit replaces a slot of another device's by one of m's. If there is none to be had the other one does: it is host memory too.
func (s *slots) fit(x *stagingSlot, m mem.Mover) *stagingSlot {
	if x.device == m.Device() {
		return x
	}
	y, err := newStagingSlot(m, s.size)
	if err != nil {
		return x
	}
	x.close()
	return y
}

// give gives a slot back. Nothing moves to or from it any more.
func (s *slots) give(x *stagingSlot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		s.mu.Unlock()
		x.close()
		s.mu.Lock()
		s.made--
		s.drop()
		return
	}
	if len(s.waiting) > 0 {
		s.waiting[0] <- slotTurn{slot: x}
		s.waiting = s.waiting[1:]
		return
	}
	s.drop()
	s.free = append(s.free, x)
}

// drop counts one that is not out any more. The mutex is held.
func (s *slots) drop() {
	if s.out--; s.out == 0 && s.closed {
		close(s.idle)
	}
}

// close gives the memory back, waiting for slots that are out.
func (s *slots) close() error {
	s.mu.Lock()
	s.closed = true
	free := s.free
	s.free = nil
	s.made -= len(free)
	for _, w := range s.waiting {
		w <- slotTurn{err: ErrClosed}
	}
	s.waiting = nil
	if s.out == 0 {
		close(s.idle)
	}
	s.mu.Unlock()
	var err error
	for _, x := range free {
		err = errors.Join(err, x.close())
	}
	<-s.idle
	return err
}

func newStagingSlot(m mem.Mover, size uint64) (*stagingSlot, error) {
	r, err := stagingRegion(m, size)
	if err != nil {
		return nil, err
	}
	l, err := r.Lease()
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &stagingSlot{region: r, lease: l, device: m.Device()}, nil
}

// stagingRegion makes host memory where a device likes it: pinned, if it can pin any. Pinned memory of a runtime's own, which has no descriptor (OpenCL), would not
// be reached over shared memory: ordinary pages are, and the Mover takes its own way to them.
func stagingRegion(m mem.Mover, size uint64) (*mem.Region, error) {
	o := mem.Options{Name: "staging", Size: int(size), Kind: mem.HostPinned, Provider: m.Staging()}
	r, err := mem.Alloc(o)
	if errors.Is(err, mem.ErrUnavailable) {
		o.Kind = mem.Host
		r, err = mem.Alloc(o)
	}
	if err == nil && r.FD() < 0 {
		if err = r.Close(); err == nil {
			r, err = mem.Alloc(mem.Options{Name: o.Name, Size: o.Size})
		}
	}
	if err != nil {
		return nil, fmt.Errorf("transfer: staging memory for %s: %w", m.Device(), err)
	}
	if r.All().Bytes() == nil {
		r.Close()
		return nil, fmt.Errorf("transfer: staging memory for %s: the CPU cannot reach it: %w", m.Device(), mem.ErrUnavailable)
	}
	return r, nil
}

// moveAll copies between a slot, from its start, and spans of device memory, in order: into them if store is set. It returns when
// nothing moves any more. The caller holds leases on all regions.
func moveAll(store bool, slot mem.Span, spans []mem.Span) error {
	var moves []mem.Move
	var failed error
	note := func(m mem.Mover, err error) {
		if err != nil && failed == nil {
			verb := "load from"
			if store {
				verb = "store to"
			}
			failed = fmt.Errorf("%s %s: %w", verb, m.Device(), err)
		}
	}
	var movers []mem.Mover
	for i, at := 0, uint64(0); i < len(spans) && failed == nil; {
		s := spans[i]
		for i++; i < len(spans) && spans[i].Region == s.Region && spans[i].Off == s.Off+s.Len; i++ {
			s.Len += spans[i].Len
		}
		here, err := slot.Sub(at, s.Len)
		if err != nil {
			failed = err
			break
		}
		at += s.Len
		if s.Len == 0 {
			continue
		}
		m := s.Region.Mover()
		var mv mem.Move
		if store {
			mv, err = m.Store(s.Off, here)
		} else {
			mv, err = m.Load(here, s.Off)
		}
		if err != nil {
			note(m, err)
			break
		}
		moves, movers = append(moves, mv), append(movers, m)
	}
	for i, mv := range moves {
		note(movers[i], mv.Wait(context.Background()))
	}
	return failed
}
