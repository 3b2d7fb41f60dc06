package bounce

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
)

const (
	// maxSlot is the size in bytes of a large slot: long enough that what a copy and a request cost
	// besides does not matter.
	maxSlot = 4 << 20
	// smallerSlots is by how much slots for small transfers are smaller. They are apart, so that
	// these never wait for large ones.
	smallerSlots = 16
	// AtOnce is how many pieces of a transfer are staged at once: while one is on the path others
	// are loaded and stored.
	AtOnce = 4
	// leasedLarge and leasedSmall are the slots that one peer is lent at most.
	leasedLarge = AtOnce
	leasedSmall = 2 * AtOnce

	// Default is the memory of a node whose options name no size, and Least is what it needs, in
	// bytes.
	Default = 16 * maxSlot
	Least   = 512 << 10
)

// Memory is a node's pinned host memory for bytes on their way to or from memory of devices, and
// what it lends to its peers.
type Memory struct {
	pools [2]slots // large, small
	quota uint64   // bytes to lend to peers, besides the pools
	ended error    // what calls fail with when it is closed

	running sync.WaitGroup // calls that use the memory

	mu     sync.Mutex // guards what follows
	lent   uint64
	users  int  // of slots that peers lend: pieces that have or wait for one
	copies int  // requests of peers that are moving bytes
	closed bool // no call begins any more
}

// class is the index of the slots for a transfer.
func class(small bool) int {
	if small {
		return 1
	}
	return 0
}

// New divides so many bytes into slots; 0 stands for Default. Calls fail with ended once the memory
// is closed.
func New(bytes uint64, ended error) (*Memory, error) {
	if bytes == 0 {
		bytes = Default
	}
	if bytes < Least {
		return nil, fmt.Errorf("transfer: Options.Staging is %d bytes: expected at least %d, or 0 for %d", bytes, Least,
			uint64(Default))
	}
	const page = 4 << 10
	large := min(bytes/8, maxSlot) &^ (smallerSlots*page - 1)
	small := large / smallerSlots
	s := &Memory{quota: bytes, ended: ended}
	s.pools[0].size, s.pools[0].most = large, int((bytes-leasedSmall*small)/large)
	s.pools[1].size, s.pools[1].most = small, leasedSmall
	return s, nil
}

// SmallSlot is the size of a small slot in bytes. A transfer of no more takes small slots.
func (s *Memory) SmallSlot() uint64 { return s.pools[1].size }

// Load shows f the bytes of a span that fits into a small slot and that the CPU cannot reach. They
// are a copy.
func (s *Memory) Load(ctx context.Context, span mem.Span, f func([]byte)) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.running.Done()
	x, err := s.pools[1].take(ctx, span.Region.Mover())
	if err != nil {
		return err
	}
	defer s.pools[1].give(x)
	if err := moveAll(false, x.span(span.Len), []mem.Span{span}); err != nil {
		return err
	}
	f(x.span(span.Len).Bytes())
	return nil
}

// Mover is how bytes get to and from memory that the CPU cannot reach; nil where it can.
func Mover(s mem.Span) mem.Mover {
	if s.Bytes() != nil {
		return nil
	}
	return s.Region.Mover()
}

// begin enters a call, which ends by running.Done; it fails when the memory is closed.
func (s *Memory) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.ended
	}
	s.running.Add(1)
	return nil
}

// lend takes bytes of what may be lent, and returns false when there are not so many left.
func (s *Memory) lend(bytes uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes > s.quota-s.lent {
		return false
	}
	s.lent += bytes
	return true
}

func (s *Memory) unlend(bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent -= bytes
}

// count adds to a counter of what is under way.
func (s *Memory) count(what *int, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*what += n
}

// Verify says what of the memory is in use: nothing is while no transfer is staged.
func (s *Memory) Verify() error {
	s.mu.Lock()
	users, copies := s.users, s.copies
	s.mu.Unlock()
	if users != 0 || copies != 0 {
		return fmt.Errorf("stage: %d slots of peers are in use, and %d copies for peers are under way", users, copies)
	}
	for i := range s.pools {
		if err := s.pools[i].verify(); err != nil {
			return err
		}
	}
	return nil
}

// Close waits for what is under way, which ends soon once the peers are gone, and gives the memory
// back.
func (s *Memory) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.running.Wait()
	if invariants.Enabled {
		if err := s.Verify(); err != nil {
			invariants.Broken("transfer: the node is closed: %v", err)
		}
	}
	var err error
	for i := range s.pools {
		for _, x := range s.pools[i].free { // calls have given all back, and none begins after closed
			err = errors.Join(err, x.close())
		}
	}
	return err
}

// slots are equal pieces of pinned host memory, made when they are first needed and kept. Calls
// that have one, or wait for one, have begun on the memory.
type slots struct {
	size uint64
	most int // to be made

	mu      sync.Mutex // guards what follows
	free    []*slot
	made    int // that exist, or are being made
	waiting []chan slotTurn
}

// slotTurn answers a waiter for a slot. The channel is buffered.
type slotTurn struct {
	slot *slot
	err  error
}

// slot is a region of its own, with a lease for as long as it exists.
type slot struct {
	region *mem.Region
	lease  mem.Lease
	device string // whose staging memory it is
}

// span is the first n bytes.
func (x *slot) span(n uint64) mem.Span { return mem.Span{Region: x.region, Len: n} }

func (x *slot) close() error {
	x.lease.Release()
	return x.region.Close()
}

// take waits for a slot, in turn. It is the caller's until give.
func (s *slots) take(ctx context.Context, m mem.Mover) (*slot, error) {
	s.mu.Lock()
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
		s.mu.Unlock()
		return s.fit(x, m), nil
	}
	if s.made < s.most {
		s.made++
		s.mu.Unlock()
		x, err := newSlot(m, s.size)
		if err == nil {
			return x, nil
		}
		s.mu.Lock()
		if s.made--; s.made == 0 { // there are none to wait for
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
		if turn.err != nil {
			return nil, turn.err
		}
		return s.fit(turn.slot, m), nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	k := slices.Index(s.waiting, w)
	if k >= 0 {
		s.waiting = slices.Delete(s.waiting, k, k+1)
	}
	s.mu.Unlock()
	if k < 0 {
		if turn := <-w; turn.slot != nil { // just now
			s.give(turn.slot)
		}
	}
	return nil, ctx.Err()
}

// fit replaces a slot of another device's by one of m's. If there is none to be had the other one
// does: it is host memory too.
func (s *slots) fit(x *slot, m mem.Mover) *slot {
	if x.device == m.Device() {
		return x
	}
	y, err := newSlot(m, s.size)
	if err != nil {
		return x
	}
	x.close()
	return y
}

// give gives a slot back. Nothing moves to or from it any more.
func (s *slots) give(x *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) > 0 {
		s.waiting[0] <- slotTurn{slot: x}
		s.waiting = s.waiting[1:]
		return
	}
	s.free = append(s.free, x)
}

func (s *slots) verify() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) != 0 || len(s.free) != s.made {
		return fmt.Errorf("stage: %d of %d slots of %d bytes are free, %d calls wait for one", len(s.free), s.made,
			s.size, len(s.waiting))
	}
	return nil
}

func newSlot(m mem.Mover, size uint64) (*slot, error) {
	r, err := newRegion(m, size)
	if err != nil {
		return nil, err
	}
	l, err := r.Lease()
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &slot{region: r, lease: l, device: m.Device()}, nil
}

// newRegion makes host memory where a device likes it: pinned, if it can pin any. Pinned memory of
// a runtime's own, which has no descriptor (OpenCL), would not be reached over shared memory:
// ordinary pages are, and the Mover takes its own way to them.
func newRegion(m mem.Mover, size uint64) (*mem.Region, error) {
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
		return nil, fmt.Errorf("transfer: staging memory for %s: the CPU cannot reach it: %w", m.Device(),
			mem.ErrUnavailable)
	}
	return r, nil
}

// moveAll copies between a slot, from its start, and spans of device memory, in order: into them if
// store is set. It returns when nothing moves any more. The caller holds leases on all regions.
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
