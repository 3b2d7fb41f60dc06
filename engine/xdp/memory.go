package xdp

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/internal/xsk"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// MemoryOptions describe a Memory.
type MemoryOptions struct {
	// Region is what the pools of the queues are parts of (mem.PoolOptions.Region and Offset).
	// nil: all packets go through spare chunks, and are copied.
	Region *mem.Region
	// Chunk is the size in bytes of what the kernel receives one packet, or a part of one, into:
	// 2048 or 4096; 0 for 2048. A pool is used in place for receiving if the distance of its slots
	// is that.
	Chunk int
	// Spare is the number of chunks besides, for packets that are elsewhere; 0 for 2048, less than
	// 0 for none.
	Spare int
}

// Memory is the memory through which ports exchange packets with the kernel (a UMEM): a region of
// the user's, and spare chunks of its own behind it. A packet that was received into a Memory is
// sent from there by every port that uses it. Its pages are locked as long as a port has a queue.
type Memory struct {
	region  *mem.Region // nil if all is spare
	lease   mem.Lease
	bytes   []byte // as the kernel sees it: address 0 of a ring is the first byte
	home    uint64 // bytes of the region's, at the front
	unmap   func() error
	spare   *mem.Pool // of chunks at addresses from home on; nil if there are none
	umem    *xsk.Umem
	chunk   uint64
	shift   uint
	table   []entry
	origins []origin
	source  *burst.Source // of what was received, whose owner is a recycler; nil without a region
	note    string        // why there are no spare chunks, although they were asked for

	nqs     atomic.Pointer[[]*nicQueue] // whose rings chunks are in, by their number; changed under mu
	senders atomic.Pointer[[]*sender]   // by their number; changed under sendersMu

	sendersMu sync.Mutex // taken last

	mu     sync.Mutex
	refs   int // its maker and the ports that use it
	closed bool
}

// NewMemory makes a Memory. The region must be memory that the CPU reaches and that begins at a
// page. Close it when the ports that use it are open: they keep it.
func NewMemory(o MemoryOptions) (*Memory, error) {
	m, err := newMemory(o)
	if err != nil {
		return nil, fmt.Errorf("xdp: memory: %w", err)
	}
	return m, nil
}

func newMemory(o MemoryOptions) (_ *Memory, err error) {
	if o.Chunk == 0 {
		o.Chunk = 2048
	}
	if o.Spare == 0 {
		o.Spare = defaultSpare
	}
	if !isChunk(o.Chunk) {
		return nil, fmt.Errorf("chunks of %d bytes: expected 2048 or 4096: %w", o.Chunk, engine.ErrInvalid)
	}
	m := &Memory{region: o.Region, chunk: uint64(o.Chunk), shift: 11, refs: 1, unmap: func() error { return nil }}
	if o.Chunk == 4096 {
		m.shift = 12
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.free())
		}
	}()
	if r := o.Region; r != nil {
		if m.lease, err = r.Lease(); err != nil {
			return nil, err
		}
		b := m.lease.Bytes()
		switch {
		case b == nil:
			return nil, fmt.Errorf("region %q is %v memory, which the kernel cannot copy to: %w", r.Name(), r.Kind(),
				engine.ErrUnsupported)
		case r.ReadOnly():
			return nil, fmt.Errorf("region %q is read-only: %w", r.Name(), engine.ErrUnsupported)
		}
		m.home = uint64(len(b)) &^ (m.chunk - 1)
		m.bytes = b[:m.home:m.home]
	}
	if o.Spare > 0 {
		if err := m.addSpare(o.Spare); err != nil {
			return nil, err
		}
	}
	if len(m.bytes) == 0 {
		return nil, fmt.Errorf("neither a region nor spare chunks: %w", engine.ErrInvalid)
	}
	if m.umem, err = xsk.NewUmem(xsk.UmemConfig{Memory: m.bytes, ChunkSize: o.Chunk}); err != nil {
		return nil, fmt.Errorf("%w: %w", err, engine.ErrUnsupported)
	}
	m.table = make([]entry, len(m.bytes)>>m.shift)
	m.origins = make([]origin, len(m.table))
	if m.region != nil {
		m.source = burst.NewSource(m.region, m.region.All().Bytes(), &recycler{m})
	}
	m.nqs.Store(&[]*nicQueue{nil})
	m.senders.Store(&[]*sender{nil})
	return m, nil
}

// addSpare makes the spare chunks, and one range of addresses of them and the region: the kernel
// takes one.
func (m *Memory) addSpare(n int) error {
	p, err := mem.NewPool(mem.PoolOptions{Name: "spare chunks", SlotSize: int(m.chunk), Align: int(m.chunk), Slots: n})
	if err != nil {
		return err
	}
	s := p.Region()
	if m.region == nil {
		m.spare, m.bytes = p, s.All().Bytes()
		return nil
	}
	none := func(why string) error {
		m.note = "no spare chunks: " + why
		return p.Close()
	}
	if m.region.FD() < 0 || m.region.Len() != m.home {
		return none(fmt.Sprintf("region %q is no file in memory, so nothing can be mapped behind it", m.region.Name()))
	}
	b, unmap, err := sys.MapTogether(max(m.region.PageSize(), sys.PageSize),
		sys.MapPart{FD: m.region.FD(), Size: int(m.home)}, sys.MapPart{FD: s.FD(), Size: int(s.Len())})
	if err != nil { // sealed against writing, for instance
		return none(err.Error())
	}
	m.spare, m.bytes, m.unmap = p, b, unmap
	return nil
}

// hold adds a user. It fails once the Memory is closed and has no user any more.
func (m *Memory) hold() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refs == 0 {
		return fmt.Errorf("xdp: memory: %w", engine.ErrClosed)
	}
	m.refs++
	return nil
}

func (m *Memory) release() error {
	m.mu.Lock()
	m.refs--
	last := m.refs == 0
	m.mu.Unlock()
	if !last {
		return nil
	}
	return m.free()
}

func (m *Memory) free() error {
	err := m.unmap()
	m.bytes = nil
	if m.spare != nil {
		err = errors.Join(err, m.spare.Close())
	}
	m.lease.Release()
	return err
}

// Close gives the Memory up. Ports that use it keep it until they are closed. Closing again does
// nothing.
func (m *Memory) Close() error {
	m.mu.Lock()
	closed := m.closed
	m.closed = true
	m.mu.Unlock()
	if closed {
		return nil
	}
	return m.release()
}

// Chunk is the size of a chunk in bytes.
func (m *Memory) Chunk() int { return int(m.chunk) }

// enter adds a queue of an interface, and gives it its number.
func (m *Memory) enter(n *nicQueue) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := slices.Clone(*m.nqs.Load())
	at := 1
	for at < len(all) && all[at] != nil {
		at++
	}
	if at > maxNICQueues {
		return fmt.Errorf("%d queues of interfaces use one memory: expected at most that many: %w", maxNICQueues,
			engine.ErrUnsupported)
	}
	if at == len(all) {
		all = append(all, nil)
	}
	all[at] = n
	n.tag = entry(at) * oneQueue
	m.nqs.Store(&all)
	return nil
}

// nicQueue is the queue of that number, nil if there is none.
func (m *Memory) nicQueue(of entry) *nicQueue {
	if all := *m.nqs.Load(); uint64(of/oneQueue) < uint64(len(all)) {
		return all[of/oneQueue]
	}
	return nil
}

// leave takes a queue of an interface out, and returns what the kernel had of its chunks to send.
// Those to receive into go to their pools. The table does not change meanwhile; only leave holds
// two of those mutexes.
func (m *Memory) leave(n *nicQueue) (left []unsent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := slices.Clone(*m.nqs.Load())
	for _, o := range all {
		if o != nil {
			o.mu.Lock()
			defer o.mu.Unlock()
		}
	}
	all[n.tag/oneQueue] = nil
	m.nqs.Store(&all)
	n.toPools(n.returns.close())
	var batch poolBatch
	senders := *m.senders.Load()
	for i := range m.table {
		e, l := &m.table[i], &m.origins[i]
		if s := m.sender(senders, *e, n); s != nil {
			last := *e&lastChunk != 0
			left = append(left, unsent{m.unsend(uint64(i)), s.tx, last})
			s.gone(1)
		}
		state := *e & stateMask
		if *e&queueMask != n.tag {
			continue
		}
		// What comes from there is no more this queue's. The application may release the chunk
		// meanwhile, and giveBack look at the entry.
		atomic.StoreUint64((*uint64)(e), uint64(*e&^queueMask))
		if state == filled || state == toRefill {
			*e &^= stateMask // idle
			batch.add(l.pool, l.home)
		}
	}
	batch.end()
	n.out = 0
	return left
}

// fits reports whether the kernel can receive into the slots of p where they are.
func (m *Memory) fits(p *mem.Pool) bool {
	s := p.Span()
	return m.region != nil && s.Region == m.region && uint64(p.Stride()) == m.chunk && s.Off%m.chunk == 0 &&
		s.Off+s.Len <= m.home
}

// usable reports whether a Memory can be made around the slots of p, and the size of its chunks.
func usable(p *mem.Pool) (chunk int, ok bool) {
	n, r := p.Stride(), p.Region()
	b := r.All().Bytes()
	return n, isChunk(n) && b != nil && !r.ReadOnly() && p.Span().Off%uint64(n) == 0 &&
		sys.Address(b)%uintptr(sys.PageSize) == 0
}

// put gives handles back, to the spare pool without a source.
func (m *Memory) put(src *burst.Source, handles []mem.Handle) {
	switch {
	case len(handles) == 0:
	case src != nil:
		src.Reclaim(handles)
	default:
		m.spare.PutBatch(handles)
	}
}
