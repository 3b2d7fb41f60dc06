package feed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/ring"
	"github.com/penstock-io/penstock/packet/burst"
)

// memory is what a stage has of the device: rings, rows, weights, and the kernel. Rows may be out
// when the stage is closed; the last one gives the memory back.
type memory struct {
	o        *Options
	pool     *mem.Pool
	lease    mem.Lease
	module   *gpu.Module
	resident *gpu.Resident
	in, out  []*ring.Descriptors
	inMem    *gpu.Memory
	outMem   *gpu.Memory
	weights  *gpu.Memory
	region   *mem.Region // of rows, nil without
	rowLease mem.Lease
	rows     *burst.Source

	refs atomic.Int64 // rows that are out, and one of the stage

	mu   sync.Mutex // guards what follows, and the memory of rings and weights against its end
	gone bool
	last []ring.DescStats // of the rings, when they were given back
}

func newMemory(o *Options, spec engine.StageSpec) (m *memory, err error) {
	pool, payload, err := o.device(spec)
	if err != nil {
		return nil, err
	}
	m = &memory{o: o, pool: pool}
	m.refs.Store(1)
	if m.lease, err = pool.Region().Lease(); err != nil {
		return nil, err
	}
	if err := m.open(payload); err != nil {
		return nil, errors.Join(err, m.end())
	}
	return m, nil
}

// open makes everything before the kernel is started: nothing may be allocated beside one that
// stays.
func (m *memory) open(payload *gpu.Memory) (err error) {
	ctx, o := payload.Context(), m.o
	items := uint32(o.Items)
	if items == 0 {
		if items = 64; ctx.Info().Processor {
			items = 1
		}
	}
	if m.inMem, m.in, err = makeRings(ctx, "ring", o, payload.Size()); err != nil {
		return err
	}
	if m.outMem, m.out, err = makeRings(ctx, "results", o, payload.Size()); err != nil {
		return err
	}
	if m.weights, err = shared(ctx, "weights", kernels.WeightsHeader+2*uint64(o.Weights)); err != nil {
		return err
	}
	clear(m.weights.Bytes())
	rows := m.weights.All() // no row is ever written there: its length is 0
	if o.Row > 0 {
		r, err := shared(ctx, "rows", uint64(o.Rings*o.Slots*o.Row))
		if err != nil {
			return err
		}
		rows = r.All()
		if m.region, err = mem.AdoptMapping("feed rows", mem.Mapping{Kind: mem.HostPinned, Bytes: r.Bytes(),
			Size: r.Size(), PageSize: sys.PageSize, FD: -1, NUMANode: -1, Present: true, Handle: r,
			Free: r.Close}); err != nil {
			return errors.Join(err, r.Close())
		}
		if m.rowLease, err = m.region.Lease(); err != nil {
			return err
		}
		m.rows = burst.NewSource(m.region, m.region.All().Bytes(), m)
	}
	program, err := o.program()
	if err != nil {
		return err
	}
	if m.module, err = ctx.Load(program); err != nil {
		return err
	}
	k, err := m.module.Kernel(program.Name)
	if err != nil {
		return err
	}
	mode := gpu.ResidentStay
	if o.Batch {
		mode = gpu.ResidentBatch
	}
	m.resident, err = ctx.NewResident(k, gpu.ResidentOptions{Name: "feed " + o.Kernel, Mode: mode,
		Grid: gpu.Grid{Groups: uint32(o.Rings), Group: items}},
		gpu.Buffer(m.inMem.All()), gpu.Buffer(m.outMem.All()), gpu.U32(uint32(o.Slots)), gpu.U32(uint32(o.Rings)),
		gpu.Buffer(payload.All()), gpu.U64(payload.Size()),
		gpu.Buffer(rows), gpu.U64(uint64(o.Row)), gpu.Buffer(m.weights.All()), gpu.U64(uint64(o.Weights)),
		gpu.U64(o.Param))
	if err != nil {
		return err
	}
	return m.resident.Start()
}

// shared is memory that CPU and kernels see at once.
func shared(ctx *gpu.Context, name string, n uint64) (*gpu.Memory, error) {
	kind := gpu.MappedMemory
	if !ctx.Info().Capabilities.Has(gpu.CapMapped) {
		kind = gpu.SharedMemory
	}
	return ctx.Alloc(gpu.MemoryOptions{Name: "feed " + name, Kind: kind, Size: n, Align: 128})
}

func makeRings(ctx *gpu.Context, name string, o *Options, payload uint64) (*gpu.Memory, []*ring.Descriptors, error) {
	size := ring.DescriptorsSize(o.Slots)
	m, err := shared(ctx, name, uint64(size*o.Rings))
	if err != nil {
		return nil, nil, err
	}
	var rs []*ring.Descriptors
	for i := range o.Rings {
		r, err := ring.NewDescriptors(m.Bytes()[i*size:][:size], payload)
		if err != nil {
			return nil, nil, errors.Join(err, m.Close())
		}
		rs = append(rs, r)
	}
	return m, rs, nil
}

// A row's handle is its ring and its ticket, which is below 1<<ticketBits.
const ticketBits = 54

func (m *memory) row(r uint32, ticket uint64) burst.Handle {
	if m.rows != nil {
		m.refs.Add(1)
	}
	return burst.Handle(uint64(r)<<ticketBits | ticket&(1<<ticketBits-1))
}

func (m *memory) rowSegment(h burst.Handle) burst.Segment {
	r, ticket := uint64(h)>>ticketBits, uint64(h)&(1<<ticketBits-1)
	at := r*uint64(m.o.Slots) + ticket&uint64(m.o.Slots-1)
	return burst.Segment{Handle: h, Off: at * uint64(m.o.Row), Len: uint32(m.o.Row), Cap: uint32(m.o.Row)}
}

// release gives a row back, and with it its slot in the ring of results.
func (m *memory) release(h burst.Handle) {
	if m.rows != nil {
		m.Reclaim([]burst.Handle{h})
	}
}

// Reclaim implements burst.Owner. Rows come back in any order; the kernel may have waited for one.
func (m *memory) Reclaim(handles []burst.Handle) {
	for _, h := range handles {
		m.out[uint64(h)>>ticketBits].Release(uint64(h)&(1<<ticketBits-1), 1)
	}
	m.resident.Ring()
	m.unref(int64(len(handles)))
}

func (m *memory) unref(n int64) error {
	if m.refs.Add(-n) > 0 {
		return nil
	}
	return m.free()
}

// setWeights writes the weights as the given version; false after the end. See WeightsHeader.
func (m *memory) setWeights(w []byte, version uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return false
	}
	b := m.weights.Bytes()
	kernels.Word64(b[8:]).Store(version)
	copy(b[kernels.WeightsHeader+int(version&1)*len(w):], w)
	kernels.Word64(b).Store(version)
	return true
}

func (m *memory) stats() []ring.DescStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return m.last
	}
	var out []ring.DescStats
	for _, r := range m.in {
		out = append(out, r.Stats())
	}
	return out
}

// check is an error unless what was published is consumed, dropped or in the rings. The kernel has
// left.
func (m *memory) check() error {
	for _, rs := range [][]*ring.Descriptors{m.in, m.out} {
		for i, r := range rs {
			if err := r.Check(); err != nil {
				return fmt.Errorf("ring %d: %w", i, err)
			}
		}
	}
	return nil
}

// totals are the counts of all rings of packets, and how many results the stage has claimed from
// those of results.
func (m *memory) totals() (in ring.DescStats, results uint64) {
	for i, r := range m.in {
		x, o := r.Stats(), m.out[i].Stats()
		in.Published += x.Published
		in.Dropped += x.Dropped
		results += o.Published - (o.InRing - o.Claimed)
	}
	return in, results
}

// leave stops the kernel, and waits until it has left.
func (m *memory) leave(ctx context.Context) error { return m.resident.Close(ctx) }

// stop is leave for a kernel that is lost.
func (m *memory) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	_ = m.leave(ctx) // Close says it again
}

// end gives the stage's part back. The kernel has left, or was never started.
func (m *memory) end() error { return m.unref(1) }

func (m *memory) free() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gone = true
	var errs []error
	for _, r := range m.in {
		m.last = append(m.last, r.Stats())
	}
	if m.resident != nil {
		errs = append(errs, m.resident.Close(context.Background()))
	}
	if m.module != nil {
		errs = append(errs, m.module.Close())
	}
	if m.region != nil {
		m.rowLease.Release()
		errs = append(errs, m.region.Close())
	}
	for _, x := range []*gpu.Memory{m.weights, m.outMem, m.inMem} {
		if x != nil {
			errs = append(errs, x.Close())
		}
	}
	m.lease.Release()
	return errors.Join(errs...)
}
