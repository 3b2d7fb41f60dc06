package mem

import (
	"errors"
	"strings"
	"testing"
)

// deviceProvider provides memory that the CPU does not see, in multiples of 64 KiB.
type deviceProvider struct{ allocated, freed uint64 }

func (p *deviceProvider) Granularity(Kind) int { return 64 << 10 }

func (p *deviceProvider) Allocate(o Options) (Mapping, error) {
	if o.Kind != Device {
		return Mapping{}, ErrUnavailable
	}
	size := roundUp(uint64(o.Size), 64<<10)
	p.allocated += size
	return Mapping{Kind: Device, Size: size, PageSize: 64 << 10, FD: -1, NUMANode: -1, Present: true, Mover: still{},
		Handle: p,
		Free:   func() error { p.freed += size; return nil }}, nil
}

// still moves nothing.
type still struct{}

func (still) Load(Span, uint64) (Move, error)  { return nil, ErrUnavailable }
func (still) Store(uint64, Span) (Move, error) { return nil, ErrUnavailable }
func (still) Staging() Provider                { return Pages }
func (still) Device() string                   { return "still" }

// An allocator counts regions as they are, not as they were asked for.
func TestAllocatorOfCoarseRegions(t *testing.T) {
	p := &deviceProvider{}
	o := AllocatorOptions{Name: "coarse", Budget: 256 << 10, Classes: []uint64{4096, 64 << 10},
		Memory: Options{Kind: Device, Provider: p}}
	o.Dedicated = true
	if _, err := NewAllocator(o); err == nil || !strings.Contains(err.Error(), "multiples of 65536 bytes") {
		t.Errorf("dedicated blocks of 4096 bytes: %v", err)
	}
	o.Classes = []uint64{64 << 10}
	a := must[*Allocator](t)(NewAllocator(o))
	var out []Block
	for {
		b, err := a.Alloc(100)
		if err != nil {
			if !errors.Is(err, ErrBudget) {
				t.Fatal(err)
			}
			break
		}
		if b.Bytes() != nil || b.Whole().Len != 64<<10 || b.Whole().Region.Divided() {
			t.Errorf("a block of its own: %+v", b.Whole())
		}
		out = append(out, b)
	}
	if len(out) != 4 || p.allocated != 256<<10 {
		t.Errorf("%d blocks, %d bytes", len(out), p.allocated)
	}
	for _, b := range out {
		if err := a.Free(b); err != nil {
			t.Error(err)
		}
	}
	if err := a.Close(); err != nil || p.freed != p.allocated {
		t.Errorf("%v, %d of %d bytes given back", err, p.freed, p.allocated)
	}
	o.Dedicated, o.Classes = false, []uint64{4096}
	a = must[*Allocator](t)(NewAllocator(o))
	b := must[Block](t)(a.Alloc(1))
	if s := a.Stats(); s.Reserved%(64<<10) != 0 || !b.Whole().Region.Divided() {
		t.Errorf("%d bytes reserved, divided %v", s.Reserved, b.Whole().Region.Divided())
	}
	if err := errors.Join(a.Free(b), a.Close()); err != nil || p.freed != p.allocated {
		t.Errorf("%v, %d of %d bytes given back", err, p.freed, p.allocated)
	}
}

// Pools of memory that the CPU does not see touch none of it, also in builds that scribble.
func TestPoolWithoutBytes(t *testing.T) {
	p := &deviceProvider{}
	pool := must[*Pool](t)(NewPool(PoolOptions{Name: "device", SlotSize: 1000, Slots: 8,
		Memory: Options{Kind: Device, Provider: p}}))
	r := pool.Region()
	if !r.Divided() || r.Handle() != any(p) || r.Mover() == nil {
		t.Errorf("divided %v, handle %v, mover %v", r.Divided(), r.Handle(), r.Mover())
	}
	other := must[*Pool](t)(NewPool(PoolOptions{SlotSize: 64, Slots: 1, Region: r, Offset: 32 << 10}))
	for range 3 {
		var out []Slot
		for range 8 {
			s := must[Slot](t)(pool.Get())
			if s.Bytes() != nil || s.Span().Len != 1000 {
				t.Errorf("a slot: %d bytes, %+v", len(s.Bytes()), s.Span())
			}
			out = append(out, s)
		}
		if ls := LeakReport().String(); !strings.Contains(ls, `slot of "device"`) {
			t.Errorf("slots that are out are not reported: %s", ls)
		}
		for _, s := range out {
			if err := s.Release(); err != nil {
				t.Error(err)
			}
		}
		if err := out[0].Release(); !errors.Is(err, ErrReleased) {
			t.Errorf("a second release: %v", err)
		}
	}
	if err := other.Close(); err != nil || !r.Divided() {
		t.Errorf("%v; divided by the other pool: %v", err, r.Divided())
	}
	c := must[*RegCache](t)(NewRegCache(RegCacheOptions{Registrar: Populate}))
	g, err := c.Get(Span{Region: r, Off: 5, Len: 10}, WriteAccess)
	if err != nil {
		t.Error(err)
	}
	g.Release()
	if err := errors.Join(c.Close(), pool.Close()); err != nil || r.Divided() || p.freed != p.allocated {
		t.Errorf("%v; divided after the end: %v; %d of %d bytes given back", err, r.Divided(), p.freed, p.allocated)
	}
}

func TestAdoptMapping(t *testing.T) {
	page := make([]byte, 100)
	for _, c := range []struct {
		m    Mapping
		says string
	}{
		{Mapping{}, "no bytes"},
		{Mapping{Bytes: page, Size: 99}, "99"},
		{Mapping{Size: 100, Kind: Device}, "nothing moves"},
	} {
		if _, err := AdoptMapping("mine", c.m); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c.m, err)
		}
	}
	freed := 0
	r := must[*Region](t)(AdoptMapping("mine", Mapping{Kind: Device, Size: 1 << 16, PageSize: 4096, FD: -1,
		NUMANode: -1, Mover: still{}, Handle: 7,
		DMABuf: func(off int64, n uint64) (int, error) {
			return int(off) + int(n), nil
		}, Free: func() error { freed++; return nil }}))
	if r.Handle() != any(7) || r.Mover().Device() != "still" || r.Kind() != Device || r.Len() != 1<<16 {
		t.Errorf("%v %v %s %d", r.Handle(), r.Mover(), r.Kind(), r.Len())
	}
	if fd, err := r.DMABuf(4096, 8192); fd != 12288 || err != nil {
		t.Errorf("dma-buf: %d, %v", fd, err)
	}
	if _, err := r.DMABuf(1<<16, 1); !errors.Is(err, ErrBounds) {
		t.Errorf("dma-buf behind the end: %v", err)
	}
	if err := r.Close(); err != nil || freed != 1 {
		t.Errorf("%v, freed %d times", err, freed)
	}
	host := allocate(t, Options{Size: 1})
	if _, err := host.DMABuf(0, 1); !errors.Is(err, ErrUnavailable) || host.Mover() != nil || host.Handle() != nil {
		t.Errorf("memory of the host: %v, %v, %v", err, host.Mover(), host.Handle())
	}
}
